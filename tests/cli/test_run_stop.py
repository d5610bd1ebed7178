#!/usr/bin/env python3
"""F04: a node ignores STOP and SIGTERM. F05: Ctrl-C, once and twice. F06: two runs at once."""
import os
import re
import signal
import time

from run_kit import Terminal, main, until

POLITE = 'trap "echo ending; exit 0" TERM; echo up; while :; do sleep 0.05; done'
DEAF = 'trap "" TERM INT HUP; echo up; (trap "" TERM; while :; do sleep 0.05; done) & ' \
       'while :; do sleep 0.05; done'


def row(err, node):
    """How the summary says that a node ended."""
    return re.search(rf"^  {node} +(.+?)  +[\d.]+ (?:s|min)", err, re.M).group(1)


def f04_ignores_stop_and_sigterm(bench):
    bench.flow({"deaf": DEAF, "polite": POLITE, "bad": "sleep 0.5; exit 3"})
    begin = time.monotonic()
    code, out, err = bench.run("--grace", "0.5", "flow.yml")
    took = time.monotonic() - begin
    assert code == 1, (code, err)
    assert row(err, "deaf").startswith("killed after grace"), err
    assert row(err, "polite") == "exit 0" and row(err, "bad") == "exit 3", err
    assert 0.5 + 0.5 + 2 <= took < 9, f"{took} s: 0.5 s until it fails, 0.5 s grace, 2 s"


def f04_its_whole_group_is_killed(bench):
    """The node itself ends politely; a child in its group does not."""
    bench.flow({"parent": '(trap "" TERM; while :; do sleep 0.05; done) & echo up; sleep 0.3'})
    code, out, err = bench.run("flow.yml")
    assert code == 0, (code, err)
    assert row(err, "parent") == "exit 0, left processes behind", err


def f04_stop_from_another_terminal(bench):
    bench.flow({"deaf": DEAF})
    run = bench.start("--grace", "0.3", "flow.yml")
    until(lambda: bench.flows() and b"up" in bench.logs("deaf"), 10, "the node is deaf")
    bench.tool("stop")
    bench.check_clean()
    code, out, err = bench.finish(run)
    assert code == 1 and row(err, "deaf") == "killed after grace", (code, err)


def f04_stop_while_nobody_reads(bench):
    """What the reader of the pipe has not taken is in the logs; the run does not wait long for it."""
    bench.flow({"loud": "i=0; while [ $i -lt 3000 ]; do echo $i" + " word" * 20 + "; i=$((i+1)); done; "
                        "echo up; " + POLITE})
    run = bench.start("flow.yml")
    until(lambda: bench.flows() and b"\nup" in bench.logs("loud"), 20, "the node is up")
    begin = time.monotonic()
    bench.tool("stop")
    run.wait(30)
    took = time.monotonic() - begin
    code, out, err = bench.finish(run)
    assert code == 0 and took < 8 and row(err, "loud") == "exit 0", (took, code, err)


def f05_ctrl_c_once(bench):
    bench.flow({"one": POLITE, "two": POLITE})
    terminal = Terminal(bench, "flow.yml")
    terminal.expect(b"one")
    until(lambda: terminal.read().count(b"up\r\n") == 2, 5, "both nodes are up")
    terminal.press(b"\x03")
    code = terminal.wait(8)
    assert code == 130, (code, terminal.output)
    assert terminal.output.count(b"ending") == 2, terminal.output
    assert b"interrupted after" in terminal.output, terminal.output


def f05_ctrl_c_twice(bench):
    bench.flow({"deaf": DEAF, "also": DEAF})
    terminal = Terminal(bench, "flow.yml")
    until(lambda: terminal.read().count(b"up\r\n") == 2, 5, "both nodes are up")
    begin = time.monotonic()
    terminal.press(b"\x03")
    terminal.expect(b"stopping all nodes")
    terminal.press(b"\x03")
    code = terminal.wait(8)
    assert time.monotonic() - begin < 8, "killed without the grace of 10 s"
    assert code == 130, (code, terminal.output)
    assert b"killed on request" in terminal.output, terminal.output


def f05_two_ctrl_c_in_a_row(bench):
    """Both signals may come before the first is looked at, and then count as one: either way, an end."""
    for _ in range(2):
        bench.flow({"deaf": DEAF})
        terminal = Terminal(bench, "--grace", "0.5", "flow.yml")
        terminal.expect(b"up")
        terminal.press(b"\x03\x03")
        assert terminal.wait(8) == 130, terminal.output
        bench.check_clean()


def f05_ctrl_c_while_building(bench):
    bench.flow({"a": ("echo must not run", "build: sleep 60")})
    terminal = Terminal(bench, "flow.yml")
    until(lambda: "sleep 60" in bench.describe(), 5, "the build step runs")
    terminal.press(b"\x03")
    assert terminal.wait(8) == 130, terminal.output
    assert b"must not run" not in terminal.output, terminal.output


def sigterm_stops_like_ctrl_c(bench):
    bench.flow({"one": POLITE})
    for number in (signal.SIGTERM, signal.SIGHUP):
        run = bench.start("flow.yml")
        until(lambda: bench.flows(), 5, "the flow is listed")
        time.sleep(0.1)
        run.send_signal(number)
        code, out, err = bench.finish(run)
        assert code == 130 and "interrupted" in err, (code, err)
        bench.check_clean()


def f06_two_runs_of_one_file(bench):
    bench.flow({"one": 'echo $TENSORBUS_FLOW; echo $TENSORBUS_FLOW > id.$TENSORBUS_FLOW; '
                       'while [ $(ls id.* | wc -l) -lt 2 ]; do sleep 0.02; done; sleep 0.5'})
    runs = [bench.start("flow.yml"), bench.start("flow.yml")]
    flows = until(lambda: len(bench.flows()) == 2 and bench.flows(), 5, "both are listed")
    assert len({f["id"] for f in flows}) == 2 and {f["name"] for f in flows} == {"flow"}, flows
    bench.tool("stop", "flow", code=1)
    assert all(f["id"] in bench.tool_err for f in flows), bench.tool_err
    ids = []
    for run in runs:
        code, out, err = bench.finish(run)
        assert code == 0, (code, err)
        ids.append(re.search(rb"^one \| ([0-9a-f]{8})$", out, re.M).group(1).decode())
    assert sorted(ids) == sorted(f["id"] for f in flows), (ids, flows)
    assert sorted(d.name for d in (bench.path / "out").iterdir()) == sorted(f"{i}-flow" for i in ids)


def f06_stopping_one_leaves_the_other(bench):
    bench.flow({"one": POLITE})
    first = bench.start("--name", "first", "flow.yml")
    second = bench.start("--name", "second", "flow.yml")
    until(lambda: len(bench.flows()) == 2, 5, "both are listed")
    bench.tool("stop", "first")
    assert [f["name"] for f in bench.flows()] == ["second"]
    assert second.poll() is None
    assert bench.finish(first)[0] == 0
    bench.tool("stop", "second")
    assert bench.finish(second)[0] == 0


if __name__ == "__main__":
    main([f04_ignores_stop_and_sigterm, f04_its_whole_group_is_killed,
          f04_stop_from_another_terminal, f04_stop_while_nobody_reads, f05_ctrl_c_once, f05_ctrl_c_twice, f05_two_ctrl_c_in_a_row,
          f05_ctrl_c_while_building, sigterm_stops_like_ctrl_c, f06_two_runs_of_one_file,
          f06_stopping_one_leaves_the_other])

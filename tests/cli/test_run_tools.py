#!/usr/bin/env python3
"""list, stop, logs, node list and clean on running flows, from another terminal; and what they make
of a hostile or half-written state."""
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import time

from run_kit import TENSORBUS, main, until

POLITE = 'trap "echo ending; exit 0" TERM; echo up; while :; do sleep 0.05; done'
BUSY = 'trap "exit 0" TERM; echo up; while :; do :; done'


def started(bench, *arguments):
    run = bench.start(*arguments)
    until(lambda: bench.flows(), 5, "the flow is listed")
    (directory,) = (bench.path / "out").iterdir()
    until(lambda: all(f.stat().st_size for f in directory.iterdir()), 5, "all nodes have printed")
    return run


def stopped(bench, run):
    bench.tool("stop")
    code, out, err = bench.finish(run)
    assert code == 0 and "stopped on request" in err, (code, err)


def nothing_runs(bench):
    assert bench.tool("list") == "" and "no flow is running" in bench.tool_err
    assert json.loads(bench.tool("list", "--json")) == {"flows": [], "unreadable": 0}
    assert not bench.runtime.exists(), "looking creates nothing"
    for words in (["stop"], ["stop", "x"], ["logs"], ["logs", "x"], ["node", "list"]):
        assert bench.tool(*words, code=1) == "" and "no flow" in bench.tool_err, bench.tool_err
    assert '"directories":0' in bench.tool("clean", "--json")
    for words in (["list", "x"], ["stop", "--no"], ["stop", "a", "b"], ["logs", "-n", "x"],
                  ["logs", "a", "b", "c"], ["node"], ["node", "x"], ["clean", "x"],
                  ["stop", "--timeout", "x"], ["stop", "--timeout"]):
        bench.tool(*words, code=2)
    for verb in ("run", "list", "stop", "logs", "node", "clean"):
        assert "example" in bench.tool(verb, "--help"), verb


def list_and_stop(bench):
    file = bench.flow({"one": POLITE, "two": POLITE})
    run = started(bench, "--name", "pair", "flow.yml")
    (flow,) = bench.flows()
    assert re.fullmatch(r"[0-9a-f]{8}", flow["id"]) and flow["name"] == "pair", flow
    assert flow["file"] == str(file) and flow["nodes"] == 2 and flow["pid"] == run.pid, flow
    assert flow["state"] == "running" and 0 < flow["uptime_s"] < 60, flow
    assert flow["logs"] == str(bench.path / "out" / f"{flow['id']}-pair"), flow
    assert oct(os.stat(bench.runtime / flow["id"]).st_mode & 0o777) == "0o700"
    text = bench.tool("list")
    assert re.search(rf"^{flow['id']}  pair  running  +2  .*{file}$", text, re.M), text
    bench.tool("stop", "other", code=1)
    assert flow["id"] in bench.tool_err, "says what runs"
    for verb in (["stop"], ["node", "list"], ["logs"], ["pool", "list"]):  # a script's variable that is not set
        bench.tool(*verb, "", code=1)
        assert "``" in bench.tool_err, (verb, bench.tool_err)
    assert len(bench.flows()) == 1
    bench.tool("stop", flow["id"])
    assert not list(bench.runtime.iterdir()), "gone when `stop` returns"
    assert set(bench.processes()) <= {run.pid}, "but for the runner, which prints its summary"
    assert bench.finish(run)[0] == 0


def stop_gives_up_waiting(bench):
    bench.flow({"deaf": 'trap "" TERM; echo up; while :; do sleep 0.05; done'})
    run = started(bench, "--grace", "10", "flow.yml")
    bench.tool("stop", "--timeout", "0.3", code=1)
    assert "still runs" in bench.tool_err, bench.tool_err
    assert bench.flows()[0]["state"] == "stopping", bench.flows()
    begin = time.monotonic()
    bench.tool("stop", "--kill")
    assert time.monotonic() - begin < 8, "without the grace"
    code, out, err = bench.finish(run)
    assert code == 1 and "killed on request" in err, (code, err)


def node_list(bench):
    bench.flow({"busy": BUSY, "idle": POLITE, "over": "echo short",
                "again": ('echo up; if [ ! -e was ]; then touch was; exit 1; fi\n' + POLITE,
                          "restart_policy: on-failure")})
    run = started(bench, "flow.yml")

    def restarted():
        nodes = {n["id"]: n for n in json.loads(bench.tool("node", "list", "--json"))["nodes"]}
        measured = nodes["busy"]["cpu_percent"] > 2  # of a machine that may have much other work
        again = nodes["again"]
        return measured and again["restarts"] == 1 and again["state"] == "running" and nodes
    nodes = until(restarted, 30, "the node was restarted, and the busy one gets its time")
    assert list(nodes) == ["busy", "idle", "over", "again"]
    assert nodes["busy"]["state"] == "running", nodes["busy"]
    assert nodes["idle"]["cpu_percent"] < 50 and nodes["idle"]["rss_bytes"] > 100_000, nodes["idle"]
    assert nodes["idle"]["processes"] >= 1 and 0 < nodes["idle"]["uptime_s"] < 60, nodes["idle"]
    assert os.path.exists(f"/proc/{nodes['idle']['pid']}"), nodes["idle"]
    assert nodes["again"]["last_end"] == "exit 1", "why it was restarted, while it runs again"
    over = nodes["over"]
    assert over["state"] == "ended" and over["pid"] == 0 and over["last_end"] == "exit 0", over
    text = bench.tool("node", "list", "flow")
    assert re.search(r"^over +ended .* exit 0$", text, re.M), text
    bench.tool("node", "list", "nope", code=1)
    stopped(bench, run)


def logs(bench):
    bench.flow({"one": "i=0; while [ $i -lt 30 ]; do echo one $i; i=$((i+1)); done\n" + POLITE,
                "two": "echo two 0\n" + POLITE})
    run = started(bench, "flow.yml")
    until(lambda: bench.tool("logs").count("up\n") == 2, 5, "all is in the files")
    text = bench.tool("logs")
    assert text.splitlines() == [f"one | one {i}" for i in range(30)] + [
        "one | up", "two | two 0", "two | up"], text
    assert bench.tool("logs", "flow", "two") == "two 0\nup\n"
    assert bench.tool("logs", "one", "-n", "2") == "one 29\nup\n"
    assert bench.tool("logs", "-n", "1") == "one | up\ntwo | up\n"
    assert bench.tool("logs", "-n", "0") == ""
    bench.tool("logs", "flow", "three", code=1)
    assert "one" in bench.tool_err and "two" in bench.tool_err, bench.tool_err
    follow = subprocess.Popen([TENSORBUS, "logs", "-f", "one", "-n", "1"], cwd=bench.path,
                              env=bench.env, stdout=subprocess.PIPE)
    assert follow.stdout.readline() == b"up\n"
    stopped(bench, run)
    out, _ = follow.communicate(timeout=5)
    said = b"Terminated\n"  # by the shell, of the `sleep` that it was waiting for
    assert follow.returncode == 0 and out.replace(said, b"") == b"ending\n", out
    # Ended runs are found by their logs.
    ended = bench.tool("logs", "flow", "two").replace(said.decode(), "")
    assert ended == "two 0\nup\nending\n", ended
    assert bench.tool("logs", "-n", "1") == "one | ending\ntwo | ending\n"
    bench.tool("logs", "other", code=1)
    assert "`other`" in bench.tool_err and "tensorbus logs" not in bench.tool_err.split("\n", 1)[1], \
        bench.tool_err
    # A node's name alone is not enough then: the command that shows it is said.
    bench.tool("logs", "two", code=1)
    words = re.search("`two` is a node of .*: tensorbus (logs [0-9a-f]{8} two)$", bench.tool_err, re.M)
    assert words, bench.tool_err
    assert bench.tool(*words.group(1).split()).replace(said.decode(), "") == ended


def loud_flow(bench, pause=""):
    """A flow whose node writes 28 MB once `go` is there, and somebody who follows it."""
    bench.write("writer.py", "import os, time\nfor i in range(2800):\n"
                "    os.write(1, b''.join(b'%07d %s\\n' % (i * 100 + k, b'x' * 91) "
                f"for k in range(100)))\n{pause}")
    bench.flow({"loud": "while [ ! -e go ]; do sleep 0.05; done; exec python3 ./writer.py"})
    with open(os.devnull, "wb") as null:
        run = bench.start("flow.yml", stdout=null)
    until(lambda: bench.flows(), 5, "the flow is listed")
    follow = subprocess.Popen([TENSORBUS, "logs", "-f", "flow", "loud"], cwd=bench.path,
                              env=bench.env, stdout=subprocess.PIPE)
    time.sleep(0.3)
    return run, follow


def all_is_followed(follow):
    """Nothing is missed, nothing comes twice."""
    out, _ = follow.communicate(timeout=60)
    assert follow.returncode == 0
    numbers = [int(l[:7]) for l in out.splitlines()]
    assert numbers == list(range(280_000)), (len(numbers), numbers[:3], numbers[-3:])


def following_across_rotations(bench):
    run, follow = loud_flow(bench, "    time.sleep(0.0005)\n")
    (bench.path / "go").touch()
    all_is_followed(follow)
    assert bench.finish(run)[0] == 0


def following_after_a_pause(bench):
    """The reader was stopped while the files changed twice."""
    run, follow = loud_flow(bench)
    follow.send_signal(signal.SIGSTOP)
    (bench.path / "go").touch()
    assert bench.finish(run)[0] == 0
    follow.send_signal(signal.SIGCONT)
    all_is_followed(follow)


def last_lines_across_rotations(bench):
    bench.write("writer.py", "import os\nfor i in range(1200):\n"
                "    os.write(1, b''.join(b'%07d %s\\n' % (i * 100 + k, b'x' * 91) "
                "for k in range(100)))\n")
    bench.flow({"loud": "exec python3 ./writer.py"})
    with open(os.devnull, "wb") as null:
        code, out, err = bench.run("flow.yml", stdout=null)
    assert code == 0, err
    for count in (1, 50, 104_857, 104_858, 110_000, 120_000):
        numbers = [int(l[:7]) for l in bench.tool("logs", "-n", count).splitlines()]
        assert numbers == list(range(120_000 - count, 120_000)), (count, len(numbers), numbers[:1])


GOOD = ["tensorbus-flow 1", "flow {id}", "name n", "phase running", "file /f", "logs /l", "pid 1",
        "started 1", "node a 1 0 1 running ", "end", ""]


def hostile_state(bench):
    """A state file may hold anything: the tools say so and go on."""
    bench.flow({"one": POLITE})
    run = started(bench, "--name", "true", "flow.yml")
    flow = "fa15ef10"
    directory = bench.runtime / flow
    directory.mkdir(0o700)
    lock = os.open(directory / "runner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    good = "\n".join(GOOD).format(id=flow)
    bad = ["", "\n" * 1000, "\0" * 5000, good.replace("1\n", "2\n", 1), good[:-5], good[:40],
           good.replace(flow, "00000000"), good.replace("name n", "name ../../x"),
           good.replace("name n", "name " + "n" * 65), good.replace("pid 1", "pid -1"),
           good.replace("pid 1", "pid 99999999999999999999"), good.replace("pid 1", "pid 0x1"),
           good.replace("file /f", "file /" + "f" * 5000), good.replace("file /f", "file /f%"),
           good.replace("file /f", "file /f%00"), good.replace("file /f", "file /f /g"),
           good.replace("node a 1 0 1 running ", "node a 1 0"), good.replace("phase", "phases"),
           good.replace("node a 1", "node a/b 1"), good.replace("node a 1", "node a 4294967297"),
           good.replace("end", "node a 1 0 1 running \n" * 300 + "end"),
           good.replace("end", "x" * (2 << 20) + "\nend"), "\xff" * 100]
    state = directory / "flow.state"
    for text in bad:
        state.write_bytes(text.encode("latin-1"))
        answer = json.loads(bench.tool("list", "--json"))
        assert [f["name"] for f in answer["flows"]] == ["true"], (text[:100], answer)
        assert answer["unreadable"] == 1, (text[:100], answer)
        bench.tool("stop", flow, code=1)
    state.unlink()
    for make in (lambda: os.mkfifo(state), lambda: state.symlink_to("/etc/passwd"),
                 lambda: state.mkdir(), lambda: state.symlink_to("/dev/zero")):
        make()
        assert json.loads(bench.tool("list", "--json"))["unreadable"] == 1
        state.rmdir() if state.is_dir() and not state.is_symlink() else state.unlink()
    elsewhere = bench.path / "elsewhere"
    elsewhere.write_text(good)
    state.symlink_to(elsewhere)
    assert json.loads(bench.tool("list", "--json"))["unreadable"] == 1, "links are not followed"
    state.unlink()
    # A believable lie is shown, but can neither move the cursor nor make a tool follow links.
    state.write_text(good.replace("running ", "running %1B[2J").replace("/f", "/f%0A%1B[2J")
                     .replace("pid 1", f"pid {os.getpid()}").replace("/l", "/etc"))
    assert "\033" not in bench.tool("list") and "\\x0a\\x1b[2J" in bench.tool("list")
    assert "\033" not in bench.tool("node", "list", flow)
    bench.tool("logs", flow, code=1)
    bench.tool("logs", flow, "passwd", code=1)
    bench.tool("stop", flow, code=1)
    assert "_runner" in bench.tool_err or "nobody" in bench.tool_err, bench.tool_err
    os.close(lock)
    bench.tool("clean")
    assert not directory.exists()
    stopped(bench, run)


def clean_spares_the_living(bench):
    bench.flow({"one": POLITE})
    run = started(bench, "flow.yml")
    before = sorted(p.name for p in (bench.runtime / bench.flows()[0]["id"]).iterdir())
    # A flow that was killed, and one without a runner in which one of two processes lives.
    dead = bench.runtime / "deadbeef"
    mixed = bench.runtime / "default"
    for directory in (dead, mixed):
        directory.mkdir(0o700)
        gone = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gone.bind(str(directory / "0000000000000001.sock"))
        gone.close()
        (directory / "gone.sock").symlink_to("0000000000000001.sock")
    (dead / "flow.state").write_text("half")
    (dead / "runner.lock").touch()
    alive = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    alive.bind(str(mixed / "0000000000000002.sock"))
    alive.listen(1)
    (mixed / "here.sock").symlink_to("0000000000000002.sock")
    # One that is too busy to accept is alive.
    busy = bench.runtime / "busy"
    busy.mkdir(0o700)
    waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    waiting[0].bind(str(busy / "0000000000000003.sock"))
    waiting[0].listen(0)
    while len(waiting) < 50:
        waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        waiting[-1].setblocking(False)
        try:
            waiting[-1].connect(str(busy / "0000000000000003.sock"))
        except BlockingIOError:
            break
    (bench.runtime / "a file").write_text("not ours")
    answer = json.loads(bench.tool("clean", "--json"))
    assert answer == {"directories": 1, "sockets": 2, "exports": 0, "live": 3, "failed": 0}, answer
    assert busy.exists() and 1 < len(waiting) < 50, "its queue was full"
    for one in waiting:
        one.close()
    assert not dead.exists()
    assert sorted(p.name for p in mixed.iterdir()) == ["0000000000000002.sock", "here.sock"]
    assert sorted(p.name for p in (bench.runtime / bench.flows()[0]["id"]).iterdir()) == before
    alive.close()
    answer = json.loads(bench.tool("clean", "--json"))
    assert answer == {"directories": 2, "sockets": 2, "exports": 0, "live": 1, "failed": 0}, answer
    (bench.runtime / "a file").unlink()
    stopped(bench, run)


def cleaning_while_flows_start(bench):
    """`clean` in a loop never takes the directory of a flow that is just starting."""
    bench.flow({"one": "test -d $TENSORBUS_DIR/$TENSORBUS_FLOW"})
    stop = bench.path / "stop"
    loop = subprocess.Popen(["sh", "-c", f"while [ ! -e {stop} ]; do {TENSORBUS} clean; done"],
                            env=bench.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(40):
            code, out, err = bench.run("flow.yml")
            assert code == 0, (code, out, err)
    finally:
        stop.touch()
        loop.wait()


if __name__ == "__main__":
    main([nothing_runs, list_and_stop, stop_gives_up_waiting, node_list, logs,
          following_across_rotations, following_after_a_pause, last_lines_across_rotations, hostile_state,
          clean_spares_the_living, cleaning_while_flows_start])

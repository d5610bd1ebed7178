#!/usr/bin/env python3
"""The runner is killed with SIGKILL: its guard ends the nodes and removes the flow's directory."""
import os
import pathlib
import resource
import signal
import time

from run_kit import main, state_of, until

POLITE = 'trap "exit 0" TERM; echo up; while :; do sleep 0.05; done'
DEAF = 'trap "" TERM INT HUP; echo up; (trap "" TERM; while :; do sleep 0.05; done) & ' \
       'while :; do sleep 0.05; done'


def guard_of(bench):
    """Process id of the guard of the only run."""
    def found():
        for pid in bench.processes():
            try:
                if pathlib.Path(f"/proc/{pid}/comm").read_text() == "tensorbus-guard\n":
                    return pid
            except OSError:
                pass
        return None
    return until(found, 5, "the guard is there")


def all_up(bench, count):
    """All nodes have printed their first line."""
    return lambda: sum(f.read_bytes() == b"up\n" for f in bench.path.glob("out/*/log_*.txt")) == count


def kill_runner(bench, run, seconds):
    run.send_signal(signal.SIGKILL)
    begin = time.monotonic()
    run.wait(5)
    until(lambda: not bench.processes(), seconds, f"nodes and guard are gone: {bench.describe()}")
    assert not list(bench.runtime.iterdir()), "the flow's directory is gone"
    return time.monotonic() - begin


def kill_9_of_the_runner(bench):
    bench.flow({"one": POLITE, "two": POLITE})
    run = bench.start("flow.yml")
    until(all_up(bench, 2), 5, "both nodes run")
    took = kill_runner(bench, run, 5)
    assert took < 1.9, f"{took} s for nodes that obey SIGTERM"


def kill_9_of_the_runner_with_deaf_nodes(bench):
    bench.flow({"one": DEAF, "two": DEAF})
    run = bench.start("flow.yml")
    until(all_up(bench, 2), 5, "both nodes run")
    took = kill_runner(bench, run, 5)
    assert took > 1.5, f"{took} s: they had 2 s after SIGTERM"


def kill_9_after_a_restart(bench):
    """The guard knows the group of the second process, and not only that of the first."""
    bench.flow({"again": ('if [ ! -e was ]; then touch was; exit 1; fi\n' + DEAF,
                          "restart_policy: on-failure")})
    run = bench.start("flow.yml")
    until(all_up(bench, 1), 5, "it runs for the second time")
    kill_runner(bench, run, 5)


def kill_9_while_stopping(bench):
    bench.flow({"one": DEAF})
    run = bench.start("flow.yml")
    until(all_up(bench, 1), 5, "it runs")
    run.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    kill_runner(bench, run, 5)


def kill_9_of_the_guard(bench):
    """Another takes over, and knows what runs."""
    bench.flow({"one": DEAF})
    run = bench.start("flow.yml")
    until(all_up(bench, 1), 5, "it runs")
    first = guard_of(bench)
    os.kill(first, signal.SIGKILL)
    until(lambda: state_of(first) in ("", "Z"), 5, "it is dead")
    until(lambda: guard_of(bench) != first, 5, "another guard")
    time.sleep(0.1)
    kill_runner(bench, run, 5)


def kill_9_of_the_whole_foreground_group(bench):
    """A kill of the runner's process group does not reach its guard."""
    bench.flow({"one": POLITE})
    run = bench.start("flow.yml", start_new_session=True)
    until(all_up(bench, 1), 5, "it runs")
    os.killpg(run.pid, signal.SIGKILL)
    run.wait(5)
    bench.check_clean(5)


def signals_do_not_end_the_guard(bench):
    bench.flow({"one": POLITE})
    run = bench.start("flow.yml")
    until(all_up(bench, 1), 5, "it runs")
    guard = guard_of(bench)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(guard, number)
    time.sleep(0.2)
    assert guard_of(bench) == guard, "the same guard"
    assert os.getsid(guard) == guard, "in a session of its own"
    kept = sorted(int(f) for f in os.listdir(f"/proc/{guard}/fd"))
    assert kept == [0, 1, 2, 3, 4, 5], f"pipe, directory and lock only: {kept}"
    for number in (0, 1, 2):
        assert os.readlink(f"/proc/{guard}/fd/{number}") == "/dev/null"
    kill_runner(bench, run, 5)


def runner_and_guard_at_once_then_clean(bench):
    """Not covered by the guard: the kernel sends the nodes SIGTERM, `clean` sweeps the rest."""
    bench.flow({"one": POLITE})
    run = bench.start("flow.yml")
    until(all_up(bench, 1), 5, "it runs")
    guard = guard_of(bench)
    assert '"directories":0' in bench.tool("clean", "--json"), "a live flow is left alone"
    assert bench.flows(), "and still listed"
    os.kill(guard, signal.SIGSTOP)
    os.kill(run.pid, signal.SIGKILL)
    os.kill(guard, signal.SIGKILL)
    run.wait(5)
    until(lambda: not bench.processes(), 5, "the nodes got SIGTERM from the kernel")
    (left,) = bench.runtime.iterdir()
    assert bench.flows() == [], "no runner, no flow"
    out = bench.tool("clean")
    assert f"removed directory {left.name}\n" in out, out
    assert not left.exists()


def a_stopped_guard_holds_nobody_up(bench):
    bench.flow({"one": POLITE})
    run = bench.start("flow.yml")
    until(all_up(bench, 1), 5, "it runs")
    os.kill(guard_of(bench), signal.SIGSTOP)
    run.send_signal(signal.SIGINT)
    assert bench.finish(run, 12)[0] == 130


def nodes_do_not_hold_each_others_pipes(bench):
    """A node sees its own output and nothing else of the runner."""
    bench.flow({"a": "sleep 0.2; ls -l /proc/$$/fd; ulimit -S -l; ulimit -H -l; ulimit -S -n; "
                     "ulimit -H -n", "b": "sleep 0.3", "c": "ls -l /proc/$$/fd"})
    code, out, err = bench.run("flow.yml", preexec_fn=lower_soft_limits)
    assert code == 0, err
    for node in ("a", "c"):
        text = bench.logs(node).decode()
        lines = [line for line in text.splitlines() if " -> " in line]
        targets = {line.split(" -> ")[0].split()[-1]: line.split(" -> ")[1] for line in lines}
        targets = {k: v for k, v in targets.items() if not v.endswith(".sh")}  # the script itself
        assert targets.pop("0") == "/dev/null", text
        assert targets["1"] == targets["2"] and targets["1"].startswith("pipe:"), text
        assert set(targets) == {"1", "2"}, text
    limits = bench.logs("a").decode().splitlines()[-4:]
    assert limits[0] == limits[1] and limits[2] == limits[3], limits


def lower_soft_limits():
    for name, soft in ((resource.RLIMIT_NOFILE, 128), (resource.RLIMIT_MEMLOCK, 4096)):
        resource.setrlimit(name, (soft, resource.getrlimit(name)[1]))


if __name__ == "__main__":
    main([kill_9_of_the_runner, kill_9_of_the_runner_with_deaf_nodes, kill_9_after_a_restart,
          kill_9_while_stopping, kill_9_of_the_guard, kill_9_of_the_whole_foreground_group,
          signals_do_not_end_the_guard, runner_and_guard_at_once_then_clean,
          a_stopped_guard_holds_nobody_up, nodes_do_not_hold_each_others_pipes])

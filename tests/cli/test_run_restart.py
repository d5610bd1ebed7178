#!/usr/bin/env python3
"""Restart policies, the environment of nodes, and the order of things at the start."""
import os
import pathlib
import re
import resource
import signal
import subprocess
import time

from run_kit import main, until

COUNT = "echo x >> runs; "


def runs(bench):
    return (bench.path / "runs").read_text().count("x")


def never(bench):
    bench.flow({"a": COUNT + "exit 1"})
    code, out, err = bench.run("flow.yml")
    assert code == 1 and runs(bench) == 1, (code, runs(bench))


def on_failure_until_it_works(bench):
    bench.flow({"a": (COUNT + "test $(wc -l < runs) -ge 3", "restart_policy: on-failure")})
    code, out, err = bench.run("flow.yml")
    assert code == 0 and runs(bench) == 3, (code, runs(bench), err)
    assert re.search(r"^  a +exit 0 .* 2$", err, re.M), err
    assert b"tensorbus | a: exit 1; restart 1 in 0.1 s" in out, out
    assert b"tensorbus | a: exit 1; restart 2 in 0.2 s" in out, out


def on_failure_by_signal(bench):
    bench.flow({"a": (COUNT + "test $(wc -l < runs) -ge 2 || kill -9 $$", "restart_policy: on-failure")})
    code, out, err = bench.run("flow.yml")
    assert code == 0 and runs(bench) == 2 and b"killed by SIGKILL; restart" in out, (code, out)


def max_restarts(bench):
    bench.flow({"a": (COUNT + "exit 5", "restart_policy: on-failure\nmax_restarts: 2\n"
                                        "restart_delay: 0.05"),
                "b": 'trap "exit 0" TERM; while :; do sleep 0.05; done'})
    code, out, err = bench.run("flow.yml")
    assert code == 1 and runs(bench) == 3, (code, runs(bench))
    assert re.search(r"^  a +exit 5 .* 2$", err, re.M), err


def always(bench):
    bench.flow({"a": (COUNT + "echo $TENSORBUS_RESTARTS >> restarts",
                      "restart_policy: always\nmax_restarts: 3\nrestart_delay: 0.05")})
    code, out, err = bench.run("flow.yml")
    assert code == 0 and runs(bench) == 4, (code, runs(bench))
    assert (bench.path / "restarts").read_text().split() == ["0", "1", "2", "3"]


def no_restart_while_stopping(bench):
    bench.flow({"a": (COUNT + 'trap "exit 7" TERM; echo up; while :; do sleep 0.05; done',
                      "restart_policy: always"),
                "waits": ("exit 1", "restart_policy: on-failure\nrestart_delay: 60")})
    run = bench.start("flow.yml")
    until(lambda: (bench.path / "runs").exists() and bench.flows(), 5, "it runs")
    time.sleep(0.2)
    begin = time.monotonic()
    bench.tool("stop")
    code, out, err = bench.finish(run)
    assert time.monotonic() - begin < 9 and runs(bench) == 1, err
    assert code == 1 and re.search(r"^  a +exit 7 ", err, re.M), (code, err)


def left_behind_before_a_restart(bench):
    """What the first process left in its group is gone when the second starts."""
    bench.flow({"a": ('if [ -e was ]; then grep -s ^State:.[^ZX] /proc/$(cat was)/status && echo still there; exit 0; fi\n'
                      '(trap "" TERM; while :; do sleep 0.05; done) & echo $! > was; exit 1',
                      "restart_policy: on-failure")})
    code, out, err = bench.run("flow.yml")
    assert code == 0 and b"still there" not in out and b"left processes behind" in out, (out, err)


def settings_of_the_library():
    """What the parts below the nodes read of their environment, but where they find each other."""
    found = set()
    for folder in ("cuda", "pool"):
        for file in (pathlib.Path(os.environ["TB_SOURCE_DIR"]) / "src" / folder).glob("*.c"):
            found |= set(re.findall(r'getenv\("(TENSORBUS_\w+)"\)', file.read_text()))
    return sorted(found - {"TENSORBUS_RUNNER"})


def precedence_of_env(bench):
    """A node's `env` over the root's over what is inherited, also for settings, an empty value and at a
    restart; build steps get the same."""
    show = 'echo "$TENSORBUS_LOG,$TENSORBUS_GPU_PEERS,$A,${B-none},$C" >> '
    bench.flow({
        "a": (show + "env.a; [ $TENSORBUS_RESTARTS = 1 ]",
              "restart_policy: on-failure\nenv: {TENSORBUS_GPU_PEERS: 1, A: node, B: \"\"}\n"
              "build: sh -c '" + show + "build.a'"),
        "b": show + "env.b"}, head="env: {TENSORBUS_LOG: error, TENSORBUS_GPU_PEERS: 0, A: root, C: \"$A\"}\n")
    bench.env.update(TENSORBUS_LOG="debug", TENSORBUS_GPU_PEERS="2", A="outside", B="outside", C="outside")
    code, out, err = bench.run("flow.yml")
    assert code == 0, err
    read = lambda name: (bench.path / name).read_text().splitlines()
    assert read("env.a") == 2 * ["error,1,node,,root"], read("env.a")
    assert read("build.a") == ["error,1,node,,root"], read("build.a")
    assert read("env.b") == ["error,0,root,outside,root"], read("env.b")


def environment(bench):
    bench.write("flow.yml", """
env: {GLOBAL: one, BOTH: global}
nodes:
  - id: camera
    path: ./show.sh
    outputs: [image, info]
    restart_policy: on-failure
    env: {BOTH: own}
  - id: motion
    path: ./show.sh
    inputs:
      frame: {source: camera/image, queue_size: 3, queue_policy: backpressure, input_timeout: 1.5}
      info: camera/info
      tick: tensorbus/timer/millis/100
    outputs: [boxes]
  - id: view
    path: ./show.sh
    inputs:
      image: camera/image
      boxes: motion/boxes
""")
    bench.script("show.sh", 'tr "\\\\0" "\\\\n" < /proc/$$/environ > env.$TENSORBUS_NODE; pwd')
    settings = {name: f"{i}" for i, name in enumerate(settings_of_the_library())}
    assert "TENSORBUS_GPU_PEERS" in settings
    bench.env.update(settings, TENSORBUS_STRAY="x", TENSORBUS_LOG="info", FROM_OUTSIDE="yes")
    code, out, err = bench.run("flow.yml")
    assert code == 0, err
    camera, motion, view = [
        (bench.path / f"env.{n}").read_text().splitlines() for n in ("camera", "motion", "view")]
    for lines in (camera, motion, view):
        assert f"TENSORBUS_DIR={bench.runtime}" in lines and "TENSORBUS_RUNNER=_runner" in lines
        assert "FROM_OUTSIDE=yes" in lines and "GLOBAL=one" in lines
        assert "TENSORBUS_LOG=info" in lines
        for name, value in settings.items():
            assert f"{name}={value}" in lines, name
        assert not any("STRAY" in line for line in lines), "only what is meant for nodes"
        assert any(re.fullmatch("TENSORBUS_FLOW=[0-9a-f]{8}", line) for line in lines)
        assert f"TENSORBUS_FLOW_FILE={bench.path}/flow.yml" in lines and "TENSORBUS_RESTARTS=0" in lines
    assert "BOTH=own" in camera and "BOTH=global" in motion
    assert "TENSORBUS_NODE=camera" in camera and "TENSORBUS_INPUTS=" in camera
    at = camera.index("TENSORBUS_OUTPUTS=image=motion/frame,view/image")
    assert camera[at + 1] == "info=motion/info", camera
    at = motion.index("TENSORBUS_INPUTS=frame=camera/image;queue=3;policy=backpressure;"
                      "timeout_ns=1500000000;restart=1")
    assert motion[at + 1:at + 3] == [
        "info=camera/info;queue=10;policy=drop_oldest;timeout_ns=0;restart=1",
        "tick=tensorbus/timer/nanos/100000000;queue=10;policy=drop_oldest;timeout_ns=0;restart=0"]
    at = view.index("TENSORBUS_INPUTS=image=camera/image;queue=10;policy=drop_oldest;timeout_ns=0;"
                    "restart=1")
    assert view[at + 1] == "boxes=motion/boxes;queue=10;policy=drop_oldest;timeout_ns=0;restart=0"


def builds_come_first(bench):
    bench.flow({"a": ("cat made", 'build: sh -c "sleep 0.3; echo built > made"'),
                "b": "cat made"})
    code, out, err = bench.run("flow.yml")
    assert code == 0 and b"a | built" in out and b"b | built" in out, (out, err)


def a_relative_runtime_directory(bench):
    """Nodes have other working directories than the runner."""
    (bench.path / "sub").mkdir()
    bench.write("sub/flow.yml", "nodes:\n  - id: a\n    path: ./a.sh\n")
    bench.script("sub/a.sh", 'test -d "$TENSORBUS_DIR/$TENSORBUS_FLOW"')
    bench.env["TENSORBUS_DIR"] = "runtime"
    code, out, err = bench.run("sub/flow.yml")
    assert code == 0, err
    bench.env["TENSORBUS_DIR"] = str(bench.runtime)


def a_long_runtime_directory(bench):
    long = bench.path / ("d" * 120) / ("e" * 120)
    long.parent.mkdir()
    bench.env["TENSORBUS_DIR"] = str(long)
    bench.flow({"a": 'trap "exit 0" TERM; echo up; while :; do sleep 0.05; done'})
    run = bench.start("flow.yml")
    until(lambda: bench.flows(), 5, "the flow is listed")
    bench.tool("stop")
    code, out, err = bench.finish(run)
    assert code in (0, 1) and not list(long.iterdir()), err


def nohup(bench):
    """A run that was started with SIGHUP ignored goes on when the terminal closes."""
    bench.flow({"a": "sleep 0.5; echo end"})
    run = bench.start("flow.yml", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    until(lambda: bench.flows(), 5, "the flow is listed")
    run.send_signal(signal.SIGHUP)
    code, out, err = bench.finish(run)
    assert code == 0 and b"a | end" in out, (code, out, err)


def closed_standard_streams(bench):
    bench.flow({"a": "echo hello"})
    done = subprocess.run(["sh", "-c", 'exec "$0" run flow.yml <&- >&- 2>&-', bench_command()],
                          cwd=bench.path, env=bench.env, timeout=10)
    assert done.returncode == 0 and bench.logs("a") == b"hello\n", done


def bench_command():
    from run_kit import TENSORBUS
    return TENSORBUS


def many_nodes(bench):
    bench.flow({f"n{i}": f"echo {i}" for i in range(100)})
    begin = time.monotonic()
    code, out, err = bench.run("flow.yml")
    assert code == 0 and out.count(b" | ") == 101, (code, err)
    assert time.monotonic() - begin < 20
    # With a soft limit of descriptors that would not do for them.
    code, out, err = bench.run("flow.yml", preexec_fn=few_descriptors)
    assert code == 0, (code, err)


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


if __name__ == "__main__":
    main([never, on_failure_until_it_works, on_failure_by_signal, max_restarts, always,
          no_restart_while_stopping, left_behind_before_a_restart, environment, precedence_of_env,
          builds_come_first, a_relative_runtime_directory, a_long_runtime_directory, nohup, closed_standard_streams,
          many_nodes])

#!/usr/bin/env python3
"""F03: a node's program is missing, not executable, exits at once with 3, is killed by a signal."""
import re
import resource

from run_kit import main

LONG = ('echo up; trap "exit 0" TERM; while :; do sleep 0.05; done')


def stopped_others(bench, code, out, err):
    assert code == 1, (code, out, err)
    assert "stopped because a node failed" in err, err
    assert re.search(r"^  good +exit 0 ", err, re.M), err


def f03_program_missing(bench):
    bench.flow({"good": LONG, "bad": "true"})
    (bench.path / "flow.yml-bad.sh").unlink()
    code, out, err = bench.run("flow.yml")
    assert code == 2 and out == b"", (code, out, err)
    assert re.search(r"flow\.yml:5:\d+: .*`bad`", err), err
    assert not (bench.path / "out").exists(), "nothing was started"


def f03_program_not_executable(bench):
    bench.flow({"good": LONG, "bad": "true"})
    (bench.path / "flow.yml-bad.sh").chmod(0o644)
    code, out, err = bench.run("flow.yml")
    assert code == 2 and out == b"", (code, out, err)
    assert "bad" in err and "execut" in err, err


def f03_program_cannot_be_executed(bench):
    """Found only at its start: the file is there and executable, its interpreter is not."""
    bench.flow({"good": LONG, "bad": "true"})
    bench.write("flow.yml-bad.sh", "#!/no/such/interpreter\n", 0o755)
    code, out, err = bench.run("flow.yml")
    stopped = "could not be started" in err
    assert code == 1 and stopped and "No such file or directory" in err, (code, err)
    assert re.search(r"^  good +(exit 0|stopped by SIGTERM) ", err, re.M), err


def f03_exits_at_once(bench):
    bench.flow({"good": LONG, "bad": "echo to stdout; echo to stderr >&2; exit 3"})
    code, out, err = bench.run("flow.yml")
    assert code == 1, (code, err)
    assert re.search(r"^  bad +exit 3 ", err, re.M), err
    assert re.search(r"^  good +(exit 0|stopped by SIGTERM) ", err, re.M), err
    assert "node `bad`: exit 3; its last lines" in err, err
    assert err.index("bad | to stdout") < err.index("bad | to stderr"), err


def f03_killed_by_a_signal(bench):
    bench.flow({"good": LONG, "bad": "sleep 0.3; echo about to fault; kill -SEGV $$"})
    code, out, err = bench.run("flow.yml")
    stopped_others(bench, code, out, err)
    assert re.search(r"^  bad +killed by SIGSEGV", err, re.M), err
    assert "bad | about to fault" in err, err
    assert "node `bad`: killed by SIGSEGV (frames are read-only: " in err, err


def f03_printed_nothing(bench):
    bench.flow({"bad": "exit 1"})
    code, out, err = bench.run("flow.yml")
    assert code == 1 and "node `bad`: exit 1; it printed nothing, or its output was still in a " \
        "buffer (a C program calls setvbuf(stdout, NULL, _IOLBF, 0))\n" in err, err


def too_few_descriptors(bench):
    """Whatever is the first to lack one, the message says what to raise."""
    bench.flow({"a": "true"})
    seen = ""
    for most in range(6, 16):
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        code, out, err = bench.run("flow.yml", preexec_fn=limit)
        assert code == 1 and "Too many open files (raise the limit: ulimit -n)" in err, (most, err)
        seen += err
    assert "guard" in seen, seen


def f03_only_the_last_lines(bench):
    bench.flow({"bad": "i=0; while [ $i -lt 50 ]; do echo line $i; i=$((i+1)); done; exit 1"})
    code, out, err = bench.run("flow.yml")
    assert code == 1 and out.count(b"bad | line") == 50, (code, out)
    lines = re.findall(r"^  bad \| line (\d+)$", err, re.M)
    assert lines == [str(i) for i in range(40, 50)], err


def nodes_that_end_well(bench):
    bench.flow({"a": "echo one", "b": "sleep 0.2; echo two"})
    code, out, err = bench.run("flow.yml")
    assert code == 0, (code, err)
    assert b"a | one\n" in out and b"b | two\n" in out, out
    assert re.search(r"flow [0-9a-f]{8} \(flow\) finished after", err), err
    assert len(re.findall(r"^  [ab] +exit 0 +0\.\d\d s +0$", err, re.M)) == 2, err


def the_name_of_a_run(bench):
    bench.flow({"a": "true"})
    code, out, err = bench.run("--name", "my-run", "flow.yml")
    assert code == 0 and "(my-run)" in err, err
    assert [d.name[8:] for d in (bench.path / "out").iterdir()] == ["-my-run"]
    for bad in ("../x", "", "a b", ".x", "x" * 65):
        code, out, err = bench.run("--name", bad, "flow.yml")
        assert code == 2 and "--name" in err, (bad, code, err)


def a_runtime_directory_that_is_not_safe(bench):
    bench.flow({"a": "echo must not run"})
    bench.runtime.mkdir(mode=0o777)
    bench.runtime.chmod(0o777)
    code, out, err = bench.run("flow.yml")
    assert code == 1 and b"must not" not in out and "chmod" in err, (code, out, err)
    bench.runtime.rmdir()
    bench.runtime.symlink_to("/tmp")
    code, out, err = bench.run("flow.yml")
    assert code == 1 and b"must not" not in out, (code, out, err)
    bench.runtime.unlink()


def wrong_words(bench):
    bench.flow({"a": "true"})
    for words in ([], ["--nope", "flow.yml"], ["flow.yml", "flow.yml"], ["--grace", "x", "flow.yml"],
                  ["--grace", "-1", "flow.yml"], ["--grace"], ["nofile.yml"]):
        code, out, err = bench.run(*words)
        assert code == 2 and err, (words, code, err)
    bench.env["TENSORBUS_GRACE"] = "soon"
    code, out, err = bench.run("flow.yml")
    assert code == 2 and "TENSORBUS_GRACE" in err, (code, err)


def a_failing_build_step(bench):
    bench.flow({"a": ("echo must not run", "build: sh -c \"exit 4\"")})
    code, out, err = bench.run("flow.yml")
    assert code == 1 and b"must not" not in out and "exit" in err, (code, out, err)
    code, out, err = bench.run("--no-build", "flow.yml")
    assert code == 0 and b"must not run" in out, (code, out, err)


if __name__ == "__main__":
    main([f03_program_missing, f03_program_not_executable, f03_program_cannot_be_executed,
          f03_exits_at_once, f03_killed_by_a_signal, f03_printed_nothing,
          too_few_descriptors, f03_only_the_last_lines, nodes_that_end_well,
          the_name_of_a_run, a_runtime_directory_that_is_not_safe, wrong_words,
          a_failing_build_step])

#!/usr/bin/env python3
"""F12: the pool example's flows: the lines that each must log, no other, exit code 0, no hang."""
import os
import re
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("TB_SOURCE_DIR") or os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("TB_BINARY_DIR") or os.path.join(SOURCE, "build")
COMMAND = os.path.join(BUILD, "bin", "tensorbus")
FLOWS = os.path.join(SOURCE, "examples", "pool")

ID = r"pool_sender_node_[0-9]+"
MISUSE = (r"tensorbus: warning: Attempt to %s memory pool \[" + ID +
          r"\] failed - reason: pool does not exist\. Operation aborted\.")
CLEANUP = [r"Detected 1 unreleased memory pool, releasing\.\.\.",
           r"Successfully released 1 unreleased memory pools!"]

failures = 0


def check(what, holds, detail=""):
    """Report one outcome."""
    global failures
    if holds:
        print("ok: F12 " + what)
    else:
        failures += 1
        print("FAILED: F12 %s\n%s" % (what, detail), file=sys.stderr)


def run_flow(name, **env):
    """Run a flow with some values of its `env` replaced, in a directory of its own."""
    with open(os.path.join(FLOWS, name + ".yml"), encoding="utf-8") as file:
        text = file.read()
    text = text.replace("../../build/", BUILD + "/")
    for key, value in env.items():
        text, count = re.subn(r"(?m)^(  %s:).*$" % key, r"\1 " + value, text)
        assert count == 1, key
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, name + ".yml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        before = set(os.listdir("/dev/shm"))
        done = subprocess.run([COMMAND, "run", path], cwd=work, timeout=120, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=dict(os.environ, TENSORBUS_DIR=os.path.join(work, "run")))
        left = [f for f in set(os.listdir("/dev/shm")) - before if f.startswith("dora_pool_")]
        run = os.path.join(work, "run")
        left += [f for _, _, files in os.walk(run) for f in files]
    check(name + ": nothing is left", not left, left)
    check(name + ": exit code 0", done.returncode == 0, done.stdout)
    return done.stdout


def lines_about_pools(output):
    """What A5 and A6 are about, without the prefixes of nodes; and any other warning or error."""
    lines = [line.split(" | ", 1)[-1] for line in output.splitlines()]
    return [line for line in lines
            if "memory pool" in line or re.search(r"tensorbus: (warning|error)|assert", line)]


def check_lines(name, output, wanted):
    """The lines are exactly those wanted."""
    got = lines_about_pools(output)
    same = len(got) == len(wanted) and all(re.search(w + "$", g) for w, g in zip(wanted, got))
    check(name + ": exactly the lines of the scenario", same, "\n".join([repr(wanted), output]))


def check_transfer(name, output, frames):
    """Both previews, the last frame, the throughput."""
    for pattern in (r"Sender preview: \[0, 1, 2, 3, 4, \.\.\.\]",
                    r"Receiver preview: \[0, 1, 2, 3, 4, \.\.\.\]",
                    r"%d of %d frames" % (frames, frames),
                    r"Average transfer throughput: [1-9][0-9]*\.[0-9] MB/s"):
        check("%s: prints %s" % (name, pattern), re.search(pattern, output), output)


def main():
    """Run each flow."""
    if not os.access(COMMAND, os.X_OK):
        print("FAILED: %s is not built" % COMMAND, file=sys.stderr)
        return 1
    frames = 100 if os.environ.get("TB_TEST_FULL") else 12
    scenarios = [
        ("cpu2cpu", frames, []),
        ("duplicate_free", 2, [MISUSE % "release"]),
        ("read_after_free", 2, [MISUSE % "read"]),
        ("write_after_free", 2, [MISUSE % "write"]),
        ("auto_cleanup", 2, CLEANUP),
    ]
    for name, count, wanted in scenarios:
        output = run_flow(name, message_num=str(count))
        check_lines(name, output, wanted)
        check_transfer(name, output, count)
    # The scenario comes from the flow's `env` alone: the same file, another value.
    output = run_flow("cpu2cpu", message_num="2", memory_pool_scenario="read_after_free")
    check_lines("cpu2cpu as read_after_free", output, [MISUSE % "read"])

    output = run_flow("in_flight", message_num=str(frames))
    check_lines("in_flight", output, [])
    held = re.search(r"Most frames in flight at once: (\d+) of 8 slots; drops: 0; copies: 0", output)
    check("in_flight: several slots at once", held and int(held.group(1)) >= 3, output)
    check("in_flight: every frame", "Received %d frames, each unchanged" % frames in output, output)

    for key, value, said in (("sender_device", "gpu", "use cpu, cuda or cuda:0"),
                             ("message_num", "many", "use a number"),
                             ("memory_pool_scenario", "chaos", "use throughput"),
                             ("cross_machine", "true", "cannot be reached")):
        refused = run_refused(key, value)
        check("%s: %s is refused" % (key, value), said in refused, refused)
    return failures != 0


def run_refused(key, value):
    """A node alone, with a setting that it cannot do; returns what it says."""
    node = os.path.join(BUILD, "examples", "pool", "sender_node")
    done = subprocess.run([node], timeout=20, text=True, check=False, stderr=subprocess.PIPE,
                          env=dict(os.environ, **{key: value}))
    return done.stderr if done.returncode == 1 else "exit code %d" % done.returncode


if __name__ == "__main__":
    sys.exit(main())

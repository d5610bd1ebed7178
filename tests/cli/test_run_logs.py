#!/usr/bin/env python3
"""F13: what nodes print: 200 MB of it, without newlines, binary, progress bars; a reader that is
slow, gone or stopped."""
import os
import re
import signal
import subprocess
import sys
import time

from run_kit import Terminal, main, until

FILE = 10 << 20
LINES = 200 * 1000 * 1000 // 100  # 100 bytes each
WRITER = f"""
import os, sys, time
begin = time.monotonic()
line = 0
while line < {LINES}:
    part = b"".join(b"%012d %s\\n" % (i, b"x" * 86) for i in range(line, min(line + 5000, {LINES})))
    line += 5000
    view = memoryview(part)
    while view:
        view = view[os.write(1, view):]
open(sys.argv[1], "w").write(str(time.monotonic() - begin))
"""


def line(number):
    return b"%012d %s\n" % (number, b"x" * 86)


def check_kept_lines(bench, node):
    """The newest 40 to 50 MiB, whole lines, without a gap."""
    kept = bench.logs(node)
    assert 4 * FILE <= len(kept) <= 5 * FILE and len(kept) % 100 == 0, len(kept)
    first = LINES - len(kept) // 100
    assert kept[:100] == line(first), kept[:100]
    numbers = [int(kept[i:i + 12]) for i in range(0, len(kept), 100)]
    assert numbers == list(range(first, LINES))
    (directory,) = (bench.path / "out").iterdir()
    files = sorted(f.name for f in directory.iterdir())
    assert files == [f"log_{node}.txt"] + [f"log_{node}.txt.{i}" for i in range(1, 5)], files
    assert all(f.stat().st_size <= FILE for f in directory.iterdir())


def writer_flow(bench):
    bench.write("writer.py", WRITER)
    bench.flow({"loud": f"exec {sys.executable} ./writer.py took"})


def how_long_to_a_file(bench):
    """Seconds that the writer needs when nobody but the disk is in its way."""
    with open(bench.path / "plain", "wb") as out:
        subprocess.run([sys.executable, "writer.py", "plain-took"], cwd=bench.path, stdout=out,
                       check=True)
    (bench.path / "plain").unlink()
    return float((bench.path / "plain-took").read_text())


def f13_200_mb(bench):
    writer_flow(bench)
    plain = how_long_to_a_file(bench)
    with open(os.devnull, "wb") as null:
        code, out, err = bench.run("flow.yml", seconds=120, stdout=null)
    took = float((bench.path / "took").read_text())
    assert code == 0, err
    check_kept_lines(bench, "loud")
    assert took < 5 * plain + 10, f"{took} s, {plain} s to a plain file"
    print(f"     200 MB: {took:.2f} s through the runner, {plain:.2f} s to a plain file")


def f13_200_mb_to_a_reader_that_is_stopped(bench):
    """Nobody reads standard output: the node is not slowed, what is not shown is counted."""
    writer_flow(bench)
    run = bench.start("flow.yml")
    until(lambda: (bench.path / "took").exists(), 60, "the node has printed everything")
    code, out, err = bench.finish(run, 60)
    assert code == 0, err
    check_kept_lines(bench, "loud")
    dropped = sum(int(n) for n in re.findall(rb"^tensorbus \| (\d+) lines are not shown", out, re.M))
    shown = len(re.findall(rb"^loud \| \d{12} x{86}$", out, re.M))
    assert dropped > 0 and shown + dropped == LINES, (shown, dropped, LINES)


def f13_200_mb_to_a_reader_that_goes_away(bench):
    writer_flow(bench)
    run = bench.start("flow.yml")
    until(lambda: run.stdout.read(1000), 10, "some output")
    run.stdout.close()
    run.stdout = None
    assert run.wait(60) == 0, run.stderr.read()
    check_kept_lines(bench, "loud")


def f13_no_newline(bench):
    bench.flow({"endless": f"exec {sys.executable} -c \"import sys\nfor _ in range(300): "
                           "sys.stdout.write('y' * 100000)\""})
    code, out, err = bench.run("flow.yml", seconds=60)
    assert code == 0, err
    assert bench.logs("endless") == b"y" * 30_000_000
    lines = [l for l in out.split(b"\n") if l.startswith(b"endless | ")]
    assert all(len(l) <= len("endless | ") + 4096 for l in lines)
    shown = sum(l.count(b"y") for l in lines)
    dropped = sum(int(n) for n in re.findall(rb"(\d+) lines are not shown", out))
    assert shown + dropped * 4096 >= 30_000_000, (shown, dropped)


def f13_binary(bench):
    bench.write("bytes.py", "import os\nfor i in range(256):\n    os.write(1, bytes([i]) + b'abc')\n"
                            "os.write(1, os.urandom(1 << 20) + b'\\nend\\n')\n")
    bench.flow({"binary": f"exec {sys.executable} ./bytes.py"})
    code, out, err = bench.run("flow.yml")
    assert code == 0, err
    kept = bench.logs("binary")
    assert kept[:1024] == b"".join(bytes([i]) + b"abc" for i in range(256))
    assert len(kept) == 1024 + (1 << 20) + 5, len(kept)
    out.decode()  # UTF-8 throughout
    bare = set(out) - set(range(0x20, 0x7f)) - set(b"\n\t") - set(range(0x80, 0x100))
    assert bare <= {0x1b}, bare
    assert all(s == b"\033[0m" or s.endswith(b"m") for s in re.findall(rb"\033\[[^a-zA-Z]*.", out))
    assert b"binary | end\n" in out


def every_line_has_its_prefix(bench):
    bench.flow({"a": "printf 'one\\n\\ntwo\\r\\nlast without newline'", "b": "echo '  spaces  '"})
    code, out, err = bench.run("flow.yml")
    assert code == 0, err
    lines = [l for l in out.decode().splitlines() if not l.startswith("tensorbus | ")]
    assert [l for l in lines if l.startswith("a |")] == [
        "a | one", "a | ", "a | two", "a | last without newline"], lines
    assert "b |   spaces  " in lines and len(lines) == 5, lines
    assert "\033" not in out.decode(), "no colours but on a terminal"


def stdout_and_stderr_in_order(bench):
    bench.flow({"a": "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done"})
    code, out, err = bench.run("flow.yml")
    assert bench.logs("a").decode().split("\n")[:-1] == [
        f"{stream} {i}" for i in range(1, 10) for stream in ("out", "err")]


def progress_bars_elsewhere(bench):
    """Not on a terminal: only the last state of a line is shown, the file has all."""
    bench.flow({"bar": "for i in 1 2 3; do printf '\\r%s0%%' $i; sleep 0.05; done; echo; "
                       "printf '1%%\\r2%%\\r\\n'"})
    code, out, err = bench.run("flow.yml")
    lines = [l for l in out.decode().split("\n") if l.startswith("bar")]
    assert lines == ["bar | 30%", "bar | 2%"], lines
    assert bench.logs("bar") == b"\r10%\r20%\r30%\n1%\r2%\r\n"


def progress_bars_and_colours_on_a_terminal(bench):
    bench.env["TERM"] = "xterm"
    bench.env.pop("NO_COLOR", None)
    bench.flow({"bar": "for i in 1 2 3; do printf '\\r%s0%%' $i; sleep 0.2; done; echo ' done'",
                "other": "sleep 0.3; echo between; printf 'evil \\033[2J\\033]0;x\\007 \\033[31mred\\n'"})
    terminal = Terminal(bench, "flow.yml")
    assert terminal.wait() == 0, terminal.output
    text = terminal.output.decode()
    assert re.search(r"\033\[\d+mbar \|\033\[0m 10%.*\r\033\[K", text), text
    assert re.search(r"\033\[\d+mother \|\033\[0m between\r\n", text), text
    assert re.search(r"\r\033\[K\033\[\d+mbar \|\033\[0m 30% done\r\n", text), text
    assert "\033[2J" not in text and "\\x1b[2J" in text and "\\x1b]0;x\\x07" in text, text
    assert "\033[31mred\033[0m" in text, text
    # A line that is not finished is seen at once, and once.
    bench.flow({"asks": "printf 'what now? '; sleep 0.5; touch seen; echo this"}, name="asks.yml")
    terminal = Terminal(bench, "asks.yml")
    terminal.expect(b"what now? ")
    assert not (bench.path / "seen").exists()
    assert terminal.wait() == 0
    assert re.search(rb"\r\x1b\[K\x1b\[\d+masks \|\x1b\[0m what now\? this\r\n", terminal.output)
    bench.env["NO_COLOR"] = "1"
    terminal = Terminal(bench, "flow.yml")
    assert terminal.wait() == 0
    assert b"bar | 30% done\r\n" in terminal.output, terminal.output


def a_stopped_terminal(bench):
    """Ctrl-S: nodes go on; the run can end only when the terminal takes its last lines again."""
    bench.flow({"a": "i=0; while [ $i -lt 3000 ]; do echo $i $i $i $i $i $i $i $i; i=$((i+1)); done; "
                     "touch done"})
    terminal = Terminal(bench, "flow.yml")
    terminal.press(b"\x13")
    until(lambda: (bench.path / "done").exists(), 10, "the node is not held up")
    time.sleep(0.2)
    terminal.press(b"\x11")
    assert terminal.wait() == 0, terminal.output[-500:]
    assert b" 2999 2999" in terminal.output, terminal.output[-500:]


def a_full_disk(bench):
    """Logs that cannot be kept are said and counted; the run goes on."""
    bench.flow({"a": "i=0; while [ $i -lt 2000 ]; do echo 0123456789012345678901234567890123456789; "
                     "i=$((i+1)); done"})
    # The limit of file size stands for the disk: writes beyond 16 KiB fail with EFBIG.
    run = bench.start("flow.yml", preexec_fn=limit_files)
    code, out, err = bench.finish(run)
    assert code == 0, (code, err)
    assert out.count(b"a | 01234") == 2000, out.count(b"a | 01234")
    assert "writing its log file" in err, err
    assert len(bench.logs("a")) == 16384


def limit_files():
    import resource
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))


if __name__ == "__main__":
    main([f13_200_mb, f13_200_mb_to_a_reader_that_is_stopped, f13_200_mb_to_a_reader_that_goes_away,
          f13_no_newline, f13_binary, every_line_has_its_prefix, stdout_and_stderr_in_order,
          progress_bars_elsewhere, progress_bars_and_colours_on_a_terminal, a_stopped_terminal,
          a_full_disk])

"""What the tests of `tensorbus run` share: a run in a directory of its own, and proof that nothing is
left of it afterwards: no process, no entry in the runtime directory, no descriptor of this process.

Every process that a run starts inherits an environment variable that names the run, so that
processes are found whatever their parents and groups are."""
import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

TENSORBUS = os.path.join(os.environ["TB_BINARY_DIR"], "bin", "tensorbus")
MARK = "TB_TEST_MARK"


def until(condition, seconds, what):
    """Wait for a condition; its value. Fails after a while."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def environ_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def state_of(pid):
    """One letter of /proc/<pid>/stat, "" when there is none."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


class Bench:
    """A directory with a flow file, a runtime directory and logs."""

    def __init__(self, **variables):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="tb-run-"))
        self.runtime = self.path / "runtime"
        self.mark = uuid.uuid4().hex
        self.env = dict(os.environ, TENSORBUS_DIR=str(self.runtime), **{MARK: self.mark}, **variables)
        self.env.pop("TENSORBUS_GRACE", None)
        self.env.update(variables)
        self.started = []
        self.descriptors = len(os.listdir("/proc/self/fd"))

    def write(self, name, text, mode=0o644):
        file = self.path / name
        file.write_text(text)
        file.chmod(mode)
        return file

    def script(self, name, text):
        """An executable shell script."""
        return self.write(name, "#!/bin/sh\n" + text, 0o755)

    def flow(self, nodes, name="flow.yml", head=""):
        """A flow of shell scripts: {node id: script, or (script, further YAML lines)}."""
        text = head + "nodes:\n"
        for node, body in nodes.items():
            body, more = body if isinstance(body, tuple) else (body, "")
            self.script(f"{name}-{node}.sh", body)
            text += f"  - id: {node}\n    path: ./{name}-{node}.sh\n"
            text += "".join(f"    {line}\n" for line in more.splitlines())
        return self.write(name, text)

    def start(self, *arguments, **options):
        process = subprocess.Popen(
            [TENSORBUS, "run", *map(str, arguments)], cwd=self.path, env=self.env,
            stdin=subprocess.DEVNULL, stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE), **options)
        self.started.append(process)
        return process

    def finish(self, process, seconds=30):
        """Exit code, standard output, standard error."""
        out, err = process.communicate(timeout=seconds)
        return process.returncode, out or b"", (err or b"").decode()

    def run(self, *arguments, seconds=30, **options):
        return self.finish(self.start(*arguments, **options), seconds)

    def tool(self, *arguments, code=0, env=None):
        """Run another verb; its standard output."""
        done = subprocess.run([TENSORBUS, *map(str, arguments)], cwd=self.path, env=env or self.env,
                              capture_output=True, timeout=60)
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        self.tool_err = done.stderr.decode()
        return done.stdout.decode()

    def flows(self):
        return json.loads(self.tool("list", "--json"))["flows"]

    def processes(self):
        """All live processes of this bench but this one."""
        mark = f"{MARK}={self.mark}".encode()
        return [int(p) for p in os.listdir("/proc")
                if p.isdigit() and int(p) != os.getpid() and mark in environ_of(p)
                and state_of(p) not in ("Z", "X", "")]

    def logs(self, node):
        """The kept bytes of a node, of the only run."""
        (directory,) = (self.path / "out").iterdir()
        files = [directory / f"log_{node}.txt"] + [directory / f"log_{node}.txt.{i}" for i in range(1, 9)]
        return b"".join(f.read_bytes() for f in reversed(files) if f.exists())

    def check_clean(self, seconds=0.5):
        until(lambda: not self.processes(), seconds, f"all processes gone: {self.describe()}")
        left = list(self.runtime.iterdir()) if self.runtime.exists() else []
        assert not left, f"left in the runtime directory: {[(d, list(d.iterdir())) for d in left]}"

    def describe(self):
        lines = []
        for pid in self.processes():
            try:
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                lines.append(f"{pid} {command.decode()}")
            except OSError:
                pass
        return "; ".join(lines)

    def close(self, seconds=0.5):
        """The end of a test that went well."""
        self.check_clean(seconds)
        for process in self.started:
            assert process.poll() is not None
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        now = len(os.listdir("/proc/self/fd"))
        assert now == self.descriptors, f"{now} descriptors, {self.descriptors} before"
        shutil.rmtree(self.path)

    def rescue(self):
        """The end of a test that failed: leave nothing running."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        for process in self.started:
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


class Terminal:
    """`tensorbus run` on a terminal of its own, so that Ctrl-C goes where a user's goes."""

    def __init__(self, bench, *arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(bench.path)
            os.execve(TENSORBUS, ["tensorbus", "run", *map(str, arguments)], bench.env)
        self.output = b""

    def read(self):
        """What has come so far."""
        os.set_blocking(self.fd, False)
        try:
            while True:
                more = os.read(self.fd, 65536)
                if not more:
                    break
                self.output += more
        except OSError:
            pass
        return self.output

    def expect(self, text, seconds=10):
        until(lambda: text in self.read(), seconds, f"{text!r} in {self.output!r}")

    def press(self, key):
        os.write(self.fd, key)

    def wait(self, seconds=30):
        """Exit code, or minus the signal."""
        def ended():
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return (status,) if pid else None
        (status,) = until(ended, seconds, "the run has ended")
        self.read()
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def main(tests):
    """Run the tests of a file: functions that take a bench. Names on the command line pick some."""
    failed = []
    for test in tests:
        if sys.argv[1:] and test.__name__ not in sys.argv[1:]:
            continue
        bench = Bench()
        begin = time.monotonic()
        try:
            test(bench)
            bench.close()
            print(f"ok   {test.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
        except BaseException as error:  # also a timeout or Ctrl-C
            import traceback
            traceback.print_exc()
            bench.rescue()
            failed.append(test.__name__)
            print(f"FAIL {test.__name__}", flush=True)
            if isinstance(error, KeyboardInterrupt):
                break
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")

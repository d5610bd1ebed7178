"""Running flows under stock dora and under `tensorbus run`, for the tests of both."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

NODES = pathlib.Path(__file__).parent / "dora_nodes"
ROOT = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(sys.executable).parent

LIMIT_S = 60


def tool(name: str) -> str:
    """A command of the environment that runs the tests; the test is skipped where it is missing."""
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"`{name}` is not installed here")
    return found


class Place:
    """A folder of its own for one test: runtime directory, records, home, working directory."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.bus = folder / "bus"
        self.record = folder / "record"
        self.home = folder / "home"
        self._shm = _zenoh_files()
        for path in (self.bus, self.record, self.home):
            path.mkdir(mode=0o700)

    def env(self, **more: str) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("DORA_")}
        env |= {
            "PATH": f"{BIN}{os.pathsep}{env.get('PATH', '')}",
            "HOME": str(self.home),
            "TENSORBUS_DIR": str(self.bus),
            "RECORD": str(self.record),
            "PYTHONDONTWRITEBYTECODE": "1",
            "RUST_BACKTRACE": "0",
        }
        return env | more

    def flow(self, text: str, name: str = "flow.yml") -> pathlib.Path:
        path = self.folder / name
        path.write_text(text.replace("NODES", str(NODES)))
        return path

    def run(self, *words: object, code: int | None = 0, **env: str) -> str:
        """Run a command to its end; returns what it printed, standard error included."""
        process = subprocess.Popen(
            [str(word) for word in words],
            cwd=self.folder,
            env=self.env(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{words}: not done after {LIMIT_S} s\n{output}")
        if code is not None:
            assert process.returncode == code, f"{words}: {process.returncode}\n{output}"
        return output

    def records(self, node: str) -> list[dict]:
        """What a node wrote, line by line."""
        path = self.record / f"{node}.jsonl"
        assert path.exists(), f"{node} wrote nothing; there is {os.listdir(self.record)}"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def check_left(self) -> None:
        """No process of the test is left, and nothing of a bus."""
        deadline = time.monotonic() + 15
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for path in _zenoh_files() - self._shm:
            if not _is_mapped(path):  # a daemon that is told to end leaves it to the machine
                path.unlink(missing_ok=True)
        assert left == {}
        assert list(self.bus.rglob("*")) == []

    def _processes(self) -> dict[int, str]:
        """Processes that were started with this test's environment, whoever started them."""
        mark = f"RECORD={self.record}".encode()
        found = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                pass  # it has just ended
        return found


def _zenoh_files() -> set[pathlib.Path]:
    return set(pathlib.Path("/dev/shm").glob("*.zenoh"))


def _is_mapped(path: pathlib.Path) -> bool:
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(path) in maps.read_text():
                return True
        except OSError:
            pass  # it has just ended
    return False


def free_port() -> int:
    """A TCP port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Daemons:
    """A coordinator and daemons of stock dora on this machine, each a process of its own."""

    def __init__(self, place: Place, machines: list[str], **daemon_env: dict[str, str]) -> None:
        self.place = place
        self.port = free_port()
        self._processes: list[subprocess.Popen] = []
        peer = f"tcp/127.0.0.1:{free_port()}"
        self._start("coordinator", {}, "--port", self.port, "--store", "memory", "--quiet")
        self._until(lambda: _listens(self.port), "the coordinator does not listen")
        for machine in machines:
            more = daemon_env.get(machine, {})
            self._start(
                "daemon", more, "--machine-id", machine, "--coordinator-port", self.port,
                "--zenoh-peer", peer, "--local-listen-port", free_port(), "--quiet",
            )  # fmt: skip
        self._until(self._all_there, "not all daemons have registered")

    def _start(self, verb: str, env: dict[str, str], *words: object) -> None:
        log = open(self.place.folder / f"{verb}-{len(self._processes)}.log", "w")
        self._processes.append(
            subprocess.Popen(
                [tool("dora"), verb, *map(str, words)],
                cwd=self.place.folder,
                env=self.place.env(**env),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        )
        log.close()

    def _all_there(self) -> bool:
        done = subprocess.run(
            [tool("dora"), "doctor", "--coordinator-port", str(self.port)],
            env=self.place.env(),
            capture_output=True,
            text=True,
        )
        return f"Connected machines: {len(self._processes) - 1}" in done.stdout

    def _until(self, condition, problem: str) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            if time.monotonic() > deadline:
                self.stop()
                pytest.fail(problem)
            time.sleep(0.05)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> Daemons:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.stop()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

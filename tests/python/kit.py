"""What the tests of pools, readers and frames share: scripts in processes of their own, and
counting what a process has."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from types import TracebackType

LIMIT_S = float(os.environ.get("TB_TEST_LIMIT_S", "30"))  # for a script, and for what it waits for

# What every script begins with.
PROLOGUE = """
import os, signal, sys, threading, time
import numpy as np
import tensorbus as tb
def say(*words):
    print(*words, flush=True)
def hear():
    return sys.stdin.readline().strip()
"""


# Processes of this test that ended by a signal, or otherwise than they should: their sockets are
# left.
killed: list[int] = []


def descriptors() -> dict[str, str]:
    """Open descriptors of this process, and what they are."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return {n: what for n, what in found.items() if not what.startswith("/proc/")}


def pool_mappings(pid: int | str = "self") -> list[tuple[str, str, int]]:
    """(permissions, inode, bytes) of the mapped pool segments of a process, neighbours as one."""
    found: list[tuple[str, str, int]] = []
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "/memfd:tensorbus-pool" in line:
            span, permissions, _, _, inode = line.split()[:5]
            begin, end = (int(part, 16) for part in span.split("-"))
            if found and found[-1][:2] == (permissions, inode):
                found[-1] = (permissions, inode, found[-1][2] + end - begin)
            else:
                found.append((permissions, inode, end - begin))
    return found


def threads() -> list[str]:
    """Names of the threads of this process."""
    found = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.append((task / "comm").read_text().strip())
    return sorted(found)


def children() -> list[int]:
    """Child processes of this process, dead ones that nobody waited for included."""
    found = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def await_true(
    condition: Callable[[], object], what: str | Callable[[], str], timeout: float = LIMIT_S
) -> None:
    """Look every millisecond until it is so."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {timeout} s: {what if isinstance(what, str) else what()}"
            )
        time.sleep(0.001)


class Script:
    """A Python script in a process of its own, which ends with the `with` block: killed unless it
    was waited for. It has `say()` and `hear()` to talk with the test."""

    def __init__(
        self, *sources: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> None:
        source = "\n".join(textwrap.dedent(part) for part in (PROLOGUE, *sources))
        self.process = subprocess.Popen(
            [sys.executable, *options, "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (env or {}),
        )
        self.pid = self.process.pid
        self.wanted = 0  # exit status

    def __enter__(self) -> Script:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.returncode not in (0, self.wanted) or self.process.returncode < 0:
            killed.append(self.pid)
        self.process.communicate()

    def hear(self) -> str:
        """The next line that the script says; what it wrote to standard error when it has ended."""
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, "the script ended: " + self.process.stderr.read()
        return line.strip()

    def tell(self, word: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, awaited."""
        self.process.kill()
        self.process.wait(LIMIT_S)

    def end(self, status: int = 0) -> tuple[str, str]:
        """Wait for its end; what it has said since, and its standard error."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        self.wanted = status
        assert self.process.returncode == status, f"status {self.process.returncode}: {err}"
        return out, err


def run(
    *sources: str,
    options: tuple[str, ...] = (),
    status: int = 0,
    env: dict[str, str] | None = None,
) -> tuple[str, str]:
    """Run a script to its end: what it says, and its standard error."""
    with Script(*sources, options=options, env=env) as script:
        return script.end(status)


def _mapping(pid: int | str, address: int) -> tuple[int, list[str]]:
    """Where the mapping of an address begins, and its line in maps."""
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return begin, line.split()
    raise AssertionError(f"{address:#x} is not mapped")


def page_of(pid: int | str, address: int) -> tuple[str, int]:
    """Which file's which byte a process sees at an address: (inode, offset)."""
    begin, line = _mapping(pid, address)
    return line[4], int(line[2], 16) + address - begin


def permissions_at(address: int) -> str:
    """What this process may do at an address, such as "rw-s"."""
    return _mapping("self", address)[1][1]


def resident_kib() -> int:
    """Resident memory of this process."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def later(seconds: float, call: Callable[[], object]) -> threading.Timer:
    """Call it after a while; join the result."""
    timer = threading.Timer(seconds, call)
    timer.start()
    return timer

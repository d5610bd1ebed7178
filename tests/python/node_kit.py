"""Nodes without a runner, for tests: two in this process, or scripts in processes of their own."""

import contextlib
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import tensorbus as tb

OPEN_S = 20.0


def environment(name: str, inputs: str = "", outputs: str = "") -> dict[str, str]:
    """What a runner would set, see docs/flows.md and src/node/env.h."""
    return {
        "TENSORBUS_NODE": name,
        "TENSORBUS_INPUTS": inputs,
        "TENSORBUS_OUTPUTS": outputs,
        "TENSORBUS_RUNNER": "",
    }


def await_true(condition, what: str, timeout: float = OPEN_S) -> None:
    """Look every millisecond until it is so."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.001)


def open_node(name: str, inputs: str = "", outputs: str = "") -> tb.Node:
    os.environ.update(environment(name, inputs, outputs))
    return tb.Node()


@contextlib.contextmanager
def node_pair(options: str = "queue=100") -> Iterator[tuple[tb.Node, tb.Node]]:
    """Nodes `source` and `sink` in this process, joined by source/out -> sink/in."""
    opened: list[tb.Node] = []

    def open_source() -> None:
        opened.append(tb.Node())

    os.environ.update(environment("source", outputs="out=sink/in"))
    thread = threading.Thread(target=open_source)
    thread.start()
    socket = pathlib.Path(os.environ["TENSORBUS_DIR"], "default", "source.sock")
    await_true(socket.exists, "source has its endpoint")
    sink = open_node("sink", inputs=f"in=source/out;{options}")
    thread.join(OPEN_S)
    source = opened[0]
    try:
        yield source, sink
    finally:
        # The sink first: a source waits for what is queued.
        sink.close()
        source.close()


def script(body: str, name: str, inputs: str = "", outputs: str = "",
           **options) -> subprocess.Popen[str]:
    """A Python node in a process of its own; `body` is its program."""
    program = "import tensorbus as tb\n" + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        env={**os.environ, **environment(name, inputs, outputs)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def finish(process: subprocess.Popen[str], timeout: float = 60) -> str:
    """What it printed; it must have ended well."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{err}"
    return out

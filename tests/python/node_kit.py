"""Nodes without a runner, for tests: two in this process, or scripts in processes of their own."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator

import kit
import tensorbus as tb


def environment(name: str, inputs: str = "", outputs: str = "") -> dict[str, str]:
    """What a runner would set, see src/node/env.h."""
    return {
        "TENSORBUS_NODE": name,
        "TENSORBUS_INPUTS": inputs,
        "TENSORBUS_OUTPUTS": outputs,
        "TENSORBUS_RUNNER": "",
    }


def await_socket(name: str) -> None:
    """Until a process of this name has its endpoint: it has read its environment then."""
    path = pathlib.Path(os.environ["TENSORBUS_DIR"], "default", f"{name}.sock")
    kit.await_true(path.exists, f"no endpoint of `{name}`")


def open_node(name: str, inputs: str = "", outputs: str = "") -> tb.Node:
    os.environ.update(environment(name, inputs, outputs))
    return tb.Node()


@contextlib.contextmanager
def node_pair(options: str = "queue=100") -> Iterator[tuple[tb.Node, tb.Node]]:
    """Nodes `source` and `sink` in this process, joined by source/out -> sink/in."""
    opened: list[tb.Node] = []
    os.environ.update(environment("source", outputs="out=sink/in"))
    thread = threading.Thread(target=lambda: opened.append(tb.Node()))
    thread.start()
    await_socket("source")
    sink = open_node("sink", inputs=f"in=source/out;{options}")
    thread.join(kit.LIMIT_S)
    source = opened.pop()
    try:
        yield source, sink
    finally:
        sink.close()  # first: a source waits for what is queued
        source.close()


class Node(kit.Script):
    """A Python node in a process of its own."""

    def __init__(
        self, source: str, name: str, inputs: str = "", outputs: str = "", *options: str
    ) -> None:
        super().__init__(source, *options, env=environment(name, inputs, outputs))

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
def nodes(**ends: tuple[str, str]) -> Iterator[list[tb.Node]]:
    """Nodes in this process, each with its inputs and outputs. They wait for each other, so each is
    opened by a thread. Closed in the opposite order: a source waits for what is queued."""
    opened: dict[str, tb.Node] = {}

    def open_one(name: str) -> None:
        opened[name] = tb.Node()

    threads = []
    for name, (inputs, outputs) in ends.items():
        os.environ.update(environment(name, inputs, outputs))
        threads.append(threading.Thread(target=open_one, args=(name,)))
        threads[-1].start()
        await_socket(name)
    for thread in threads:
        thread.join(kit.LIMIT_S)
    try:
        yield [opened[name] for name in ends]
    finally:
        for name in reversed(ends):
            opened.pop(name).close()


def node_pair(options: str = "queue=100") -> contextlib.AbstractContextManager[list[tb.Node]]:
    """Nodes `source` and `sink` in this process, joined by source/out -> sink/in."""
    return nodes(source=("", "out=sink/in"), sink=(f"in=source/out;{options}", ""))


class Node(kit.Script):
    """A Python node in a process of its own."""

    def __init__(
        self, source: str, name: str, inputs: str = "", outputs: str = "", *options: str
    ) -> None:
        super().__init__(source, *options, env=environment(name, inputs, outputs))

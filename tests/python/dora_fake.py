"""A dora.Node that is made up: what a real dataflow does not do on request."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pyarrow as pa
import tensorbus.dora


class FakeNode:
    """As much of dora.Node as attach() needs; two of them share a `table` and are one dataflow."""

    def __init__(self, table: dict | None = None, nodes: list | None = None) -> None:
        self.table = {} if table is None else table
        self.nodes = [] if nodes is None else nodes
        self.dropped: list[str] = []
        self.sent: list[tuple] = []
        self.full = False
        self.events: list[dict | None] = []
        self.inside = 0  # calls of recv_async()
        self.asked: tuple[Any, Any] | None = None  # loop and future of recv_async()
        self.inputs: dict[str, Any] = {"a": "x/y"}

    def dataflow_id(self) -> str:
        return "01a22c69-2776-7168-86e0-e4a7ea56fb5c"

    def dataflow_descriptor(self) -> dict:
        return {"nodes": self.nodes}

    def node_config(self) -> dict:
        return {"inputs": self.inputs, "outputs": ["o"]}

    def extension_store(self, namespace: str, key: str, value: bytes) -> None:
        self._for_itself()
        if self.full:
            raise RuntimeError("extension table full for this dataflow\n\nLocation: somewhere")
        self.table[namespace, key] = value

    def extension_load(self, namespace: str, key: str, remove: bool = False) -> bytes | None:
        self._for_itself()
        return self.table.get((namespace, key))

    def extension_drop(self, namespace: str, key: str) -> None:
        self._for_itself()
        if self.table.pop((namespace, key), None) is not None:
            self.dropped.append(key)

    def drain_dropped_extension_keys(self, namespace: str) -> list[str]:
        keys, self.dropped = self.dropped, []
        return keys

    def send_output(self, output_id: str, data: object, metadata: dict | None = None) -> None:
        self.sent.append((output_id, data, metadata))

    def message(self, number: int = -1, **change: str) -> dict:
        """What was sent, as an event of its receiver."""
        output_id, data, metadata = self.sent[number]
        return {
            "type": "INPUT",
            "id": output_id,
            "value": pa.array(np.frombuffer(data, np.uint8)) if isinstance(data, bytes) else data,
            "metadata": {**metadata, **change},
            "kind": "dora",
        }

    def next(self, timeout: float | None = None) -> dict | None:
        return self._take() if self.events else None

    def _take(self) -> dict | None:
        """The end, None, stays."""
        return None if self.events[0] is None else self.events.pop(0)

    def try_recv(self) -> dict | None:
        self._for_itself()
        return self.next()

    async def recv_async(self, timeout: float | None = None) -> dict | None:
        self.inside += 1
        try:
            while not self.events:
                loop = asyncio.get_running_loop()
                self.asked = loop, loop.create_future()
                await self.asked[1]
            return self._take()
        finally:
            self.inside -= 1

    def _for_itself(self) -> None:
        """Calls that change dora's node fail while it is waited for."""
        if self.inside:
            raise RuntimeError("Already borrowed")

    def give(self, event: dict | None) -> None:
        """An event arrives, from another thread too: whoever waits for one is woken."""
        self.events.append(event)
        asked, self.asked = self.asked, None
        if asked is not None:
            asked[0].call_soon_threadsafe(lambda: asked[1].done() or asked[1].set_result(None))


def attach(node: FakeNode, name: str, **options: object) -> tensorbus.dora.Bus:
    return tensorbus.dora.attach(node, name=name, linger=0, **options)

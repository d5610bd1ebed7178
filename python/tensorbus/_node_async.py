"""`async for event in node`: one thread per node waits, and only when there is nothing to take."""

import asyncio
import queue
import threading
from typing import Any

from ._core import Event, Node


def _serve(requests: "queue.SimpleQueue[Any]") -> None:
    """Wait for events, for whoever asks; the thread's main function."""
    while (request := requests.get()) is not None:
        node, loop, future = request
        request = None
        node._fetch()
        node = None
        try:
            loop.call_soon_threadsafe(_finish, future)
        except RuntimeError:
            pass  # the loop was closed meanwhile; the event waits for the next call
        loop = future = None


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Helper:
    """Belongs to one node. It does not refer to the node, which refers to it."""

    def __init__(self) -> None:
        self._requests: "queue.SimpleQueue[Any] | None" = None

    def close(self) -> None:
        """End the thread, when it has come back from the node."""
        if self._requests is not None:
            self._requests.put(None)
            self._requests = None

    def _begin(self, node: Node) -> "asyncio.Future[None]":
        if self._requests is None:
            self._requests = queue.SimpleQueue()
            threading.Thread(
                target=_serve, args=(self._requests,), name="tensorbus-next", daemon=True
            ).start()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        node._set_cancel(False)
        self._requests.put((node, loop, future))
        return future

    async def next(self, node: Node) -> Event:
        """The node's next event. When the task is cancelled nothing is lost: an event that had
        come is what the next call returns."""
        await asyncio.sleep(0)  # a node that is never idle must not keep other tasks waiting
        while (event := node._try_next()) is None:
            future = self._begin(node)
            try:
                await future
            except asyncio.CancelledError:
                node._set_cancel(True)
                raise
        return event

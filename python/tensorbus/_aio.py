"""Asynchronous loops: `async for frame in reader`."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import Frame, Frames, Reader


class AsyncFrames:
    """A loop of one task over a reader. Waiting takes no thread: the event loop watches the
    reader's descriptor. Cancelling the task loses no frame."""

    def __init__(self, reader: Reader, frames: Frames) -> None:
        self._reader = reader
        self._frames = frames

    def __aiter__(self) -> AsyncFrames:
        return self

    async def __anext__(self) -> Frame:
        frame = self._frames.poll()
        if frame is not None:
            return frame
        loop = asyncio.get_running_loop()
        # Of its own, so that several tasks may wait for one reader.
        descriptor = os.dup(self._reader.fileno())
        try:
            while True:
                frame = self._frames.poll()  # arms the descriptor again
                if frame is not None:
                    return frame
                await _readable(loop, descriptor)
        finally:
            os.close(descriptor)


async def _readable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, wake)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)

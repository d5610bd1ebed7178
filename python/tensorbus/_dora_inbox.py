"""A dora node's events and the messages that come past dora, as one stream.

dora's Node has no descriptor to wait for, but a coroutine, `recv_async()`. While messages come by
the shortcut that is stepped by hand, on an event loop which is no more than a bell, and the node's
thread waits for the bell and for the shortcut's descriptors. The coroutine never outlives the wait:
some of the node's calls want the node for themselves.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import time
from collections import deque
from typing import Any, Callable, Final

from tensorbus._dora_shortcut import Message, Receiver

_LONGEST_S = 1e6  # that poll() takes; who waits longer looks again


class _Nothing:
    """There is no event yet; None is dora's word for the end."""


NOTHING: Final = _Nothing()


def number_of(event: dict[str, Any] | None, key: str) -> int | None:
    """The number of a message in dora's event; None: it has none."""
    if event is None or event["type"] != "INPUT" or key not in event["metadata"]:
        return None
    _, _, number = str(event["metadata"][key]).partition(" ")[0].partition("#")
    return int(number) if number.isdecimal() else None


def _sent_ns(event: dict[str, Any]) -> float:
    """When an event of dora was sent, wall clock; what has no time comes first."""
    when = (event.get("metadata") or {}).get("timestamp")
    return 0 if when is None else when.timestamp() * 1e9


def _timed_out() -> dict[str, Any]:
    """As dora says it."""
    error = "Timeout event stream error: Receiver timed out"
    return {"type": "ERROR", "kind": "dora", "error": error}


class _Bell(asyncio.BaseEventLoop):
    """As much of an event loop as a coroutine needs that is stepped by hand: `fd` becomes readable
    when it is worth another step."""

    def __init__(self) -> None:
        super().__init__()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> None:
        os.eventfd_write(self.fd, 1)  # first: whoever finds a call finds it readable
        self._calls.append((callback, args))

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> None:
        """Any thread: dora's own call it."""
        self.call_soon(callback, *args)

    def answer(self) -> bool:
        """Do what it was rung for; False: it was not rung."""
        if not self._calls:
            return False
        os.eventfd_read(self.fd)
        while self._calls:
            callback, args = self._calls.popleft()
            callback(*args)
        return True

    def close(self) -> None:
        super().close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _Question:
    """One call of `node.recv_async()`, stepped by hand."""

    def __init__(self, node: Any, bell: _Bell) -> None:
        self._coroutine = node.recv_async()
        self._bell = bell
        self._waits_for: asyncio.Future[Any] | None = None

    def step(self) -> Any:
        """The event, or NOTHING when there is none yet.

        Raises:
            Exception: what dora raises.
        """
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self._bell)
        try:
            self._waits_for = self._coroutine.send(None)
        except StopIteration as answer:
            return answer.value
        finally:
            asyncio._set_running_loop(outer)
        return NOTHING

    def is_due(self) -> bool:
        """Whether another step may bring the event: the bell may have rung for one before."""
        return self._waits_for is not None and self._waits_for.done()

    def close(self) -> None:
        """Leave dora's node. What comes later stays there."""
        self._coroutine.close()


class Inbox:
    """What a node's bus gives out, in order. Threads: one at a time, as the node."""

    def __init__(self, node: Any, shortcut: Receiver, key: str) -> None:
        """
        Args:
            node: stays its owner's.
            shortcut: stays its owner's.
            key: of the metadata in which messages of dora have their number.
        """
        self._node = node
        self._shortcut = shortcut
        self._key = key
        self._pending: Any = NOTHING  # dora's next event
        self._put_back: list[Any] = []
        self._bell: _Bell | None = None
        self._was_asked = False  # dora, until just now, and it had nothing
        self._poll = select.poll()
        self._poll_of = -1  # changes of the shortcut that it has

    # ------------------------------------------------------------------ without waiting

    def poll(self) -> Any:
        """The next event, (input, Message) of one that came by the shortcut, None at the end, or
        NOTHING when there is none yet."""
        if self._put_back:
            return self._put_back.pop()
        self._shortcut.collect()
        self._look()
        return self._choose()

    def put_back(self, event: Any) -> None:
        """What poll() gave comes out again first."""
        self._put_back.append(event)

    def _look(self) -> None:
        if self._pending is NOTHING:
            event = self._node.try_recv()
            self._pending = NOTHING if event is None else event

    def _choose(self) -> Any:
        """Of dora's next event and what is in the shortcut's queues, what comes first."""
        chosen = self._before(self._pending)
        if chosen is not None:
            self._shortcut.pop(chosen[0])
            return chosen
        event, self._pending = self._pending, NOTHING
        number = None if event is NOTHING else number_of(event, self._key)
        if number is not None:
            self._shortcut.note(event["id"], number)
        return event

    def _before(self, event: Any) -> tuple[str, Message] | None:
        """The message of the shortcut that comes before dora's next event; None: there is none."""
        if self._shortcut.is_empty:
            return None
        if event is NOTHING:
            return self._shortcut.first()
        if event is None or (event["type"] == "STOP" and event["id"] != "MANUAL"):
            return self._shortcut.first(everything=True)
        if event["type"] not in ("INPUT", "INPUT_CLOSED"):
            return None
        number = number_of(event, self._key)
        if number is not None or event["type"] == "INPUT_CLOSED":
            mine = self._shortcut.before(event["id"], number)
            if mine is not None:
                return event["id"], mine
        first = self._shortcut.first()
        return first if first is not None and first[1].sent_ns < _sent_ns(event) else None

    # ------------------------------------------------------------------ waiting

    def next(self, timeout: float | None) -> Any:
        """As poll(), but waits: the event, or dora's word for a timeout.

        Args:
            timeout: seconds; None: for ever.
        """
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            if self._is_dora_alone():
                self._pending = self._node.next(_left_s(until_s))
                return self._choose()
            if (event := self._poll_before_sleep()) is not NOTHING:
                return event
            if time.monotonic() >= until_s:
                return _timed_out()
            self._sleep(until_s)

    async def next_async(self, timeout: float | None) -> Any:
        """`next()` for asyncio: other tasks run meanwhile."""
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            if self._is_dora_alone():
                self._pending = await self._node.recv_async(_left_s(until_s))
                return self._choose()
            if (event := self._poll_before_sleep()) is not NOTHING:
                return event
            if time.monotonic() >= until_s:
                return _timed_out()
            await self._sleep_async(until_s)

    def _is_dora_alone(self) -> bool:
        """Whether whatever there is comes from dora."""
        return not self._put_back and self._pending is NOTHING and not self._shortcut.is_open

    def _poll_before_sleep(self) -> Any:
        """poll() without a look at dora where nothing is there to compare its event with, or dora
        was asked just now: who sleeps asks it in any case."""
        was_asked, self._was_asked = self._was_asked, False
        if self._put_back:
            return self._put_back.pop()
        self._shortcut.collect()
        if not self._shortcut.is_empty and not was_asked:
            self._look()
        return self._choose()

    def _ask(self, until_s: float) -> tuple[_Question | None, float | None]:
        """Ask for dora's next event. Returns the question, None when it was answered at once, and
        for how many seconds to wait at most."""
        if self._bell is None:
            self._bell = _Bell()
        question = _Question(self._node, self._bell)
        self._pending = question.step()
        if self._pending is not NOTHING:
            return None, 0.0
        due_s = self._shortcut.due_s()
        return question, _left_s(until_s if due_s is None else min(until_s, due_s))

    def _end(self, question: _Question) -> None:
        """Take the answer, if there is one, and leave dora's node."""
        try:
            if self._bell is not None and self._bell.answer() and question.is_due():
                self._pending = question.step()
            self._was_asked = True
        finally:
            question.close()

    def _descriptors(self) -> list[int]:
        assert self._bell is not None
        return [self._bell.fd, *self._shortcut.descriptors()]

    def _sleep(self, until_s: float) -> None:
        """Until there may be something, or it is time."""
        question, left_s = self._ask(until_s)
        if question is None:
            return
        try:
            if self._poll_of != self._shortcut.changes:
                self._poll_of = self._shortcut.changes
                self._poll = select.poll()
                for fd in self._descriptors():
                    self._poll.register(fd, select.POLLIN)
            self._poll.poll(None if left_s is None else math.ceil(min(left_s, _LONGEST_S) * 1e3))
        finally:
            self._end(question)

    async def _sleep_async(self, until_s: float) -> None:
        question, left_s = self._ask(until_s)
        if question is None:
            return
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        descriptors = self._descriptors()
        for fd in descriptors:
            loop.add_reader(fd, ready.set)
        timer = None if left_s is None else loop.call_later(left_s, ready.set)
        try:
            await ready.wait()
        finally:
            if timer is not None:
                timer.cancel()
            for fd in descriptors:
                loop.remove_reader(fd)
            self._end(question)

    def close(self) -> None:
        """Let go of the bell."""
        if self._bell is not None:
            # dora's threads keep the last one who waited, and would call into an interpreter that
            # has ended: one that is none of Python's takes its place.
            try:
                event = self._node.next(0.001)
            except RuntimeError:  # the daemon is gone, and nobody of it wakes anyone
                event = None
            if self._pending is NOTHING and not (event is not None and event["type"] == "ERROR"):
                self._pending = event  # bus.next() still gives it
            self._bell.close()
            self._bell = None


def _left_s(until_s: float) -> float | None:
    """Seconds until then; None: for ever."""
    return None if until_s == math.inf else max(0.0, until_s - time.monotonic())

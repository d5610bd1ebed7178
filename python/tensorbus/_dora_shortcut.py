"""Messages of a dora dataflow that go from bus to bus, past dora's daemon.

An output all of whose consumers take their events from a bus needs no message of dora: its messages
lie in a small pool that each of them reads, `<node>/_shortcut_<output>`. Where one consumer does
not (a recorder, a node in Rust, one that is still starting), they go through dora, to all.

How both ways stay one stream: each message of such an output has a number, by whichever way it
goes. One that takes the shortcut also names the last number that went through dora (`after`), and
its receiver gives it out only when it has come to that one. A receiver attaches to the shortcut
when the first numbered message reaches it through dora, so what was sent before is in its hands;
from then on the sender sees it among the pool's readers.

Threads: one at a time, as the node.
"""

from __future__ import annotations

import datetime
import json
import logging
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Iterator, NamedTuple

import tensorbus
from tensorbus import _dora_metadata
from tensorbus._consumers import Consumers

CAPACITY = 4096  # bytes of a message with its metadata; longer ones go through dora
_MAX_SLOTS = 256
_SERIALS = 0xFFFFFFFF
_SPARE_SLOTS = 4  # beyond the longest queue: those that are being read
_QUEUE_DEFAULT = 10  # dora's

# How long a message waits for one that went through dora before it. Longer than dora takes; what is
# not there by then was lost.
_PATIENCE_S = 2.0

# Number, after, wall clock in ns, which message of the shortcut it is, bytes of data, whether it is
# a handle. Behind the data lies what else is said of it: the pool's id, and the metadata as JSON
# where there is any.
_HEADER = struct.Struct("<QQQIHB")
_UTC = datetime.timezone.utc

_log = logging.getLogger("tensorbus.dora")


class Message(NamedTuple):
    """What came by the shortcut."""

    number: int
    after: int
    sent_ns: int  # wall clock
    serial: int
    data: bytes  # a handle's, or what was sent
    is_handle: int
    about: bytes

    def metadata(self) -> dict[str, Any]:
        """As dora's events have it; a new one each time."""
        when = datetime.datetime.fromtimestamp(self.sent_ns // 1000 / 1e6, _UTC)
        text = self.about.partition(b" ")[2]
        return _dora_metadata.decode(json.loads(text), when) if text else {"timestamp": when}

    @property
    def pool_id(self) -> str:
        """Of the pool that a handle belongs to."""
        return self.about.partition(b" ")[0].decode()


def _unpack(packed: bytes) -> Message:
    number, after, sent_ns, serial, data_bytes, is_handle = _HEADER.unpack_from(packed)
    end = _HEADER.size + data_bytes
    return Message(
        number, after, sent_ns, serial, packed[_HEADER.size : end], is_handle, packed[end:]
    )


# ------------------------------------------------------------------ sending


@dataclass
class _Way:
    """An output's shortcut."""

    pool: Any
    takers: frozenset[str]
    after: int = 0  # number of the last message that went through dora
    before: int = 0  # the one before that
    serial: int = 0  # messages that took the shortcut


class Sender:
    """The outputs of a node, as far as their messages may take the shortcut."""

    def __init__(self, bus: Any, descriptor: dict[str, Any], consumers: Consumers) -> None:
        """
        Args:
            bus: to register pools on; stays its owner's.
            descriptor: of the dataflow, as `Node.dataflow_descriptor()` gives it.
            consumers: of the node; stays its owner's.
        """
        self._bus = bus
        self._consumers = consumers
        self._slots = {} if _is_inspected(descriptor) else _plan(descriptor, consumers)
        self._ways: dict[str, _Way] = {}
        # A node that is started anew goes on with larger ones.
        self._number = time.monotonic_ns()

    def counts(self) -> dict[str, int]:
        """Per output that has a shortcut: how many messages took it."""
        return {output: way.serial for output, way in self._ways.items()}

    def number(self, output_id: str) -> int | None:
        """Number the next message of an output that goes through dora; None: it needs none."""
        way = self._ways.get(output_id) or self._open(output_id)
        if way is None:
            return None
        self._number += 1
        way.before, way.after = way.after, self._number
        return way.after

    def not_sent(self, output_id: str) -> None:
        """dora has refused the message that was numbered last."""
        way = self._ways[output_id]
        way.after = way.before

    def _open(self, output_id: str) -> _Way | None:
        if output_id not in self._slots or not self._consumers.have_come(output_id):
            return None
        name, slots = f"_shortcut_{output_id}", self._slots[output_id]
        spec = tensorbus.Spec((CAPACITY,), "uint8")
        try:
            pool = tensorbus.Pool.register(
                spec, name=name, slots=slots, capacity_bytes=CAPACITY, bus=self._bus
            )
        except tensorbus.Error as error:  # then dora carries everything
            _log.debug("output `%s` has no shortcut: %s", output_id, error)
            del self._slots[output_id]
            return None
        self._ways[output_id] = _Way(pool, frozenset(self._consumers.of(output_id)))
        return self._ways[output_id]

    def send(
        self,
        output_id: str,
        data: bytes,
        metadata: dict[str, Any] | None,
        pool_id: str | None = None,
    ) -> bool:
        """Send a handle, whose pool has the id, or other bytes.

        Returns:
            False: it has to go through dora, which may refuse it.
        """
        way = self._ways.get(output_id)
        if way is None or not self._is_taken(way):
            return False
        about = b"" if pool_id is None else pool_id.encode()
        if metadata:
            text = _text_of(metadata)
            if text is None:
                return False
            about += b" " + text
        if _HEADER.size + len(data) + len(about) > CAPACITY:
            return False
        header = _HEADER.pack(
            self._number + 1, way.after, time.time_ns(), way.serial & _SERIALS, len(data),
            pool_id is not None,
        )  # fmt: skip
        try:
            way.pool.write(header + data + about, 0)
        except tensorbus.Error:  # its readers stand still in the middle of taking a message
            return False
        self._number += 1
        way.serial += 1
        return True


    @staticmethod
    def _is_taken(way: _Way) -> bool:
        """Whether all who take the output read its shortcut."""
        try:
            return way.takers.issubset(way.pool.readers())
        except tensorbus.Error:  # the bus is closed; the node goes on
            return False


def _text_of(metadata: Any) -> bytes | None:
    """Metadata as it travels; None: dora has to say what becomes of it."""
    try:
        fields = _dora_metadata.encode(metadata) or {}
        # Of characters that are none, dora's own error is the better one.
        text = json.dumps(fields, ensure_ascii=False).encode()
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return None if _dora_metadata.DATETIMES in metadata else text


def _is_inspected(descriptor: dict[str, Any]) -> bool:
    """Whether dora shall show all messages to its tools."""
    return any((descriptor.get("debug") or {}).values())


def _plan(descriptor: dict[str, Any], consumers: Consumers) -> dict[str, int]:
    """Slots for each output whose messages dora need not see: for all of its inputs only the length
    of the queue may be set (dora itself watches an `input_timeout`, for one)."""
    queues: dict[str, list[int]] = {}
    barred = set()
    for entry in descriptor.get("nodes", ()):
        for source, has_bus in _sources(entry):
            text, options = _source(source)
            sender, _, output = text.partition("/")
            if sender != consumers.name:
                continue
            queues.setdefault(output, []).append(_queue_size(options))
            # A node is no reader of its own shortcut, nor is an operator one.
            if not has_bus or not _is_plain(options) or entry.get("id") == consumers.name:
                barred.add(output)
    slots = {output: max(sizes) + _SPARE_SLOTS for output, sizes in queues.items()}
    return {
        output: count
        for output, count in slots.items()
        if output not in barred and count <= _MAX_SLOTS
    }


def _sources(entry: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    """The inputs of a node in a descriptor, and whether they are of a process that may have a bus;
    those of its operators are not."""
    for source in (entry.get("inputs") or {}).values():
        yield source, True
    operators = [entry.get("operator"), *(entry.get("operators") or ())]
    for operator in filter(None, operators):
        for source in (operator.get("inputs") or {}).values():
            yield source, False


def _source(source: Any) -> tuple[str, dict[str, Any]]:
    """Of an input in a descriptor: `node/output`, and its options."""
    if not isinstance(source, dict):
        return str(source), {}
    options = {key: value for key, value in source.items() if value is not None}
    return str(options.pop("source", "")), options


def _queue_size(options: dict[str, Any]) -> int:
    return max(1, int(options.get("queue_size", _QUEUE_DEFAULT)))  # dora keeps one of 0, too


def _is_plain(options: dict[str, Any]) -> bool:
    others = {key: value for key, value in options.items() if key != "queue_size"}
    return others in ({}, {"queue_policy": "drop_oldest"})


# ------------------------------------------------------------------ receiving


class _Incoming:
    """The shortcut of another node's output, as its reader sees it."""

    def __init__(self, bus: Any, source: str, inputs: tuple[str, ...]) -> None:
        node, _, output = source.partition("/")
        self._reader = tensorbus.Reader(
            f"{node}/_shortcut_{output}", timeout=0, start="next", bus=bus
        )
        self.inputs = inputs
        self.fd = self._reader.fileno()
        self._frames: Any = iter(self._reader)
        self._serial: int | None = None  # of the last message

    def take(self) -> Message | None:
        """The next message; None: there is none yet.

        Raises:
            StopAsyncIteration, tensorbus.Error: there will be none any more.
        """
        frame = self._frames.poll()
        if frame is None:
            return None
        message = _unpack(bytes(frame))
        if self._serial is None:
            self._serial = message.serial - 1 - frame.info.missed
        frame.release()
        return message

    def missed(self, message: Message) -> int:
        """How many were overwritten between the last message and this one."""
        before, self._serial = self._serial or 0, message.serial
        return (message.serial - before - 1) & _SERIALS

    def close(self) -> None:
        self._reader.close()


class Receiver:
    """The inputs of a node, as far as their messages come by the shortcut."""

    def __init__(
        self, bus: Any, inputs: dict[str, Any], lose: Callable[[str, int], None]
    ) -> None:
        """
        Args:
            bus: to open readers on; stays its owner's.
            inputs: as `Node.node_config()` gives them.
            lose: is told an input, and how many of its messages came too late.
        """
        self._bus = bus
        self._lose = lose
        self._source: dict[str, str] = {}
        self._length: dict[str, int] = {}
        for name, source in inputs.items():
            self._source[name], options = _source(source)
            self._length[name] = _queue_size(options)
        self._queues: dict[str, deque[tuple[Message, float]]] = {}  # with when it came
        self._waiting = 0  # messages in all queues
        self._seen: dict[str, int] = {}  # by input: number of the last message by dora
        self._incoming: dict[str, _Incoming] = {}  # by source
        self._refused: dict[str, int] = {}  # by source: messages by dora since it was not there
        #: Changes when descriptors() does.
        self.changes = 0

    def note(self, input_id: str, number: int) -> None:
        """A numbered message comes out of dora and is given out next: attach to its sender."""
        self._seen[input_id] = max(number, self._seen.get(input_id, 0))
        source = self._source.get(input_id)
        if source is None or source in self._incoming:
            return
        refused = self._refused.get(source, 0)
        self._refused[source] = refused + 1
        if refused & (refused - 1):  # seldom, once it was not there: 1, 2, 4, 8, ... messages later
            return
        try:
            inputs = tuple(name for name, at in self._source.items() if at == source)
            self._incoming[source] = _Incoming(self._bus, source, inputs)
            self.changes += 1
            del self._refused[source]
        except tensorbus.Error as error:
            _log.debug("no shortcut for input `%s`: %s", input_id, error)

    @property
    def is_open(self) -> bool:
        """Whether messages can come, or are there."""
        return bool(self._incoming) or self._waiting > 0

    @property
    def is_empty(self) -> bool:
        """Whether no message is there."""
        return self._waiting == 0

    def descriptors(self) -> list[int]:
        """Descriptors that become readable when there may be something to collect."""
        return [incoming.fd for incoming in self._incoming.values()]

    def collect(self) -> None:
        """Take what has come into the inputs' queues; of a full one the oldest goes."""
        ended = []
        for source, incoming in self._incoming.items():
            try:
                for _ in range(_MAX_SLOTS):  # whoever sends faster than this does not keep us here
                    if (message := incoming.take()) is None:
                        break
                    missed = incoming.missed(message)
                    for input_id in incoming.inputs:
                        self._put(input_id, message, missed)
            except (StopAsyncIteration, tensorbus.Error, struct.error) as error:
                _log.debug("the shortcut from `%s` has ended: %s", source, error)
                ended.append(source)
        for source in ended:
            self._incoming.pop(source).close()
            self.changes += 1

    def _put(self, input_id: str, message: Message, missed: int) -> None:
        queue = self._queues.setdefault(input_id, deque())
        if len(queue) >= self._length[input_id]:
            queue.popleft()
            missed += 1
        else:
            self._waiting += 1
        queue.append((message, time.monotonic()))
        if missed > 0:
            self._lose(input_id, missed)

    def before(self, input_id: str, number: int | None) -> Message | None:
        """The input's next message, if it was sent before the one with the number; None: any."""
        queue = self._queues.get(input_id)
        if queue and (number is None or queue[0][0].number < number):
            return queue[0][0]
        return None

    def first(self, everything: bool = False) -> tuple[str, Message] | None:
        """The oldest message that may be given out, and its input.

        Args:
            everything: nothing comes through dora any more.
        """
        if self._waiting == 0:
            return None
        now_s = time.monotonic()
        best: tuple[str, Message] | None = None
        for input_id, queue in self._queues.items():
            if not queue or not (everything or self._due_s(input_id, *queue[0]) <= now_s):
                continue
            if best is None or queue[0][0].sent_ns < best[1].sent_ns:
                best = input_id, queue[0][0]
        return best

    def _due_s(self, input_id: str, message: Message, came_s: float) -> float:
        """When it may be given out."""
        return came_s + _PATIENCE_S if message.after > self._seen.get(input_id, 0) else 0.0

    def due_s(self) -> float | None:
        """When a message that waits for another may be given out in any case; None: none waits."""
        if self._waiting == 0:
            return None
        return min(self._due_s(name, *queue[0]) for name, queue in self._queues.items() if queue)

    def pop(self, input_id: str) -> None:
        """Take an input's next message out of its queue. Nothing waits for what went before it."""
        message, _ = self._queues[input_id].popleft()
        self._waiting -= 1
        self._seen[input_id] = max(message.after, self._seen.get(input_id, 0))

    def close(self) -> None:
        """Detach. What is in the queues stays."""
        for incoming in self._incoming.values():
            incoming.close()
        self._incoming.clear()
        self.changes += 1

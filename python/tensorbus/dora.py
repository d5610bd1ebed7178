"""Tensorbus inside an unmodified dora: tensors travel as 48-byte handles on dora's outputs.

    import dora, numpy, tensorbus.dora

    bus = tensorbus.dora.attach(dora.Node())
    pool = bus.register(numpy.empty((1080, 1920, 3), numpy.uint8), name="image")
    with pool.loan() as image:
        image[:] = 7
    bus.send_output("image", pool.last)

and in another node of the dataflow:

    for event in bus:
        if event["type"] == "INPUT":
            image = event["value"].numpy()      # in the sender's memory, read-only

dora stays what it is: it starts the nodes, routes the messages, logs, stops. A handle is an
ordinary message of 48 bytes, which may go past dora's daemon where all who take it have a bus
(`shortcut`); the tensor stays where its producer wrote it and is read there, by any number of
nodes, also under several daemons on one machine. Each pool announces itself in dora's
extension table (namespace `dora-tensor-pool`, under its id, as JSON in the layout of dora's own
tensor pool); dropping that key, by any node, frees the pool. docs/dora.md has the whole story.

Threads: as dora's Node, one at a time; frames and pools as in the rest of Tensorbus.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import secrets
import time
from typing import Any, Iterator

import tensorbus
from tensorbus import _descriptor, _quiet
from tensorbus._consumers import Consumers
from tensorbus._dora_inbox import NOTHING, Inbox
from tensorbus._dora_inputs import KEY, Inputs, UnreachableError
from tensorbus._dora_shortcut import Receiver, Sender
from tensorbus._dora_values import bytes_of, dtype_of, is_tensor, itemsize
from tensorbus._place import Place, remove_if_empty, runtime_directory

__all__ = ["Bus", "Pool", "UnreachableError", "attach"]

NAMESPACE = "dora-tensor-pool"

_AUTOMATIC_SLOTS = 6
_PATIENCE_S = 5.0  # for a slot, when consumers hold all of them

# From here on a copy takes about as long as a message, and the two go side by side.
_PROMISE_BYTES = 1 << 20

_log = logging.getLogger("tensorbus.dora")


def attach(
    node: Any,
    *,
    name: str | None = None,
    directory: str | None = None,
    namespace: str = NAMESPACE,
    linger: float = 2.0,
    shortcut: bool | None = None,
) -> Bus:
    """Open a bus beside a live `dora.Node`; processes of one dataflow meet on it.

    Args:
        node: the node, stock dora >= 1.0. It stays usable, but events must come from the bus.
        name: id of the node; needed only for nodes that were started by hand (`path: dynamic`).
        directory: runtime directory; default as everywhere ($TENSORBUS_DIR and so on).
        namespace: of the extension table.
        linger: seconds that closing may wait for consumers that have not opened this node's pools.
        shortcut: whether messages to and from other buses may go past dora's daemon; None: if
            $TENSORBUS_DORA_SHORTCUT is 1.

    Raises:
        TypeError: node is no dora node, or too old to have the extension channel.
        ValueError: the node's id cannot be found out: pass `name`.
        tensorbus.Error: the bus cannot be opened (runtime directory, name in use).
    """
    for method in ("extension_store", "drain_dropped_extension_keys", "dataflow_id", "send_output"):
        if not callable(getattr(node, method, None)):
            raise TypeError(
                f"tensorbus.dora.attach needs a dora.Node of dora 1.0 or later; this "
                f"{type(node).__name__} has no {method}()"
            )
    if shortcut is None:
        shortcut = os.environ.get("TENSORBUS_DORA_SHORTCUT", "") == "1"
    return Bus(node, name or _node_id(node), directory, namespace, linger, shortcut)


def _node_id(node: Any) -> str:
    """The id that the daemon gave this node; Node itself does not tell."""
    config = os.environ.get("DORA_NODE_CONFIG", "")
    if match := re.search(r"^node_id: *[\"']?([A-Za-z0-9_.-]+)", config, re.MULTILINE):
        return match[1]
    mine = node.node_config()
    alike = [
        entry["id"]
        for entry in node.dataflow_descriptor().get("nodes", ())
        if entry.get("path") == "dynamic"
        and sorted(entry.get("outputs") or ()) == sorted(mine.get("outputs") or ())
        and dict(entry.get("inputs") or {}) == dict(mine.get("inputs") or {})
    ]
    if len(alike) == 1:
        return str(alike[0])
    raise ValueError(
        "cannot tell which node of the dataflow this process is; pass its id: "
        'tensorbus.dora.attach(node, name="...")'
    )


class Pool:
    """A pool of this node that other nodes know by its `id`; all else as `tensorbus.Pool`."""

    def __init__(self, bus: Bus, inner: Any, pool_id: str) -> None:
        self._bus = bus
        self._inner = inner
        self.id = pool_id
        #: Bytes of a frame of the registered shape.
        self.nbytes = math.prod(inner.shape) * itemsize(inner.dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def loan(self, *args: Any, **kwargs: Any) -> Any:
        """As `tensorbus.Pool.loan`, after looking for dropped keys."""
        self._bus.turn()
        return self._inner.loan(*args, **kwargs)

    def write(self, *args: Any, **kwargs: Any) -> Any:
        """As `tensorbus.Pool.write`, after looking for dropped keys."""
        self._bus.turn()
        return self._inner.write(*args, **kwargs)

    def free(self) -> None:
        """Free the pool and drop its key, so that every node that knows it is told."""
        self._bus.free(self.id)

    def __repr__(self) -> str:
        return f"<tensorbus.dora.Pool {self.id}>"


class Bus:
    """What `attach` returns: the node's events and outputs, with tensors by handle.

    Whatever it does not have itself (`log_info`, `dataflow_id`, ...) is the node's.
    """

    def __init__(
        self,
        node: Any,
        name: str,
        directory: str | None,
        namespace: str,
        linger: float,
        shortcut: bool,
    ) -> None:
        self.node = node
        self.name = name
        self.flow = node.dataflow_id()
        self.namespace = namespace
        self._bus = tensorbus.open_bus(name, flow=self.flow, directory=directory)
        self._directory = directory or runtime_directory()
        self._place = Place.here(self._directory)
        self._inputs = Inputs(self._bus, self._place)
        self._counter = secrets.randbits(32)
        self._pools: dict[str, Pool] = {}
        self._by_uid: dict[bytes, Pool] = {}
        self._automatic: dict[tuple[str, str], tuple[Pool, int]] = {}  # by output and dtype
        self._sent_on: dict[str, set[str]] = {}  # pool id to outputs
        self._consumers = Consumers(node, name, os.path.join(self._directory, self.flow))
        descriptor = node.dataflow_descriptor() if shortcut else {}
        self._past = Sender(self._bus, descriptor, self._consumers)
        inputs = node.node_config().get("inputs") if shortcut else {}
        self._coming = Receiver(self._bus, inputs or {}, self._inputs.lose)
        self._inbox = Inbox(node, self._coming, KEY)
        self._linger = linger
        self._stopped = False
        self._closed = False
        self._pid = os.getpid()  # a child of a fork leaves all of it alone
        atexit.register(self.close)

    # ------------------------------------------------------------------ pools

    def register(self, tensor: Any, name: str | None = None, **options: Any) -> Pool:
        """Register a pool shaped like `tensor` and announce it to the dataflow.

        Args:
            tensor: a tensor, or anything else that `tensorbus.Pool.register` takes; only dtype and
                shape count.
            name: unique in this node; others may read it as `<node>/<name>`.
            options: as `tensorbus.Pool.register` (slots=4, ...). With `drop_oldest` queues, dora's
                default, more slots than the longest queue keeps queued frames from being
                overwritten.

        Raises:
            tensorbus.Error: as `tensorbus.Pool.register`.
        """
        self.turn()
        self._counter = (self._counter + 1) % 2**63
        inner_name = name or f"pool_{self._counter}"
        inner = tensorbus.Pool.register(tensor, name=inner_name, bus=self._bus, **options)
        pool = Pool(self, inner, f"pool_{self.name}_{self._counter}")
        self._pools[pool.id] = pool
        try:
            self.node.extension_store(self.namespace, pool.id, self._descriptor(pool, inner_name))
        except RuntimeError as error:  # the table is full: handles work without it
            _log.warning("pool `%s` could not be announced: %s", pool.id, _first_line(error))
        return pool

    def _descriptor(self, pool: Pool, name: str) -> bytes:
        ours = {
            "version": 1,
            "path": f"{self.name}/{name}",
            "place": str(self._place),
            "slots": pool.slots,
        }
        return _descriptor.encode(
            pool.id, dtype=pool.dtype, shape=pool.shape, size=pool.nbytes, ours=ours
        )

    def lookup(self, pool_id: str) -> dict[str, Any] | None:
        """What a pool announced: dtype, shape, size and, under "tensorbus", path and slots.

        Returns:
            None when no such pool is known to this node's daemon. Each daemon has a table of its
            own: pools under another daemon are read by handle, or by `<node>/<name>`.
        """
        value = self.node.extension_load(self.namespace, pool_id)
        return None if value is None else _descriptor.decode(value)

    def reader(self, pool: str, **options: Any) -> Any:
        """A `tensorbus.Reader` on a pool of this dataflow, by its id or by `<node>/<name>`.

        Raises:
            tensorbus.NotFoundError: there is no such pool.
        """
        path = pool
        if "/" not in pool:
            found = self.lookup(pool)
            if found is None or "path" not in found["tensorbus"]:
                raise tensorbus.NotFoundError(
                    f"no pool `{pool}` of Tensorbus is known to this node's daemon: it was freed, "
                    f"its node has ended, or it runs under another daemon (read it by a handle "
                    f"that it sends, or as `<node>/<name>`)"
                )
            path = found["tensorbus"]["path"]
        return tensorbus.Reader(path, bus=self._bus, **options)

    def free(self, pool_id: str) -> None:
        """Free a pool, one's own or another node's: its key is dropped, and the node that owns it
        frees it at its next turn. Frames that are held stay valid."""
        self.node.extension_drop(self.namespace, pool_id)
        if pool_id in self._pools:
            self._end(pool_id)

    def turn(self) -> None:
        """Free what other nodes have dropped. Taking an event, a loan or a write does it."""
        self._consumers.look()
        for key in self.node.drain_dropped_extension_keys(self.namespace):
            if key in self._pools:
                self._end(key)

    def _end(self, pool_id: str) -> None:
        pool = self._pools.pop(pool_id)
        self._automatic = {key: at for key, at in self._automatic.items() if at[0] is not pool}
        self._by_uid = {uid: at for uid, at in self._by_uid.items() if at is not pool}
        _quiet.free(pool._inner)

    # ------------------------------------------------------------------ sending

    def send_output(
        self,
        output_id: str,
        data: Any,
        metadata: dict[str, Any] | None = None,
        *,
        pool: Pool | None = None,
    ) -> None:
        """Send a frame by handle, or anything that the node itself can send.

        Args:
            output_id: an output of this node.
            data: `pool.last`, a `Handle` or a `Frame`: 48 bytes travel. A NumPy array or a tensor:
                copied once into a pool, and sent as a handle, which travels while a large one is
                copied. bytes and pyarrow arrays: as `node.send_output` sends them.
            metadata: as for `node.send_output`.
            pool: for arrays and tensors: the pool to copy into. Default: one that the bus keeps for
                the output and the dtype.

        Raises:
            tensorbus.AgainError: consumers hold all slots of the pool.
            tensorbus.MismatchError: the tensor does not fit `pool`; nothing is sent.
        """
        if isinstance(data, tensorbus.Frame):
            data = data.handle
        if isinstance(data, tensorbus.Handle):
            self._send_handle(output_id, data, metadata)
        elif not isinstance(data, bytes) and is_tensor(data):
            self._send_tensor(output_id, data, metadata, pool)
        else:
            self._send_other(output_id, data, metadata)

    def _send_other(self, output_id: str, data: Any, metadata: dict[str, Any] | None) -> None:
        if isinstance(data, bytes) and self._past.send(output_id, data, metadata):
            return
        marked = {**(metadata or {})}
        number = self._past.number(output_id)
        if number is not None:
            marked[KEY] = f"#{number}"
        self._send_through_dora(output_id, data, marked, number)

    def _send_through_dora(
        self, output_id: str, data: Any, metadata: dict[str, Any], number: int | None
    ) -> None:
        try:
            self.node.send_output(output_id, data, metadata)
        except BaseException:
            if number is not None:
                self._past.not_sent(output_id)
            raise

    def _send_handle(
        self, output_id: str, handle: Any, metadata: dict[str, Any] | None
    ) -> None:
        raw = bytes(handle)
        pool = self._pool_of(raw[:16])
        if pool is not None:
            self._sent_on.setdefault(pool.id, set()).add(output_id)
        pool_id = pool.id if pool is not None else "-"
        if self._past.send(output_id, raw, metadata, pool_id):
            return
        marked = {**(metadata or {})}
        number = self._past.number(output_id)
        if number is not None:
            pool_id = f"{pool_id}#{number}"
        marked[KEY] = f"{pool_id} {self._place}"
        self._send_through_dora(output_id, raw, marked, number)

    def _send_tensor(
        self, output_id: str, tensor: Any, metadata: dict[str, Any] | None, pool: Pool | None
    ) -> None:
        """Copy into a pool and send the handle: of a large one before the copy is made, which takes
        about as long as the message. Whoever has the handle first waits for the copy."""
        into = pool or self._pool_for(output_id, tensor)

        def send(handle: Any) -> None:
            self._by_uid[bytes(handle)[:16]] = into  # it may be the pool's first
            self._send_handle(output_id, handle, metadata)

        if bytes_of(tensor) >= _PROMISE_BYTES and into.device == "cpu":
            into.write(tensor, _PATIENCE_S, promised=send)
        else:
            self._send_handle(output_id, into.write(tensor, _PATIENCE_S), metadata)

    def _pool_of(self, uid: bytes) -> Pool | None:
        """The pool of this node that a handle belongs to."""
        if uid not in self._by_uid:
            for pool in self._pools.values():
                if pool.last is not None:
                    self._by_uid[bytes(pool.last)[:16]] = pool
        return self._by_uid.get(uid)

    def _pool_for(self, output_id: str, tensor: Any) -> Pool:
        """The pool that belongs to the output, for a tensor's dtype.

        A larger tensor gets a new one, at least twice as large, and the old one stays for what is
        still on its way.
        """
        dtype = dtype_of(tensor)
        size = bytes_of(tensor)
        pool, capacity = self._automatic.get((output_id, dtype), (None, 0))
        if pool is None or size > capacity:
            capacity = max(size, 2 * capacity, 4096)
            like = tensorbus.Spec(tuple(tensor.shape), dtype)
            pool = self.register(like, slots=_AUTOMATIC_SLOTS, capacity_bytes=capacity)
            self._automatic[output_id, dtype] = pool, capacity
        return pool

    # ------------------------------------------------------------------ events

    def next(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The node's next event; a message with a handle has its `Frame` as `event["value"]`.

        Such an event has two keys more: `pool`, the id of the frame's pool, and `dropped`, how many
        messages of the input were lost before it because their frame was overwritten or gone before
        this node came to them.

        Raises:
            UnreachableError: the frame lies where this process cannot read it.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        while True:
            self.turn()
            found = self._inbox.next(_left_s(until_s))
            if (event := self._given(found)) is not NOTHING:
                return event  # type: ignore[no-any-return]

    def try_recv(self) -> dict[str, Any] | None:
        """The next event if there is one, else None."""
        self.turn()
        while (found := self._inbox.poll()) is not NOTHING:
            if (event := self._given(found)) is not NOTHING:
                return event
        return None

    def drain(self) -> list[dict[str, Any]]:
        """All events that are there."""
        events = []
        while (event := self.try_recv()) is not None:
            events.append(event)
        return events

    def is_empty(self) -> bool:
        """Whether no event is there to be taken."""
        found = self._inbox.poll()
        if found is not NOTHING:
            self._inbox.put_back(found)
        return found is NOTHING

    async def recv_async(self, timeout: float | None = None) -> dict[str, Any] | None:
        """`next()` for asyncio."""
        until_s = None if timeout is None else time.monotonic() + timeout
        while True:
            self.turn()
            found = await self._inbox.next_async(_left_s(until_s))
            if (event := self._given(found)) is not NOTHING:
                return event  # type: ignore[no-any-return]

    def _given(self, found: Any) -> Any:
        """What the inbox gave, as it is given out; NOTHING when its frame is lost."""
        if isinstance(found, tuple):
            event = self._inputs.event_of(*found)
            return NOTHING if event is None else event
        if found is not None and not self._translate(found):
            return NOTHING
        return found

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def _translate(self, event: dict[str, Any]) -> bool:
        """False: the event's frame is lost."""
        if event["type"] == "STOP" and event["id"] == "MANUAL":
            self._stopped = True  # everybody stops: nobody is waited for
        return self._inputs.translate(event)

    @property
    def dropped(self) -> dict[str, int]:
        """Per input: messages whose frame was overwritten or gone before this node came to them."""
        return self._inputs.dropped

    @property
    def past_dora(self) -> dict[str, int]:
        """Per output: how many messages went from bus to bus, past dora's daemon."""
        return self._past.counts()

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Leave the dataflow's bus; idempotent, and called at the process's end.

        Waits up to `linger` seconds until every consumer of a handle has opened its pool, or is
        gone, so that handles in their queues stay readable; frames that consumers hold stay valid
        in any case. Ctrl-C ends the wait: KeyboardInterrupt is raised, and the bus is closed.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            deadline = time.monotonic() + (0 if self._stopped else self._linger)
            while time.monotonic() < deadline and any(map(self._is_awaited, self._pools.values())):
                time.sleep(0.002)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._inbox.close()
        self._coming.close()
        for pool_id in self._pools:
            try:
                self.node.extension_drop(self.namespace, pool_id)
            except RuntimeError:
                break  # the daemon is gone, and its table with it
        self._bus.close()
        remove_if_empty(os.path.join(self._directory, self.flow))

    def _is_awaited(self, pool: Pool) -> bool:
        """Whether somebody who was sent its handles may come to it yet."""
        wanting = self._consumers.wanting(self._sent_on.get(pool.id, ()))
        return not wanting.issubset(pool.readers() if wanting else ())

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *ignored: Any) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.node, name)

    def __repr__(self) -> str:
        return f"<tensorbus.dora.Bus {self.name} of dataflow {self.flow}>"


def _left_s(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - time.monotonic())


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]

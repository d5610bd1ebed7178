"""The Node of dora's Python API, on Tensorbus' runner."""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
import os
import sys
import time
import uuid
from collections import deque
from typing import Any

import pyarrow as pa
import tensorbus

from tensorbus import _dora_metadata as _metadata

from . import _config
from ._extension import Extension
from ._pools import TensorPools
from ._sample import SampleHandler

_log = logging.getLogger("dora")


class Node:
    """A node of a flow, with the interface of `dora.Node`.

    One per process, made from what the runner put into the environment. Like dora's it belongs to
    one thread at a time. Events are dicts; an INPUT's `value` is a pyarrow array over memory that
    stays as it is for as long as the array lives, small ones copied, large ones in place.
    """

    def __init__(self, node_id: str | None = None, daemon_port: int | None = None) -> None:
        """Open the node that the environment describes.

        Args:
            node_id: ignored, as by dora, when the runner has given the node its id.
            daemon_port: ignored: there is no daemon to connect to.

        Raises:
            RuntimeError: the process was not started by `tensorbus run`.
        """
        try:
            self._node = tensorbus.Node()
        except tensorbus.NotFoundError as error:
            raise RuntimeError(
                "this process is no node of a running flow: start it with `tensorbus run "
                f"--dora-api FLOW` (dynamic nodes are not supported): {error}"
            ) from error
        if node_id is not None and node_id != self._node.id:
            _log.warning("node id `%s` is ignored: the flow calls it `%s`", node_id, self._node.id)
        self._config = _config.read()
        self._ready: deque[dict[str, Any]] = deque()
        self._spare: bytearray | None = None
        self._stopped = False
        self._ended = False
        self._extension = Extension(self._node)
        self._pools = TensorPools(self._node, self._extension)
        _bridge_logging()

    # ------------------------------------------------------------------ events

    def next(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Wait for the next event.

        Args:
            timeout: seconds; None waits for ever.

        Returns:
            The event; None when all inputs are closed or the flow has stopped; an event of type
            ERROR when the timeout has passed.

        Raises:
            ValueError: a negative timeout.
        """
        if timeout is not None:
            timeout = _seconds(timeout)
        if self._ready:
            return self._ready.popleft()
        if self._ended:
            return None
        event = self._take(timeout)
        return event if event is not None or self._ended else _timeout_event()

    def try_recv(self) -> dict[str, Any] | None:
        """The next event if there is one, else None. Never waits."""
        if self._ready:
            return self._ready.popleft()
        return None if self._ended else self._take(0)

    def drain(self) -> list[dict[str, Any]]:
        """All events that are there. Never waits.

        Raises:
            RuntimeError: the last event was taken before.
        """
        if self._ended and not self._ready:
            raise RuntimeError("Could not drain events. Channel is closed")
        events = []
        while (event := self.try_recv()) is not None:
            events.append(event)
        return events

    def is_empty(self) -> bool:
        """Whether no event is there to be taken."""
        if not self._ready and not self._ended and (event := self._take(0)) is not None:
            self._ready.append(event)
        return not self._ready

    async def recv_async(self, timeout: float | None = None) -> dict[str, Any] | None:
        """`next()` for asyncio: other tasks run meanwhile. A cancelled call loses no event."""
        if timeout is not None:
            timeout = _seconds(timeout)
        if self._ready:
            return self._ready.popleft()
        if self._ended:
            return None
        self._pools.drain()
        try:
            return self._convert(await asyncio.wait_for(anext(self._node), timeout))
        except asyncio.TimeoutError:
            return _timeout_event()
        except StopAsyncIteration:
            return self._end()

    def __iter__(self) -> Node:
        return self

    def __next__(self) -> dict[str, Any]:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def _take(self, timeout: float | None) -> dict[str, Any] | None:
        """One event of the runner as dora's dict; None: none in time, or the end."""
        self._pools.drain()
        try:
            event = self._node.next(timeout)
        except tensorbus.ClosedError:
            return self._end()
        return None if event is None else self._convert(event)

    def _end(self) -> dict[str, Any] | None:
        """All inputs are closed: dora says so with a last event."""
        self._ended = True
        return None if self._stopped else _stop_event("ALL_INPUTS_CLOSED")

    def _convert(self, event: Any) -> dict[str, Any]:
        if event.type == "INPUT":
            return _input_event(event)
        if event.type == "STOP":
            self._stopped = True
            return _stop_event("MANUAL")
        if event.type == "ERROR":
            text = f"input `{event.id}`: {event.text}" if event.id else event.text
            return {"type": "ERROR", "kind": "dora", "error": text}
        return {"type": event.type, "id": event.id, "kind": "dora"}

    # ------------------------------------------------------------------ sending

    def send_output(
        self, output_id: str, data: Any, metadata: dict[str, Any] | None = None
    ) -> None:
        """Send bytes or a pyarrow array.

        Args:
            output_id: an output of this node; another one is logged and ignored, as by dora.
            data: bytes (arrive as UInt8Array) or a pyarrow array; copied before the call returns.
            metadata: str to bool, int, float, str, datetime or a list of int, float or str; other
                values are sent as text, with a warning.

        Raises:
            RuntimeError: data of another type; or it could not be sent.
            TypeError, OverflowError: metadata.
        """
        fields = _metadata.encode(metadata)
        if not isinstance(data, bytes):
            data = _arrow_array(data)
        if output_id not in self._config.outputs:
            _log.warning("Ignoring output `%s` not in node's output list.", output_id)
            return
        self._send(output_id, data, fields)

    def send_output_raw(
        self, output_id: str, data_length: int, metadata: dict[str, Any] | None = None
    ) -> SampleHandler:
        """A buffer of `data_length` bytes to fill and send; see SampleHandler.

        Raises:
            RuntimeError: no such output.
            OverflowError: a negative length.
        """
        if data_length < 0:
            raise OverflowError("can't convert negative int to unsigned")
        if output_id not in self._config.outputs:
            raise RuntimeError(f"Output `{output_id}` not in node's output list.")
        fields = _metadata.encode(metadata)

        def send(buffer: bytearray) -> None:
            self._send(output_id, buffer, fields)
            self._spare = buffer  # sending has copied it: new memory is slow to touch

        buffer, self._spare = self._spare, None
        if buffer is None or len(buffer) != data_length:
            buffer = bytearray(data_length)
        return SampleHandler(buffer, send)

    def send_service_request(
        self, output_id: str, data: Any, metadata: dict[str, Any] | None = None
    ) -> str:
        """Send a request: `send_output` with a fresh `request_id` in the metadata; returns it."""
        request_id = str(_uuid7())
        self.send_output(output_id, data, {**(metadata or {}), "request_id": request_id})
        return request_id

    def send_service_response(self, output_id: str, data: Any, metadata: dict[str, Any]) -> None:
        """Send the answer to a request: `send_output` with the request's `request_id`."""
        if "request_id" not in metadata:
            _log.warning(
                "send_service_response: metadata is missing 'request_id' \u2014 response will not "
                "be matched to a request"
            )
        self.send_output(output_id, data, metadata)

    def _send(self, output_id: str, data: Any, fields: dict[str, Any] | None) -> None:
        try:
            self._node.send_output(output_id, data, fields)
        except tensorbus.Error as error:
            raise RuntimeError(f"failed to send output: {error}") from error

    # ------------------------------------------------------------------ tensor pools

    def register_tensor_pool(
        self,
        tensor_info: dict[str, Any],
        device: str = "cpu",
        machine: str | None = None,
        name: str | None = None,
        live: bool = False,
    ) -> pa.Array:
        """Register a pool shaped like a tensor, and write that as its first frame.

        Args:
            tensor_info: `ptr`, `size` (bytes), `dtype`, `shape`, `device`, as `get_tensor_info`
                makes it. The memory is copied before the call returns.
            device: of the receiver; "cpu".
            machine: of the receiver; None: this one.
            name: must begin with `dora_pool_`; no two pools of a flow may have the same.
            live: dora's raw view instead of frames: one slot, which changes under its readers.

        Returns:
            The pool's id, a string array of one element; send it to the readers.

        Raises:
            RuntimeError: tensor_info, name, device or machine; says which and why.
        """
        return self._pools.register(tensor_info, device, machine, name, live)

    def write_tensor_pool(self, tensor_pool_id: Any, tensor_info: dict[str, Any]) -> None:
        """Write a tensor into a pool of this node; its shape and dtype stay as registered.

        Never waits for a reader. A pool that was freed, is another node's, or is too small: a
        warning, and nothing is written.

        Raises:
            RuntimeError: tensor_info or id of the wrong kind; readers hold 64 frames.
        """
        self._pools.write(tensor_pool_id, tensor_info)

    def read_tensor_pool(self, tensor_pool_id: Any) -> dict[str, Any]:
        """The newest frame of a pool, in place: `ptr`, `size`, `dtype`, `shape`, `device`.

        The frame does not change while this dict, or a tensor made from it by
        `dora_tensor_pool.tensor_from_info`, is there. Its memory is read-only.

        Raises:
            RuntimeError: there is no such pool (any more), after a warning.
        """
        return self._pools.read(tensor_pool_id)

    def free_tensor_pool(self, tensor_pool_id: Any) -> None:
        """Free a pool, one's own or another node's; what is held stays valid. A pool that does not
        exist is a warning."""
        self._pools.free(tensor_pool_id)

    # ------------------------------------------------------------------ extension channel

    def extension_store(self, namespace: str, key: str, value: bytes) -> None:
        """Store bytes under (namespace, key) with the runner, or replace what this node stored.

        They live until anybody drops them, this node ends, or the flow ends.

        Raises:
            TypeError: value is not bytes.
            RuntimeError: another node's key, or a limit (8192 values in a flow, 64 MiB each).
        """
        self._extension.store(namespace, key, value)

    def extension_load(self, namespace: str, key: str, remove: bool = False) -> bytes | None:
        """The bytes under (namespace, key), None when there are none; `remove` drops them in the
        same round trip."""
        return self._extension.load(namespace, key, remove)

    def extension_drop(self, namespace: str, key: str) -> None:
        """Drop a value, whoever stored it. A key that is not there is no failure."""
        self._extension.drop(namespace, key)

    def drain_dropped_extension_keys(self, namespace: str) -> list[str]:
        """Keys of a namespace, stored or loaded here, that were dropped since last asked."""
        return self._extension.drain(namespace)

    # ------------------------------------------------------------------ about the node

    def dataflow_id(self) -> str:
        """Id of the flow's run, as a UUID whose first eight digits are the runner's flow id."""
        return _config.flow_uuid()

    def node_config(self) -> dict[str, Any]:
        """`inputs` and `outputs` of this node, as the flow's file has them."""
        return self._config.as_dict()

    def dataflow_descriptor(self) -> dict[str, Any]:
        """The flow's file as a dict, with all of its nodes."""
        return _config.descriptor()

    def is_restart(self) -> bool:
        """Whether this node ran before in this flow."""
        return self.restart_count() > 0

    def restart_count(self) -> int:
        """How often this node was restarted."""
        return int(os.environ.get("TENSORBUS_RESTARTS", "0"))

    def timestamp(self) -> datetime.datetime:
        """Now, in UTC; the clock of `event["metadata"]["timestamp"]`."""
        return datetime.datetime.now(datetime.timezone.utc)

    def merge_external_events(self, subscription: Any) -> None:
        """Not here: TypeError. Events of ROS 2 need dora's bridge."""
        raise TypeError(
            f"'{type(subscription).__name__}' object is not an instance of 'Ros2Subscription'"
            if subscription is not None
            else "'None' is not an instance of 'Ros2Subscription'"
        )

    # ------------------------------------------------------------------ logs

    def log(
        self,
        level: str,
        message: str,
        target: str | None = None,
        fields: dict[str, str] | None = None,
    ) -> None:
        """Print a line with its level, target and fields; the runner shows and keeps it."""
        words = [level.upper(), *([f"{target}:"] if target else []), message]
        words += [f"{key}={value}" for key, value in (fields or {}).items()]
        print(*words, flush=True)

    def log_error(self, message: str) -> None:
        """`log("error", message)`."""
        self.log("error", message)

    def log_warn(self, message: str) -> None:
        """`log("warn", message)`."""
        self.log("warn", message)

    def log_info(self, message: str) -> None:
        """`log("info", message)`."""
        self.log("info", message)

    def log_debug(self, message: str) -> None:
        """`log("debug", message)`."""
        self.log("debug", message)

    def log_trace(self, message: str) -> None:
        """`log("trace", message)`."""
        self.log("trace", message)


def _seconds(timeout: float) -> float:
    if math.isnan(timeout) or timeout < 0:
        why = "value is negative" if timeout < 0 else "value is not finite"
        raise ValueError(
            f"invalid timeout of {timeout:g} seconds: cannot convert float seconds to Duration: "
            f"{why}"
        )
    return float(timeout)


def _input_event(event: Any) -> dict[str, Any]:
    value = event.value
    if value is None:
        array = pa.nulls(0)  # a timer's tick
    elif isinstance(value, str):
        array = pa.array([value])  # of a node that is not written for dora
    else:
        array = value.arrow()
    return {
        "type": "INPUT",
        "id": event.id,
        "value": array,
        "metadata": _metadata.decode(event.metadata, _metadata.wall_clock(event.stamp_ns)),
        "kind": "dora",
    }


def _stop_event(reason: str) -> dict[str, Any]:
    return {"type": "STOP", "id": reason, "kind": "dora"}


def _timeout_event() -> dict[str, Any]:
    error = "Timeout event stream error: Receiver timed out"
    return {"type": "ERROR", "kind": "dora", "error": error}


def _arrow_array(data: Any) -> pa.Array:
    if isinstance(data, pa.RecordBatch):
        data = data.to_struct_array()
    if isinstance(data, pa.ExtensionArray):
        data = data.storage  # dora's messages have no extension types
    if not isinstance(data, pa.Array):
        raise RuntimeError("invalid `data` type, must be `PyBytes` or arrow array")
    return data


def _uuid7() -> uuid.UUID:
    """Time first, then random: ids sort by when they were made."""
    stamp = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (stamp & (2**48 - 1)) << 80 | random & (2**80 - 1)
    value = value & ~(0xF000 << 64) | 0x7000 << 64
    value = value & ~(0xC000 << 48) | 0x8000 << 48
    return uuid.UUID(int=value)


def _bridge_logging() -> None:
    """`logging.info()` shows without more ado, as with dora, unless the node has set it up."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)

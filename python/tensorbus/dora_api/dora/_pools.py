"""The four calls of dora's tensor pool, over pools and readers of Tensorbus.

dora's pool is one piece of memory that its writer overwrites in place; nodes written for it take
turns, and some say "go on" while they still hold the old tensor. Here at least two slots stand
behind a pool, a tensor that is held never changes, and a write waits for nobody: when readers hold
every slot but the newest, the pool is replaced by one of twice as many, under the same id. With
`live=True` it is dora's raw view instead: one slot, which changes under its holder.
"""

from __future__ import annotations

import ctypes
import logging
import re
import secrets
import time
from typing import Any

import numpy as np
import pyarrow as pa
import tensorbus
from dora_tensor_pool import DeviceMemory, dtype_name
from tensorbus import _descriptor, _quiet

from ._extension import Extension

NAMESPACE = "dora-tensor-pool"
NAMES = "dora-tensor-pool/names"

_SLOTS = 2
_SLOTS_MAX = 64
_LIVE_PATIENCE_S = 5.0
_LEASES = 64  # frames that a node may hold of one pool
_REOPEN_S = 1.0  # how long a pool that grows, or is being written, is waited for
_DATA_OFFSET = 512  # what dora's messages would say
_GROW_AFTER_S = 0.05  # how long a write waits for a reader before the pool grows

Array = np.ndarray[Any, Any]

_log = logging.getLogger("dora")

_NAME = re.compile(r"dora_pool_[^/]*\Z")


class TensorInfo(dict[str, Any]):
    """What `read_tensor_pool` returns: dora's keys, and the frame that it holds in `memory`."""

    memory: Array | DeviceMemory

    def __init__(self, memory: Array | DeviceMemory, dtype: str, shape: list[int]) -> None:
        if isinstance(memory, DeviceMemory):
            ptr, device = memory.ptr, "cuda"
        else:
            ptr, device = memory.ctypes.data, "cpu"
        super().__init__(ptr=ptr, size=memory.nbytes, dtype=dtype, shape=shape, device=device)
        self.memory = memory


class _Own:
    """A pool of this node."""

    def __init__(
        self, pool_id: str, name: str, sample: Array | DeviceMemory, info: dict[str, Any]
    ) -> None:
        self.id, self.name = pool_id, name
        self.device = "cpu"
        self.dtype, self.shape = str(info["dtype"]), [int(extent) for extent in info["shape"]]
        self.sample_dtype, self.sample_shape = sample.dtype, sample.shape
        self.nbytes = sample.nbytes
        self.inner: Any = None


class _Peer:
    """A pool of another node that this one has read."""

    def __init__(self, reader: Any, found: dict[str, Any]) -> None:
        self.reader = reader
        self.dtype, self.shape = found["dtype"], list(found["shape"])
        self.live = bool(found["tensorbus"].get("live"))
        self.last: Any = None


class TensorPools:
    """The pools of one node. One thread at a time, as the node."""

    def __init__(self, node: Any, extension: Extension) -> None:
        self._node = node
        self._extension = extension
        self._own: dict[str, _Own] = {}
        self._peers: dict[str, _Peer] = {}
        self._live_readers: list[Any] = []
        self._counter = secrets.randbits(63)

    # ------------------------------------------------------------------ the four calls

    def register(
        self,
        info: dict[str, Any],
        device: str = "cpu",
        machine: str | None = None,
        name: str | None = None,
        live: bool = False,
    ) -> pa.Array:
        """See Node.register_tensor_pool."""
        sample = _source(info)
        if machine is not None:
            raise RuntimeError(
                f"register_tensor_pool: machine={machine!r}: pools on other machines are not "
                "built yet; without `machine` every node of this machine can read the pool"
            )
        self._counter = (self._counter + 1) % 2**63
        pool_id = f"pool_{self._node.id}_{self._counter}"
        if name is not None:
            self._claim_name(name, pool_id)
        own = _Own(pool_id, f"pool_{self._counter}", sample, info)
        own.device = device
        try:
            own.inner = self._open(own, 1 if live else _SLOTS)
            own.inner.write(sample)
        except tensorbus.Error as error:
            if own.inner is not None:
                _quiet.free(own.inner)
            if device == "cpu" and isinstance(sample, np.ndarray):
                raise
            raise RuntimeError(
                f"register_tensor_pool: failed to set up the GPU pool of a `{info['device']}` "
                f"tensor for receiver `{device}`: {error}"
            ) from error
        self._own[pool_id] = own
        self._announce(own, live, name)
        return pa.array([pool_id])

    def write(self, tensor_pool_id: Any, info: dict[str, Any]) -> None:
        """See Node.write_tensor_pool."""
        pool_id = _id_text(tensor_pool_id)
        self.drain()
        own = self._live_own(pool_id)
        if own is None:
            if self._find(pool_id) is None:
                _warn("write", pool_id)
            else:
                _log.warning(
                    "write_tensor_pool: pool `%s` is another node's, and only the node that "
                    "registered a pool writes it here. Operation aborted.",
                    pool_id,
                )
            return
        size = int(_required(info, "size"))
        if size == 0 or size > own.nbytes:
            _log.warning(
                "write_tensor_pool: size %d exceeds available pool capacity (data_offset=%d, "
                "total=%d), operation aborted",
                size,
                _DATA_OFFSET,
                own.nbytes + _DATA_OFFSET,
            )
            return
        on_gpu = _is_gpu(info)
        if size < own.nbytes and (on_gpu or own.device != "cpu"):
            raise RuntimeError(
                f"write_tensor_pool: {size} of {own.nbytes} bytes for a GPU: a pool there takes "
                "whole tensors only"
            )
        if on_gpu:
            self._write(
                own, DeviceMemory(_address(info), size, own.sample_dtype, own.sample_shape)
            )
            return
        data = _bytes_at(_address(info), size)
        if size < own.nbytes:
            data = self._with_old_tail(own, data)
        self._write(own, data.view(own.sample_dtype).reshape(own.sample_shape))

    def read(self, tensor_pool_id: Any) -> TensorInfo:
        """See Node.read_tensor_pool."""
        pool_id = _id_text(tensor_pool_id)
        self.drain()
        own = self._live_own(pool_id)
        if own is not None:
            return TensorInfo(_raw(own.inner.read()), own.dtype, list(own.shape))
        for _ in range(3):  # a pool that grows is another one for a moment
            peer = self._peers.get(pool_id) or self._attach(pool_id)
            if peer is None:
                break
            try:
                return self._read(peer)
            except _GONE:
                self._peers.pop(pool_id, None)
        _warn("read", pool_id)
        raise RuntimeError(
            f"tensor pool {pool_id}: pool does not exist: it was freed, its node has ended, or it "
            "never was"
        )

    def free(self, tensor_pool_id: Any) -> None:
        """See Node.free_tensor_pool."""
        pool_id = _id_text(tensor_pool_id)
        self.drain()
        own = self._live_own(pool_id)
        if own is None and self._find(pool_id) is None:
            _warn("release", pool_id)
            return
        if own is not None:
            _quiet.free(self._own.pop(pool_id).inner)
        else:
            peer = self._peers.pop(pool_id, None) or self._attach(pool_id)
            if peer is not None:
                try:
                    peer.reader.free_pool()
                except _GONE:
                    pass  # its owner has just ended
        self._extension.drop(NAMESPACE, pool_id)

    def drain(self) -> None:
        """Let go of what other nodes have freed. Every call that takes an event does it."""
        if not self._own and not self._peers:
            return
        for key in self._extension.drain(NAMESPACE):
            self._peers.pop(key, None)
            if key in self._own:
                _quiet.free(self._own.pop(key).inner)

    # ------------------------------------------------------------------ owner's side

    def _live_own(self, pool_id: str) -> _Own | None:
        """A pool of this node that nobody has freed."""
        own = self._own.get(pool_id)
        if own is not None and own.inner.stats().freed:
            _quiet.free(self._own.pop(pool_id).inner)  # the notice is still on its way
            return None
        return own

    def _open(self, own: _Own, slots: int) -> Any:
        sample = np.broadcast_to(np.zeros((), own.sample_dtype), own.sample_shape)
        return tensorbus.Pool.register(
            sample, name=own.name, slots=slots, device=own.device, bus=self._node.bus
        )

    def _write(self, own: _Own, data: Array | DeviceMemory) -> None:
        while True:
            slots = own.inner.slots
            try:
                # Readers of a live pool hold its slot for microseconds.
                own.inner.write(data, timeout=_GROW_AFTER_S if slots > 1 else _LIVE_PATIENCE_S)
                return
            except tensorbus.AgainError as error:
                if slots == 1:
                    raise RuntimeError(f"tensor pool {own.id}: {error}") from error
                if slots * 2 > _SLOTS_MAX:
                    raise RuntimeError(
                        f"tensor pool {own.id}: readers hold all of its {slots} slots: let go of "
                        "tensors that are no longer used"
                    ) from None
            # Frames that are held live on in the old memory.
            _quiet.free(own.inner)
            own.inner = self._open(own, slots * 2)

    def _with_old_tail(self, own: _Own, head: Array) -> Array:
        """A short write leaves the rest of the tensor as it was."""
        whole: Array = own.inner.read().copy().reshape(-1).view(np.uint8)
        whole[: head.nbytes] = head
        return whole

    def _announce(self, own: _Own, live: bool, name: str | None) -> None:
        ours = {"version": 1, "path": f"{self._node.id}/{own.name}", "live": live}
        try:
            self._extension.store(
                NAMESPACE,
                own.id,
                _descriptor.encode(
                    own.id, dtype=own.dtype, shape=own.shape, size=own.nbytes, ours=ours
                ),
            )
        except RuntimeError:
            del self._own[own.id]
            own.inner.free()
            raise

    def _claim_name(self, name: str, pool_id: str) -> None:
        if not _NAME.match(name) or ".." in name or len(name) > 128:
            raise RuntimeError(
                f"invalid tensor pool name `{name}`: must be non-empty, start with `dora_pool_` "
                "(the dora-owned /dev/shm namespace), without '/' or '..', and at most 128 chars"
            )
        taken = self._extension.load(NAMES, name)
        if taken is not None and self._find(taken.decode()) is not None:
            raise RuntimeError(
                f"failed to create pool shared memory `{name}` (name collision with another node "
                "or leftover segment)"
            )
        if taken is not None:
            self._extension.drop(NAMES, name)
        self._extension.store(NAMES, name, pool_id.encode())

    # ------------------------------------------------------------------ reader's side

    def _find(self, pool_id: str) -> dict[str, Any] | None:
        value = self._extension.load(NAMESPACE, pool_id)
        return None if value is None else _descriptor.decode(value)

    def _attach(self, pool_id: str) -> _Peer | None:
        found = self._find(pool_id)
        if found is None or "path" not in found["tensorbus"]:
            return None
        path = found["tensorbus"]["path"]
        try:
            reader = tensorbus.Reader(
                path, timeout=_REOPEN_S, bus=self._node.bus, max_leases=_LEASES
            )
        except _GONE:
            return None
        return self._peers.setdefault(pool_id, _Peer(reader, found))

    def _read(self, peer: _Peer) -> TensorInfo:
        frame = _newest(peer)
        if not peer.live:
            return TensorInfo(_raw(frame), peer.dtype, list(peer.shape))
        memory = _raw(frame)
        if isinstance(memory, DeviceMemory):
            memory = DeviceMemory(memory.ptr, frame.nbytes)
        else:
            memory = _bytes_at(memory.ctypes.data, frame.nbytes)
            memory.flags.writeable = False
        frame.release()
        if peer.reader not in self._live_readers:
            self._live_readers.append(peer.reader)  # mapped until the node ends: nothing holds it
        return TensorInfo(memory, peer.dtype, list(peer.shape))


_GONE = (
    tensorbus.FreedError,
    tensorbus.NotFoundError,
    tensorbus.OwnerDiedError,
    tensorbus.ClosedError,
)


def _newest(peer: _Peer) -> Any:
    """The newest frame of a pool, the same one again when there is nothing newer."""
    deadline = time.monotonic() + _REOPEN_S
    while True:
        try:
            frame = peer.reader.newest(0 if peer.last is not None else _REOPEN_S)
            peer.last = frame.handle
            return frame
        except tensorbus.AgainError:
            if peer.last is None:
                raise RuntimeError("tensor pool: nothing was written yet") from None
        try:
            return peer.reader.frame(peer.last)
        except tensorbus.StaleError:
            # Written just now: the new one is complete in a moment.
            if time.monotonic() > deadline:
                raise RuntimeError("tensor pool: its writer does not come to an end") from None
            time.sleep(0.0002)


def _raw(frame: Any) -> Array | DeviceMemory:
    """A frame's memory as uint8[size]; it holds the frame."""
    if frame.device != "cpu":
        address = frame.__cuda_array_interface__["data"][0]
        return DeviceMemory(address, frame.nbytes, frame=frame)
    memory: Array = frame.numpy().reshape(-1).view(np.uint8)
    return memory


# ---------------------------------------------------------------------- tensor_info


def _required(info: dict[str, Any], key: str) -> Any:
    if not isinstance(info, dict):
        raise RuntimeError(f"tensor_info must be a dict, got {type(info).__name__}")
    if key not in info:
        raise RuntimeError(f"missing {key}")
    return info[key]


def _address(info: dict[str, Any]) -> int:
    address = int(_required(info, "ptr"))
    if address == 0:
        raise RuntimeError("Invalid source pointer (NULL)")
    return address


def _bytes_at(address: int, size: int) -> Array:
    memory: Array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return memory


def _is_gpu(info: dict[str, Any]) -> bool:
    return str(_required(info, "device")).partition(":")[0] == "cuda"


def _source(info: dict[str, Any]) -> Array | DeviceMemory:
    """The caller's memory as a typed array, or as bytes if dtype and shape do not describe it."""
    values = {key: _required(info, key) for key in ("ptr", "size", "dtype", "shape", "device")}
    address, size = _address(info), int(values["size"])
    if size <= 0:
        raise RuntimeError(f"Invalid size: {size} bytes")
    kind = str(values["device"]).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise RuntimeError(
            f"register_tensor_pool: the tensor is on `{values['device']}`: only `cpu` and `cuda` "
            "are possible; pass tensor.cpu()"
        )
    raw = _bytes_at(address, size) if kind == "cpu" else DeviceMemory(address, size)
    try:
        dtype = np.dtype(dtype_name(str(values["dtype"])))
        if isinstance(raw, DeviceMemory):
            return raw.typed(dtype, [int(extent) for extent in values["shape"]])
        typed: Array = raw.view(dtype).reshape([int(extent) for extent in values["shape"]])
        return typed
    except (TypeError, ValueError):
        return raw


def _id_text(tensor_pool_id: Any) -> str:
    """The id out of a one-element string or binary array."""
    if isinstance(tensor_pool_id, str):
        return tensor_pool_id
    kind = type(tensor_pool_id).__name__
    if isinstance(tensor_pool_id, pa.Array):
        kind = str(tensor_pool_id.type)
        if len(tensor_pool_id) == 1 and tensor_pool_id.null_count == 0:
            value = tensor_pool_id[0].as_py()
            if isinstance(value, bytes):
                return value.decode(errors="replace")
            if isinstance(value, str):
                return value
        if pa.types.is_uint8(tensor_pool_id.type) and len(tensor_pool_id) > 1:
            return bytes(tensor_pool_id.to_numpy()).decode(errors="replace")  # a C node's
    raise RuntimeError(f"tensor_pool_id must be a string or binary array, got {kind}")


def _warn(verb: str, pool_id: str) -> None:
    _log.warning(
        "Attempt to %s memory pool [%s] failed - reason: pool does not exist. Operation aborted.",
        verb,
        pool_id,
    )

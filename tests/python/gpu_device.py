"""A GPU by its driver alone, for the tests' scripts: memory, streams, a brake that holds a stream
up, and objects that hand memory over by DLPack and by __cuda_array_interface__ as frameworks do.
The same with the fake driver and with a real one."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

NOT_READY = 600
ARENA_BYTES = 32 << 20
_cuda = ctypes.CDLL("libcuda.so.1")
_arenas: dict[str, tuple[int, int]] = {}  # of what: (next address, bytes left)
_deleted: list[str] = []  # labels of the DLPack tensors that were let go


def call(name: str, *args: Any) -> None:
    code = getattr(_cuda, name)(*args)
    assert code == 0, f"{name}: CUDA error {code}"


def begin(number: int = 0) -> None:
    """Make the primary context of a device current."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), number)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    # At once: a real driver may wait for all streams when it allocates.
    host, on_device, memory = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
    call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(ARENA_BYTES), 3)
    call("cuMemHostGetDevicePointer_v2", ctypes.byref(on_device), host, 0)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(ARENA_BYTES))
    assert host.value is not None
    _arenas["pinned"] = host.value, ARENA_BYTES
    _arenas["shift"] = on_device.value - host.value, 0
    _arenas["device"] = memory.value, ARENA_BYTES


def _cut(arena: str, nbytes: int) -> int:
    address, left = _arenas[arena]
    nbytes = -(-nbytes // 256) * 256
    assert nbytes <= left, "the test needs a larger arena"
    _arenas[arena] = address + nbytes, left - nbytes
    return address


def stream() -> int:
    """A new one that does not order itself by the default stream."""
    made = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(made), 1)
    assert made.value is not None
    return made.value


def idle(number: int) -> bool:
    """Whether a stream has done all that it was given."""
    code: int = _cuda.cuStreamQuery(ctypes.c_void_p(number))
    assert code in (0, NOT_READY), f"cuStreamQuery: CUDA error {code}"
    return code == 0


def synchronize(number: int = 0) -> None:
    call("cuStreamSynchronize", ctypes.c_void_p(number))


def pinned(nbytes: int) -> tuple[int, int]:
    """Page-locked main memory: (address for the CPU, address for the GPU)."""
    host = _cut("pinned", nbytes)
    return host, host + _arenas["shift"][0]


class Brake:
    """Holds a stream up until off(). Until then nobody may wait for work on another stream that was
    enqueued afterwards: the driver does not see what the wait is for, and may put both streams into
    one queue of the device."""

    on: set[Brake] = set()

    def __init__(self, number: int) -> None:
        Brake.on.add(self)
        address, on_device = pinned(4096)
        self._word = ctypes.c_uint64.from_address(address)
        self._word.value = 0
        call("cuStreamWaitValue64_v2", ctypes.c_void_p(number), ctypes.c_uint64(on_device),
             ctypes.c_uint64(1), 0)

    def off(self) -> None:
        self._word.value = 1
        Brake.on.discard(self)


def put(address: int, array: np.ndarray, number: int = 0) -> None:
    """Copy to the GPU on a stream; the array is copied from at once or from pinned memory."""
    host, _ = pinned(array.nbytes)
    ctypes.memmove(host, np.ascontiguousarray(array).ctypes.data, array.nbytes)
    call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), ctypes.c_void_p(host),
         ctypes.c_size_t(array.nbytes), ctypes.c_void_p(number))


class Later:
    """What a stream will have copied from the GPU once it gets there."""

    def __init__(self, address: int, like: np.ndarray, number: int) -> None:
        host, _ = pinned(like.nbytes)
        self._raw = np.ctypeslib.as_array((ctypes.c_uint8 * like.nbytes).from_address(host))
        self._raw[:] = 0xEE
        self._like, self._stream = like, number
        call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(host), ctypes.c_uint64(address),
             ctypes.c_size_t(like.nbytes), ctypes.c_void_p(number))

    def array(self) -> np.ndarray:
        synchronize(self._stream)
        return self._raw.view(self._like.dtype).reshape(self._like.shape).copy()


def get(address: int, like: np.ndarray, number: int = 0) -> np.ndarray:
    return Later(address, like, number).array()


class Memory:
    """A NumPy array's elements in a GPU's memory."""

    def __init__(self, array: np.ndarray, number: int = 0) -> None:
        assert number != 0 or not Brake.on, "it is waited for: make it before the brake is on"
        self.address, self.array = _cut("device", array.nbytes), array
        put(self.address, array, number)
        if number == 0:
            synchronize()


class Interface:
    """Memory as __cuda_array_interface__ has it, and nothing else."""

    def __init__(self, memory: Memory, **changed: Any) -> None:
        array = memory.array
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "data": (memory.address, False),
            "strides": None, "stream": None, "version": 3} | changed


# ---- DLPack ----


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", _Deleter), ("flags", ctypes.c_uint64),
                ("tensor", DLTensor)]


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_get = ctypes.pythonapi.PyCapsule_GetPointer
_get.restype, _get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_capsules: dict[int, Any] = {}


@_Destructor
def _drop(capsule: int) -> None:
    """A capsule that nobody has taken: its destructor deletes the tensor."""
    address = _raw_pointer(capsule, b"dltensor")
    _capsules[address].deleter(address)


@_Deleter
def _delete(address: int) -> None:
    _deleted.append(_capsules.pop(address).label)


class Exporter:
    """Memory as a framework exports it by DLPack; `streams`: what it was to be ready for."""

    def __init__(self, memory: Memory, label: str = "", code: int = 2, device: int = 0) -> None:
        self.memory, self.label, self.code, self.device = memory, label, code, device
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(self, *, stream: int | None = None) -> object:
        self.streams.append(stream)
        array = self.memory.array
        managed = Managed()
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        managed.tensor = DLTensor(self.memory.address, 2, self.device, array.ndim, self.code,
                                  array.itemsize * 8, 1, shape, None, 0)
        managed.deleter = _delete
        managed.label, managed.keep = self.label, (shape, self.memory)
        address = ctypes.addressof(managed)
        _capsules[address] = managed
        capsule: object = _new(address, b"dltensor", ctypes.cast(_drop, ctypes.c_void_p))
        return capsule


class Taken:
    """A capsule that was consumed, as a framework's tensor."""

    def __init__(self, capsule: object, versioned: bool = True) -> None:
        name = b"dltensor_versioned" if versioned else b"dltensor"
        self._address = _get(capsule, name)
        self.managed = (Versioned if versioned else Managed).from_address(self._address)
        self.tensor = self.managed.tensor
        _rename(capsule, b"used_dltensor_versioned" if versioned else b"used_dltensor")

    def close(self) -> None:
        self.managed.deleter(self._address)


def take(source: Any, number: int | None) -> Taken:
    """What from_dlpack() of a framework does on a stream."""
    return Taken(source.__dlpack__(stream=number, max_version=(1, 1)))


def deleted() -> list[str]:
    return list(_deleted)


def soon(condition: Any, seconds: float = 20) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.0005)

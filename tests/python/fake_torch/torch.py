"""What the nodes of examples/pool use of PyTorch, over a driver alone (gpu_device.py): so that they
run with GPUs that the fake driver plays. In no other way like PyTorch. Put this folder on
PYTHONPATH, with TESTS."""

from __future__ import annotations

import ctypes
import os
import sys
import types
from typing import Any

import numpy as np

sys.path.insert(0, os.environ["TESTS"])
import gpu_device as gpu

_contexts: dict[int, ctypes.c_void_p] = {}
_current = [0]  # the device of set_device()


def _enter(number: int) -> None:
    """Make the primary context of a device current."""
    if number not in _contexts:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        gpu.call("cuInit", 0)
        gpu.call("cuDeviceGet", ctypes.byref(device), number)
        gpu.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _contexts[number] = context
    gpu.call("cuCtxSetCurrent", _contexts[number])


def _copy(way: str, to: int, source: int, nbytes: int) -> None:
    """In the order of the default stream of the current device; and wait."""
    first, second = ctypes.c_void_p(to), ctypes.c_void_p(source)
    gpu.call(f"cuMemcpy{way}Async_v2", first, second, ctypes.c_size_t(nbytes), None)
    gpu.synchronize()


def _number(device: str) -> int:
    return int(device.removeprefix("cuda:"))


class _OnGpu:
    """int64[n] or int64[rows, columns] in a GPU's memory."""

    def __init__(self, address: int, shape: tuple[int, ...], number: int, keep: Any = None) -> None:
        self.address, self.shape, self.number, self.keep = address, shape, number, keep

    def reshape(self, *shape: int) -> _OnGpu:
        return _OnGpu(self.address, shape, self.number, self)

    def __getitem__(self, key: tuple[int, Any]) -> Any:
        """Element [0, i], or elements [0, :n], in main memory; behind what the default stream
        has."""
        row, column = key
        assert row == 0
        first, count = (0, column.stop) if isinstance(column, slice) else (column, 1)
        host = np.zeros(count, np.int64)
        _enter(self.number)
        _copy("DtoH", host.ctypes.data, self.address + 8 * first, 8 * count)
        return host if isinstance(column, slice) else host[0]

    def __setitem__(self, key: tuple[int, int], value: int) -> None:
        assert key == (0, 0)
        _enter(self.number)
        number = ctypes.c_int64(value)
        _copy("HtoD", self.address, ctypes.addressof(number), 8)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.number

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        if self.number != _current[0]:  # as PyTorch does
            raise BufferError("Can't export tensors on a different CUDA device index.")
        assert stream == 1  # the legacy default stream, on which everything here is done
        shaped = types.SimpleNamespace(shape=self.shape, ndim=len(self.shape), itemsize=8)
        memory = types.SimpleNamespace(address=self.address, array=shaped)
        return gpu.Exporter(memory, code=0, device=self.number).__dlpack__(stream=stream)


class _Pinned(np.ndarray):
    def pin_memory(self) -> _Pinned:
        _enter(0)
        host = ctypes.c_void_p()
        gpu.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(self.nbytes), 1)
        assert host.value is not None
        memory = (ctypes.c_uint8 * self.nbytes).from_address(host.value)
        pinned = np.ctypeslib.as_array(memory).view(self.dtype).view(_Pinned)
        pinned[:] = self
        return pinned


def arange(count: int, device: str = "cpu") -> Any:
    numbers = np.arange(count, dtype=np.int64)
    if device == "cpu":
        return numbers.view(_Pinned)
    _enter(_number(device))
    address = ctypes.c_uint64()
    gpu.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(numbers.nbytes))
    _copy("HtoD", address.value, numbers.ctypes.data, numbers.nbytes)
    return _OnGpu(address.value, (count,), _number(device))


def from_dlpack(frame: Any) -> Any:
    kind, number = frame.__dlpack_device__()
    if kind == 1:
        return frame.numpy()
    _enter(number)
    taken = gpu.take(frame, 1)
    shape = tuple(taken.tensor.shape[i] for i in range(taken.tensor.ndim))
    tensor = _OnGpu(taken.tensor.data, shape, number, _Held(taken))
    return tensor


class _Held:
    def __init__(self, taken: Any) -> None:
        self.taken = taken

    def __del__(self) -> None:
        self.taken.close()


def _device_count() -> int:
    count = ctypes.c_int()
    if gpu._cuda.cuInit(0) != 0:
        return 0
    gpu.call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def _set_device(device: str) -> None:
    _current[0] = _number(device)


cuda = types.SimpleNamespace(
    is_available=lambda: _device_count() > 0, device_count=_device_count, set_device=_set_device
)

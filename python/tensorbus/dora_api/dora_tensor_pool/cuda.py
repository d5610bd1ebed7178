"""CUDA IPC for PyTorch tensors, as dora's package of the same name has it: a tensor to 64 bytes and
a metadata dict that travel in any message, and back in another process of the machine.

This is the driver's legacy IPC: the producer must keep the tensor until all have closed it, and
nothing orders its next write. Pools do both: prefer `register_tensor_pool(..., device="cuda:0")`.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from . import dtype_name

__all__ = ["IpcHandle", "ipc_buffer_to_ipc_handle", "open_ipc_handle", "torch_to_ipc_buffer"]

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(
            f"CUDA IPC needs the NVIDIA driver's libcuda.so.1, which cannot be opened: {error}"
        ) from error


def _call(name: str, *args: Any) -> None:
    code = getattr(_driver(), name)(*args)
    if code != 0:
        raise RuntimeError(f"{name} failed with CUDA error {code}")


class IpcHandle:
    """Names an allocation of a GPU to other processes of the machine; its bytes() are 64."""

    def __init__(self, data: bytes) -> None:
        if len(data) != HANDLE_BYTES:
            raise ValueError(f"an IPC handle has {HANDLE_BYTES} bytes, these are {len(data)}")
        self._data = bytes(data)

    def __bytes__(self) -> bytes:
        return self._data

    @classmethod
    def of(cls, address: int) -> tuple[IpcHandle, int]:
        """The handle of the allocation that an address lies in, and the offset in it in bytes.

        Raises:
            RuntimeError: the driver's refusal: no memory of a GPU, or of a kind that cannot be
                shared.
        """
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        _call(
            "cuMemGetAddressRange_v2",
            ctypes.byref(base),
            ctypes.byref(size),
            ctypes.c_uint64(address),
        )
        handle = _Handle()
        _call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        return cls(ctypes.string_at(ctypes.byref(handle), HANDLE_BYTES)), address - base.value

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """Map the allocation into this process: its address, until the block ends."""
        base = ctypes.c_uint64()
        handle = _Handle.from_buffer_copy(self._data)
        _call("cuIpcOpenMemHandle_v2", ctypes.byref(base), handle, _LAZY_PEER_ACCESS)
        try:
            yield base.value
        finally:
            _call("cuIpcCloseMemHandle", base)


def torch_to_ipc_buffer(tensor: Any) -> tuple[Any, dict[str, Any]]:
    """The handle of a CUDA tensor as pyarrow int8[64], and what describes the tensor.

    Args:
        tensor: a PyTorch tensor, or what has `__cuda_array_interface__`, of a GPU; row-major. It
            must live until every process that opened it has closed it.

    Raises:
        ValueError: it is not contiguous. TypeError: it is not of a GPU. RuntimeError: the driver's.
    """
    import numpy as np
    import pyarrow as pa

    from . import get_tensor_info

    info = get_tensor_info(tensor)
    if not info["device"].startswith("cuda"):
        raise TypeError(f"the tensor is on {info['device']}: CUDA IPC shares memory of a GPU")
    handle, offset = IpcHandle.of(info["ptr"])
    strides: list[int] = []
    step = 1
    for extent in reversed(info["shape"]):
        strides.insert(0, step)
        step *= extent
    metadata = {
        "shape": info["shape"],
        "strides": strides,
        "dtype": info["dtype"],
        "size": info["size"],
        "offset": offset,
    }
    return pa.array(np.frombuffer(bytes(handle), np.int8)), metadata


def ipc_buffer_to_ipc_handle(
    handle_buffer: Any, metadata: dict[str, Any] | None = None
) -> IpcHandle:
    """The handle that arrived as 64 bytes: of a pyarrow array, or of anything like bytes.

    Raises:
        ValueError: it has other than 64 bytes.
    """
    to_numpy = getattr(handle_buffer, "to_numpy", None)
    return IpcHandle(to_numpy().tobytes() if to_numpy is not None else bytes(handle_buffer))


@contextlib.contextmanager
def open_ipc_handle(ipc_handle: IpcHandle, metadata: dict[str, Any]) -> Iterator[Any]:
    """The tensor of another process, mapped while the block runs: PyTorch's, else CuPy's.

    Do not keep the tensor or a view of it beyond the block.
    """
    from . import tensor_from_info

    dtype_name(metadata["dtype"])
    with ipc_handle.open() as base:
        yield tensor_from_info(
            {
                "ptr": base + int(metadata["offset"]),
                "size": int(metadata["size"]),
                "dtype": metadata["dtype"],
                "shape": list(metadata["shape"]),
                "device": "cuda",
            }
        )

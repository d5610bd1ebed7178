"""`dora_tensor_pool` for nodes that run under `tensorbus run --dora-api`.

The two helpers of dora's package of the same name: a tensor to the dict that
`Node.register_tensor_pool` takes, and the dict that `Node.read_tensor_pool` returns to a tensor.
PyTorch is used when it is installed; without it both work on NumPy arrays.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

__all__ = ["get_tensor_info", "tensor_from_info"]

# dtype texts that travel, with and without PyTorch's prefix, and NumPy's short ones.
_NUMPY_SHORT = {
    "<i8": "int64",
    "<i4": "int32",
    "<i2": "int16",
    "|i1": "int8",
    "<u8": "uint64",
    "<u4": "uint32",
    "<u2": "uint16",
    "|u1": "uint8",
    "<u1": "uint8",
    "<f8": "float64",
    "<f4": "float32",
    "<f2": "float16",
    "|b1": "bool",
}
_KNOWN = frozenset(_NUMPY_SHORT.values()) | {
    "bfloat16",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
}


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def dtype_name(text: str) -> str:
    """The plain name of a dtype text: `torch.int64`, `<i8` and `int64` are all `int64`.

    Raises:
        ValueError: it is none that a tensor here can have.
    """
    name = _NUMPY_SHORT.get(text, text.removeprefix("torch."))
    if name not in _KNOWN:
        raise ValueError(f"Unsupported dtype: {text}")
    return name


class DeviceMemory:
    """Memory of a GPU, which CuPy, PyTorch and Tensorbus take by `__cuda_array_interface__`.

    `frame` is what holds it, if anything does.
    """

    def __init__(
        self,
        ptr: int,
        nbytes: int,
        dtype: Any = np.uint8,
        shape: Any = None,
        frame: Any = None,
    ) -> None:
        self.ptr, self.nbytes, self.frame = ptr, nbytes, frame
        self.dtype = np.dtype(dtype)
        self.shape = (nbytes,) if shape is None else tuple(shape)
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (ptr if nbytes > 0 else 0, False),
            "strides": None,
            "stream": 1,
            "version": 3,
        }

    def typed(self, dtype: Any, shape: Any) -> DeviceMemory:
        """The same with another dtype and shape, of as many bytes.

        Raises:
            ValueError: the bytes differ.
        """
        dtype = np.dtype(dtype)
        if math.prod(shape) * dtype.itemsize != self.nbytes:
            raise ValueError(f"{dtype}{list(shape)} has other than {self.nbytes} bytes")
        return DeviceMemory(self.ptr, self.nbytes, dtype, shape, self.frame)


def get_tensor_info(tensor: Any) -> dict[str, Any]:
    """Describe a tensor's memory for `register_tensor_pool` and `write_tensor_pool`.

    Args:
        tensor: a PyTorch tensor on the CPU or a GPU, a NumPy array, or an array with
            `__cuda_array_interface__` (CuPy); contiguous, row-major. It must live until the call
            that the dict is given to has returned: the dict borrows its memory.

    Returns:
        dict with `ptr` (address), `size` (bytes), `dtype`, `shape` (list of int), `device`.

    Raises:
        ValueError: it is not contiguous (`tensor.contiguous()`, `numpy.ascontiguousarray` make a
            copy that is).
        TypeError: it is neither.
    """
    torch = _torch()
    if torch is not None and isinstance(tensor, torch.Tensor):
        if not tensor.is_contiguous():
            raise ValueError("the tensor is not contiguous: pass tensor.contiguous()")
        return {
            "ptr": tensor.data_ptr(),
            "size": tensor.numel() * tensor.element_size(),
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            "device": str(tensor.device),
        }
    if isinstance(tensor, np.ndarray):
        if not tensor.flags.c_contiguous:
            raise ValueError("the array is not contiguous: pass numpy.ascontiguousarray(array)")
        return {
            "ptr": tensor.ctypes.data,
            "size": tensor.nbytes,
            "dtype": tensor.dtype.name,
            "shape": list(tensor.shape),
            "device": "cpu",
        }
    interface = getattr(tensor, "__cuda_array_interface__", None)
    if interface is not None:
        return _info_of_interface(interface)
    raise TypeError(f"expected a torch.Tensor or a numpy.ndarray, got {type(tensor).__name__}")


def _info_of_interface(interface: dict[str, Any]) -> dict[str, Any]:
    dtype = np.dtype(interface["typestr"])
    shape = list(interface["shape"])
    packed: list[int] = []
    step = dtype.itemsize
    for extent in reversed(shape):
        packed.insert(0, step)
        step *= extent
    strides = interface.get("strides")
    if strides is not None and any(
        extent > 1 and given != wanted for extent, given, wanted in zip(shape, strides, packed)
    ):
        raise ValueError("the array is not contiguous: pass cupy.ascontiguousarray(array)")
    return {
        "ptr": interface["data"][0],
        "size": math.prod(shape) * dtype.itemsize,
        "dtype": dtype.name,
        "shape": shape,
        "device": "cuda",
    }


def _numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of a name; bfloat16 and float8 come from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError:
            raise ValueError(
                f"NumPy has no dtype {name}: install ml_dtypes (or PyTorch) to read it"
            ) from None
        made: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return made


def _bytes_at(info: dict[str, Any]) -> np.ndarray:
    """The memory of an info as uint8[size]; it keeps the frame behind it, if there is one."""
    owner: np.ndarray[Any, Any] | None = getattr(info, "memory", None)
    if owner is not None:
        return owner
    return np.ctypeslib.as_array((ctypes.c_uint8 * info["size"]).from_address(info["ptr"]))


def tensor_from_info(info: dict[str, Any]) -> Any:
    """The tensor that `read_tensor_pool` described, without a copy.

    The memory is mapped read-only: writing into it ends the process (NumPy refuses before that).
    The tensor holds the frame, so that it does not change, until it is dropped; a pool that was
    read with `live=True` has no such hold and changes under its holder, as in dora.

    Returns:
        torch.Tensor where PyTorch is installed, else numpy.ndarray, or cupy.ndarray for a GPU's
        memory; of the info's shape and dtype. On a GPU nothing refuses a write: it would change the
        tensor for all who read it.

    Raises:
        ValueError: null pointer, unknown dtype, negative dimension, or a shape that does not fit.
    """
    if info["ptr"] == 0:
        raise ValueError(
            "tensor_info has null pointer (ptr=0); pool may not exist or has been freed"
        )
    name = dtype_name(info["dtype"])
    shape = list(info["shape"])
    if any(extent < 0 for extent in shape):
        raise ValueError(f"tensor shape {shape} has a negative dimension")
    torch = _torch()
    if str(info["device"]).partition(":")[0] == "cuda":
        return _device_tensor(info, name, shape, torch)
    raw = _bytes_at(info)
    if torch is None:
        dtype = _numpy_dtype(name)
        _check_size(shape, dtype.itemsize, info["size"])
        count = math.prod(shape)
        return raw[: count * dtype.itemsize].view(dtype).reshape(shape)
    of_torch = getattr(torch, name, None)
    if of_torch is None:
        raise ValueError(f"Unsupported dtype: {info['dtype']} (this PyTorch has none)")
    itemsize = torch.empty((), dtype=of_torch).element_size()
    _check_size(shape, itemsize, info["size"])
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=of_torch)
    return _torch_view(torch, raw[: count * itemsize]).view(of_torch).reshape(shape)


def _device_tensor(info: dict[str, Any], name: str, shape: list[int], torch: Any) -> Any:
    memory = getattr(info, "memory", None)
    if memory is None:
        memory = DeviceMemory(info["ptr"], info["size"])
    if torch is not None:
        of_torch = getattr(torch, name)
        itemsize = torch.empty((), dtype=of_torch).element_size()
        _check_size(shape, itemsize, info["size"])
        raw = torch.as_tensor(memory)[: math.prod(shape) * itemsize]
        return raw.view(of_torch).reshape(shape)
    try:
        import cupy
    except ImportError:
        raise ValueError(
            "the tensor is on a GPU: install PyTorch or CuPy to look at it there, or register the "
            'pool with device="cpu"'
        ) from None
    dtype = _numpy_dtype(name)
    _check_size(shape, dtype.itemsize, info["size"])
    raw = cupy.asarray(memory)[: math.prod(shape) * dtype.itemsize]
    return raw.view(dtype).reshape(shape)


def _torch_view(torch: Any, raw: np.ndarray) -> Any:
    """A uint8 tensor over read-only memory: PyTorch has no such thing and would warn each time."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(raw)


def _check_size(shape: list[int], itemsize: int, size: int) -> None:
    needed = math.prod(shape) * itemsize
    if needed > size:
        raise ValueError(f"tensor shape {shape} exceeds registered size {size} bytes")

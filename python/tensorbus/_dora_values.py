"""What can be told of a tensor, or of a message of dora, without knowing the library behind it."""

from __future__ import annotations

import functools
import math
import re
from typing import Any


def is_tensor(data: Any) -> bool:
    """Whether it is sent as a tensor; pyarrow's arrays are messages of dora."""
    module = type(data).__module__.partition(".")[0]
    return module != "pyarrow" and (hasattr(data, "__dlpack__") or module == "numpy")


def dtype_of(tensor: Any) -> str:
    """Its dtype's name, without PyTorch's prefix."""
    return str(tensor.dtype).removeprefix("torch.")


def bytes_of(tensor: Any) -> int:
    """How many bytes it has when packed."""
    count = getattr(tensor, "nbytes", None)
    return count if isinstance(count, int) else math.prod(tensor.shape) * itemsize(dtype_of(tensor))


def itemsize(dtype: str) -> int:
    """Bytes of an element: `float32` has 4, `float8_e4m3fn` 1, `bool` 1."""
    digits = re.match(r"[a-z]+(\d+)", dtype)
    return int(digits[1]) // 8 if digits else 1


def message_view(value: Any) -> Any:
    """The bytes of a UInt8Array, in place."""
    if len(value) == 0:
        return b""
    begin = value.offset
    return memoryview(value.buffers()[1])[begin : begin + len(value)]


@functools.lru_cache(maxsize=1)  # an answer is mostly empty
def message_array(data: bytes) -> Any:
    """Bytes as dora's messages have them: a UInt8Array. It does not change."""
    import pyarrow as pa  # dora needs it, too

    return pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])

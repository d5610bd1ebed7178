"""What a pool shall hold, without an array that has it."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own would be imported for it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Spec:
    """Shape and dtype of a tensor: `Pool.register(Spec((1080, 1920, 3), "uint8"))`.

    shape: a sequence of integers, or one integer; () is a scalar.
    dtype: a name ("uint8", "float32", "bfloat16"), or a dtype of NumPy, ml_dtypes or PyTorch.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: int | Sequence[int], dtype: Any) -> None:
        self.shape: tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = dtype

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spec):
            return NotImplemented
        return self.shape == other.shape and bool(self.dtype == other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"Spec({self.shape}, {self.dtype!r})"

"""Move tensors between processes by handle, not by copy.

A process registers a pool and writes frames into it; others read them in place, read-only, without
a copy. What travels is a handle of 48 bytes.

    import numpy as np, tensorbus as tb

    tb.open_bus("camera")
    pool = tb.Pool.register(tb.Spec((1080, 1920, 3), "uint8"), name="front")
    with pool.loan() as image:      # a writable view of a free slot, published at the block's end
        image[:] = 7

    for frame in tb.Reader("camera/front"):     # another process
        print(frame.numpy().sum())              # valid until the next turn, or frame.hold()
"""

import atexit as _atexit
import os as _os

from . import _core
from ._core import (
    AgainError,
    Bus,
    BusyError,
    ClosedError,
    CorruptError,
    DeadlockError,
    DeniedError,
    Error,
    Event,
    ExistsError,
    ForkedError,
    Frame,
    FrameInfo,
    Frames,
    FreedError,
    Handle,
    IncompleteError,
    InvalidError,
    LimitError,
    Loan,
    MismatchError,
    Node,
    NoMemoryError,
    NotAckedError,
    NotFoundError,
    OwnerDiedError,
    Pool,
    PoolStats,
    ProtocolError,
    Reader,
    ReaderStats,
    StaleError,
    SystemCallError,
    UnsupportedError,
    Value,
    __version__,
    extension_drain,
    extension_drop,
    extension_load,
    extension_store,
    free,
    open_bus,
    open_frame,
    read,
    register,
    write,
)
from ._spec import Spec

__all__ = [
    "AgainError",
    "Bus",
    "BusyError",
    "ClosedError",
    "CorruptError",
    "DeadlockError",
    "DeniedError",
    "Error",
    "Event",
    "ExistsError",
    "ForkedError",
    "Frame",
    "FrameInfo",
    "Frames",
    "FreedError",
    "Handle",
    "IncompleteError",
    "InvalidError",
    "LimitError",
    "Loan",
    "MismatchError",
    "NoMemoryError",
    "Node",
    "NotAckedError",
    "NotFoundError",
    "OwnerDiedError",
    "Pool",
    "PoolStats",
    "ProtocolError",
    "Reader",
    "ReaderStats",
    "Spec",
    "StaleError",
    "SystemCallError",
    "UnsupportedError",
    "Value",
    "__version__",
    "extension_drain",
    "extension_drop",
    "extension_load",
    "extension_store",
    "free",
    "open_bus",
    "open_frame",
    "read",
    "register",
    "write",
]


def _at_exit() -> None:
    _core._log_to_stderr()
    _core._close_all()


_atexit.register(_at_exit)
_os.register_at_fork(after_in_child=_core._after_fork)

"""Descriptors of pools in dora's extension table: JSON in the layout of dora's own tensor pool.

A map from key to a value in a map of one entry that tells its type, as in
`{"dtype": {"String": "uint8"}, "size": {"Integer": 6220800}, ...}`. What Tensorbus needs beyond
dora's keys is JSON text under the key `tensorbus`, so that dora's readers, who ignore keys that
they do not know, can parse all of it.
"""

from __future__ import annotations

import json
from typing import Any, Iterable


def encode(
    pool_id: str,
    *,
    dtype: str,
    shape: Iterable[int],
    size: int,
    file: str = "",
    ours: dict[str, Any],
) -> bytes:
    """A descriptor.

    Args:
        pool_id: the key that it is stored under.
        dtype: as text, with or without PyTorch's prefix.
        shape: of a frame.
        size: bytes of a frame.
        file: name in /dev/shm, "" when there is none: only Tensorbus' readers can read the pool.
        ours: JSON-able fields for Tensorbus' readers.
    """
    fields: dict[str, dict[str, Any]] = {
        "buffer_id": {"String": pool_id},
        "dtype": {"String": dtype},
        "ipc_present": {"Bool": False},
        "is_pinned": {"Bool": False},
        "pinned_type": {"String": "cpu"},
        "ptr": {"Integer": 0},  # dora's has an address in the producer, which nobody can use
        "shape": {"ListInt": [int(extent) for extent in shape]},
        "shared_memory_name": {"String": file},
        "size": {"Integer": int(size)},
        "tensorbus": {"String": json.dumps(ours)},
    }
    return json.dumps(fields, sort_keys=True).encode()


def decode(value: bytes) -> dict[str, Any] | None:
    """Keys to plain values, `tensorbus` to a dict (empty when another library wrote it).

    Returns:
        None when it is no descriptor.
    """
    try:
        fields = {key: next(iter(one.values())) for key, one in json.loads(value).items()}
        fields["tensorbus"] = dict(json.loads(fields.get("tensorbus", "{}")))
    except (ValueError, TypeError, AttributeError, StopIteration):
        return None
    return fields

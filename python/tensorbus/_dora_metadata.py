"""Metadata as dora's nodes give and get it, over the metadata of Tensorbus.

Tensorbus has no date type: a datetime travels as integer nanoseconds since 1970 and its key is
listed under DATETIMES, so that it is a datetime again on the other side.
"""

from __future__ import annotations

import datetime
import logging
import time
from typing import Any

DATETIMES = "dora.datetimes"

_log = logging.getLogger("dora")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def _int64(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"'{type(value).__name__}' object cannot be interpreted as an integer")
    if not -(2**63) <= value < 2**63:
        raise OverflowError("Python int too large to convert to C long")
    return int(value)


def _float(value: Any) -> float:
    if not isinstance(value, (int, float)):
        raise TypeError(f"must be real number, not {type(value).__name__}")
    return float(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"'{type(value).__name__}' object is not an instance of 'str'")
    return value


def _list(items: list[Any]) -> list[Any] | None:
    """A list of one kind, decided by its first element; None: of no kind that can travel."""
    if not items:
        return []
    first = items[0]
    if isinstance(first, bool):
        return None
    if isinstance(first, int):
        return [_int64(item) for item in items]
    if isinstance(first, float):
        return [_float(item) for item in items]
    if isinstance(first, str):
        return [_str(item) for item in items]
    return None


def _nanoseconds(when: datetime.datetime) -> int:
    delta = when.astimezone(datetime.timezone.utc) - _EPOCH  # a naive one is local time
    return ((delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1000


def encode(metadata: Any) -> dict[str, Any] | None:
    """What `send_output` was given, as Tensorbus takes it.

    Raises:
        TypeError, OverflowError, RuntimeError: as dora's own Node does for the same value.
    """
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise TypeError(f"'{type(metadata).__name__}' object is not an instance of 'dict'")
    out: dict[str, Any] = {}
    datetimes = []
    for key, value in metadata.items():
        if not isinstance(key, str):
            raise RuntimeError(
                "Parsing metadata keys\n\nCaused by:\n    TypeError: "
                f"'{type(key).__name__}' object is not an instance of 'str'"
            )
        if isinstance(value, bool):
            out[key] = value
        elif isinstance(value, int):
            out[key] = _int64(value)
        elif isinstance(value, (float, str)):
            out[key] = value
        elif isinstance(value, datetime.datetime):
            out[key] = _nanoseconds(value)
            datetimes.append(key)
        elif isinstance(value, (list, tuple)) and (items := _list(list(value))) is not None:
            out[key] = items
        else:
            _log.warning(
                "unsupported metadata value type for key `%s`; coercing to its string "
                "representation: %s",
                key,
                value,
            )
            out[key] = str(value)
    if datetimes:
        out[DATETIMES] = datetimes
    return out


def wall_clock(stamp_ns: int) -> datetime.datetime:
    """CLOCK_MONOTONIC of this machine as UTC."""
    now_ns = time.time_ns() - time.monotonic_ns() + stamp_ns
    return _EPOCH + datetime.timedelta(microseconds=now_ns // 1000)


def decode(metadata: dict[str, Any], when: datetime.datetime) -> dict[str, Any]:
    """Metadata of an event: `timestamp` first, then the sender's keys in alphabetical order."""
    out: dict[str, Any] = {"timestamp": when}
    datetimes = metadata.get(DATETIMES, ())
    for key in sorted(metadata, key=str.encode):
        value = metadata[key]
        if key in datetimes:
            value = _EPOCH + datetime.timedelta(microseconds=value // 1000)
        if key != DATETIMES:
            out[key] = value
    return out

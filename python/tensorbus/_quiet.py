"""Freeing a pool that somebody else may have freed first, where that is no misuse."""

from __future__ import annotations

import logging
from typing import Any


class _Nothing(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return False


def free(pool: Any) -> None:
    """`pool.free()` without its warning: the owner's end of a pool that another node has freed."""
    log = logging.getLogger("tensorbus.pool")
    silence = _Nothing()
    log.addFilter(silence)
    try:
        pool.free()
    finally:
        log.removeFilter(silence)

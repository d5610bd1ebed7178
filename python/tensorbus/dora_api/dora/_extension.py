"""The four extension calls of dora's Node, over the extension channel of Tensorbus."""

from __future__ import annotations

from typing import Any

import tensorbus


class Extension:
    """The channel of one node: opaque bytes under (namespace, key), kept by the runner."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def store(self, namespace: str, key: str, value: bytes) -> None:
        """See Node.extension_store."""
        if not isinstance(value, bytes):
            raise TypeError(f"'{type(value).__name__}' object is not an instance of 'bytes'")
        try:
            tensorbus.extension_store(self._node, namespace, key, value)
        except tensorbus.Error as error:
            raise RuntimeError(str(error)) from error

    def load(self, namespace: str, key: str, remove: bool = False) -> bytes | None:
        """See Node.extension_load."""
        try:
            return tensorbus.extension_load(self._node, namespace, key, remove)
        except tensorbus.Error as error:
            raise RuntimeError(str(error)) from error

    def drop(self, namespace: str, key: str) -> None:
        """See Node.extension_drop."""
        try:
            tensorbus.extension_drop(self._node, namespace, key)
        except tensorbus.Error as error:
            raise RuntimeError(str(error)) from error

    def drain(self, namespace: str) -> list[str]:
        """See Node.drain_dropped_extension_keys."""
        try:
            return tensorbus.extension_drain(self._node, namespace)
        except tensorbus.Error:
            return []  # the runner is gone, and every value with it

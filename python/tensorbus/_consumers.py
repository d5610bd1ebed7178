"""Which nodes of a dora dataflow take a node's outputs, and which of these may want frames yet."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Any, Iterable

_PROBE_EVERY_S = 0.05


class Consumers:
    """The nodes that take the outputs of one node, by their names on the bus of the dataflow.

    A node has come when its name is in the bus's directory, and is gone when it was there and
    answers no more. One that never comes may be a node that has nothing to do with Tensorbus, or
    one that is still starting: nothing tells them apart.

    Threads: one at a time.
    """

    def __init__(self, node: Any, name: str, folder: str) -> None:
        """
        Args:
            node: the dora node, for its dataflow's descriptor.
            name: the id of that node.
            folder: of the dataflow's sockets.
        """
        self.name = name
        self._folder = folder
        self._of: dict[str, set[str]] = {}
        self._comes_again: set[str] = set()  # dora starts it anew when it has failed
        for entry in node.dataflow_descriptor().get("nodes", ()):
            if entry["id"] != name and self._add(entry, name):
                if str(entry.get("restart_policy") or "never").lower() != "never":
                    self._comes_again.add(entry["id"])
        self._awaited = set().union(*self._of.values())
        self._probed: dict[str, tuple[float, bool]] = {}
        self.look()

    def _add(self, entry: dict[str, Any], name: str) -> bool:
        found = False
        for source in (entry.get("inputs") or {}).values():
            text = source.get("source", "") if isinstance(source, dict) else source
            sender, _, output = str(text).partition("/")
            if sender == name:
                self._of.setdefault(output, set()).add(entry["id"])
                found = True
        return found

    def look(self) -> None:
        """Note who has come; costs nothing once all have."""
        if self._awaited:
            self._awaited = {
                name for name in self._awaited if not os.path.lexists(self._path(name))
            }

    def of(self, output: str) -> set[str]:
        """Who takes an output."""
        return self._of.get(output, set())

    def have_come(self, output: str) -> bool:
        """Whether all who take an output have been seen on the bus."""
        self.look()
        return not self._awaited & self.of(output)

    def wanting(self, outputs: Iterable[str]) -> set[str]:
        """Who takes any of these outputs, without those that are known to be gone."""
        self.look()
        all_of_them = set().union(*map(self.of, outputs))
        return {name for name in all_of_them if not self._is_gone(name)}

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name + ".sock")

    def _is_gone(self, name: str) -> bool:
        if name in self._awaited or name in self._comes_again:
            return False
        if not os.path.lexists(self._path(name)):
            return True
        at, gone = self._probed.get(name, (0.0, False))
        if time.monotonic() - at > _PROBE_EVERY_S:
            gone = self._answers_no_more(name)  # its name stays behind when it was killed
            self._probed[name] = time.monotonic(), gone
        return gone

    def _answers_no_more(self, name: str) -> bool:
        folder = -1
        try:
            folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                probe.setblocking(False)
                # However long the folder's own path is.
                probe.connect(f"/proc/self/fd/{folder}/{name}.sock")
            return False
        except OSError as error:
            return error.errno in (errno.ECONNREFUSED, errno.ENOENT)
        finally:
            if folder >= 0:
                os.close(folder)

"""Where a process lives, as far as others that it shares memory with have to know."""

from __future__ import annotations

import fcntl
import os
import socket


class Place:
    """Host, boot of the machine, and runtime directory: two processes can share memory when all
    three are the same. As text: the three, with blanks between."""

    def __init__(self, host: str, boot: str, directory: str) -> None:
        self.host, self.boot, self.directory = host, boot, directory

    @classmethod
    def here(cls, directory: str) -> Place:
        """This process's, with its runtime directory."""
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                boot = file.read().strip()[:8]
        except OSError:
            boot = "unknown"
        return cls(socket.gethostname(), boot, directory)

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """From its text; None when it is none."""
        parts = text.split(" ", 2)
        return cls(*parts) if len(parts) == 3 else None

    def __str__(self) -> str:
        return f"{self.host} {self.boot} {self.directory}"

    def why_apart(self, here: Place) -> str | None:
        """Why what lives there cannot be reached from here, and what to do; None: it can."""
        if self.boot != here.boot:
            return (
                f"on machine {self.host}, this node runs on {here.host}: memory is shared within "
                f"one machine; send the array itself to nodes elsewhere"
            )
        if self.directory != here.directory:
            return (
                f"reached through {self.directory}, this node looks in {here.directory}: start "
                f"both with the same TENSORBUS_DIR"
            )
        if self.host != here.host:
            return (
                f"in {self.host}, this node runs in {here.host} on the same machine: give both "
                f"containers one {here.directory} (a shared volume)"
            )
        return None


def runtime_directory() -> str:
    """Where the sockets of Tensorbus are: $TENSORBUS_DIR, else $XDG_RUNTIME_DIR/tensorbus, else
    /tmp/tensorbus-<uid>."""
    if directory := os.environ.get("TENSORBUS_DIR"):
        return directory
    if directory := os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(directory, "tensorbus")
    return f"/tmp/tensorbus-{os.getuid()}"


def remove_if_empty(directory: str) -> None:
    """Remove a flow's directory with its last process, where no runner does it."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever adds to it holds this lock
        os.rmdir(directory)
    except OSError:
        pass  # others are in it
    finally:
        os.close(fd)

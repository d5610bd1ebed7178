"""First of two nodes that use dora's extension channel, its API alone."""

import time

from dora import Node
from record import Recorder

SPACE = "test"


def dropped(node, count: int) -> list[str]:
    """Keys that were dropped: the notices come on their own, and soon."""
    keys, deadline = [], time.monotonic() + 5
    while len(keys) < count and time.monotonic() < deadline:
        keys += node.drain_dropped_extension_keys(SPACE)
        time.sleep(0.01)
    return sorted(keys)


def main() -> None:
    node = Node()
    recorder = Recorder("a")
    call = recorder.call
    call("store", lambda: node.extension_store(SPACE, "key", b"one"))
    call("store again", lambda: node.extension_store(SPACE, "key", b"two"))
    call("load", lambda: node.extension_load(SPACE, "key") == b"two")
    call("load another space", lambda: node.extension_load("other", "key"))
    call("load nothing", lambda: node.extension_load(SPACE, "nothing"))
    call("drop nothing", lambda: node.extension_drop(SPACE, "nothing"))
    call("drained", lambda: node.drain_dropped_extension_keys(SPACE))
    call("str", lambda: node.extension_store(SPACE, "bad", "text"))
    call("bytearray", lambda: node.extension_store(SPACE, "bad", bytearray(b"x")))
    call("empty", lambda: node.extension_store(SPACE, "", b""))
    call("load empty", lambda: node.extension_load(SPACE, "") == b"")
    call("large", lambda: node.extension_store(SPACE, "large", bytes(5_000_000)))
    call("load large", lambda: len(node.extension_load(SPACE, "large")))
    call("own drop", lambda: node.extension_drop(SPACE, "large"))
    recorder.write(dropped=dropped(node, 1))
    node.extension_store(SPACE, "take", b"once")
    node.extension_store(SPACE, "late", b"mine")
    node.send_output("word", b"go")
    node.next(timeout=10)
    recorder.write(dropped=dropped(node, 2))
    call("load dropped", lambda: node.extension_load(SPACE, "key"))


if __name__ == "__main__":
    main()

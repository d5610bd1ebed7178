"""Second of two nodes that use dora's extension channel, its API alone."""

from dora import Node
from extension_a import SPACE, dropped
from record import Recorder


def main() -> None:
    node = Node()
    recorder = Recorder("b")
    call = recorder.call
    node.next(timeout=10)
    call("load", lambda: node.extension_load(SPACE, "key") == b"two")
    call("overwrite", lambda: node.extension_store(SPACE, "key", b"other"))
    call("take", lambda: node.extension_load(SPACE, "take", remove=True) == b"once")
    call("take again", lambda: node.extension_load(SPACE, "take", remove=True))
    call("load late", lambda: node.extension_load(SPACE, "late") == b"mine")
    call("drop", lambda: node.extension_drop(SPACE, "key"))
    recorder.write(dropped=dropped(node, 2))
    node.send_output("word", b"done")
    for _ in node:  # until the other has ended: what it stored goes with it
        pass
    recorder.write(dropped=dropped(node, 1))
    call("load gone", lambda: node.extension_load(SPACE, "late"))


if __name__ == "__main__":
    main()

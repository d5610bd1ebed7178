"""Registers a pool once, writes each frame into it, and waits until the receiver asks for the next.

The twin of sender_node.c, with Tensorbus' own Python interface.
"""

import time

import tensorbus as tb
from python_common import FRAMES, new_tensor, preview, progress


def asked(node: tb.Node) -> bool:
    """Wait for the receiver's word; False when it has ended or the flow stops."""
    for event in node:
        if event.type in ("INPUT", "STOP"):
            return event.type == "INPUT"
    return False


def main() -> None:
    tensor = new_tensor()
    with tb.Node() as node, tb.Pool.register(tensor, name="data", slots=2) as pool:
        preview("Sender", tensor)
        for index in progress(range(FRAMES)):
            tensor[0] = index
            sent_ns = time.monotonic_ns()
            pool.write(tensor)
            node.send_output("data", pool.last, {"index": index, "t_send": sent_ns})
            if not asked(node):
                raise SystemExit(f"the receiver ended after {index} of {FRAMES} frames")


if __name__ == "__main__":
    main()

"""Registers a pool once and overwrites it for each frame, then waits for the receiver's word."""

import time

import pyarrow as pa
from dora import Node
from dora_common import FRAMES, SCENARIO, check_node, describe, new_tensor, preview, progress


def wait_for_receiver(node) -> bool:
    """False when there is nothing more to wait for."""
    for event in node:
        if event["type"] == "INPUT" and event["id"] == "next_require":
            return True
        if event["type"] == "STOP":
            return False
    return False


def main() -> None:
    node = Node()
    check_node(node)
    tensor = new_tensor()
    pool_id = node.register_tensor_pool(describe(tensor))
    preview("Sender", tensor)
    for index in progress(range(FRAMES), FRAMES):
        tensor[0] = index
        if SCENARIO == "write_after_free" and index == FRAMES - 1:
            node.free_tensor_pool(pool_id)
        sent = time.time_ns()
        node.write_tensor_pool(pool_id, describe(tensor))
        metadata = {"t_send": sent, "scenario": SCENARIO, "index": index}
        # The id travels once; the receiver keeps it.
        node.send_output("data", pool_id if index == 0 else pa.array([], pa.string()), metadata)
        if not wait_for_receiver(node):
            raise SystemExit(f"the receiver ended after {index} of {FRAMES} frames")
    for _ in node:  # until the receiver has ended: it frees the pool
        pass


if __name__ == "__main__":
    main()

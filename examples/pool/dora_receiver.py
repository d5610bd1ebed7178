"""Reads each frame in place, checks that element 0 counts, and asks for the next one.

It asks while it still holds the tensor, and keeps that until it has read the next: so do nodes
written for dora, whose pool is one piece of memory that the sender overwrites.
"""

import time

import pyarrow as pa
from dora import Node
from dora_common import BYTES, FRAMES, SCENARIO, check_node, open_tensor, preview


def finish(node, pool_id) -> None:
    """Free the pool in the way of the scenario; misuse is a warning and, for a read, an error."""
    if SCENARIO in ("auto_cleanup", "write_after_free"):
        return
    node.free_tensor_pool(pool_id)
    if SCENARIO == "duplicate_free":
        node.free_tensor_pool(pool_id)
    if SCENARIO == "read_after_free":
        try:
            node.read_tensor_pool(pool_id)
        except RuntimeError as error:
            print(f"Read after free raised RuntimeError: {error}", flush=True)
        else:
            raise SystemExit("a read after free was not refused")


def main() -> None:
    node = Node()
    check_node(node)
    pool_id, tensor, seconds, done = None, None, 0.0, 0
    for event in node:
        if event["type"] != "INPUT":
            continue
        metadata = event["metadata"]
        if len(event["value"]) > 0:
            pool_id = event["value"]
        is_last = metadata["index"] == FRAMES - 1
        if not (is_last and SCENARIO == "write_after_free"):
            tensor = open_tensor(node.read_tensor_pool(pool_id))
            assert int(tensor[0]) == metadata["index"], (int(tensor[0]), metadata["index"])
            seconds += (time.time_ns() - metadata["t_send"]) / 1e9
            if done == 0:
                preview("Receiver", tensor)
            done += 1
        node.send_output("next_require", pa.array([], pa.uint8()))
        if is_last:
            break
    if metadata["index"] != FRAMES - 1:
        raise SystemExit(f"the sender ended after {done} of {FRAMES} frames")
    finish(node, pool_id)
    print(f"Average transfer throughput: {BYTES * done / seconds / 2**20:.1f} MB/s", flush=True)


if __name__ == "__main__":
    main()

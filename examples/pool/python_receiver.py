"""Reads each frame in place, checks that element 0 counts, and asks for the next one.

The twin of receiver_node.c, with Tensorbus' own Python interface.
"""

import time

import tensorbus as tb
from python_common import FRAMES, as_tensor, preview


def main() -> None:
    done, size, seconds = 0, 0, 0.0
    with tb.Node() as node:
        for event in node:
            if event.type != "INPUT":
                continue
            tensor = as_tensor(event.value)
            assert int(tensor[0]) == event.metadata["index"] == done
            seconds += (time.monotonic_ns() - event.metadata["t_send"]) / 1e9
            size += tensor.nbytes
            if done == 0:
                preview("Receiver", tensor)
            done += 1
            del tensor  # a view holds the frame
            node.send_output("next_require")
            if done == FRAMES:
                break
    if done != FRAMES:
        raise SystemExit(f"the sender ended after {done} of {FRAMES} frames")
    print(f"Average transfer throughput: {size / seconds / 2**20:.1f} MB/s")


if __name__ == "__main__":
    main()

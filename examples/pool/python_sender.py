"""Registers a pool once on the receiver's device, then for each frame writes into it, tells the
receiver, and waits until the receiver asks for the next. The twin of sender_node.c."""

import sys
import time

import tensorbus as tb
from python_common import FRAMES, RECEIVER, SCENARIO, SENDER, need_devices, new_tensor, preview


def await_answer(node: tb.Node) -> str:
    """Wait until the receiver asks for the next frame ("INPUT"), has ended, or the flow stops."""
    for event in node:
        if event.type == "ERROR":
            print(event.text, file=sys.stderr)
        else:
            return event.type
    return "INPUT_CLOSED"


def main() -> None:
    need_devices(SENDER, RECEIVER)
    with tb.Node() as node:
        tensor = new_tensor()
        # Where the receiver works; each write brings the frame there.
        pool = tb.register(tensor, device=RECEIVER)
        preview("Sender", tensor, SENDER)
        index, answer = 0, "INPUT"
        while answer == "INPUT" and index < FRAMES:
            freed = SCENARIO == "write_after_free" and index == FRAMES - 1
            if freed:
                tb.free(pool)
            tensor[0, 0] = index
            sent_ns = time.monotonic_ns()
            # After a free: a warning and False.
            assert tb.write(pool, tensor, timeout=10) is not freed
            # The id goes with the first message alone; the receiver keeps it.
            node.send_output(
                "data",
                pool if index == 0 else None,
                {"t_send": sent_ns, "scenario": SCENARIO, "index": index},
                timeout=10,
            )
            index += 1
            answer = await_answer(node)
        if answer == "INPUT_CLOSED":
            sys.exit(f"the receiver ended after {index} of {FRAMES} frames")
        # Stay until the receiver has closed: it frees the pool, or leaves that to the runner.
        while answer == "INPUT":
            answer = await_answer(node)


if __name__ == "__main__":
    main()

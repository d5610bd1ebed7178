"""Reads each frame in place, on whatever device it lies, checks that element 0 counts, asks for the
next one, and at the end frees the pool in the way that the scenario wants. The twin of
receiver_node.c."""

import sys
import time
from collections.abc import Iterator

import tensorbus as tb
from python_common import FRAMES, RECEIVER, SCENARIO, as_tensor, need_devices, preview, progress


class Receiver:
    def __init__(self, node: tb.Node) -> None:
        self.node = node
        self.pool = ""
        self.size = 0  # bytes
        self.time_ns = 0

    def read(self, index: int, sent_ns: int) -> None:
        # Held until the block's end, and as long as a view of it is there.
        with tb.read(self.pool, timeout=10) as frame:
            tensor = as_tensor(frame)
            count = int(tensor[0, 0])  # from a GPU: eight bytes, and it waits for them
            if count != index:
                sys.exit(f"frame {index}: element 0 is {count}")
            self.time_ns += time.monotonic_ns() - sent_ns
            self.size += frame.nbytes
            if index == 0:
                preview("Receiver", tensor, frame.device)

    def frames(self) -> Iterator[int]:
        """Take message by message; their numbers, up to the last one."""
        done = 0
        for event in self.node:
            if event.type == "ERROR":
                print(event.text, file=sys.stderr)
            if event.type != "INPUT":
                continue
            index = event.metadata["index"]
            if index != done:
                sys.exit(f"message {index} came instead of {done}")
            if index == 0:  # with the pool's id: text, or bytes of a node in C
                value = event.value
                self.pool = value if isinstance(value, str) else str(value, "utf-8")
            last = index == FRAMES - 1
            # The sender has freed the pool before it wrote the last frame: nothing to check.
            if not last or SCENARIO != "write_after_free":
                self.read(index, event.metadata["t_send"])
            self.node.send_output("next_require", timeout=10)
            done += 1
            yield index
            if last:
                return

    def finish(self) -> None:
        """Free the pool as the scenario wants, and see that misuse is answered and not obeyed."""
        if SCENARIO in ("auto_cleanup", "write_after_free"):
            return
        assert tb.free(self.pool)
        if SCENARIO == "duplicate_free":
            assert not tb.free(self.pool)  # a warning
        if SCENARIO == "read_after_free":
            try:
                tb.read(self.pool, timeout=10)
            except tb.FreedError:  # and a warning
                return
            sys.exit("a read after free was not refused")


def main() -> None:
    need_devices(RECEIVER)
    with tb.Node() as node:
        receiver = Receiver(node)
        done = sum(1 for _ in progress(receiver.frames()))
        if done != FRAMES:
            sys.exit(f"ended after {done} of {FRAMES} frames")
        receiver.finish()
        speed = receiver.size / 2**20 / (receiver.time_ns / 1e9)
        print(f"Average transfer throughput: {speed:.1f} MB/s")


if __name__ == "__main__":
    main()

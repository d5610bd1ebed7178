"""A CUDA tensor of 64 MiB per frame, from one Python process to another: by a pool of Tensorbus, and by a
queue of torch.multiprocessing, in one run.

Needs PyTorch, a GPU and the package. Prints medians in microseconds:

    ours_us 41.2
    torch_us 812.0
    torch_simple_queue_us 655.0

A frame's time goes from just before the hand-over (publish() of a filled loan; put() of a filled tensor,
a new one each time) to just after the other process has read one element of it. Blocks of frames by each
way alternate. torch_us is by torch.multiprocessing.Queue; the third line, by its SimpleQueue, is there for
comparison. The script ends within 60 s.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

ELEMENTS = 16 << 20  # float32: 64 MiB
BLOCK = 25  # frames
BLOCKS = 12  # by each way
WARM = 8  # frames by each way that are not counted
BUDGET_S = 40.0  # when it is over no further block is begun
PATIENCE_S = 20.0  # for one frame
WAYS = ("ours", "torch", "torch_simple_queue")


def consume(link: Connection, queues: dict[str, Any]) -> None:
    """The other process: `link` brings (way, frames), and takes the time of each read and its value."""
    import tensorbus as tb
    import torch

    torch.cuda.init()
    tb.open_bus("consumer")
    reader = tb.Reader("producer/frames", stream_ordered=True, start="next")
    link.send("ready")
    while True:
        way, frames = link.recv()
        if way is None:
            break
        for _ in range(frames):
            if way == "ours":
                frame = reader.next(PATIENCE_S)
                tensor = torch.from_dlpack(frame)
            else:
                tensor = queues[way].get()
            value = tensor[ELEMENTS // 2].item()
            end_ns = time.monotonic_ns()
            del tensor
            if way == "ours":
                frame.release()
            link.send((end_ns, value))
    reader.close()


class Producer:
    """Hands frames over, one after the other has read the one before."""

    def __init__(self, link: Connection, queues: dict[str, Any]) -> None:
        import tensorbus as tb
        import torch

        self.torch, self.link, self.queues = torch, link, queues
        tb.open_bus("producer")
        self.pool = tb.Pool.register(tb.Spec(ELEMENTS, "float32"), name="frames", slots=3,
                                     device="cuda:0")
        self.number = 0

    def ours(self) -> int:
        loan = self.pool.loan(PATIENCE_S)
        tensor = self.torch.from_dlpack(loan)
        tensor.fill_(self.number)
        del tensor
        stream = self.torch.cuda.current_stream()
        self.torch.cuda.synchronize()
        begin_ns = time.monotonic_ns()
        loan.publish(stream=stream)
        return begin_ns

    def theirs(self, queue: Any) -> tuple[int, Any]:
        tensor = self.torch.full((ELEMENTS,), float(self.number), device="cuda:0")
        self.torch.cuda.synchronize()
        begin_ns = time.monotonic_ns()
        queue.put(tensor)
        return begin_ns, tensor  # which must live until it was taken

    def block(self, way: str, frames: int) -> list[float]:
        """Microseconds of each frame."""
        took = []
        self.link.send((way, frames))
        for _ in range(frames):
            self.number += 1
            kept = None
            if way == "ours":
                begin_ns = self.ours()
            else:
                begin_ns, kept = self.theirs(self.queues[way])
            end_ns, value = self.answer()
            del kept
            if value != self.number:
                raise SystemExit(f"{way}: frame {self.number} arrived as {value}")
            took.append((end_ns - begin_ns) / 1e3)
        return took

    def answer(self) -> Any:
        if not self.link.poll(PATIENCE_S):
            raise SystemExit(f"the other process did not answer within {PATIENCE_S} s")
        return self.link.recv()


def measure(link: Connection, queues: dict[str, Any]) -> dict[str, list[float]]:
    deadline = time.monotonic() + BUDGET_S
    producer = Producer(link, queues)
    producer.answer()  # it is ready
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    for way in WAYS:
        producer.block(way, WARM)
    for number in range(BLOCKS):
        if number > 0 and time.monotonic() > deadline:
            break
        for way in WAYS:
            took[way] += producer.block(way, BLOCK)
    link.send((None, 0))
    return took


def main() -> int:
    folder = tempfile.mkdtemp(prefix="tb-gpu-torch-")
    os.environ["TENSORBUS_DIR"] = folder
    child = None
    try:
        import torch
        import torch.multiprocessing as mp

        if not torch.cuda.is_available():
            print("gpu_torch: PyTorch finds no GPU", file=sys.stderr)
            return 1
        spawn = mp.get_context("spawn")
        queues = {"torch": spawn.Queue(), "torch_simple_queue": spawn.SimpleQueue()}
        here, there = spawn.Pipe()
        child = spawn.Process(target=consume, args=(there, queues), daemon=True)
        child.start()
        there.close()
        took = measure(here, queues)
        child.join(PATIENCE_S)
        for way in WAYS:
            print(f"{way}_us {statistics.median(took[way]):.1f}")
        return 0
    except (ImportError, EOFError, OSError, RuntimeError) as error:
        print(f"gpu_torch: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        if child is not None and child.is_alive():
            child.kill()
            child.join()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

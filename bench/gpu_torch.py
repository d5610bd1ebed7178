"""A CUDA tensor of 64 MiB per frame, from one Python process to another: by a pool of Tensorbus,
and by a queue of torch.multiprocessing, in one run.

    gpu_torch.py [--profile] [--device cuda:0]

Needs PyTorch, a GPU and the package. Prints medians in microseconds, for each way two: until the
other process has the tensor, and until it has read one element of it:

    ours_us 15.4
    ours_read_us 34.2
    torch_us 317.4
    torch_read_us 342.0
    ...

A frame's time begins just before the hand-over: publish(stream=-1) of a filled loan; put() of a
filled tensor, a new one each time. It ends when the other process has a torch.Tensor that its
stream may use, or when .item() of one element has returned, which waits for the GPU by itself and
is the same work by each way. Both sides have filled their tensor and waited for that before, so
ours is published as complete, which -1 says. Blocks of frames by each way alternate, after seconds
that are not counted. `torch` is torch.multiprocessing.Queue, `torch_simple_queue` its SimpleQueue,
and `torch_reused` that with three tensors that are handed over again and again, as its
documentation advises: the fastest of them is what we are compared with. Three more ways are there
to look at: `ours_on_stream` by publish(stream=...), as if the GPU were still at work; `ours_spin`
by a reader that looks for the next frame for 500 us before it sleeps; and `floor`, which hands
nothing over: a byte through a pipe wakes the other process, which reads one element of a tensor of
its own.

The consumer works on one stream, whose number it has looked up once: it takes frames by
torch.from_dlpack(frame.__dlpack__(stream=number, max_version=(1, 0))). Given the frame itself
PyTorch would look its current stream up for each.

--profile (or TENSORBUS_TORCH_PROFILE=file, which takes it) prints after them where that time goes,
from blocks of its own: what each step on the way took, and what single calls take that nothing else
waits for.
--device cpu does all of it in main memory, where there is no GPU: to try the script. It ends within
60 s.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

ELEMENTS = 16 << 20  # float32: 64 MiB
BLOCK = 25  # frames
BLOCKS = 32  # by each way
WARM = 8  # frames by each way that are not counted, over and over
WARM_S = 3.0  # until clocks, caches and allocators have settled
PROFILE_BLOCKS = 4  # by each way
CALLS = 200  # of one kind, for the profile
SPIN_US = 500
BUDGET_S = 35.0  # when it is over no further block is begun
PATIENCE_S = 20.0  # for one frame
WAYS = ("ours", "ours_on_stream", "torch", "torch_simple_queue", "torch_reused", "ours_spin",
        "floor")
REUSED = 3  # tensors
STEPS = ("taken", "tensor", "part", "read")  # of the consumer

now = time.monotonic_ns


def consume(link: Connection, queues: dict[str, Any], pipe: Connection, device: str) -> None:
    """The other process: `link` brings (way, frames), and takes the times of each read and its
    value."""
    import tensorbus as tb
    import torch

    if device != "cpu":
        torch.cuda.init()
    tb.open_bus("consumer")
    readers = {
        way: tb.Reader(f"producer/{way}", stream_ordered=True, start="next", spin_us=spin_us)
        for way, spin_us in (("ours", 0), ("ours_on_stream", 0), ("ours_spin", SPIN_US))
    }
    own = torch.zeros(ELEMENTS, device=device)
    asked: dict[str, Any] = {"max_version": (1, 0)}
    if device != "cpu":
        asked["stream"] = stream_number(torch.cuda.current_stream())
    link.send("ready")
    while True:
        way, frames = link.recv()
        if way is None:
            break
        for _ in range(frames):
            if way in readers:
                link.send(take_ours(readers[way], asked, torch.from_dlpack))
            elif way == "floor":
                link.send(take_nothing(pipe.fileno(), own))
            else:
                link.send(take_theirs(queues[way]))
    for reader in readers.values():
        reader.close()


def stream_number(stream: Any) -> int:
    """Of a torch.cuda.Stream, as DLPack has it."""
    return stream.cuda_stream or 1  # the default stream


def take_ours(
    reader: Any, asked: dict[str, Any], from_dlpack: Callable[[Any], Any]
) -> tuple[list[int], float]:
    """The next frame of a reader: when each step was done, and the element."""
    frame = reader.next(PATIENCE_S)
    taken = now()
    tensor = from_dlpack(frame.__dlpack__(**asked))
    opened = now()
    part = tensor[ELEMENTS // 2]
    chosen = now()
    value = part.item()
    end = now()
    del tensor, part
    frame.release()
    return [taken, opened, chosen, end], value


def take_theirs(queue: Any) -> tuple[list[int], float]:
    """The same of a queue."""
    tensor = queue.get()
    taken = now()
    part = tensor[ELEMENTS // 2]
    chosen = now()
    value = part.item()
    end = now()
    del tensor, part
    return [taken, taken, chosen, end], value


def take_nothing(pipe: int, own: Any) -> tuple[list[int], float]:
    """The same where there is nothing to take: woken, it reads an element of its own tensor."""
    number = os.read(pipe, 8)
    taken = now()
    part = own[ELEMENTS // 2]
    chosen = now()
    value = part.item()
    end = now()
    return [taken, taken, chosen, end], value + int.from_bytes(number, "little")


class Producer:
    """Hands frames over, one after the other has read the one before."""

    def __init__(
        self, link: Connection, queues: dict[str, Any], pipe: Connection, device: str
    ) -> None:
        import tensorbus as tb
        import torch

        self.torch, self.tb, self.link, self.queues, self.device = torch, tb, link, queues, device
        self.pipe = pipe
        tb.open_bus("producer")
        self.pools = {
            way: tb.Pool.register(tb.Spec(ELEMENTS, "float32"), name=way, slots=3, device=device)
            for way in WAYS
            if way.startswith("ours")
        }
        self.reused = [torch.empty(ELEMENTS, device=device) for _ in range(REUSED)]
        self.number = 0
        # Of each way: microseconds, a list for each frame.
        self.steps: dict[str, list[list[float]]] = {}

    def synchronize(self) -> None:
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def stream(self) -> Any:
        return None if self.device == "cpu" else self.torch.cuda.current_stream()

    def ours(self, way: str) -> tuple[int, int]:
        loan = self.pools[way].loan(PATIENCE_S)
        tensor = self.torch.from_dlpack(loan)
        tensor.fill_(self.number)
        del tensor
        stream = self.stream() if way == "ours_on_stream" else -1
        self.synchronize()
        begin_ns = now()
        loan.publish(stream=stream)
        return begin_ns, now()

    def nothing(self) -> tuple[int, int]:
        self.reused[0].fill_(self.number)
        self.synchronize()
        begin_ns = now()
        os.write(self.pipe.fileno(), self.number.to_bytes(8, "little"))
        return begin_ns, now()

    def theirs(self, way: str) -> tuple[int, int, Any]:
        queue = self.queues[way]
        if way == "torch_reused":
            tensor = self.reused[self.number % REUSED].fill_(self.number)
        else:
            tensor = self.torch.full((ELEMENTS,), float(self.number), device=self.device)
        self.synchronize()
        begin_ns = now()
        queue.put(tensor)
        return begin_ns, now(), tensor  # which must live until it was taken

    def block(self, way: str, frames: int) -> list[tuple[float, float]]:
        """Microseconds of each frame, until the tensor was there and until it was read; its steps
        are added to those of its way."""
        took = []
        self.link.send((way, frames))
        for _ in range(frames):
            self.number += 1
            kept = None
            if way in self.pools:
                begin_ns, given_ns = self.ours(way)
            elif way == "floor":
                begin_ns, given_ns = self.nothing()
            else:
                begin_ns, given_ns, kept = self.theirs(way)
            times, value = self.answer()
            del kept
            if value != self.number:
                raise SystemExit(f"{way}: frame {self.number} arrived as {value}")
            took.append(((times[1] - begin_ns) / 1e3, (times[-1] - begin_ns) / 1e3))
            ends = [begin_ns, *times]
            steps = [(b - a) / 1e3 for a, b in zip(ends, ends[1:])]
            self.steps.setdefault(way, []).append([(given_ns - begin_ns) / 1e3, *steps])
        return took

    def answer(self) -> Any:
        if not self.link.poll(PATIENCE_S):
            raise SystemExit(f"the other process did not answer within {PATIENCE_S} s")
        return self.link.recv()


def measure(producer: Producer) -> dict[str, list[tuple[float, float]]]:
    deadline = time.monotonic() + BUDGET_S
    producer.answer()  # it is ready
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    settled = time.monotonic() + WARM_S
    while True:
        for way in WAYS:
            producer.block(way, WARM)
        if time.monotonic() >= settled:
            break
    for number in range(BLOCKS):
        if number > 0 and time.monotonic() > deadline:
            break
        for way in WAYS:
            took[way] += producer.block(way, BLOCK)
    return took


def profile_steps(producer: Producer) -> list[str]:
    """Where a frame's time goes, by each way."""
    producer.steps.clear()
    for _ in range(PROFILE_BLOCKS):
        for way in WAYS:
            producer.block(way, BLOCK)
    lines = [
        "Where a frame's time goes, medians in us. `given`: the producer's call has returned,",
        "which may be after the consumer has gone on; then the consumer's steps: `taken` (since",
        "the call began: the wake-up is in it), `tensor` (from_dlpack), `part` (one element's",
        "view), `read` (.item()).",
        f"  {'':20}" + "".join(f"{step:>10}" for step in ("given", *STEPS, "all")),
    ]
    for way in WAYS:
        columns = list(zip(*producer.steps[way]))
        figures = [statistics.median(column) for column in columns]
        whole = statistics.median([sum(steps[1:]) for steps in producer.steps[way]])
        lines.append(f"  {way:20}" + "".join(f"{figure:10.1f}" for figure in (*figures, whole)))
    return lines


def median_us(prepare: Callable[[], Any], call: Callable[[Any], Any]) -> float:
    """Of call(prepare()), of which the call alone is timed."""
    took = []
    for _ in range(CALLS):
        what = prepare()
        begin_ns = now()
        kept = call(what)
        took.append((now() - begin_ns) / 1e3)
        del what, kept
    return statistics.median(took)


def profile_calls(producer: Producer) -> list[str]:
    """Single calls, within the producer's process: no other process is woken or waited for."""
    torch, tb, stream = producer.torch, producer.tb, producer.stream()
    pool = tb.Pool.register(
        tb.Spec(ELEMENTS, "float32"), name="alone", slots=3, device=producer.device
    )
    local = torch.zeros(16, device=producer.device)
    version = (1, 0)
    number = None if stream is None else stream_number(stream)

    def filled() -> Any:
        producer.synchronize()
        return pool.loan(PATIENCE_S)

    calls: list[tuple[str, Callable[[], Any], Callable[[Any], Any]]] = [
        ("an empty call", lambda: None, lambda _: None),
        ("pool.loan()", producer.synchronize, lambda _: pool.loan(PATIENCE_S)),
        ("loan.publish(stream), no reader", filled, lambda loan: loan.publish(stream=stream)),
        ("loan.publish(-1), no reader", filled, lambda loan: loan.publish(stream=-1)),
    ]
    frames: list[Any] = []

    def newest() -> Any:
        producer.synchronize()  # leases that a stream gives back are back
        frames[:] = [pool.read()]
        return frames[0]

    calls += [
        ("pool.read()", producer.synchronize, lambda _: pool.read()),
        ("torch.from_dlpack(frame)", newest, torch.from_dlpack),
        (
            "torch.from_dlpack(capsule)",
            newest,
            lambda frame: torch.from_dlpack(frame.__dlpack__(stream=number, max_version=version)),
        ),
        (
            "frame.__dlpack__(stream=...)",
            newest,
            lambda frame: frame.__dlpack__(stream=number, max_version=version),
        ),
        ("frame.wait(stream)", newest, lambda frame: frame.wait(stream)),
        (
            "frame.release(stream=stream)",
            newest,
            lambda frame: frame.release() if stream is None else frame.release(stream=stream),
        ),
        ("tensor[i]", lambda: local, lambda tensor: tensor[3]),
        ("tensor[i].item(), an idle GPU", lambda: local[3], lambda part: part.item()),
    ]
    if stream is not None:
        calls += [
            ("torch.cuda.current_stream()", lambda: None, lambda _: torch.cuda.current_stream()),
            ("torch.cuda.synchronize(), idle", lambda: None, lambda _: torch.cuda.synchronize()),
        ]
    # So that all of them have a frame to look at.
    pool.loan().publish(stream=stream)
    producer.synchronize()
    lines = ["Single calls, medians in us."]
    for name, prepare, call in calls:
        lines.append(f"  {name:34} {median_us(prepare, call):8.1f}")
        frames.clear()
        producer.synchronize()
    pool.free()
    return lines


def report(took: dict[str, list[tuple[float, float]]], profile: list[str]) -> None:
    for way in WAYS:
        there, read = (statistics.median(column) for column in zip(*took[way]))
        print(f"{way}_us {there:.1f}\n{way}_read_us {read:.1f}")
    file = os.environ.get("TENSORBUS_TORCH_PROFILE")
    if profile and file:
        with open(file, "w", encoding="utf-8") as out:
            out.write("\n".join(profile) + "\n")
    elif profile:
        print("\n".join(profile))


def main() -> int:
    parser = argparse.ArgumentParser(description="Tensorbus beside torch.multiprocessing.")
    parser.add_argument("--profile", action="store_true", help="say where the time goes")
    parser.add_argument("--device", default="cuda:0", help="cuda:0, or cpu to try the script")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="tb-gpu-torch-")
    os.environ["TENSORBUS_DIR"] = folder
    child = None
    try:
        import torch
        import torch.multiprocessing as mp

        if arguments.device != "cpu" and not torch.cuda.is_available():
            print("gpu_torch: PyTorch finds no GPU", file=sys.stderr)
            return 1
        spawn = mp.get_context("spawn")
        queues = {
            "torch": spawn.Queue(),
            "torch_simple_queue": spawn.SimpleQueue(),
            "torch_reused": spawn.SimpleQueue(),
        }
        here, there = spawn.Pipe()
        woken, wake = spawn.Pipe(duplex=False)
        child = spawn.Process(
            target=consume, args=(there, queues, woken, arguments.device), daemon=True
        )
        child.start()
        there.close()
        woken.close()
        producer = Producer(here, queues, wake, arguments.device)
        took = measure(producer)
        profile = []
        if arguments.profile or os.environ.get("TENSORBUS_TORCH_PROFILE"):
            profile = profile_steps(producer) + profile_calls(producer)
        here.send((None, 0))
        child.join(PATIENCE_S)
        report(took, profile)
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

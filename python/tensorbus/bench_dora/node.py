"""The two nodes of every flow; BENCH says which side, role and workload."""

from __future__ import annotations

import collections
import json
import os
import resource
import sys
import time
from typing import Any

import numpy as np

CONFIG = json.loads(os.environ["BENCH"])
BYTES, FRAMES, WARMUP = CONFIG["bytes"], CONFIG["frames"], CONFIG["warmup"]
PERIOD_NS = 33_333_333
IN_FLIGHT = {"turn": 1, "rate": 8, "flat": 2}[CONFIG["pace"]]


def cpu_s() -> float:
    """User and system time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Side:
    """How one side sends a frame and gets one; the loops around it are the same for all."""

    def send_copy(self, source: np.ndarray) -> None:
        raise NotImplementedError

    def send_inplace(self, head: tuple[int, int]) -> None:
        raise NotImplementedError

    def answer(self) -> None:
        raise NotImplementedError

    def wait_answer(self) -> None:
        raise NotImplementedError

    def take(self) -> Any | None:
        """The next frame as int64 array; None at the end."""
        raise NotImplementedError


class Stock(Side):
    """dora as it is: an Arrow array, or a buffer of its shared memory."""

    def __init__(self) -> None:
        import pyarrow
        from dora import Node

        self.pa = pyarrow
        self.node: Any = Node()

    def send_copy(self, source: np.ndarray) -> None:
        if CONFIG["call"] == "array":
            self.node.send_output("data", self.pa.array(source))
            return
        with self.node.send_output_raw("data", BYTES) as buffer:
            np.copyto(np.frombuffer(buffer, np.int64), source)

    def send_inplace(self, head: tuple[int, int]) -> None:
        with self.node.send_output_raw("data", BYTES) as buffer:
            np.frombuffer(buffer, np.int64)[:2] = head

    def answer(self) -> None:
        self.node.send_output("next", b"")

    def wait_answer(self) -> None:
        event = self.node.next(timeout=20)
        if event is None or event["type"] != "INPUT":
            sys.exit(f"no answer: {event}")

    def take(self) -> Any | None:
        for event in self.node:
            if event["type"] == "INPUT":
                array = event["value"].to_numpy()
                if array.dtype == np.uint8:
                    array = array.view(np.int64)
                return array
        return None


class Inside(Side):
    """Tensorbus in the same dora: its messages carry handles."""

    extra: dict[str, Any] = {}  # options of the pool
    shortcut = False

    def __init__(self) -> None:
        import tensorbus.dora
        from dora import Node

        self.bus = tensorbus.dora.attach(Node(), linger=0, shortcut=self.shortcut)
        self.pool: Any = None

    def _pool(self) -> Any:
        if self.pool is None:
            self.pool = self.bus.register(
                np.empty(BYTES // 8, np.int64), name="data", slots=CONFIG["slots"],
                copy_threads=CONFIG["threads"], **self.extra,
            )  # fmt: skip
        return self.pool

    def send_copy(self, source: np.ndarray) -> None:
        self.bus.send_output("data", source, pool=self._pool())

    def send_inplace(self, head: tuple[int, int]) -> None:
        pool = self._pool()
        with pool.loan() as frame:
            frame[:2] = head
        self.bus.send_output("data", pool.last)

    def answer(self) -> None:
        self.bus.send_output("next", b"")

    def wait_answer(self) -> None:
        event = self.bus.next(timeout=20)
        if event is None or event["type"] != "INPUT":
            sys.exit(f"no answer: {event}")

    def take(self) -> Any | None:
        for event in self.bus:
            if event["type"] == "INPUT":
                return event["value"].numpy()
        return None


class Shortcut(Inside):
    """The same, but messages go from bus to bus."""

    shortcut = True


class Direct(Inside):
    """In dora, too, but the receiver waits at the sender's pool and acknowledges frames there: dora
    starts and ends the nodes, and carries the first answer."""

    extra = {"policy": "every", "wait_readers": 1}

    def __init__(self) -> None:
        super().__init__()
        self.reader: Any = None
        self.frames: Any = None
        self.frame: Any = None  # the receiver's, not yet acknowledged
        self.sent: collections.deque[Any] = collections.deque()  # and not yet acknowledged

    def send_copy(self, source: np.ndarray) -> None:
        self.sent.append(self._pool().write(source))

    def send_inplace(self, head: tuple[int, int]) -> None:
        pool = self._pool()
        with pool.loan() as frame:
            frame[:2] = head
        self.sent.append(pool.last)

    def answer(self) -> None:
        if self.reader is None:
            super().answer()  # the receiver is there
            self.reader = self.bus.reader("sender/data", timeout=20, every=True, ack=True)
            self.frames = iter(self.reader)
            return
        self.reader.ack(self.frame)

    def wait_answer(self) -> None:
        if self.sent:
            self.pool.wait_acked(self.sent.popleft(), timeout=20)
        else:
            super().wait_answer()

    def take(self) -> Any | None:
        self.frame = next(self.frames, None)
        return None if self.frame is None else self.frame.numpy()


class Runner(Side):
    """Tensorbus on its own runner."""

    def __init__(self) -> None:
        import tensorbus

        self.tensorbus = tensorbus
        self.node: Any = tensorbus.Node()
        self.pool: Any = None

    def _pool(self) -> Any:
        if self.pool is None:
            self.pool = self.tensorbus.Pool.register(
                np.empty(BYTES // 8, np.int64), name="data", slots=CONFIG["slots"],
                copy_threads=CONFIG["threads"],
            )  # fmt: skip
        return self.pool

    def send_copy(self, source: np.ndarray) -> None:
        # The handle travels while the copy is made, as tensorbus.dora does it by itself.
        self._pool().write(source, promised=self._send)

    def send_inplace(self, head: tuple[int, int]) -> None:
        pool = self._pool()
        with pool.loan() as frame:
            frame[:2] = head
        self._send(pool.last)

    def _send(self, handle: Any) -> None:
        self.node.send_output("data", handle)

    def answer(self) -> None:
        self.node.send_output("next", b"")

    def wait_answer(self) -> None:
        event = self.node.next(timeout=20)
        if event is None or event.type != "INPUT":
            sys.exit(f"no answer: {event}")

    def take(self) -> Any | None:
        for event in self.node:
            if event.type == "INPUT":
                return event.value.numpy()
        return None


def sender(side: Side) -> dict[str, Any]:
    source = np.arange(BYTES // 8, dtype=np.int64)
    side.wait_answer()  # the receiver is there
    answers = IN_FLIGHT - 1 if CONFIG["pace"] != "rate" else 0
    started_cpu = started_ns = 0.0
    due = time.monotonic_ns()
    for index in range(WARMUP + FRAMES):
        if index == WARMUP:
            started_cpu, started_ns = cpu_s(), time.monotonic_ns()
        if CONFIG["pace"] == "rate":
            due += PERIOD_NS
            time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        head = index, time.monotonic_ns()
        if CONFIG["mode"] == "copy":
            source[:2] = head
            side.send_copy(source)
        else:
            side.send_inplace(head)
        if CONFIG["pace"] == "rate" or answers == 0:
            side.wait_answer()
        else:
            answers -= 1
    return {"cpu_s": cpu_s() - started_cpu, "wall_ns": time.monotonic_ns() - started_ns}


def receiver(side: Side) -> dict[str, Any]:
    side.answer()
    intervals_ns = []
    started_cpu = started_ns = 0.0
    for index in range(WARMUP + FRAMES):
        array = side.take()
        if array is None:
            sys.exit(f"the sender ended after {index} frames")
        assert array[0] == index, (int(array[0]), index)
        now_ns = time.monotonic_ns()
        if index == WARMUP:
            started_cpu, started_ns = cpu_s(), now_ns
        if index >= WARMUP:
            intervals_ns.append(now_ns - int(array[1]))
        del array
        side.answer()
    return {
        "cpu_s": cpu_s() - started_cpu,
        "wall_ns": time.monotonic_ns() - started_ns,
        "intervals_ns": intervals_ns,
    }


def main() -> None:
    kinds = {
        "stock": Stock, "inside": Inside, "shortcut": Shortcut, "direct": Direct, "runner": Runner,
    }  # fmt: skip
    side: Side = kinds[CONFIG["side"]]()
    role = os.environ["BENCH_ROLE"]
    result = sender(side) if role == "sender" else receiver(side)
    with open(os.path.join(CONFIG["folder"], role + ".json"), "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()

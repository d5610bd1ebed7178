"""The two nodes of every flow; BENCH says which side, role and workload."""

from __future__ import annotations

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

    def send_copy(self, source: np.ndarray, metadata: dict[str, Any]) -> None:
        raise NotImplementedError

    def send_inplace(self, first: int, metadata: dict[str, Any]) -> None:
        raise NotImplementedError

    def answer(self) -> None:
        raise NotImplementedError

    def wait_answer(self) -> None:
        raise NotImplementedError

    def take(self) -> tuple[Any, dict[str, Any]] | None:
        """The next frame as int64 array, and its metadata; None at the end."""
        raise NotImplementedError


class Stock(Side):
    """dora as it is: an Arrow array, or a buffer of its shared memory."""

    def __init__(self) -> None:
        import pyarrow
        from dora import Node

        self.pa = pyarrow
        self.node: Any = Node()

    def send_copy(self, source: np.ndarray, metadata: dict[str, Any]) -> None:
        if CONFIG["call"] == "array":
            self.node.send_output("data", self.pa.array(source), metadata)
            return
        with self.node.send_output_raw("data", BYTES, metadata) as buffer:
            np.copyto(np.frombuffer(buffer, np.int64), source)

    def send_inplace(self, first: int, metadata: dict[str, Any]) -> None:
        with self.node.send_output_raw("data", BYTES, metadata) as buffer:
            np.frombuffer(buffer, np.int64)[0] = first

    def answer(self) -> None:
        self.node.send_output("next", b"")

    def wait_answer(self) -> None:
        event = self.node.next(timeout=20)
        if event is None or event["type"] != "INPUT":
            sys.exit(f"no answer: {event}")

    def take(self) -> tuple[Any, dict[str, Any]] | None:
        for event in self.node:
            if event["type"] == "INPUT":
                array = event["value"].to_numpy()
                if array.dtype == np.uint8:
                    array = array.view(np.int64)
                return array, event["metadata"]
        return None


class Inside(Side):
    """Tensorbus in the same dora."""

    def __init__(self) -> None:
        import tensorbus.dora
        from dora import Node

        self.bus = tensorbus.dora.attach(Node(), linger=0)
        self.pool: Any = None

    def _pool(self) -> Any:
        if self.pool is None:
            self.pool = self.bus.register(np.empty(BYTES // 8, np.int64), slots=CONFIG["slots"])
        return self.pool

    def send_copy(self, source: np.ndarray, metadata: dict[str, Any]) -> None:
        pool = self._pool()
        pool.write(source)
        self.bus.send_output("data", pool.last, metadata)

    def send_inplace(self, first: int, metadata: dict[str, Any]) -> None:
        pool = self._pool()
        with pool.loan() as frame:
            frame[0] = first
        self.bus.send_output("data", pool.last, metadata)

    def answer(self) -> None:
        self.bus.send_output("next", b"")

    def wait_answer(self) -> None:
        event = self.bus.next(timeout=20)
        if event is None or event["type"] != "INPUT":
            sys.exit(f"no answer: {event}")

    def take(self) -> tuple[Any, dict[str, Any]] | None:
        for event in self.bus:
            if event["type"] == "INPUT":
                return event["value"].numpy(), event["metadata"]
        return None


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
                np.empty(BYTES // 8, np.int64), name="data", slots=CONFIG["slots"]
            )
        return self.pool

    def send_copy(self, source: np.ndarray, metadata: dict[str, Any]) -> None:
        pool = self._pool()
        pool.write(source)
        self.node.send_output("data", pool.last, metadata)

    def send_inplace(self, first: int, metadata: dict[str, Any]) -> None:
        pool = self._pool()
        with pool.loan() as frame:
            frame[0] = first
        self.node.send_output("data", pool.last, metadata)

    def answer(self) -> None:
        self.node.send_output("next", b"")

    def wait_answer(self) -> None:
        event = self.node.next(timeout=20)
        if event is None or event.type != "INPUT":
            sys.exit(f"no answer: {event}")

    def take(self) -> tuple[Any, dict[str, Any]] | None:
        for event in self.node:
            if event.type == "INPUT":
                return event.value.numpy(), event.metadata
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
        source[0] = index
        metadata = {"i": index, "t": time.monotonic_ns()}
        if CONFIG["mode"] == "copy":
            side.send_copy(source, metadata)
        else:
            side.send_inplace(index, metadata)
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
        taken = side.take()
        if taken is None:
            sys.exit(f"the sender ended after {index} frames")
        array, metadata = taken
        assert array[0] == metadata["i"] == index, (int(array[0]), metadata["i"], index)
        now_ns = time.monotonic_ns()
        if index == WARMUP:
            started_cpu, started_ns = cpu_s(), now_ns
        if index >= WARMUP:
            intervals_ns.append(now_ns - metadata["t"])
        del array, taken
        side.answer()
    return {
        "cpu_s": cpu_s() - started_cpu,
        "wall_ns": time.monotonic_ns() - started_ns,
        "intervals_ns": intervals_ns,
    }


def main() -> None:
    side = {"stock": Stock, "inside": Inside, "runner": Runner}[CONFIG["side"]]()
    role = os.environ["BENCH_ROLE"]
    result = sender(side) if role == "sender" else receiver(side)
    with open(os.path.join(CONFIG["folder"], role + ".json"), "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()

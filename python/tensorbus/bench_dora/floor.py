"""A copy by several threads alone: `floor.py BYTES SLOTS THREADS` prints bytes a second."""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import tensorbus

ROUNDS, WARMUP = 40, 5


def main() -> None:
    size, slots, threads = map(int, sys.argv[1:])
    source = np.arange(size // 8, dtype=np.int64)
    took_ns = []
    with tensorbus.Pool.register(source, slots=slots, copy_threads=threads) as pool:
        for _ in range(WARMUP + ROUNDS):
            begin_ns = time.monotonic_ns()
            pool.write(source)
            took_ns.append(time.monotonic_ns() - begin_ns)
    print(size / (statistics.median(took_ns[WARMUP:]) / 1e9))


if __name__ == "__main__":
    main()

"""What the rows were measured on, and how disturbed it was."""

from __future__ import annotations

import os
import platform
from typing import Any

import tensorbus


def describe() -> dict[str, Any]:
    """Processor, kernel, interpreter and packages, for the head of the table and for --json."""
    from importlib import metadata

    processor = "unknown"
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    versions: dict[str, str | None] = {"tensorbus": tensorbus.__version__}
    for package in ("dora-rs", "dora-rs-cli", "numpy", "pyarrow"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "processor": processor,
        "processors": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": versions,
    }


class Disturbance:
    """Time taken by the hypervisor, and time that some task waited for a processor."""

    def __init__(self) -> None:
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        self.total, self.steal = sum(ticks), ticks[7]
        self.pressure_us: int | None = None
        try:
            with open("/proc/pressure/cpu") as file:
                self.pressure_us = int(file.readline().rsplit("total=", 1)[1])
        except OSError:
            pass
        self.stamp_us = _now_us()

    def since(self) -> tuple[float, float | None]:
        """Percent of steal and of pressure between this reading and now."""
        now = Disturbance()
        steal = 100 * (now.steal - self.steal) / max(1, now.total - self.total)
        if self.pressure_us is None or now.pressure_us is None:
            return steal, None
        wall_us = max(1, now.stamp_us - self.stamp_us)
        return steal, 100 * (now.pressure_us - self.pressure_us) / wall_us


def _now_us() -> int:
    import time

    return time.monotonic_ns() // 1000

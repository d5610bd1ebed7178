"""One block: a flow of two nodes, run once for one side."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any

from .rows import Workload

NODE = pathlib.Path(__file__).with_name("node.py")
FLOOR = pathlib.Path(__file__).with_name("floor.py")
LIMIT_S = 120
POOL_OF_STOCK = 268_435_456  # bytes of shared memory: what dora's flow file can ask for
SLOTS = 3

#: Ways of stock dora that are documented, of which each row takes the fastest.
STOCK_WAYS: dict[str, dict[str, Any]] = {
    "array": {"call": "array", "pool": None},
    "array, 256 MiB pool": {"call": "array", "pool": POOL_OF_STOCK},
    "raw": {"call": "raw", "pool": None},
    "raw, 256 MiB pool": {"call": "raw", "pool": POOL_OF_STOCK},
}


#: And of ours: threads that share a copy.
OUR_WAYS: dict[str, dict[str, Any]] = {"1 thread": {"threads": 1}}
if len(os.sched_getaffinity(0)) > 1:
    OUR_WAYS["2 threads"] = {"threads": 2}


class BlockError(Exception):
    """A flow did not end well; the text is the end of what it printed."""


@dataclass
class Block:
    """Figures of one run."""

    intervals_us: list[float]
    cpu_percent: float  # of a core, both nodes
    frames_per_s: float
    message_bytes: int | None = None  # of the message that carries a frame, where known

    @property
    def p50_us(self) -> float:
        return statistics.median(self.intervals_us)


@dataclass
class Tools:
    """The programs that run flows; None: not installed."""

    dora: str | None = None
    tensorbus: str | None = None
    missing: list[str] = field(default_factory=list)

    @classmethod
    def find(cls) -> Tools:
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        tools = cls(dora=shutil.which("dora", path=path))
        tools.tensorbus = os.environ.get("TENSORBUS_COMMAND") or shutil.which(
            "tensorbus", path=path
        )
        for package, command in (("dora", tools.dora), ("pyarrow", "-")):
            try:
                __import__(package)
            except ImportError:
                tools.missing.append(package)
                continue
            if command is None:
                tools.missing.append("dora's command (dora-rs-cli)")
        return tools


def _flow(workload: Workload, side: str, way: dict[str, Any], folder: str) -> str:
    config = {
        "side": side, "bytes": workload.bytes, "mode": workload.mode, "pace": workload.pace,
        "frames": workload.frames, "warmup": workload.warmup, "folder": folder, "slots": SLOTS,
        "call": way.get("call"), "threads": way.get("threads", 1),
    }  # fmt: skip
    env = f"{{BENCH: '{json.dumps(config)}', BENCH_ROLE: %s, PYTHONDONTWRITEBYTECODE: '1'}}"
    pool = way.get("pool")
    return "\n".join(
        [
            "nodes:",
            "  - id: sender",
            f"    path: {NODE}",
            "    inputs: {next: receiver/next}",
            "    outputs: [data]",
            *([f"    shared_memory_pool_size: {pool}"] if pool else []),
            f"    env: {env % 'sender'}",
            "  - id: receiver",
            f"    path: {NODE}",
            "    inputs: {data: sender/data}",
            "    outputs: [next]",
            f"    env: {env % 'receiver'}",
            "",
        ]
    )


def run(tools: Tools, workload: Workload, side: str, way: dict[str, Any]) -> Block:
    """Run one block.

    Raises:
        BlockError: the flow failed or hung.
    """
    with tempfile.TemporaryDirectory(prefix="tensorbus-bench-") as folder:
        flow = pathlib.Path(folder, "flow.yml")
        flow.write_text(_flow(workload, side, way, folder))
        program = tools.tensorbus if side == "runner" else tools.dora
        bus = pathlib.Path(folder, "bus")
        bus.mkdir(mode=0o700)
        env = os.environ | {
            "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TENSORBUS_DIR": str(bus),
            "RUST_BACKTRACE": "0",
        }
        try:
            done = subprocess.run(
                [str(program), "run", str(flow)], cwd=folder, env=env, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BlockError(f"not done after {LIMIT_S} s") from None
        if done.returncode != 0:
            raise BlockError("\n".join(done.stdout.splitlines()[-15:]))
        return _read(folder, done.stdout)


def _read(folder: str, output: str) -> Block:
    results = []
    for role in ("sender", "receiver"):
        try:
            with open(os.path.join(folder, role + ".json")) as file:
                results.append(json.load(file))
        except OSError:
            raise BlockError(f"the {role} wrote no result\n{output[-2000:]}") from None
    sender, receiver = results
    cpu = sum(100 * result["cpu_s"] / (result["wall_ns"] / 1e9) for result in results)
    told = re.search(r"output `data`: (\d+) B", output)
    return Block(
        intervals_us=[interval / 1e3 for interval in receiver["intervals_ns"]],
        cpu_percent=cpu,
        frames_per_s=len(receiver["intervals_ns"]) / (receiver["wall_ns"] / 1e9),
        message_bytes=int(told[1]) if told else None,
    )


def shared_copy(workload: Workload, threads: int) -> float:
    """A copy of this size by several threads into a pool, and nothing else, bytes a second.

    Raises:
        BlockError: it could not be measured.
    """
    with tempfile.TemporaryDirectory(prefix="tensorbus-bench-") as folder:
        done = subprocess.run(
            [sys.executable, str(FLOOR), str(workload.bytes), str(SLOTS), str(threads)],
            env=os.environ | {"TENSORBUS_DIR": folder}, capture_output=True, text=True,
            timeout=LIMIT_S,
        )  # fmt: skip
        try:
            return float(done.stdout)
        except ValueError:
            raise BlockError(f"{FLOOR.name}: {done.stderr[-500:]}") from None


def best_copy(tools: Tools, workload: Workload) -> float:
    """The fastest copy of this size on this machine now, bytes a second: `bench local`'s floor.

    Raises:
        BlockError: it could not be measured.
    """
    size = "61.4MB" if workload.bytes > 50_000_000 else "6.2MB"
    return _local(tools, f"write/cold/{size}", "baseline") * 1e9


def word_us(tools: Tools) -> float:
    """How long a word takes from one processor to another now.

    Raises:
        BlockError: it could not be measured.
    """
    return _local(tools, "floor/spin/p50", "value")


def _local(tools: Tools, name: str, figure: str) -> float:
    """A figure of a row of `bench local`."""
    command = [str(tools.tensorbus), "bench", "local", "--quick", "--json", "--row", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    try:
        (row,) = json.loads(done.stdout)["rows"]
        return float(row[figure])
    except (ValueError, KeyError, TypeError) as error:
        raise BlockError(f"{' '.join(command)}: {error}: {done.stderr[-500:]}") from None

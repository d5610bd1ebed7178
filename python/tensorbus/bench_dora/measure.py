"""All blocks of all rows, in alternation: A B C floor, A B C floor, ..."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable

from .blocks import (
    OUR_WAYS,
    STOCK_WAYS,
    Block,
    BlockError,
    Tools,
    best_copy,
    run,
    shared_copy,
    word_us,
)
from .machine import Disturbance, describe
from .rows import HANDLE, SIDES, Workload


@dataclass
class Row:
    """A workload's blocks by side; a side that could not be measured has none, and a reason."""

    workload: Workload
    blocks: dict[str, list[Block]] = field(default_factory=lambda: {side: [] for side in SIDES})
    skipped: dict[str, str] = field(default_factory=dict)
    #: Copies alone, by how many threads: bytes a second, one a block.
    copies: dict[int, list[float]] = field(default_factory=dict)
    #: Messages of stock dora as large as a handle, at the row's pace.
    messages: list[Block] = field(default_factory=list)
    #: A word from one processor to another, microseconds, one a block.
    words_us: list[float] = field(default_factory=list)
    way: dict[str, str] = field(default_factory=dict)  # by side: the fastest of its ways
    ways_us: dict[str, dict[str, float | None]] = field(default_factory=dict)
    steal: float = 0.0
    pressure: float | None = None


@dataclass
class Result:
    machine: dict[str, Any]
    rows: list[Row]


def measure(workloads: Iterable[Workload], blocks: int, say: Callable[[str], None]) -> Result:
    """Measure; failures are reasons in the result, never exceptions."""
    tools = Tools.find()
    result = Result(describe(), [])
    for workload in workloads:
        say(f"{workload.name} ...")
        row = Row(workload)
        result.rows.append(row)
        before = Disturbance()
        _note_missing(row, tools)
        for side in SIDES:
            if side not in row.skipped:
                _choose_way(row, side, tools, say)
        for _ in range(blocks):
            _one_block(row, tools, say)
        row.steal, row.pressure = before.since()
    return result


def _note_missing(row: Row, tools: Tools) -> None:
    if tools.missing:
        why = f"not installed: {', '.join(tools.missing)}"
        row.skipped |= {"stock": why, "inside": why, "direct": why}
    if tools.tensorbus is None:
        row.skipped["runner"] = "the command `tensorbus` is not on PATH"


def _ways(workload: Workload, side: str) -> dict[str, dict[str, Any]]:
    """The documented ways of a side for a workload."""
    if side != "stock":
        shared = workload.mode == "copy" and workload.pace != "rate"
        ways = OUR_WAYS if shared else {"1 thread": OUR_WAYS["1 thread"]}
    elif workload.mode == "copy":
        ways = STOCK_WAYS
    else:
        ways = {name: way for name, way in STOCK_WAYS.items() if way["call"] == "raw"}
    return ways


def _choose_way(row: Row, side: str, tools: Tools, say: Callable[[str], None]) -> None:
    """One block of each documented way; the side's blocks are those of the fastest."""
    took = row.ways_us.setdefault(side, {})
    for name, way in _ways(row.workload, side).items():
        try:
            took[name] = run(tools, row.workload, side, way).p50_us
        except BlockError as error:
            took[name] = None
            say(f"  {side}, {name}: {_gist(error)}")
    works = {name: us for name, us in took.items() if us is not None}
    if works:
        row.way[side] = min(works, key=works.__getitem__)
    else:
        row.skipped[side] = "no way of sending this size works"


def _one_block(row: Row, tools: Tools, say: Callable[[str], None]) -> None:
    threads = {1}
    for side in SIDES:
        if side in row.skipped:
            continue
        way = _ways(row.workload, side)[row.way[side]]
        threads.add(way.get("threads", 1))
        try:
            row.blocks[side].append(run(tools, row.workload, side, way))
        except BlockError as error:
            row.skipped[side] = _gist(error)
            say(f"  {side}: {error}")
    if "floors" not in row.skipped and row.workload.mode == "copy" and tools.tensorbus:
        try:
            _one_block_of_floors(row, tools, threads)
        except BlockError as error:
            row.skipped["floors"] = _gist(error)


def _one_block_of_floors(row: Row, tools: Tools, threads: set[int]) -> None:
    row.words_us.append(word_us(tools))
    for count in sorted(threads):
        if count == 1:
            speed = best_copy(tools, row.workload)
        else:
            speed = shared_copy(row.workload, count)
        row.copies.setdefault(count, []).append(speed)
    if row.workload.pace == "rate" and "stock" not in row.skipped:
        small = dataclasses.replace(row.workload, bytes=HANDLE)
        row.messages.append(run(tools, small, "stock", STOCK_WAYS["array"]))


def _gist(error: BlockError) -> str:
    """The line that says why: the last one that speaks of an error, else the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\w*Error\b", line)]
    return (telling or lines or ["failed"])[-1]

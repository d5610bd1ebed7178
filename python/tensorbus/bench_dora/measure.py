"""All blocks of all rows, in alternation: A B C floor, A B C floor, ..."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable

from .blocks import STOCK_WAYS, Block, BlockError, Tools, best_copy, run
from .machine import Disturbance, describe
from .rows import SIDES, Workload


@dataclass
class Row:
    """A workload's blocks by side; a side that could not be measured has none, and a reason."""

    workload: Workload
    blocks: dict[str, list[Block]] = field(default_factory=lambda: {side: [] for side in SIDES})
    skipped: dict[str, str] = field(default_factory=dict)
    copies: list[float] = field(default_factory=list)  # bytes a second, one a block
    stock_way: str = ""
    stock_ways_us: dict[str, float | None] = field(default_factory=dict)
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
        if "stock" not in row.skipped:
            _choose_stock_way(row, tools, say)
        for _ in range(blocks):
            _one_block(row, tools, say)
        row.steal, row.pressure = before.since()
    return result


def _note_missing(row: Row, tools: Tools) -> None:
    if tools.missing:
        why = f"not installed: {', '.join(tools.missing)}"
        row.skipped |= {"stock": why, "inside": why}
    if tools.tensorbus is None:
        row.skipped["runner"] = "the command `tensorbus` is not on PATH"


def _choose_stock_way(row: Row, tools: Tools, say: Callable[[str], None]) -> None:
    """One block of each documented way; the fastest is measured against."""
    ways = STOCK_WAYS
    if row.workload.mode == "inplace":
        ways = {name: way for name, way in ways.items() if way["call"] == "raw"}
    for name, way in ways.items():
        try:
            row.stock_ways_us[name] = run(tools, row.workload, "stock", way).p50_us
        except BlockError as error:
            row.stock_ways_us[name] = None
            say(f"  stock dora, {name}: {_gist(error)}")
    works = {name: us for name, us in row.stock_ways_us.items() if us is not None}
    if works:
        row.stock_way = min(works, key=works.__getitem__)
    else:
        row.skipped["stock"] = "no way of sending this size works"


def _one_block(row: Row, tools: Tools, say: Callable[[str], None]) -> None:
    for side in SIDES:
        if side in row.skipped:
            continue
        way = STOCK_WAYS.get(row.stock_way, {}) if side == "stock" else {}
        try:
            row.blocks[side].append(run(tools, row.workload, side, way))
        except BlockError as error:
            row.skipped[side] = _gist(error)
            say(f"  {side}: {error}")
    if "copy" not in row.skipped and row.workload.mode == "copy" and tools.tensorbus:
        try:
            row.copies.append(best_copy(tools, row.workload))
        except BlockError as error:
            row.skipped["copy"] = _gist(error)


def _gist(error: BlockError) -> str:
    """The line that says why: the last one that speaks of an error, else the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\w*Error\b", line)]
    return (telling or lines or ["failed"])[-1]

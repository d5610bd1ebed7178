"""Figures out of blocks, goals, the table and the JSON object."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import Any, Callable

from .blocks import OUR_WAYS, Block
from .measure import Result, Row
from .rows import HANDLE, SIDES, Goal

NAMES = {
    "stock": "stock dora",
    "inside": "in dora, by messages",
    "shortcut": "in dora, shortcut",
    "direct": "in dora, direct",
    "runner": "own runner",
}


@dataclass
class Verdict:
    goal: Goal
    value: float | None
    met: bool


def workload_of(row: str) -> str:
    """`rate/6.2MB/runner/p50` belongs to workload `rate/6.2MB`."""
    return "/".join(row.split("/")[:2])


def figures(row: Row, side: str) -> dict[str, Any] | None:
    """Medians over the blocks of one side; p99 over all samples of all of its blocks."""
    blocks = row.blocks[side]
    if not blocks or side in row.skipped:
        return None
    pooled = sorted(us for block in blocks for us in block.intervals_us)
    rate = _speed(row)
    out: dict[str, Any] = {
        "p50_us": statistics.median(block.p50_us for block in blocks),
        "p99_us": pooled[min(len(pooled) - 1, int(0.99 * len(pooled)))],
        "bytes_per_s": statistics.median(map(rate, blocks)),
        "cpu_percent": statistics.median(block.cpu_percent for block in blocks),
        "message_bytes": blocks[-1].message_bytes if side == "stock" else 48,
        "blocks": [
            {"p50_us": block.p50_us, "bytes_per_s": rate(block), "cpu_percent": block.cpu_percent}
            for block in blocks
        ],
    }
    stock = row.blocks["stock"]
    if side != "stock" and stock and "stock" not in row.skipped:
        out["p50_over_stock"] = out["p50_us"] / statistics.median(b.p50_us for b in stock)
        out["speed_over_stock"] = out["bytes_per_s"] / statistics.median(map(rate, stock))
        out["cpu_over_stock"] = out["cpu_percent"] / statistics.median(b.cpu_percent for b in stock)
    copy = best_copy(row, side)
    if copy is not None:
        out["speed_over_copy"] = out["bytes_per_s"] / copy
    return out


def best_copy(row: Row, side: str) -> float | None:
    """The fastest copy alone with no more threads than the side's way, bytes a second."""
    most = OUR_WAYS.get(row.way.get(side, ""), {}).get("threads", 1)
    speeds = [statistics.median(at) for threads, at in row.copies.items() if threads <= most]
    return max(speeds, default=None)


def _speed(row: Row) -> Callable[[Block], float]:
    """Bytes a second of a block: by the interval of a frame, or, flat out, by frames that came."""
    size = row.workload.bytes
    if row.workload.pace == "flat":
        return lambda block: size * block.frames_per_s
    return lambda block: size / (block.p50_us / 1e6)


def judge(result: Result, goals: list[Goal]) -> list[Verdict]:
    """What is missing is not met."""
    rows = {row.workload.name: row for row in result.rows}
    return [_judge_one(rows[workload_of(goal.row)], goal) for goal in goals]


def _judge_one(row: Row, goal: Goal) -> Verdict:
    _, _, side, *figure = goal.row.split("/")
    numbers = figures(row, side)
    key = {
        ("over_stock", ()): "speed_over_stock",
        ("over_copy", ()): "speed_over_copy",
        ("over_stock", ("p50",)): "p50_over_stock",
        ("over_stock", ("cpu",)): "cpu_over_stock",
    }[goal.figure, tuple(figure)]
    value = numbers.get(key) if numbers else None
    if value is None:
        return Verdict(goal, None, False)
    return Verdict(goal, value, value >= goal.limit if goal.at_least else value <= goal.limit)


def goal_text(goal: Goal) -> str:
    """`over stock >= 2`, as the table has it."""
    words = goal.figure.replace("_", " ").replace("copy", "the best copy")
    return f"{words} {'>=' if goal.at_least else '<='} {goal.limit:g}"


def print_table(result: Result, verdicts: list[Verdict]) -> None:
    """The table, every block behind it, and the goals."""
    machine = result.machine
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    print(f"\ntensorbus bench dora: {machine['processor']}, {machine['processors']} processors, "
          f"Linux {machine['kernel']}, Python {machine['python']}; {packages}")  # fmt: skip
    print("GB = 1e9 bytes. Figures are medians over alternating blocks, p99 over all samples.\n")
    print(f"{'row':<21} {'side':<22} {'p50 us':>9} {'p99 us':>9} {'GB/s':>7} {'CPU %':>7} "
          f"{'message B':>11} {'p50/stock':>9} {'GB/s/stock':>10} {'/best copy':>10}")  # fmt: skip
    for row in result.rows:
        for side in SIDES:
            _print_side(row, side)
        for threads, speeds in row.copies.items():
            name = "best copy" if threads == 1 else f"copy, {threads} threads"
            print(f"{'':<21} {name:<22} {'':>9} {'':>9} "
                  f"{statistics.median(speeds) / 1e9:>7.1f}")  # fmt: skip
        _print_message(row)
        _print_notes(row)
    print("All blocks, in the order of measurement (p50 us; CPU %):")
    for row in result.rows:
        for side in SIDES:
            blocks = "  ".join(f"{b.p50_us:.0f};{b.cpu_percent:.0f}" for b in row.blocks[side])
            print(f"{row.workload.name:<21} {side:<8} {blocks}")
    print()
    for verdict in verdicts:
        value = "skipped" if verdict.value is None else f"{verdict.value:.3f}"
        print(f"{'met' if verdict.met else 'NOT MET':<8} {verdict.goal.row:<28} "
              f"{goal_text(verdict.goal):<28} {value}")  # fmt: skip
    met = sum(verdict.met for verdict in verdicts)
    print(f"\ngoals: {met} met, {len(verdicts) - met} not met or skipped")


def _print_side(row: Row, side: str) -> None:
    numbers = figures(row, side)
    head = f"{row.workload.name:<21} {NAMES[side]:<22}"
    if numbers is None:
        print(f"{head} skipped: {row.skipped.get(side, 'no block')}")
        return

    def ratio(key: str, width: int) -> str:
        return f"{numbers[key]:>{width}.3f}" if key in numbers else " " * width

    message = numbers["message_bytes"] if numbers["message_bytes"] is not None else "-"
    print(f"{head} {numbers['p50_us']:>9.1f} {numbers['p99_us']:>9.1f} "
          f"{numbers['bytes_per_s'] / 1e9:>7.1f} {numbers['cpu_percent']:>7.1f} {message:>11} "
          f"{ratio('p50_over_stock', 9)} {ratio('speed_over_stock', 10)} "
          f"{ratio('speed_over_copy', 10)}")  # fmt: skip


def message_figures(row: Row) -> dict[str, float] | None:
    """Of a message of stock dora as large as a handle: medians, and over stock's with a frame."""
    stock = row.blocks["stock"]
    if not row.messages or not stock:
        return None
    p50 = statistics.median(block.p50_us for block in row.messages)
    cpu = statistics.median(block.cpu_percent for block in row.messages)
    return {
        "p50_us": p50,
        "cpu_percent": cpu,
        "p50_over_stock": p50 / statistics.median(block.p50_us for block in stock),
        "cpu_over_stock": cpu / statistics.median(block.cpu_percent for block in stock),
    }


def _print_message(row: Row) -> None:
    numbers = message_figures(row)
    if numbers is not None:
        print(f"{'':<21} {'stock, 48 bytes':<22} {numbers['p50_us']:>9.1f} {'':>9} {'':>7} "
              f"{numbers['cpu_percent']:>7.1f} {HANDLE:>11} {numbers['p50_over_stock']:>9.3f} "
              f"   CPU over stock {numbers['cpu_over_stock']:.3f}")  # fmt: skip


def _print_notes(row: Row) -> None:
    if row.words_us:
        words = ", ".join(f"{word:.2f}" for word in row.words_us)
        print(f"  a word from one processor to another, us, by block: {words}")
    if "floors" in row.skipped:
        print(f"  floors not measured: {row.skipped['floors']}")
    for side, took in row.ways_us.items():
        ways = ", ".join(
            f"{name}: {'fails' if us is None else f'{us:.0f} us'}" for name, us in took.items()
        )
        if len(took) > 1:
            taken = row.way.get(side, "none")
            print(f"  {NAMES[side]}, one block each way: {ways}; taken: {taken}")
    pressure = "" if row.pressure is None else f", pressure {row.pressure:.0f} %"
    print(f"  steal {row.steal:.1f} %{pressure}\n")


def print_json(result: Result, verdicts: list[Verdict]) -> None:
    """One object: bench, machine, rows, goals."""
    rows = []
    for row in result.rows:
        rows.append(
            {
                "name": row.workload.name,
                "bytes": row.workload.bytes,
                "sides": {side: figures(row, side) for side in SIDES},
                "skipped": row.skipped,
                "best_copy_bytes_per_s": row.copies,
                "message": message_figures(row),
                "word_us": row.words_us,
                "ways_p50_us": row.ways_us,
                "way": row.way,
                "steal_percent": row.steal,
                "pressure_percent": row.pressure,
            }
        )
    goals = [
        {
            "row": verdict.goal.row,
            "goal": goal_text(verdict.goal),
            "value": verdict.value,
            "met": verdict.met,
        }
        for verdict in verdicts
    ]
    print(json.dumps({"bench": "dora", "machine": result.machine, "rows": rows, "goals": goals}))

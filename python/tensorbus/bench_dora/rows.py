"""What is measured, what the goals are, and what each row means."""

from __future__ import annotations

from dataclasses import dataclass

LARGE = 61_440_000  # bytes: the pool example's frame
FRAME = 6_220_800  # bytes: 1080p, 3 bytes a pixel

HANDLE = 48  # bytes

SIDES = ("stock", "inside", "shortcut", "direct", "runner")


@dataclass(frozen=True)
class Workload:
    """One flow of two nodes; a block runs it once for each side."""

    name: str
    bytes: int
    mode: str  # "copy": an array is sent; "inplace": the frame is made where it is sent from
    pace: str  # "turn": one at a time; "rate": 30 Hz; "flat": two under way
    frames: int
    warmup: int
    about: str


WORKLOADS = (
    Workload(
        "turn/61.4MB", LARGE, "copy", "turn", 60, 10,
        "An array of 61,440,000 bytes is sent, the receiver checks its element 0 and answers; then "
        "the next. The interval goes from just before the sender's call to just after the check; "
        "the figure is bytes over the median interval of a block. One copy on each side: stock "
        "copies into its shared memory, ours into the pool, with one thread or two; but on the side "
        "`direct` the handle is sent while the copy is made, and the receiver waits for it. An "
        "answer is a message; on the side `direct` it is the frame's acknowledgement.",
    ),
    Workload(
        "turn/61.4MB/inplace", LARGE, "inplace", "turn", 60, 10,
        "As turn/61.4MB, but the frame is made where it is sent from: send_output_raw there, a "
        "loan here. Only its first two elements are written (untouched otherwise), so this is the "
        "hand-over alone.",
    ),
    Workload(
        "rate/6.2MB", FRAME, "copy", "rate", 90, 15,
        "An array of 6,220,800 bytes is sent 30 times a second. Latency: from just before the "
        "sender's call to the receiver having the array, copy included; CPU: user and system time "
        "of both nodes between the first and the last frame, in percent of a core. Ours copies by "
        "one thread, as by default: two take more of the CPU. Beside it, a message of stock dora "
        "of 48 bytes, as large as a handle, at the same rate: who sends one for each frame cannot "
        "be below that.",
    ),
    Workload(
        "rate/6.2MB/inplace", FRAME, "inplace", "rate", 90, 15,
        "As rate/6.2MB, with frames made in place (two elements written): hand-over alone. "
        "Latency: from just before the frame is sent.",
    ),
    Workload(
        "flat/6.2MB", FRAME, "copy", "flat", 400, 20,
        "As many arrays of 6,220,800 bytes as go through with two under way at any time.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Goal:
    row: str
    figure: str  # "over_stock", "over_copy"
    at_least: bool
    limit: float


#: The one table of goals; docs/benchmarks.md states it in words, and a test compares the two.
GOALS = tuple(
    goal
    for side in ("inside", "direct", "runner")
    for goal in (
        Goal(f"turn/61.4MB/{side}", "over_stock", True, 2.0),
        Goal(f"turn/61.4MB/{side}", "over_copy", True, 0.9),
        Goal(f"rate/6.2MB/{side}/p50", "over_stock", False, 0.5),
        Goal(f"rate/6.2MB/{side}/cpu", "over_stock", False, 0.5),
    )
)

"""`tensorbus bench dora`: its words, its arithmetic and its verdicts. No number is judged."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from dora_support import ROOT, tool
from tensorbus.bench_dora import report
from tensorbus.bench_dora.blocks import Block
from tensorbus.bench_dora.measure import Result, Row
from tensorbus.bench_dora.rows import GOALS, WORKLOADS


def bench(*words: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [tool("tensorbus"), "bench", "dora", *words],
        env=os.environ | {"TENSORBUS_PYTHON": sys.executable} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_words():
    listed = bench("--list")
    assert listed.returncode == 0 and listed.stdout.split() == [at.name for at in WORKLOADS]
    for workload in WORKLOADS:
        assert bench("--explain", workload.name).stdout.strip() == workload.about
    assert "--check" in bench("--help").stdout
    for words in (["--nonsense"], ["--row", "no-such-row"], ["--explain", "nothing"], ["--row"]):
        done = bench(*words)
        assert done.returncode == 2 and done.stderr.startswith("tensorbus bench dora: "), words


def test_a_python_that_is_not_there():
    done = bench("--list", TENSORBUS_PYTHON="/nonexistent/python")
    assert done.returncode == 1 and "TENSORBUS_PYTHON" in done.stderr


def test_goals_are_those_of_the_documentation():
    text = (ROOT / "docs" / "dora.md").read_text()
    section = text[text.index("## 4. tensorbus bench dora") :]
    rows = re.findall(r"^\| `([a-z]+/[^`]+)` \| ([^|]+?) \|", section, re.MULTILINE)
    assert rows == [
        (goal.row, report.goal_text(goal).replace(">=", "≥").replace("<=", "≤")) for goal in GOALS
    ]
    for goal in GOALS:
        assert report.workload_of(goal.row) in {at.name for at in WORKLOADS}


def block(us: float, cpu: float) -> Block:
    return Block([us, us, us * 3], cpu, 1e6 / us)


def filled(name: str) -> Row:
    """Stock takes 1000 us a frame and 10 % of a core, direct 600 and 6, runner 400 and 4."""
    row = Row(next(at for at in WORKLOADS if at.name == name))
    for side, us, cpu in (
        ("stock", 1000, 10),
        ("inside", 700, 7),
        ("direct", 600, 6),
        ("runner", 400, 4),
    ):
        row.blocks[side] = [block(us + step, cpu) for step in (-9, 0, 9)]
    row.copies = {1: [row.workload.bytes / 500e-6] * 3}  # a copy takes 500 us
    return row


def verdicts(*rows: Row) -> dict[tuple[str, str], tuple[float | None, bool]]:
    names = {row.workload.name for row in rows}
    goals = [goal for goal in GOALS if report.workload_of(goal.row) in names]
    judged = report.judge(Result({}, list(rows)), goals)
    return {(v.goal.row, v.goal.figure): (v.value, v.met) for v in judged}


def test_arithmetic_and_verdicts():
    found = verdicts(filled("turn/61.4MB"), filled("rate/6.2MB"))
    assert found["turn/61.4MB/direct", "over_stock"] == (pytest.approx(1000 / 600), False)
    assert found["turn/61.4MB/runner", "over_stock"] == (pytest.approx(1000 / 400), True)
    assert found["turn/61.4MB/direct", "over_copy"] == (pytest.approx(500 / 600), False)
    assert found["turn/61.4MB/runner", "over_copy"] == (pytest.approx(500 / 400), True)
    assert found["rate/6.2MB/direct/p50", "over_stock"] == (pytest.approx(0.6), False)
    assert found["rate/6.2MB/runner/p50", "over_stock"] == (pytest.approx(0.4), True)
    assert found["rate/6.2MB/direct/cpu", "over_stock"] == (pytest.approx(0.6), False)
    assert found["rate/6.2MB/runner/cpu", "over_stock"] == (pytest.approx(0.4), True)
    shared = filled("turn/61.4MB")
    shared.copies[2] = [shared.workload.bytes / 250e-6] * 3
    shared.way["runner"] = "2 threads"  # is divided by a copy of two threads, the others are not
    found = verdicts(shared)
    assert found["turn/61.4MB/runner", "over_copy"] == (pytest.approx(250 / 400), False)
    assert found["turn/61.4MB/direct", "over_copy"] == (pytest.approx(500 / 600), False)
    rate = filled("rate/6.2MB")
    assert report.message_figures(rate) is None
    rate.messages = [block(600, 7)] * 3
    assert report.message_figures(rate) == pytest.approx(
        {"p50_us": 600, "cpu_percent": 7, "p50_over_stock": 0.6, "cpu_over_stock": 0.7}
    )
    figures = report.figures(filled("rate/6.2MB"), "stock")
    assert figures["p50_us"] == 1000 and figures["p99_us"] == pytest.approx(3027)


@pytest.mark.parametrize("missing", ["stock", "runner"])
def test_what_is_missing_is_not_met(missing):
    row = filled("turn/61.4MB")
    row.skipped[missing] = "not installed"
    found = verdicts(row)
    assert found["turn/61.4MB/runner", "over_stock"] == (None, False)


def test_without_dora_rows_are_skipped_and_the_check_fails(tmp_path):
    # A Python that finds everything but dora.
    (tmp_path / "dora.py").write_text("raise ImportError('no dora for this test')")
    env = {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = bench("--quick", "--row", "rate/6.2MB/inplace", "--json", "--check", **env)
    found = json.loads(done.stdout)
    (row,) = found["rows"]
    assert "not installed: dora" in row["skipped"]["stock"]
    assert row["sides"]["stock"] is None and row["sides"]["runner"]["p50_us"] > 0
    # This row has no goal; a row with one fails.
    assert done.returncode == 0
    done = bench("--quick", "--row", "turn/61.4MB", "--check", PATH="/nonexistent", **env)
    assert done.returncode == 1 and "skipped: not installed: dora" in done.stdout
    assert not list(pathlib.Path(tmp_path).glob("tensorbus-bench-*"))

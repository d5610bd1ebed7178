"""Every test has a runtime directory of its own and leaves nothing behind: no descriptor, no
mapping of a pool, no thread, no child process, no socket or file."""

from __future__ import annotations

import gc
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest

import kit
import tensorbus as tb
from tensorbus import _core

# Before NumPy is imported: its BLAS starts threads after a fork, which the count would see.
os.environ["OPENBLAS_NUM_THREADS"] = "1"


def _state() -> dict[str, object]:
    return {
        "descriptors": kit.descriptors(),
        "mappings": kit.pool_mappings(),
        "threads": kit.threads(),
        "children": kit.children(),
    }


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """The runtime directory of the test."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tb-py-"))
    for name in [name for name in os.environ if name.startswith("TENSORBUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TENSORBUS_DIR", str(folder))
    gc.collect()
    kit.killed.clear()
    before = _state()
    yield folder
    gc.collect()
    _core._close_all()
    if kit.killed:
        tb.open_bus("sweeper").close()  # the next start takes what a kill has left
    try:
        kit.await_true(lambda: _state() == before, lambda: f"left behind: {_difference(before)}", 5)
        left = [p for p in folder.rglob("*") if not p.is_dir() and p.name != ".lock"]
        assert left == [], "left in the runtime directory"
    finally:
        shutil.rmtree(folder)


def _difference(before: dict[str, object]) -> dict[str, object]:
    after = _state()
    return {key: (before[key], after[key]) for key in after if after[key] != before[key]}


@pytest.fixture
def bus() -> tb.Bus:
    """This process on the bus, named "camera"."""
    return tb.open_bus("camera")

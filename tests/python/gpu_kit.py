"""Scripts that use a GPU. By default it is the one that the fake driver plays (in TB_FAKE_CUDA_DIR, or
the build folder of TB_BINARY_DIR); with TB_GPU_REAL=1 it is the machine's own."""

from __future__ import annotations

import os
import pathlib

import pytest

import kit

REAL = os.environ.get("TB_GPU_REAL") == "1"
HERE = pathlib.Path(__file__).parent

PROLOGUE = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import gpu_device as gpu
from gpu_device import Brake, Exporter, Interface, Later, Memory, Taken, deleted, soon, take
"""


def fake_folder() -> pathlib.Path | None:
    """Where the fake libcuda is; None: it was not built."""
    given = os.environ.get("TB_FAKE_CUDA_DIR")
    if given is None and "TB_BINARY_DIR" in os.environ:
        given = str(pathlib.Path(os.environ["TB_BINARY_DIR"]) / "tests" / "cuda" / "fake")
    folder = pathlib.Path(given) if given is not None else None
    return folder if folder is not None and (folder / "libcuda.so.1").exists() else None


def _has_gpu() -> bool:
    return bool(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))


def skip_reason() -> str | None:
    """Why these tests cannot run here; None: they can."""
    if REAL:
        return None if _has_gpu() else "TB_GPU_REAL=1, but there is no /dev/nvidia*"
    return None if fake_folder() is not None else "no fake driver: set TB_FAKE_CUDA_DIR"


needs_gpu = pytest.mark.skipif(skip_reason() is not None, reason=skip_reason() or "")
needs_fake = pytest.mark.skipif(REAL or skip_reason() is not None,
                                reason="a real driver is not what a test makes of it")
needs_real = pytest.mark.skipif(not REAL or skip_reason() is not None,
                                reason="needs a real GPU: TB_GPU_REAL=1")


def environment(machine: str = "devices=1") -> dict[str, str]:
    """For a process that uses the GPU; `machine` is what the fake plays."""
    if REAL:
        return {}
    return {"LD_LIBRARY_PATH": str(fake_folder()), "FAKE_CUDA": machine}


def script(*sources: str, machine: str = "devices=1") -> kit.Script:
    return kit.Script(PROLOGUE, *sources, env=environment(machine))


def run(*sources: str, machine: str = "devices=1") -> str:
    """Run a script to its end: what it says."""
    out, _ = kit.run(PROLOGUE, *sources, env=environment(machine))
    return out


SCENE = """
gpu.begin()
tb.open_bus("camera")
A = np.arange(24, dtype="f4").reshape(4, 6)
pool = tb.Pool.register(A, name="front", device="cuda:0")
"""


def run_scene(*sources: str, machine: str = "devices=1") -> list[str]:
    """The words that a process prints which has the pool `front`, of A's shape, on a GPU."""
    return run(SCENE, *sources, machine=machine).split()

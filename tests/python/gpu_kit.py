"""Scripts that use a GPU. By default it is the one that the fake driver plays (in TB_FAKE_CUDA_DIR,
or the build folder of TB_BINARY_DIR); with TB_GPU_REAL=1 it is the machine's own."""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

import kit

REAL = os.environ.get("TB_GPU_REAL") == "1"
HERE = pathlib.Path(__file__).parent

# A script that hangs says where, and ends before its test is ended from outside.
PROLOGUE = f"""
import faulthandler, sys
faulthandler.dump_traceback_later({0.9 * kit.LIMIT_S}, exit=True)
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


@functools.cache
def devices() -> int:
    """How many GPUs the machine's driver has; asked in another process, where its threads stay."""
    ask = """
import ctypes
count = ctypes.c_int()
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
print(count.value)
"""
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else 0


def skip_reason() -> str | None:
    """Why these tests cannot run here; None: they can."""
    if REAL:
        return None if devices() > 0 else "TB_GPU_REAL=1, but the driver has no GPU"
    return None if fake_folder() is not None else "no fake driver: set TB_FAKE_CUDA_DIR"


needs_gpu = pytest.mark.skipif(skip_reason() is not None, reason=skip_reason() or "")
needs_fake = pytest.mark.skipif(REAL or skip_reason() is not None,
                                reason="a real driver is not what a test makes of it")
needs_real = pytest.mark.skipif(not REAL or skip_reason() is not None,
                                reason="needs a real GPU: TB_GPU_REAL=1")
needs_two = pytest.mark.skipif(REAL and devices() < 2, reason="needs two GPUs")


def needs(*modules: str) -> pytest.MarkDecorator:
    """Frameworks; not imported here, since they start threads."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


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


# For scripts of a framework, which has started the driver.
FRAME_SCENE = """
tb.open_bus("camera")
A = np.arange(24, dtype="f4").reshape(4, 6)
pool = tb.Pool.register(A, name="front", device="cuda:0")
pool.write(A)
frame = pool.read()
"""


def run_words(*sources: str) -> list[str]:
    """The words that a script prints."""
    return run(*sources).split()

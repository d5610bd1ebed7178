"""What a frame costs, counted: no copy of its bytes, no system call while nobody sleeps."""

import os
import pathlib
import shutil
import struct
import subprocess
import sys

import pytest

import kit

ROOT = pathlib.Path(__file__).parents[2]

LARGE_INTO, LARGE_OUT_OF, LARGEST_MESSAGE = 9, 11, 19  # of enum counter in copy_count.c


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The library that counts copies, see tests/interpose/copy_count.c."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: copies cannot be counted")
    library = tmp_path_factory.mktemp("witness") / "copy_count.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-D_GNU_SOURCE", "-std=c11",
                    str(ROOT / "tests/interpose/copy_count.c"), "-o", str(library), "-ldl",
                    "-lpthread"], check=True)
    return library


PRODUCER = """
tb.open_bus("camera")
pool = tb.Pool.register(tb.Spec((1080, 1920, 3), "u1"), name="front", policy="every",
                        wait_readers=1, slots=4)
source = np.full((1080, 1920, 3), 7, np.uint8)
for value in range(30):
    FILL
"""
CONSUMER = """
total = 0
for frame in tb.Reader("camera/front", every=True):
    total += int(frame.numpy()[::540, ::960].sum()) + int(np.from_dlpack(frame)[5, 5, 0])
say(total)
"""


def count(witness: pathlib.Path, folder: pathlib.Path, fill: str) -> tuple[list[int], list[int]]:
    """Counters of a producer and a consumer of 30 frames."""
    found = []
    env = {"LD_PRELOAD": str(witness)}
    with kit.Script(CONSUMER, env=env | {"COPY_COUNT": str(folder / "consumer")}) as consumer:
        kit.run(PRODUCER.replace("FILL", fill),
                env=env | {"COPY_COUNT": str(folder / "producer")})
        out, _ = consumer.end()
        assert out == f"{30 * 7 * 13}\n"
    for who in ("producer", "consumer"):
        (file,) = folder.glob(f"{who}.*.count")
        counters = struct.unpack("<64Q", file.read_bytes())
        assert counters[21] >= 1  # it saw the pool
        found.append(list(counters))
    return found[0], found[1]


def test_no_byte_of_a_loan_is_copied(
    witness: pathlib.Path, tmp_path: pathlib.Path, directory: object
) -> None:
    for process in count(witness, tmp_path, "with pool.loan(10) as a: a.fill(7); del a"):
        assert (process[LARGE_INTO], process[LARGE_OUT_OF]) == (0, 0)
        assert process[LARGEST_MESSAGE] < 65536


def test_the_witness_sees_copies(
    witness: pathlib.Path, tmp_path: pathlib.Path, directory: object
) -> None:
    """So that the test above means something: a producer that copies is seen."""
    fill = """
    with pool.loan(10) as a:
        import ctypes
        ctypes.memmove(a.ctypes.data, source.ctypes.data, a.nbytes)"""
    producer, consumer = count(witness, tmp_path, fill.strip())
    assert producer[LARGE_INTO] == 30 and consumer[LARGE_OUT_OF] == 0


MARK = "os.getppid()"
DEEDS = {
    "next": "pool.loan(0).publish(); frame = reader.next(0); view = frame.numpy(); "
            "del view; frame.release()",
    "newest": "pool.loan(0).publish(); reader.newest(0)",
    "block": "\n  with pool.loan(0) as array: array[0] = 1\n  del array",
    "asarray": "pool.loan(0).publish(); np.asarray(reader.next(0))[0]",
    "capsule": "pool.loan(0).publish(); np.from_dlpack(reader.next(0))[0]",
}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("name", DEEDS)
def test_no_system_call_while_nobody_sleeps(
    name: str, tmp_path: pathlib.Path, directory: object
) -> None:
    source = kit.PROLOGUE + f"""
import gc
tb.open_bus("camera")
pool = tb.Pool.register(tb.Spec((64, 64), "u1"), name="front")
reader = tb.Reader("camera/front")
def turn():
  {DEEDS[name]}
for _ in range(300):
    turn()
gc.disable()
{MARK}
for _ in range(640):
    turn()
{MARK}
"""
    log = tmp_path / "trace"
    done = subprocess.run(["strace", "-o", str(log), sys.executable, "-c", source],
                          capture_output=True, text=True, timeout=kit.LIMIT_S, env=os.environ)
    if done.returncode != 0 and "PTRACE" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines()
    begin, end = [i for i, line in enumerate(lines) if line.startswith("getppid(")]
    calls = lines[begin + 1:end]
    # One look at the handler of SIGSEGV for every 64 views; memory of the interpreter itself.
    looks = [line for line in calls if "SIGSEGV" in line]
    others = [line for line in calls if "SIGSEGV" not in line and
              not line.startswith(("brk", "mmap", "munmap", "madvise"))]
    assert len(looks) <= 10 and others == []

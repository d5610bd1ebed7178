"""What reading a frame costs in Python, beside the same in C: `python bench/python_read.py`.

Prints, as JSON: the overhead of taking a 1080p frame (6.2 MB) as a NumPy view over the C calls that
it makes, in µs (p50 of many); and the time from the interpreter's start to the first frame read,
beyond an interpreter that imports NumPy, in ms (best of several). The C calls are timed by a small
program that is compiled against the library beside the package.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import tensorbus as tb

TURNS = 20000
SHAPE = (1080, 1920, 3)

C_PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <tensorbus/tensorbus.h>
static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}
int main(int argc, char **argv)
{
    int turns = argc > 1 ? atoi(argv[1]) : 1000;
    int64_t *took = calloc((size_t)turns, sizeof *took);
    tb_bus_options me = {.size = sizeof me, .name = "bench-c"};
    tb_pool_options frames = {.size = sizeof frames, .name = "front", .dtype = TB_U8, .ndim = 3,
                              .shape = {1080, 1920, 3}};
    tb_bus *bus;
    tb_pool *pool;
    tb_reader *reader;
    if (took == NULL || tb_bus_open(&me, &bus) != TB_OK ||
        tb_pool_register(bus, &frames, &pool) != TB_OK ||
        tb_reader_open(bus, "bench-c/front", NULL, &reader) != TB_OK) {
        fprintf(stderr, "%s\n", tb_last_error_text());
        return 1;
    }
    for (int i = 0; i < turns; i++) {
        tb_loan *loan;
        tb_frame *frame;
        if (tb_pool_loan(pool, 0, &loan) != TB_OK || tb_loan_publish(loan, NULL) != TB_OK) {
            return 1;
        }
        int64_t began = now_ns();
        if (tb_reader_next(reader, 0, &frame) != TB_OK || tb_frame_tensor(frame)->data == NULL) {
            return 1;
        }
        tb_frame_release(frame);
        took[i] = now_ns() - began;
    }
    qsort(took, (size_t)turns, sizeof *took, compare);
    printf("%lld\n", (long long)took[turns / 2]);
    tb_bus_close(bus);
    return 0;
}
"""

FIRST_FRAME = """
import tensorbus as tb
reader = tb.Reader("bench-py/first")
reader.next(10).numpy()
"""


def c_ns(folder: pathlib.Path) -> int | None:
    """p50 of next + tensor + release in C; None without a compiler or the headers."""
    compiler = shutil.which("cc")
    library = next(pathlib.Path(tb.__file__).resolve().parent.glob("libtensorbus.so*"), None)
    build = pathlib.Path(os.environ.get("TB_BINARY_DIR", "build"))
    library = library or next(build.glob("libtensorbus.so.0"), None)
    include = pathlib.Path(__file__).resolve().parents[1] / "include"
    if compiler is None or library is None:
        return None
    source = folder / "read.c"
    source.write_text(C_PROGRAM)
    subprocess.run([compiler, "-O2", f"-I{include}", str(source), "-o", str(folder / "read"),
                    str(library.resolve()), f"-Wl,-rpath,{library.resolve().parent}"], check=True)
    done = subprocess.run([folder / "read", str(TURNS)], capture_output=True, text=True, check=True,
                          env=os.environ | {"LD_LIBRARY_PATH": str(library.resolve().parent)})
    return int(done.stdout)


def python_ns() -> int:
    """p50 of next + numpy + release in Python, less that of nothing."""
    pool = tb.Pool.register(tb.Spec(SHAPE, "uint8"), name="front")
    reader = tb.Reader("bench-py/front")
    clock = time.perf_counter_ns
    took, nothing = [], []
    for _ in range(TURNS):
        pool.loan(0).publish()
        began = clock()
        frame = reader.next(0)
        view = frame.numpy()
        del view
        frame.release()
        took.append(clock() - began)
        began = clock()
        nothing.append(clock() - began)
    return sorted(took)[TURNS // 2] - sorted(nothing)[TURNS // 2]


def start_ms(source: str) -> float:
    best = float("inf")
    for _ in range(9):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", source], check=True)
        best = min(best, time.perf_counter() - began)
    return best * 1000


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tb-bench-") as folder:
        os.environ["TENSORBUS_DIR"] = folder
        os.environ.pop("TENSORBUS_NODE", None)
        bus = tb.open_bus("bench-py")
        in_c = c_ns(pathlib.Path(folder))
        in_python = python_ns()
        first = tb.Pool.register(tb.Spec(SHAPE, "uint8"), name="first")
        first.loan(0).publish()
        with_frame, numpy_alone = start_ms(FIRST_FRAME), start_ms("import numpy")
        bus.close()
    print(json.dumps({
        "read_python_us": in_python / 1000,
        "read_c_us": None if in_c is None else in_c / 1000,
        "read_overhead_us": None if in_c is None else (in_python - in_c) / 1000,
        "start_to_first_frame_ms": round(with_frame, 1),
        "start_and_import_numpy_ms": round(numpy_alone, 1),
        "first_frame_beyond_numpy_ms": round(with_frame - numpy_alone, 1),
    }, indent=2))


if __name__ == "__main__":
    main()

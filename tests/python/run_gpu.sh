#!/usr/bin/env bash
# The Python tests of GPUs on the machine's own GPU, then bench/gpu_torch.py. Builds the package into a
# folder of its own: no network, nothing is installed. PyTorch, CuPy and JAX are used where they are.
#
# Usage: run_gpu.sh [--no-bench] [PYTEST-ARGUMENT...]
# BUILD: the build folder (build-gpu-python). PYTHON: the interpreter (python3), with its headers, NumPy and
# pytest. PREBUILT=1: $BUILD/python holds the package already, built on another machine for any CPython.
set -eu

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${BUILD:-$root/build-gpu-python}
python=${PYTHON:-python3}
bench=1
if [ "${1:-}" = --no-bench ]; then
    bench=0
    shift
fi

build() {
    cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTB_BUILD_PYTHON=ON \
        -DTB_BUILD_TESTS=OFF -DTB_BUILD_EXAMPLES=OFF -DTB_BUILD_CLI=OFF \
        -DPython_EXECUTABLE="$(command -v "$python")" &&
        cmake --build "$build" --parallel "$(nproc)"
}
if [ -z "${PREBUILT:-}" ] && ! build >"$build.log" 2>&1; then
    tail -n 30 "$build.log" >&2
    echo "run_gpu.sh: the build failed: see $build.log" >&2
    exit 1
fi
export PYTHONPATH=$build/python${PYTHONPATH:+:$PYTHONPATH} TB_GPU_REAL=1
# JAX would take most of the GPU's memory at its start.
export XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONDONTWRITEBYTECODE=1

cd "$root/tests/python"
status=0
"$python" -m pytest -v -p no:cacheprovider test_gpu.py test_gpu_writes.py test_gpu_frameworks.py \
    test_gpu_dora.py "$@" || status=1
if [ "$bench" = 1 ]; then
    timeout 90 "$python" "$root/bench/gpu_torch.py" || status=1
fi
exit "$status"

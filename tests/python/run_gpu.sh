#!/usr/bin/env bash
# The Python tests of GPUs on the machine's own GPU. Builds the package into a folder of its own: no
# network, nothing is installed. Each group is a pytest process of its own with its own time limit, so that
# a framework that starts slowly takes nothing from the others. scripts/gpu.sh runs them side by side.
#
# Usage: run_gpu.sh [--build-only] [GROUP...]    all groups, one after the other, when none is named:
#   driver   what needs no framework: the tests play one over the driver
#   torch, cupy, jax   with these, where they are installed
#   dora     the interface of dora's tensor pool; needs pyarrow and the `tensorbus` command on PATH
#   examples the flows of examples/pool and examples/camera in Python; needs PyTorch, and the examples in C
#            beside the command
#   bench    bench/gpu_torch.py, with its profile
# BUILD: the build folder (build-gpu-python). PYTHON: the interpreter (python3), with its headers, NumPy and
# pytest. PREBUILT=1: $BUILD/python holds the package already, built on another machine for any CPython.
# GROUP_S: seconds for a group (240). PYTEST_ARGS: more arguments of pytest's.
set -u

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(realpath -m "${BUILD:-$root/build-gpu-python}")
python=${PYTHON:-python3}
build_only=0
if [ "${1:-}" = --build-only ]; then
    build_only=1
    shift
fi
groups=("$@")
[ "${#groups[@]}" -gt 0 ] || groups=(driver torch cupy jax dora examples bench)

build() {
    cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTB_BUILD_PYTHON=ON \
        -DTB_BUILD_TESTS=OFF -DTB_BUILD_EXAMPLES=OFF -DTB_BUILD_CLI=OFF \
        -DPython_EXECUTABLE="$(command -v "$python")" &&
        cmake --build "$build" --parallel "${JOBS:-$(nproc)}"
}
if [ -z "${PREBUILT:-}" ]; then
    mkdir -p "$build"
    if ! build >"$build/build.log" 2>&1; then
        tail -n 30 "$build/build.log" >&2
        echo "run_gpu.sh: the build failed: see $build/build.log" >&2
        exit 1
    fi
fi
[ "$build_only" = 0 ] || exit 0

export PYTHONPATH=$build/python${PYTHONPATH:+:$PYTHONPATH} TB_GPU_REAL=1
# JAX would take most of the GPU's memory at its start.
export XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONDONTWRITEBYTECODE=1
# Importing a framework for the first time may take half a minute.
export TB_TEST_LIMIT_S=${TB_TEST_LIMIT_S:-90}

cd "$root/tests/python" || exit 1
status=0
for group in "${groups[@]}"; do
    command=("$python" -m pytest -v -p no:cacheprovider -rfE --durations=5)
    # shellcheck disable=SC2206 # words
    command+=(${PYTEST_ARGS:-})
    case $group in
    driver)
        command+=(test_gpu.py test_gpu_processes.py test_gpu_writes.py test_gpu_peers.py test_gpu_adopt.py)
        command+=(test_gpu_queues.py test_callbacks.py)
        ;;
    torch | cupy | jax | dora) command+=("test_gpu_$group.py") ;;
    examples) command+=(test_pool_examples_gpu.py test_camera_gpu.py) ;;
    bench) command=("$python" "$root/bench/gpu_torch.py" --profile) ;;
    *)
        echo "run_gpu.sh: no group $group: driver, torch, cupy, jax, dora, examples and bench are known" >&2
        exit 2
        ;;
    esac
    timeout -k 5 "${GROUP_S:-240}" "${command[@]}"
    result=$?
    # 5: nothing was chosen, since the framework is not installed.
    if [ "$result" -ne 0 ] && [ "$result" -ne 5 ]; then
        echo "run_gpu.sh: $group failed with exit status $result" >&2
        status=1
    fi
done
exit "$status"

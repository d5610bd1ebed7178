#!/usr/bin/env bash
# Build, run all GPU tests with the machine's driver, measure, and print tables: on any Linux machine
# with an NVIDIA GPU. Needs a C compiler and CMake; libyaml's folder may be carried along in YAML_DIR.
#
# Usage: gpu.sh [tests] [bench]     (both when nothing is named)
# BUILD: the build folder (build-gpu). Exit status: 0 when all tests passed and, with CHECK=1, all goals
# were met.
set -u

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
build=${BUILD:-build-gpu}
stages=("$@")
[ "${#stages[@]}" -gt 0 ] || stages=(tests bench)
failed=0

scripts/build.sh "$build" -DTB_GPU_TESTS_ONLY=ON -DTB_BUILD_EXAMPLES=OFF \
    ${YAML_DIR:+-DTB_YAML_DIR="$YAML_DIR"} || exit 1

run_tests() {
    local test name
    for test in "$build"/tests/gpu_test_* "$build"/tests/cuda/cuda_test_*; do
        [ -x "$test" ] || continue
        name=$(basename "$test")
        echo "== $name"
        timeout 300 "$test"
        case $? in
        0) ;;
        77) echo "skipped: $name" ;;
        *)
            failed=1
            echo "FAILED: $name"
            ;;
        esac
    done
}

for stage in "${stages[@]}"; do
    case $stage in
    tests) run_tests ;;
    bench) "$build/bin/tensorbus" bench gpu ${CHECK:+--check} || failed=1 ;;
    *) echo "gpu.sh: unknown stage $stage" >&2; exit 2 ;;
    esac
done
exit "$failed"

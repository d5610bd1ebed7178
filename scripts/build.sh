#!/usr/bin/env bash
# Configure (once, and again when options are given) and build.
#
# Usage: build.sh FOLDER [CMAKE OPTION...] [-- TARGET...]
# JOBS: compilers side by side (default: the cores). Quiet but for warnings and errors.
set -eu

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$1
shift
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
done
[ $# -eq 0 ] || shift

if [ ! -e "$folder/CMakeCache.txt" ] && command -v ninja >/dev/null; then
    options+=(-G Ninja)
fi
if [ ! -e "$folder/CMakeCache.txt" ] || [ "${#options[@]}" -gt 0 ]; then
    mkdir -p "$folder"
    if ! cmake -S "$root" -B "$folder" "${options[@]}" >"$folder/configure.log" 2>&1 </dev/null; then
        cat "$folder/configure.log" >&2
        exit 1
    fi
    grep -A8 'CMake Warning' "$folder/configure.log" >&2 || true
fi
targets=()
[ $# -eq 0 ] || targets=(--target "$@")
echo "building $folder"
# What the tools say on success is of no use here; warnings are.
status=0
env -u MAKEFLAGS -u MAKELEVEL cmake --build "$folder" --parallel "${JOBS:-$(nproc)}" \
    "${targets[@]}" >"$folder/build.log" 2>&1 </dev/null || status=$?
if [ "$status" -ne 0 ]; then
    grep -vE "^\[ *[0-9]+[%/]|(Entering|Leaving) directory" "$folder/build.log" >&2 || true
    echo "building $folder failed" >&2
    exit "$status"
fi
grep -E -A4 '(warning|Warning):' "$folder/build.log" >&2 || true

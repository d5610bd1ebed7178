#!/usr/bin/env bash
# Our own declarations of the driver's interface (src/cuda/api.h) are those of the real cuda.h: compared by
# the compiler with every cuda.h that is found: of a toolkit, of a distribution's package, of a Python
# environment's wheel, or in TB_CUDA_HEADERS (folders).
set -u
source=${TB_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
compiler=${CXX:-c++}
compared=0
failed=0

candidates() {
    local folder python
    for folder in ${TB_CUDA_HEADERS:-} "${CUDA_HOME:-/usr/local/cuda}/include" \
        /usr/local/cuda*/include /usr/local/cuda*/targets/*/include /opt/cuda/include /usr/include; do
        [ -e "$folder/cuda.h" ] && (cd "$folder" && pwd -P)
    done
    for python in "${VIRTUAL_ENV:-/nonexistent}"/lib /usr/lib/python3 /usr/local/lib; do
        [ -d "$python" ] && find "$python" -path '*nvidia*/include/cuda.h' -printf '%h\n' 2>/dev/null
    done
}

check() { # check FOLDER FILE
    "$compiler" -std=c++17 -Wall -Wextra -Werror -fsyntax-only -I"$source/src" -isystem "$1" "$2" \
        2>"$work/log"
}

while IFS= read -r folder; do
    version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\)$/\1/p' "$folder/cuda.h")
    if [ "${version:-0}" -lt 12020 ]; then
        echo "not compared: $folder/cuda.h is of version ${version:-?}, older than 12.2"
        continue
    fi
    compared=$((compared + 1))
    echo "$folder/cuda.h, version $version"
    check "$folder" "$source/tests/cuda/check_header.cpp" || {
        echo "FAIL other than our declarations:"
        grep -E 'error' "$work/log" | head -20
        failed=$((failed + 1))
    }
done < <(candidates | sort -u)
if [ "$compared" -eq 0 ]; then
    echo "skipped: no cuda.h of CUDA 12.2 or newer is here (TB_CUDA_HEADERS=FOLDER names one)"
    exit 77
fi
echo "$compared compared, $failed differ"
[ "$failed" -eq 0 ]

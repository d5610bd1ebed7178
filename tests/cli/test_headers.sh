#!/usr/bin/env bash
# Every public header compiles alone, without warnings, as C11 and as C++17 (and as C17 and C++20; *.hpp
# as C++ only), with each compiler that is there, from outside the tree. The umbrella header names all the others.
set -u
source=${TB_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
checked=0

compile() { # compile COMPILER STANDARD SUFFIX HEADER
    command -v "$1" >/dev/null || return 0
    local unit=$work/unit.$3
    # Twice: the guard holds.
    printf '#include <tensorbus/%s>\n#include <tensorbus/%s>\nint unit_is_not_empty;\n' "$4" "$4" >"$unit"
    if ! "$1" "-std=$2" -Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only -I"$source/include" \
        "$unit" 2>"$work/log"; then
        echo "FAIL $4 as $2 with $1"
        sed 's/^/     /' "$work/log"
        failed=$((failed + 1))
    fi
    checked=$((checked + 1))
}

for path in "$source"/include/tensorbus/*.hpp; do # C++ only
    header=$(basename "$path")
    for standard in c++17 c++20; do
        compile g++ $standard cpp "$header"
        compile clang++ $standard cpp "$header"
    done
done

for path in "$source"/include/tensorbus/*.h; do
    header=$(basename "$path")
    for standard in c11 c17; do
        compile gcc $standard c "$header"
        compile clang $standard c "$header"
    done
    for standard in c++17 c++20; do
        compile g++ $standard cpp "$header"
        compile clang++ $standard cpp "$header"
    done
    if [ "$header" != tensorbus.h ] &&
        ! grep -qx "#include <tensorbus/$header>" "$source/include/tensorbus/tensorbus.h"; then
        echo "FAIL tensorbus.h does not include $header"
        failed=$((failed + 1))
    fi
    lines=$(wc -l <"$path")
    if [ "$lines" -gt 400 ]; then
        echo "FAIL $header has $lines lines: at most 400"
        failed=$((failed + 1))
    fi
    # C++ has other meanings for these, and C's atomics are not C++'s.
    if grep -nE '\b(_Atomic|stdatomic\.h|_Static_assert|restrict)\b|:[[:space:]]*[0-9]+;' "$path"; then
        echo "FAIL $header has an atomic, a bitfield or a word that C++ lacks"
        failed=$((failed + 1))
    fi
done
echo "$checked compilations, $failed failures"
[ "$failed" -eq 0 ] && [ "$checked" -ge 30 ]

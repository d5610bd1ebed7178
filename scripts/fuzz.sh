#!/usr/bin/env bash
# Run every fuzz target for a while under ASan and UBSan, from its corpus in the tree. New inputs stay
# in build-fuzz/corpus; an input that breaks a target is named, and belongs into the tree's corpus.
#
# Usage: fuzz.sh [TARGET...]      targets: the names behind tests/fuzz/fuzz_*.c (default: all)
# FUZZ_SECONDS: for each target (60).
set -u

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
folder=build-fuzz
CC=clang CXX=clang++ scripts/build.sh $folder -DTB_FUZZ=ON \
    -DTB_SANITIZE=fuzzer-no-link,address,undefined -DTB_BUILD_EXAMPLES=OFF -- tests_fuzz || exit 1
if [ $# -eq 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do
        name=$(basename "$source" .c)
        set -- "$@" "${name#fuzz_}"
    done
fi
failed=0
for name in "$@"; do
    mkdir -p "$folder/corpus/$name" "$folder/found"
    if ! "$folder/tests/fuzz_$name" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -verbosity=0 \
        -max_len=70000 -print_final_stats=1 -artifact_prefix="$folder/found/$name-" \
        "$folder/corpus/$name" "tests/fuzz/corpus/$name" >"$folder/$name.log" 2>&1 </dev/null; then
        tail -n 40 "$folder/$name.log"
        echo "FAIL $name: see $folder/$name.log; the input is in $folder/found/"
        failed=$((failed + 1))
    else
        echo "ok   $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$folder/$name.log") runs"
    fi
done
echo "$(($# - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]

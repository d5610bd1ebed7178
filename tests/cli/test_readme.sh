#!/usr/bin/env bash
# The README's two C programs compile against this build's library, run together, and print what the
# README says.
set -u
source_dir=${TB_SOURCE_DIR:?}
binary_dir=${TB_BINARY_DIR:?}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/run" && chmod 700 "$work/run"
export TENSORBUS_DIR=$work/run

fail() {
    echo "test_readme: $*" >&2
    exit 1
}

awk -v work="$work" '/^```c$/ { n++; out = work "/" n ".c"; next }
                     /^```$/ { out = "" }
                     out != "" { print > out }' "$source_dir/README.md"
[ -s "$work/1.c" ] && [ -s "$work/2.c" ] && [ ! -e "$work/3.c" ] || fail "two C programs are expected"
for n in 1 2; do
    cc -std=c11 -Wall -Wextra -Werror -I"$source_dir/include" "$work/$n.c" -o "$work/$n" \
        -L"$binary_dir" -ltensorbus -Wl,-rpath,"$binary_dir" || fail "program $n does not compile"
done
lines=$(grep -c . "$work/1.c")
[ "$lines" -le 32 ] || fail "the first program has grown to $lines lines"

timeout 60 "$work/2" >"$work/out" &
consumer=$!
timeout 60 "$work/1" || fail "the producer ended with $?"
wait "$consumer" || fail "the consumer ended with $?"
[ "$(cat "$work/out")" = "100 frames, sum 4950" ] || fail "the consumer printed: $(cat "$work/out")"
left=$(find "$work/run" -name '*.sock')
[ -z "$left" ] || fail "sockets are left: $left"
echo "ok"

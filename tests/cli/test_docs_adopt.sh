#!/usr/bin/env bash
# The two programs of docs/adopt.md compile against this build's library, run together, and end as it
# says: the reader sees all frames, and the memory comes back.
set -u
source_dir=${TB_SOURCE_DIR:?}
binary_dir=${TB_BINARY_DIR:?}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/run" && chmod 700 "$work/run"
export TENSORBUS_DIR=$work/run

fail() {
    echo "test_docs_adopt: $*" >&2
    exit 1
}

awk -v work="$work" '/^```c$/ { n++; out = work "/" n ".c"; next }
                     /^```$/ { out = "" }
                     out != "" { print > out }' "$source_dir/docs/adopt.md"
[ -s "$work/1.c" ] && [ -s "$work/2.c" ] && [ ! -e "$work/3.c" ] || fail "two C programs are expected"
for n in 1 2; do
    cc -std=c11 -Wall -Wextra -Werror -I"$source_dir/include" "$work/$n.c" -o "$work/$n" \
        -L"$binary_dir" -ltensorbus -Wl,-rpath,"$binary_dir" || fail "program $n does not compile"
done
timeout 60 "$work/2" >"$work/read" &
reader=$!
timeout 60 "$work/1" >"$work/out" || fail "the owner ended with $?"
wait "$reader" || fail "the reader ended with $?"
[ "$(cat "$work/read")" = "20 frames" ] || fail "the reader printed: $(cat "$work/read")"
[ "$(cat "$work/out")" = "the memory is mine again" ] || fail "the owner printed: $(cat "$work/out")"
left=$(find "$work/run" -name '*.sock')
[ -z "$left" ] || fail "sockets are left: $left"
echo "ok"

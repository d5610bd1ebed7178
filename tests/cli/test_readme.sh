#!/usr/bin/env bash
# The README's two C programs compile against this build's library, run together, and print what the
# README says.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/docs_programs.sh"
document test_readme README.md
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

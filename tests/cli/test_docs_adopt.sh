#!/usr/bin/env bash
# The two programs of docs/adopt.md compile against this build's library, run together, and end as it
# says: the reader sees all frames, and the memory comes back.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/docs_programs.sh"
document test_docs_adopt docs/adopt.md
timeout 60 "$work/2" >"$work/read" &
reader=$!
timeout 60 "$work/1" >"$work/out" || fail "the owner ended with $?"
wait "$reader" || fail "the reader ended with $?"
[ "$(cat "$work/read")" = "20 frames" ] || fail "the reader printed: $(cat "$work/read")"
[ "$(cat "$work/out")" = "the memory is mine again" ] || fail "the owner printed: $(cat "$work/out")"
left=$(find "$work/run" -name '*.sock')
[ -z "$left" ] || fail "sockets are left: $left"
echo "ok"

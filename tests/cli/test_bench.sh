#!/bin/bash
# The bench's words: names, explanations, JSON, exit codes. Numbers are not judged here.
set -eu
tensorbus=$TB_BINARY_DIR/bin/tensorbus
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
left() { find /tmp -maxdepth 1 -name 'tensorbus-bench-*' | sort; }
before=$(left)
failed() { echo "failed: $*" >&2; exit 1; }
# Exit code of a command whose output does not matter.
code() { local result=0; "$@" >"$work/out" 2>"$work/err" || result=$?; echo "$result"; }

for bench in local gpu; do
    "$tensorbus" bench $bench --list >"$work/rows"
    cat "$work/rows" >>"$work/all_rows"
    while read -r row; do
        "$tensorbus" bench $bench --explain "$row" >"$work/text"
        for word in "What it does:" "What it spans:" "Floor:" "--row $row"; do
            grep -q -- "$word" "$work/text" || failed "bench $bench --explain $row has no '$word'"
        done
        [ "$(wc -L <"$work/text")" -le 80 ] ||
            failed "bench $bench --explain $row has lines over 80 characters"
    done <"$work/rows"
done
[ "$(sort "$work/all_rows" | uniq -d | wc -l)" = 0 ] || failed "a row is listed twice"
# Every goal belongs to a row.
sed -n 's/^ *{"\([a-z][^"]*\)", TB__GOAL.*/\1/p' "$TB_SOURCE_DIR/bench/goals.h" >"$work/goals"
[ -s "$work/goals" ] || failed "no goals found"
while read -r goal; do
    grep -qx -- "$goal" "$work/all_rows" || failed "no row $goal"
done <"$work/goals"

[ "$(code "$tensorbus" bench)" = 2 ] || failed "bench without a noun is no usage error"
[ "$(code "$tensorbus" bench local --nonsense)" = 2 ] || failed "an unknown option is accepted"
[ "$(code "$tensorbus" bench local --row no-such-row)" = 2 ] || failed "an unknown row is accepted"
[ "$(code "$tensorbus" bench local --explain no-such-row)" = 2 ] || failed "explains nothing"
[ "$(code "$tensorbus" bench local --row)" = 2 ] || failed "--row without a pattern is accepted"

# One cheap row as JSON: the reserved memory does not depend on the machine's mood.
[ "$(code "$tensorbus" bench local --row memory/reserved --json --check)" = 0 ] ||
    failed "memory/reserved: $(cat "$work/err")"
python3 - "$work/out" <<'CHECK' || failed "JSON"
import json, sys
found = json.load(open(sys.argv[1]))
assert found["bench"] == "local" and found["machine"]["processors"] > 0
(row,) = found["rows"]
assert {"name", "value", "unit", "baseline", "ratio", "goal", "met"} <= set(row)
assert row["name"] == "memory/reserved" and row["met"] is True and 0 < row["value"] <= 64
CHECK

# A goal whose row cannot be measured fails the check and says why.
[ "$(code env PATH=/nonexistent "$tensorbus" bench local --quick --row syscalls/strace --check)" = 1 ] ||
    failed "a skipped goal passes the check"
grep -q "strace is not installed" "$work/out" || failed "no reason for the skipped row"
grep -q "skipped: syscalls/strace" "$work/out" || failed "the skipped goal is not named"

# Without a driver (this one cannot be loaded) that is said once, for all rows; --skipped and --json
# list them.
mkdir "$work/driver"
: >"$work/driver/libcuda.so.1"
gpu_bench() { code env LD_LIBRARY_PATH="$work/driver" PATH=/nonexistent "$tensorbus" bench gpu "$@"; }
rows=$("$tensorbus" bench gpu --list | wc -l)
goals=$(grep -c '^gpu/' "$work/goals")
[ "$(gpu_bench)" = 0 ] || failed "bench gpu without a driver: $(cat "$work/err")"
[ "$(grep -c 'libcuda.so.1' "$work/out")" = 1 ] || failed "the driver is missed: $(cat "$work/out")"
[ "$(wc -l <"$work/out")" -le 8 ] || failed "too many words without a driver: $(cat "$work/out")"
grep -q "No row can be measured here, $rows are skipped: --skipped lists" "$work/out" ||
    failed "how many rows are skipped: $(cat "$work/out")"
grep -q "^goals: 0 met, $goals not met or skipped$" "$work/out" || failed "goals: $(cat "$work/out")"
[ "$(gpu_bench --check)" = 1 ] || failed "goals without a driver pass the check"
[ "$(gpu_bench --check --row gpu/pin/from)" = 0 ] || failed "no goal is missed: $(cat "$work/out")"
grep -q "here, 1 is skipped" "$work/out" || failed "one row: $(cat "$work/out")"
[ "$(gpu_bench --check --skipped)" = 1 ] || failed "--skipped passes the check"
[ "$(grep -c ' skipped ' "$work/out")" = "$rows" ] || failed "--skipped: $(cat "$work/out")"
[ "$(gpu_bench --check --json)" = 1 ] || failed "--json passes the check"
[ "$(grep -c '"skipped":true' "$work/out")" = "$rows" ] || failed "--json: $(cat "$work/out")"

# Interrupted in the middle: ends at once, nothing is left.
"$tensorbus" bench local --row floor/futex/p50 >"$work/out" 2>&1 &
pid=$!
for _ in $(seq 200); do
    [ "$(left)" = "$before" ] || break
    sleep 0.05
done
kill -TERM $pid
result=0
wait $pid || result=$?
[ "$result" = 143 ] || failed "a terminated bench ended with $result"
[ "$(left)" = "$before" ] || failed "a runtime directory is left: $(left)"

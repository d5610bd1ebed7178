#!/usr/bin/env bash
# The models of tests/model: all as expected, and the script itself fails when it should.
set -u

source_dir=${TB_SOURCE_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
run=$source_dir/tests/model/run.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp" "$work/bin" "$work/model"
export TMPDIR=$work/tmp
cd / || exit 1

fail() {
    echo "test_model: $1" >&2
    exit 1
}

# Without spin: a message that says what to install.
ln -s "$(command -v bash)" "$(command -v dirname)" "$(command -v cc)" "$work/bin"
PATH=$work/bin "$work/bin/bash" "$run" >"$work/out" 2>&1 && fail "passes without spin"
grep -q 'spin is missing.*install' "$work/out" || fail "does not say that spin is missing"
command -v spin >/dev/null || fail "spin is missing; install it (Debian: apt-get install spin)"

# A pattern that matches nothing is no success.
"$run" 'no such line' >"$work/out" && fail "passes without any check"

# A model with a fault, and a rule whose removal changes nothing.
cp "$run" "$source_dir"/tests/model/*.pml "$work/model"
sed -i '1i #define NO_STORE_FENCE' "$work/model/order.pml"
"$work/model/run.sh" '^order: lease$' >"$work/out" && fail "a faulty model passes"
grep -q '^FAIL order: lease: assertion violated' "$work/out" || fail "a faulty model is not named"
cp "$source_dir/tests/model/order.pml" "$work/model"
sed -i 's/NO_MARK_FENCE/NO_SUCH_RULE/' "$work/model/order.pml"
"$work/model/run.sh" '^without a full fence after the mark$' >"$work/out" && fail "a missing error passes"
grep -q '^FAIL .*: nothing found' "$work/out" || fail "a missing error is not named"

"$run" || fail "a model is not as expected"
[ -z "$(ls -A "$TMPDIR")" ] || fail "files stay behind: $(ls -A "$TMPDIR")"
echo "test_model: all passed"

#!/usr/bin/env bash
# The tree is formatted as `make format` would. Other versions of clang-format than the one that the tree
# is formatted with (Debian 12's) see a few things differently, so they are not asked.
set -u
source=${TB_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
wanted=14
tool=
for name in clang-format-$wanted clang-format; do
    if command -v "$name" >/dev/null &&
        "$name" --version | grep -qE "version $wanted\\."; then
        tool=$name
        break
    fi
done
if [ -z "$tool" ]; then
    echo "skipped: clang-format $wanted is not here"
    exit 77
fi
if ! git -C "$source" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    echo "skipped: not a git checkout"
    exit 77
fi
cd "$source" || exit 1
bad=0
count=0
while IFS= read -r -d '' file; do
    [ -e "$file" ] || continue
    count=$((count + 1))
    if ! "$tool" --dry-run --Werror "$file" 2>/dev/null; then
        echo "FAIL $file is not formatted"
        bad=$((bad + 1))
    fi
done < <(git ls-files -z '*.c' '*.h' '*.cpp')
echo "$count files, $bad not formatted (make format)"
[ "$bad" -eq 0 ] && [ "$count" -gt 0 ]

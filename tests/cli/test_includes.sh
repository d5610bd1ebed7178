#!/usr/bin/env bash
# Includes under src/ follow the arrows of the architecture only. They are transitive: what a folder
# may include, and what those may include.
set -u
source=${TB_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
declare -A arrows=(
    [base]=""
    [segment]="base"
    [wire]="base"
    [endpoint]="segment wire"
    [cuda]="base"
    [pool]="endpoint cuda"
    [node]="pool"
    [flow]="node"
    [daemon]="flow"
    [cli]="flow daemon"
)

allowed() { # all folders that FOLDER may include, itself among them
    local folder
    echo "$1"
    for folder in ${arrows[$1]}; do
        allowed "$folder"
    done
}

# check TREE: prints each include that is not allowed, and how many includes it saw.
check() {
    local tree=$1 file folder line target seen=0 bad=0
    while IFS= read -r file; do
        folder=${file#"$tree"/src/}
        folder=${folder%%/*}
        if [ -z "${arrows[$folder]+known}" ]; then
            echo "$file: folder $folder has no arrows"
            bad=$((bad + 1))
            continue
        fi
        while IFS=: read -r line target; do
            seen=$((seen + 1))
            target=${target#*\"}
            target=${target%%\"*}
            if [ ! -e "$tree/src/$target" ]; then
                # The command's benchmark has a folder of its own.
                [ "$folder" = cli ] && [ -e "$tree/$target" ] && continue
                echo "$file:$line: \"$target\" is not written from src/"
                bad=$((bad + 1))
            elif ! grep -qx "${target%%/*}" <<<"$(allowed "$folder")"; then
                echo "$file:$line: $folder may not include $target"
                bad=$((bad + 1))
            fi
        done < <(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$file")
    done < <(find "$tree/src" -name '*.[ch]' | sort)
    echo "$seen includes, $bad not allowed"
    [ "$bad" -eq 0 ] && [ "$seen" -gt 0 ]
}

# The check itself: a tree with one wrong arrow, and one with right ones.
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/src/{base,segment,endpoint,node}
echo '#include "base/b.h"' >"$work/src/node/n.c"
: >"$work/src/base/b.h"
: >"$work/src/endpoint/e.h"
check "$work" >/dev/null || { echo "FAIL: base may be included from node"; exit 1; }
echo '#include "endpoint/e.h"' >"$work/src/segment/s.c"
check "$work" >/dev/null && { echo "FAIL: segment may not include endpoint"; exit 1; }

check "$source" || exit 1

# Every topic that a file logs under is one that TENSORBUS_LOG takes.
topics=$(grep -rhoE 'define TB_LOG_TOPIC "[^"]*"' "$source/src" | sed 's/.* //' | sort -u)
[ -n "$topics" ] || { echo "FAIL: no topics found"; exit 1; }
known=$(grep -A2 'const char \*const topics\[\]' "$source/src/base/log.c")
for topic in $topics; do
    grep -qF "$topic" <<<"$known" || { echo "FAIL: src/base/log.c does not know topic $topic"; exit 1; }
done

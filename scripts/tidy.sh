#!/usr/bin/env bash
# clang-tidy over the sources, with the settings of the tree. Usage: tidy.sh BUILD-FOLDER [FILE...]
# Exit status: 1 when it has found something.
set -u

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
folder=$1
shift
if [ $# -eq 0 ]; then
    mapfile -t files < <(git ls-files 'src/*.c' 'bench/*.c' 'examples/*.c')
    set -- "${files[@]}"
fi
# clang-tidy knows no options of gcc's; what it says about them is no finding.
printf '%s\0' "$@" | xargs -0 -n 4 -P "$(nproc)" \
    clang-tidy -p "$folder" --quiet --extra-arg=-Wno-unknown-warning-option 2>/dev/null |
    grep -vE '^$' | tee "$folder/tidy.log"
! grep -qE ': (warning|error):' "$folder/tidy.log"

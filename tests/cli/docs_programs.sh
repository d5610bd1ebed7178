# The two C programs of a document, compiled against this build's library as $work/1 and $work/2, in a
# runtime directory of their own. Sourced by tests: document NAME-OF-THE-TEST FILE.
source_dir=${TB_SOURCE_DIR:?}
binary_dir=${TB_BINARY_DIR:?}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/run" && chmod 700 "$work/run"
export TENSORBUS_DIR=$work/run

fail() {
    echo "$test_name: $*" >&2
    exit 1
}

document() {
    local n
    test_name=$1
    awk -v work="$work" '/^```c$/ { n++; out = work "/" n ".c"; next }
                         /^```$/ { out = "" }
                         out != "" { print > out }' "$source_dir/$2"
    [ -s "$work/1.c" ] && [ -s "$work/2.c" ] && [ ! -e "$work/3.c" ] || fail "two C programs are expected"
    for n in 1 2; do
        cc -std=c11 -Wall -Wextra -Werror -I"$source_dir/include" "$work/$n.c" -o "$work/$n" \
            -L"$binary_dir" -ltensorbus -Wl,-rpath,"$binary_dir" || fail "program $n does not compile"
    done
}

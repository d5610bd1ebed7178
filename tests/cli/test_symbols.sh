#!/usr/bin/env bash
# What the shared library shows and needs: it exports tb_* alone, exactly the functions that the public
# headers declare, has a versioned name, and depends on the C library only.
set -u
source=${TB_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build=${TB_BINARY_DIR:-$source/build}
library=$build/libtensorbus.so
failed=0
fail() {
    echo "FAIL $*"
    failed=$((failed + 1))
}

[ -e "$library" ] || { echo "FAIL $library is not built"; exit 1; }
exported=$(nm -D --defined-only "$library" | awk '{ print $3 }' | sed 's/@.*//' | sort -u)
# The first word in front of a bracket of each declaration.
declared=$(grep -hv '^#' "$source"/include/tensorbus/*.h | tr '\n' ' ' | grep -oE 'TB_API [^;]*;' |
    sed -nE 's/^[^(]*\b(tb_[a-z0-9_]+)\(.*/\1/p' | sort -u)

while IFS= read -r symbol; do
    case $symbol in
    # A sanitizer's own symbols, in builds that have one.
    __asan_* | __ubsan_* | __sanitizer_* | __odr_asan* | __tsan_*) ;;
    tb__*) fail "exports $symbol, which is internal" ;;
    tb_*) grep -qx "$symbol" <<<"$declared" || fail "exports $symbol, which no public header declares" ;;
    *) fail "exports $symbol" ;;
    esac
done <<<"$exported"
for symbol in $declared; do
    grep -qx "$symbol" <<<"$exported" || fail "does not export $symbol, which a public header declares"
done

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
for name in $needed; do
    case $name in
    # glibc; before 2.34 it was in several files. Sanitizers bring their own.
    libc.so.* | ld-linux*.so.* | libpthread.so.* | librt.so.* | libdl.so.*) ;;
    libasan.so.* | libubsan.so.* | libtsan.so.* | libm.so.* | libgcc_s.so.*)
        nm -D "$library" | grep -qE '__(asan|tsan|ubsan)_' || fail "needs $name" ;;
    *) fail "needs $name" ;;
    esac
done
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\].*/\1/p')
version=$(sed -n 's/^project(tensorbus VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
[ "$soname" = libtensorbus.so.0 ] || fail "soname is $soname"
[ "$(basename "$(readlink -f "$library")")" = "libtensorbus.so.$version" ] ||
    fail "the file is $(basename "$(readlink -f "$library")"), version $version"
readelf -d "$library" | grep -qE '\((RPATH|RUNPATH|TEXTREL)\)' && fail "has a run path or text relocations"
readelf -lW "$library" | grep -q 'GNU_STACK.*RWE' && fail "wants an executable stack"

echo "$(wc -w <<<"$exported") symbols, needs: $(tr '\n' ' ' <<<"$needed"), $failed failures"
[ "$failed" -eq 0 ]

#!/usr/bin/env bash
# Installs the build into a fresh prefix, moves the prefix, and builds and runs programs outside of the
# tree against it, in C and in C++: once with the CMake package, once with pkg-config.
set -u
source=${TB_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build=${TB_BINARY_DIR:-$source/build}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export TENSORBUS_DIR=$work/run
fail() {
    echo "FAIL $1"
    [ -z "${2:-}" ] || sed 's/^/     /' "$2"
    exit 1
}
grep -q '^TB_SANITIZE:STRING=.' "$build/CMakeCache.txt" && {
    echo "skipped: a library with a sanitizer needs programs with the same one"
    exit 77
}

cmake --install "$build" --prefix "$work/first" >"$work/log" 2>&1 || fail "cmake --install" "$work/log"
mv "$work/first" "$work/prefix"
# Nothing that was installed may know where it was built or first installed. (Debug information names
# sources; it is not what programs find each other by.)
for text in "$source" "$build" "$work/first"; do
    if grep -rIlF "$text" "$work/prefix" >"$work/log"; then
        fail "installed text files name $text" "$work/log"
    fi
done

library=$(find "$work/prefix" -name libtensorbus.so | head -n 1)
[ -n "$library" ] || fail "no library was installed"
lib=$(dirname "$library")
version=$(sed -n 's/^project(tensorbus VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
for name in libtensorbus.so.0 "libtensorbus.so.$version"; do
    [ -e "$lib/$name" ] || fail "$name is missing"
done
for header in "$source"/include/tensorbus/*.h; do
    cmp -s "$header" "$work/prefix/include/tensorbus/$(basename "$header")" ||
        fail "$(basename "$header") is not installed as it is"
done
[ "$(find "$work/prefix" -name '*.h' | wc -l)" -eq "$(ls "$source"/include/tensorbus/*.h | wc -l)" ] ||
    fail "headers were installed that are not public"
[ -n "$(find "$work/prefix/share/doc" -name LICENSE)" ] || fail "the licence is missing"

run() { # run PROGRAM EXPECTED: with the library found at run time
    LD_LIBRARY_PATH=$lib "$1" >"$work/out" 2>&1 || fail "$1 failed" "$work/out"
    [ "$(cat "$work/out")" = "$2" ] || fail "$1: expected \"$2\"" "$work/out"
    passed=$((passed + 1))
}
passed=0

cmake -S "$source/tests/cli/install" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/prefix" \
    >"$work/log" 2>&1 || fail "configuring with the CMake package" "$work/log"
cmake --build "$work/cmake" >"$work/log" 2>&1 || fail "building with the CMake package" "$work/log"
run "$work/cmake/outside_c" "C $version same"
run "$work/cmake/outside_cpp" "C++ $version same"

export PKG_CONFIG_PATH=$lib/pkgconfig
pkg-config --exact-version="$version" tensorbus || fail "pkg-config does not find version $version"
read -r -a flags <<<"$(pkg-config --cflags --libs tensorbus)"
cd "$work" || exit 1
${CC:-cc} -std=c11 -Wall -Wextra -Werror "$source/tests/cli/install/outside.c" "${flags[@]}" -o pc_c \
    2>"$work/log" || fail "C with pkg-config" "$work/log"
${CXX:-c++} -std=c++17 -Wall -Wextra -Werror "$source/tests/cli/install/outside.cpp" "${flags[@]}" \
    -o pc_cpp 2>"$work/log" || fail "C++ with pkg-config" "$work/log"
run "$work/pc_c" "C $version same"
run "$work/pc_cpp" "C++ $version same"

# Another minor release before 1.0 is another interface.
sed 's/tensorbus 0\.1/tensorbus 0.2/' "$source/tests/cli/install/CMakeLists.txt" >"$work/CMakeLists.txt"
if cmake -S "$work" -B "$work/newer" -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/log" 2>&1; then
    fail "version 0.2 was asked for and 0.1 was taken" "$work/log"
fi
if [ -x "$build/bin/tensorbus" ]; then
    "$work/prefix/bin/tensorbus" --version >"$work/out" 2>&1 || fail "the installed command" "$work/out"
    grep -q "$version" "$work/out" || fail "the command's version" "$work/out"
fi
echo "$passed programs built and run"

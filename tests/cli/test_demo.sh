#!/usr/bin/env bash
# `make demo` on a tiny film of our own: its closing lines, its picture, its failures, nothing left.
set -u
source=${TB_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
build=${TB_BINARY_DIR:-$source/build}
if [ ! -x "$build/examples/camera/camera" ] || [ ! -x "$build/bin/tensorbus" ]; then
    echo "skipped: the camera example is not built (FFmpeg's libraries or zlib are missing)"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export BUILD=$build TENSORBUS_DIR=$work/runtime DEMO_CACHE=$work/cache TB_DEMO_MARK=$work
export DEMO_PNG=$work/demo.png CAMERA_RATE=max

failed=0
check() { # check WORDS CONDITION...: a condition is a command
    local words=$1
    shift
    if "$@"; then
        echo "ok: $words"
    else
        echo "FAILED: $words" >&2
        failed=1
    fi
}

demo() { # demo VIDEO: runs the demo; leaves its output in $work/log and its status in $status
    VIDEO=$1 timeout -k 5 120 "$source/scripts/demo.sh" >"$work/log" 2>&1
    status=$?
}

says() { grep -qE -- "$1" "$work/log"; }

# Size of a PNG file as WIDTHxHEIGHT, from its header.
png_size() {
    od -A n -t u1 -v -w4 -j 16 -N 8 "$1" |
        awk '{ n = (($1 * 256 + $2) * 256 + $3) * 256 + $4; s = s (NR > 1 ? "x" : "") n } END { print s }'
}

# Processes that carry our mark in their environment, apart from this shell and its children.
left_over() {
    local file pid
    for file in /proc/[0-9]*/environ; do
        pid=${file#/proc/}
        pid=${pid%/environ}
        tr '\0' '\n' 2>/dev/null <"$file" | grep -qx "TB_DEMO_MARK=$work" &&
            grep -qaE 'tensorbus|/examples/camera/' "/proc/$pid/cmdline" 2>/dev/null && echo "$pid"
    done
}

# 60 frames of 320 x 180: a bright square crosses a grey wall. Uncompressed, by the y4m demuxer.
python3 - "$work/film.y4m" <<'PYTHON'
import sys
width, height, side = 320, 180, 40
wall = bytearray(100 + (x // 20 * 7 + y // 20 * 5) % 30 for y in range(height) for x in range(width))
with open(sys.argv[1], "wb") as film:
    film.write(b"YUV4MPEG2 W%d H%d F25:1 Ip A1:1 C420jpeg\n" % (width, height))
    for frame in range(60):
        luma = bytearray(wall)
        for y in range(60, 60 + side):
            start = y * width + 4 * frame
            luma[start:start + side] = bytes([235]) * side
        film.write(b"FRAME\n" + luma + b"\x80" * (width * height // 2))
PYTHON

demo "$work/film.y4m"
[ "$status" -eq 0 ] || cat "$work/log" >&2
check "the demo proves what it says" test "$status" -eq 0
check "60 frames in" says '^  frames in +60 decoded by camera, 172,?800 bytes each$'
check "60 frames out" says '^  frames out +60 arrived at monitor through motion, 0 lost$'
check "no copies by our counters" says '^  bytes copied +0 between processes'
check "the pool is freed by its owner" eval '! says "unreleased memory"'
check "latency is measured" says '^  latency +p50 [0-9]+\.[0-9]+ ms, p99 [0-9]+\.[0-9]+ ms'
check "latency is more than nothing" says 'latency +p50 ([1-9][0-9]*\.|0\.[0-9]*[1-9])'
if ! says 'not counted from outside: a sanitizer'; then
    check "no copies by the witness" says '^ +0 by a witness in every process'
    check "one memory" says '^  one memory +segment with inode [0-9]+, [0-9,]+ bytes, mapped by all three'
fi
check "the square was found" says '60 frames searched in place, [3-9][0-9] boxes'
check "the picture has its size" test "$(png_size "$DEMO_PNG")" = 1994x1161
check "no process is left" test -z "$(left_over)"
check "no socket is left" test -z "$(find "$TENSORBUS_DIR" -type s 2>/dev/null)"
check "no film was fetched" test ! -e "$DEMO_CACHE"

# A filter graph instead of a file, of another size and an odd width.
rm -f "$DEMO_PNG"
demo "lavfi:testsrc2=s=322x242:r=25:d=0.4"
check "a filter graph plays" test "$status" -eq 0
check "10 frames of odd width" says '^  frames in +10 decoded by camera, 233,?772 bytes each$'
check "its picture" test "$(png_size "$DEMO_PNG")" = 1994x1422
CAMERA_LOOP=3 demo "$work/film.y4m"
check "a film plays three times" says '^  frames out +180 arrived at monitor through motion, 0 lost$'

# Failures have a sentence and a status, and leave nothing either.
demo "$work/nowhere.mp4"
check "a missing film is said" test "$status" -eq 2
check "by its name" says "VIDEO=$work/nowhere.mp4 cannot be read"
echo "this is no film" >"$work/text.mp4"
rm -f "$DEMO_PNG"
demo "$work/text.mp4"
check "what is no film fails" test "$status" -eq 1
check "by its name and reason" says "cannot open the video .*text.mp4.*: Invalid data"
check "without a picture" test ! -e "$DEMO_PNG"
head -c 400000 "$work/film.y4m" >"$work/cut.y4m"
demo "$work/cut.y4m"
check "a film that was cut off plays as far as it goes" says '^  frames out +[45] arrived at monitor'
check "no process is left" test -z "$(left_over)"
BUILD=$work/nothing demo "$work/film.y4m"
check "what is not built is said" test "$status" -eq 2
exit $failed

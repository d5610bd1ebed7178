#!/usr/bin/env bash
# The tests, in stages; each stage's tests are counted and the last line is
# "N passed, N failed, N skipped" over all of them.
#
# Usage: check.sh STAGE...
#   plain  build, then units, processes, command line, corpora of the fuzz targets
#   model  the lease protocol and its wake-ups, model-checked
#   asan   a build with AddressSanitizer and UBSan: units, processes, corpora
#   tsan   a build with ThreadSanitizer: the tests of races on one mapping
#   python `pip install .` into a virtual environment in the build folder, then tests/python with it
#   soak   build, then the process tests and the models at full size (hours)
# JOBS: tests side by side (default: the cores). Exit status: 0 only when something passed and nothing
# failed. Needs neither a terminal nor standard input.
set -u

# Started in the background, a shell passes on that it ignores SIGINT and SIGQUIT, and no shell can undo
# it: tests of Ctrl-C and of what children inherit would see it.
signals=--default-signal=INT,QUIT,PIPE,HUP
if [ -z "${TB_CHECK_SIGNALS:-}" ] && env "$signals" true 2>/dev/null; then
    TB_CHECK_SIGNALS=reset exec env "$signals" "$BASH" "${BASH_SOURCE[0]}" "$@"
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
exec </dev/null
jobs=${JOBS:-$(nproc)}
plain=${BUILD:-build}
passed=0
failed=0
skipped=0
failures=()
retried=() # passed at the second try

note_failure() {
    failed=$((failed + 1))
    failures+=("$1")
}

build() { # build STAGE FOLDER ARGUMENT...: a build that fails counts as one failed test
    local stage=$1
    shift
    scripts/build.sh "$@" && return 0
    note_failure "$stage: the build"
    return 1
}

# Each test of a CTest run has one line: " 3/90 Test  #3: name .....   Passed    0.01 sec", or
# "***Failed", "***Timeout", "***Skipped" and the like.
count_tests() { # count_tests STAGE LOG
    local line name found=0
    while IFS= read -r line; do
        name=${line#*: }
        name=${name%% *}
        found=$((found + 1))
        case $line in
        *'***Skipped'*) skipped=$((skipped + 1)) ;;
        *' Passed '*) passed=$((passed + 1)) ;;
        *)
            # Many tests bound times, and a shared machine may miss a bound once: such a test has a
            # second try, and is named at the end.
            if grep -qE "^ +Test +#[0-9]+: $name \.+ +Passed" "$2"; then
                passed=$((passed + 1))
                retried+=("$1: $name")
            else
                note_failure "$1: $name"
            fi
            ;;
        esac
    done < <(grep -E '^ *[0-9]+/[0-9]+ Test +#[0-9]+: ' "$2")
    [ "$found" -gt 0 ] || note_failure "$1: no test was run"
}

run_tests() { # run_tests STAGE FOLDER CTEST-ARGUMENT...
    local stage=$1 folder=$2
    shift 2
    (cd "$folder" && exec ctest --parallel "$jobs" --output-on-failure --repeat until-pass:2 "$@") \
        2>&1 |
        tee "$folder/ctest.log"
    count_tests "$stage" "$folder/ctest.log"
}

# CUDA's header, out of NVIDIA's package, for the test that compares our declarations with it; that test is
# skipped without.
fetch_cuda_header() { # fetch_cuda_header FOLDER
    if ! compgen -G "$1/nvidia/*/include/cuda.h" >/dev/null; then
        rm -rf "$1"
        python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$1" \
            nvidia-cuda-runtime && python3 -m zipfile -e "$1"/nvidia_cuda_runtime-*.whl "$1" ||
            echo "CUDA's header cannot be fetched: our declarations are compared with those of this machine alone"
    fi
    TB_CUDA_HEADERS=$(compgen -G "$1/nvidia/*/include") && export TB_CUDA_HEADERS
}

stage_plain() {
    # With an option the folder is configured again: what was missing before may be there now.
    build plain "$plain" -DTB_BUILD_TESTS=ON || return
    fetch_cuda_header "$root/$plain/cuda-header"
    run_tests plain "$plain" -E '^cli_test_model$'
}

# The script's own lines are the tests: "ok ..." and "FAIL ...", then "N passed, N failed".
count_model() { # count_model STATUS LOG
    local sums line
    sums=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$2" | tail -n 1)
    if [ -z "$sums" ]; then
        note_failure "model: no result"
        return
    fi
    passed=$((passed + ${sums% *}))
    while IFS= read -r line; do
        note_failure "model: ${line#FAIL }"
    done < <(grep '^FAIL ' "$2")
    if [ "$1" -ne 0 ] && [ "${sums#* }" -eq 0 ]; then
        note_failure "model: $(tail -n 1 "$2")"
    fi
}

stage_model() {
    local log
    log=$(mktemp) || return
    JOBS=$jobs tests/cli/test_model.sh 2>&1 | tee "$log"
    count_model "${PIPESTATUS[0]}" "$log"
    rm -f "$log"
}

stage_asan() {
    export ASAN_OPTIONS=${ASAN_OPTIONS-detect_stack_use_after_return=1:strict_string_checks=1}
    export UBSAN_OPTIONS=${UBSAN_OPTIONS-print_stacktrace=1:halt_on_error=1}
    build asan build-asan -DTB_SANITIZE=address,undefined -DTB_BUILD_EXAMPLES=OFF &&
        run_tests asan build-asan -L 'unit|proc|fuzz'
}

stage_tsan() {
    export TSAN_OPTIONS=${TSAN_OPTIONS-halt_on_error=1:second_deadlock_stack=1}
    build tsan build-tsan -DTB_SANITIZE=thread -DTB_BUILD_EXAMPLES=OFF -DTB_BUILD_CLI=OFF \
        -- tests_tsan && run_tests tsan build-tsan -L tsan
}

# Each test of a pytest run has one line with -v: "tests/python/test_x.py::test_y[z] PASSED  [ 12%]".
# What a test leaves behind is an ERROR line of its own.
count_pytest() { # count_pytest LOG SECOND-LOG
    local line name result found=0
    while IFS= read -r line; do
        [[ $line =~ ^(tests/python/.*)\ (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\ .*\[\ *[0-9]+%\]$ ]] ||
            continue
        name=${BASH_REMATCH[1]} result=${BASH_REMATCH[2]}
        found=$((found + 1))
        case $result in
        PASSED | XFAIL) passed=$((passed + 1)) ;;
        SKIPPED) skipped=$((skipped + 1)) ;;
        *)
            # Second tries as above, but for what was left behind.
            if [ "$result" = FAILED ] && grep -qF "$name PASSED" "$2" && ! grep -qF "$name ERROR" "$1"
            then
                passed=$((passed + 1))
                retried+=("python: $name")
            else
                note_failure "python: $name"
            fi
            ;;
        esac
    done <"$1"
    [ "$found" -gt 0 ] || note_failure "python: no test was run"
}

# What the tests need is installed beside the package; without dora its tests are skipped.
install_python() { # install_python FOLDER
    local pip=("$1/bin/python" -m pip install -q --disable-pip-version-check)
    { [ -x "$1/bin/python" ] || python3 -m venv "$1"; } &&
        "${pip[@]}" pytest mypy numpy ml_dtypes pyarrow tqdm &&
        { "${pip[@]}" dora-rs==1.1.0 dora-rs-cli==1.1.0 || echo "dora cannot be installed: not tested beside it"; } &&
        "${pip[@]}" --force-reinstall --no-deps .
}

stage_python() {
    local venv=$plain/python-venv log=$plain/pytest.log again=$plain/pytest-again.log
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "skipped: the package needs CPython 3.11, this is $(python3 --version)"
        skipped=$((skipped + 1))
        return
    fi
    build python "$plain" -DTB_BUILD_TESTS=ON || return
    if ! install_python "$venv"; then
        note_failure "python: pip install"
        return
    fi
    # The installed package, not the tree's: -P keeps the working directory off the path.
    local run=("$venv/bin/python" -P -m pytest -v -o "cache_dir=$root/$plain/pytest-cache")
    export TB_BINARY_DIR=$root/$plain TB_FAKE_CUDA_DIR=$root/$plain/tests/cuda/fake
    : >"$again"
    "${run[@]}" tests/python 2>&1 | tee "$log"
    if [ "${PIPESTATUS[0]}" -ne 0 ]; then
        "${run[@]}" --last-failed tests/python >"$again" 2>&1
    fi
    count_pytest "$log" "$again"
}

stage_soak() {
    local log
    export TB_TEST_FULL=1
    build soak "$plain" -DTB_BUILD_TESTS=ON && run_tests soak "$plain" -L 'unit|proc'
    log=$(mktemp) || return
    JOBS=$jobs tests/model/run.sh --full 2>&1 | tee "$log"
    count_model "${PIPESTATUS[0]}" "$log"
    rm -f "$log"
}

for stage in "$@"; do
    case $stage in
    plain | model | asan | tsan | python | soak) ;;
    *) echo "check.sh: unknown stage $stage" >&2; exit 2 ;;
    esac
    began=$SECONDS
    echo "== $stage"
    "stage_$stage"
    echo "== $stage: $((SECONDS - began)) s"
done

if [ "${#retried[@]}" -gt 0 ]; then
    printf 'passed at the second try: %s\n' "${retried[@]}"
fi
if [ "$failed" -gt 0 ]; then
    printf 'failed: %s\n' "${failures[@]}"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

#!/usr/bin/env bash
# Everything about GPUs on this machine, with its own driver: build, measure, all tests, the example flows,
# compute-sanitizer; then one summary. On any Linux machine with an NVIDIA GPU, in less than 8 minutes where
# there are 16 cores. Needs a C compiler and CMake; what else is missing is named, and its part is skipped.
#
# Usage: gpu.sh [STAGE...]      all of them, in this order, when none is named:
#   bench      `tensorbus bench gpu`, alone on the machine; with PyTorch also the profile of a hand-over
#   tests      the tests in C, alone on the GPU: some look at how much memory is free
#   examples   the flows of examples/pool and examples/camera, in C and in Python
#   python     tests/python/run_gpu.sh: driver, torch, cupy, jax, dora, examples, each on its own
#   sanitizer  memcheck, racecheck and initcheck over the programs of tests/gpu, side by side with `python`
#
# BUILD        the build folder (build-gpu); its sub-folder `package` holds the Python package
# LOGS         where each stage leaves its logs ($BUILD/logs); summary.txt there is the summary
# PYTHON       the interpreter (python3)
# JOBS         compilers, and programs under the sanitizer, side by side (the cores; a third of them)
# LIMIT_S      when all should be over (460): compute-sanitizer gets what is left of it
# SANITIZER_S  seconds for all of it (280), and at most SANITIZER_PROGRAM_S (110) for one program
# CHECK=1      goals of the bench that are missed count as failures
# PREBUILT=1   nothing is built: $BUILD is used as it is
# YAML_DIR     libyaml's folder, with include/ and lib/, where it is not installed
# Exit status: 0 when nothing failed, 1 when something did, 2 usage. What is not finished has not failed.
set -u

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
exec </dev/null
build=$(realpath -m "${BUILD:-build-gpu}")
logs=$(realpath -m "${LOGS:-$build/logs}")
python=$(command -v "${PYTHON:-python3}")
cores=$(nproc)
limit_s=${LIMIT_S:-460}
stages=("$@")
[ "${#stages[@]}" -gt 0 ] || stages=(bench tests examples python sanitizer)
for stage in "${stages[@]}"; do
    case $stage in
    bench | tests | examples | python | sanitizer) ;;
    *)
        echo "gpu.sh: unknown stage $stage: bench, tests, examples, python and sanitizer are known" >&2
        exit 2
        ;;
    esac
done
for stage in results sessions run tests examples python sanitizer; do
    rm -rf "${logs:?}/$stage"
done
rm -f "$logs"/*.txt
mkdir -p "$logs/results" "$logs/sessions" "$logs/run" || exit 1
chmod 700 "$logs/run"

# What the nodes, tests and tools find each other by.
export TENSORBUS_DIR=$logs/run PYTHONDONTWRITEBYTECODE=1
export PATH=$build/bin${python:+:$(dirname "${python:-/}")}:$PATH
if [ -n "${YAML_DIR:-}" ]; then
    YAML_DIR=$(realpath "$YAML_DIR")
    export LD_LIBRARY_PATH=$YAML_DIR/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
# JAX would take most of the GPU's memory at its start.
export XLA_PYTHON_CLIENT_PREALLOCATE=false

# ---- results: a line each, in files of their own, since stages run side by side ----

note() { # note STAGE NAME ok|FAILED|skipped|unfinished SECONDS WORDS
    printf '%-10s %-34s %-11s %5s s  %s\n' "$1" "$2" "$3" "$4" "$5" |
        tee "$logs/results/$1.${2//\//-}"
}

# ---- processes: each in a session of its own, of which nothing is left ----

# Kill what a session still has; fails when there was nothing.
sweep() { # sweep SESSION
    local stat line found=1
    for stat in /proc/[0-9]*/stat; do
        read -r line 2>/dev/null <"$stat" || continue
        # shellcheck disable=SC2086 # the fields behind the name: state, parent, group, session
        set -- "$1" ${line##*) }
        if [ "$5" = "$1" ] && [ "$2" != Z ]; then
            stat=${stat%/stat}
            kill -KILL "${stat#/proc/}" 2>/dev/null && found=0
        fi
    done
    return "$found"
}

end_session() { # end_session NUMBER: fails when there was something left
    local status=0 look
    for look in $(seq 100); do # again, for what was forked meanwhile, or takes its time to end
        sweep "$1" || break
        status=1
        sleep 0.1
    done
    rm -f "$logs/sessions/$1"
    return "$status"
}

bounded() { # bounded SECONDS LOG COMMAND...: its exit status; 124 when the time was over
    local seconds=$1 log=$2 status pid
    shift 2
    setsid timeout -k 5 "$seconds" "$@" >"$log" 2>&1 &
    pid=$!
    : >"$logs/sessions/$pid"
    wait "$pid"
    status=$?
    end_session "$pid" || echo "gpu.sh: processes that were left had to be ended" >>"$log"
    return "$status"
}

end_all() {
    local session
    trap - EXIT INT TERM
    # First who would start more.
    # shellcheck disable=SC2046 # numbers
    kill $(jobs -pr) 2>/dev/null
    for session in "$logs"/sessions/*; do
        [ -e "$session" ] && end_session "${session##*/}"
    done
    wait
}
trap end_all EXIT
trap 'end_all; exit 130' INT TERM

now() { date +%s; }

# ---- building ----

build_c() {
    local began status=0
    began=$(now)
    JOBS=${JOBS:-$cores} scripts/build.sh "$build" -DTB_GPU_TESTS_ONLY=ON -DTB_BUILD_EXAMPLES=ON \
        -DTB_BUILD_CLI="$([ -n "${YAML_DIR:-}" ] && echo ON || echo AUTO)" \
        ${YAML_DIR:+-DTB_YAML_DIR="$YAML_DIR"} >"$logs/build.txt" 2>&1 || status=1
    if [ "$status" -ne 0 ]; then
        tail -n 30 "$logs/build.txt"
        note build "in C" FAILED $(($(now) - began)) "see $logs/build.txt"
        return 1
    fi
    note build "in C" ok $(($(now) - began)) ""
}

# Why there is no package; nothing when it can be built.
python_missing() {
    if [ -z "$python" ]; then
        echo "no python3"
    elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "$("$python" --version) is older than 3.11"
    elif ! "$python" -c 'import numpy' 2>/dev/null; then
        echo "$python has no NumPy"
    fi
}

build_package() {
    local began why
    began=$(now)
    why=$(python_missing)
    if [ -n "$why" ]; then
        note build package skipped 0 "$why: nothing in Python is run"
        return
    fi
    if BUILD=$build/package PYTHON=$python tests/python/run_gpu.sh --build-only \
        >"$logs/build-package.txt" 2>&1; then
        note build package ok $(($(now) - began)) ""
    elif grep -q 'Could NOT find Python' "$logs/build-package.txt"; then
        note build package skipped $(($(now) - began)) "$python has no headers (Python.h): nothing in Python is run"
    else
        tail -n 30 "$logs/build-package.txt"
        note build package FAILED $(($(now) - began)) "see $logs/build-package.txt"
    fi
}

has_package() { compgen -G "$build/package/python/tensorbus/_core*.so" >/dev/null; }

has_module() { "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

# ---- bench ----

stage_bench() {
    local began status log=$logs/bench.txt words
    began=$(now)
    if [ ! -x "$build/bin/tensorbus" ]; then
        note bench gpu skipped 0 "the command is not built: libyaml is missing (YAML_DIR)"
        return
    fi
    TENSORBUS_TORCH_BENCH=$root/bench/gpu_torch.py TENSORBUS_PYTHON=$python \
        TENSORBUS_TORCH_PROFILE=$logs/bench-profile.txt PYTHONPATH=$build/package/python \
        bounded 200 "$log" "$build/bin/tensorbus" bench gpu ${CHECK:+--check}
    status=$?
    cat "$log"
    if [ -s "$logs/bench-profile.txt" ]; then
        cat "$logs/bench-profile.txt"
    elif has_package && has_module torch; then
        # The row was skipped: the script says why.
        PYTHONPATH=$build/package/python bounded 60 "$logs/bench-torch.txt" "$python" bench/gpu_torch.py
        cat "$logs/bench-torch.txt"
    fi
    words=$(sed -n 's/^goals: //p' "$log" | tail -n 1)
    if [ "$status" -eq 0 ]; then
        note bench gpu ok $(($(now) - began)) "${words:-see $log}"
    else
        note bench gpu FAILED $(($(now) - began)) "exit status $status${words:+, $words}"
    fi
}

# ---- tests ----

# "N passed, N failed, N skipped" of a program's log; the harness counts what was skipped as passed.
sums_of() {
    local passed failed skipped
    read -r passed failed < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$1" | tail -n 1)
    skipped=$(grep -cE '^(ok .* \(skipped:|skipped [^:])' "$1")
    if [ -z "${passed:-}" ]; then
        passed=$(grep -c '^ok ' "$1")
        [ "$passed" -eq 0 ] || echo "$passed passed until then"
        return
    fi
    if grep -qE '^ok .* \(skipped:' "$1"; then
        passed=$((passed - skipped))
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
}

stage_tests() {
    local test name began status
    mkdir -p "$logs/tests"
    began=$(now)
    bounded 60 "$logs/tests/cuda_test_header.txt" bash tests/cuda/test_header.sh
    status=$?
    name=$(tail -n 1 "$logs/tests/cuda_test_header.txt")
    case $status in
    0) note tests cuda_test_header ok $(($(now) - began)) "$name" ;;
    77) note tests cuda_test_header skipped $(($(now) - began)) "$name" ;;
    *)
        cat "$logs/tests/cuda_test_header.txt"
        note tests cuda_test_header FAILED $(($(now) - began)) "exit status $status, $name"
        ;;
    esac
    for test in "$build"/tests/gpu_test_* "$build"/tests/cuda/cuda_test_*; do
        [ -x "$test" ] || continue
        name=$(basename "$test")
        began=$(now)
        bounded 240 "$logs/tests/$name.txt" "$test"
        status=$?
        case $status in
        0) note tests "$name" ok $(($(now) - began)) "$(sums_of "$logs/tests/$name.txt")" ;;
        77) note tests "$name" skipped $(($(now) - began)) "$(sums_of "$logs/tests/$name.txt")" ;;
        *)
            cat "$logs/tests/$name.txt"
            note tests "$name" FAILED $(($(now) - began)) \
                "exit status $status, $(sums_of "$logs/tests/$name.txt")"
            ;;
        esac
    done
}

# ---- examples ----

run_flow() { # run_flow NAME FILE [KEY=VALUE...]: with values of its `env` replaced
    local name=$1 file=$2 folder=$logs/examples/$1 pair began status words
    shift 2
    mkdir -p "$folder"
    sed -E -e "s|path: ../../build/|path: $build/|" \
        -e "s|path: ([a-z_]+\.py)|path: $(dirname "$root/$file")/\1|" "$root/$file" >"$folder/flow.yml"
    for pair in "$@"; do
        sed -i -E "s|^(  ${pair%%=*}:).*|\1 ${pair#*=}|" "$folder/flow.yml"
    done
    began=$(now)
    (cd "$folder" && DEMO_PNG=$folder/demo.png PYTHONPATH=$build/package/python \
        bounded 60 "$folder/said.txt" "$build/bin/tensorbus" run flow.yml)
    status=$?
    words=$(grep -ohE 'Average transfer throughput.*|[0-9]+ frames in .*' "$folder/said.txt" | tail -n 1)
    if [ -n "$(find "$logs/run" -mindepth 1 ! -name .lock -print -quit)" ]; then
        find "$logs/run" -mindepth 1
        note examples "$name" FAILED $(($(now) - began)) "left in the runtime directory"
        rm -rf "${logs:?}"/run/*
    elif [ "$status" -eq 0 ]; then
        note examples "$name" ok $(($(now) - began)) "$words"
    elif words=$(grep -ohE 'this flow needs .*' "$folder/said.txt" | head -n 1) &&
        [ -n "$words" ]; then
        note examples "$name" skipped $(($(now) - began)) "$words"
    else
        cat "$folder/said.txt"
        note examples "$name" FAILED $(($(now) - began)) "exit status $status"
    fi
}

stage_examples() {
    local name kind kinds=(c)
    if [ ! -x "$build/bin/tensorbus" ]; then
        note examples all skipped 0 "the command is not built: libyaml is missing (YAML_DIR)"
        return
    fi
    if has_package; then
        kinds+=(python)
    else
        note examples "all in Python" skipped 0 "there is no package"
    fi
    for kind in "${kinds[@]}"; do
        local prefix=
        [ "$kind" = c ] || prefix=python_
        for name in cpu2cuda cuda2cpu cuda_inner cuda2cuda; do
            run_flow "$prefix$name" "examples/pool/$prefix$name.yml"
        done
    done
    run_flow cuda2cuda-back examples/pool/cuda2cuda.yml sender_device=cuda:1 receiver_device=cuda:0
    # Through the host, whether the GPUs reach each other or not.
    TENSORBUS_GPU_PEERS=0 run_flow cuda2cuda-staged examples/pool/cuda2cuda.yml
    if has_package && [ -x "$build/examples/camera/monitor" ]; then
        run_flow camera-gpu examples/camera/gpu_scene.yml
    fi
}

# ---- Python ----

stage_python() {
    local group groups=() began pids=()
    if ! has_package; then
        note python all skipped 0 "there is no package"
        return
    elif ! has_module pytest; then
        note python all skipped 0 "$python has no pytest"
        return
    fi
    mkdir -p "$logs/python"
    for group in driver:numpy dora:pyarrow torch:torch cupy:cupy jax:jax examples:torch; do
        if ! has_module "${group#*:}"; then
            note python "${group%:*}" skipped 0 "$python has no ${group#*:}"
        elif [ ! -x "$build/bin/tensorbus" ] && [[ $group =~ ^(dora|examples): ]]; then
            note python "${group%:*}" skipped 0 "the command is not built: libyaml is missing (YAML_DIR)"
        else
            groups+=("${group%:*}")
        fi
    done
    for group in "${groups[@]}"; do
        python_group "$group" &
        pids+=($!)
    done
    wait "${pids[@]}"
}

python_group() { # python_group NAME
    local log=$logs/python/$1.txt began status words
    began=$(now)
    BUILD=$build/package PYTHON=$python PREBUILT=1 \
        bounded "${PYTHON_GROUP_S:-170}" "$log" "$root/tests/python/run_gpu.sh" "$1"
    status=$?
    words=$(grep -E '^=+ .*(passed|failed|skipped|error).* in ' "$log" | tail -n 1 | sed 's/^=* //; s/ =*$//')
    case $status in
    0) note python "$1" ok $(($(now) - began)) "$words" ;;
    124) note python "$1" FAILED $(($(now) - began)) \
        "out of time, $(grep -cE ' PASSED ' "$log") passed until then" ;;
    *)
        grep -E '^(FAILED|ERROR) |^E  ' "$log" | head -n 40
        note python "$1" FAILED $(($(now) - began)) "${words:-exit status $status}"
        ;;
    esac
}

# ---- compute-sanitizer ----

find_sanitizer() {
    command -v compute-sanitizer && return
    compgen -G '/usr/local/cuda*/bin/compute-sanitizer' | head -n 1
}

# Errors in a log: what the tool's summaries say (one for each process); where it did not come so far, the
# records: lines with one blank behind the mark.
errors_of() { # errors_of LOG FINISHED
    if [ "$2" = 1 ]; then
        sed -nE 's/^=+ (ERROR|RACECHECK) SUMMARY: ([0-9]+) .*/\2/p' "$1" |
            awk '{ sum += $1 } END { print sum + 0 }'
    else
        grep -E '^=+ [A-Z]' "$1" |
            grep -cvE '^=+ (COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Target application|No attachable)'
    fi
}

# All tests passed or were skipped, and none of them called the driver, or none was run.
has_nothing_to_check() { # has_nothing_to_check STATUS LOG
    grep -q 'terminated before first instrumented API call' "$2" &&
        [[ $(sums_of "$2") == *" 0 failed, "* ]] ||
        { [ "$1" -eq 0 ] && [[ $(sums_of "$2") == "0 passed, 0 failed, "* ]]; }
}

sanitize() { # sanitize TOOL PROGRAM DEADLINE
    local tool=$1 name began status left finished=0 errors log
    name=$(basename "$2")
    log=$logs/sanitizer/$tool-$name.txt
    began=$(now)
    left=$(($3 - began))
    if [ "$left" -lt 5 ]; then
        note sanitizer "$tool $name" unfinished 0 "not begun: no time was left"
        return
    fi
    [ "$left" -le "${SANITIZER_PROGRAM_S:-110}" ] || left=${SANITIZER_PROGRAM_S:-110}
    # The library asks of any address what it is, and the driver answers with an error where it is none of
    # its own: that is no error of ours.
    local options=(--tool "$tool" --target-processes all)
    [ "$tool" != memcheck ] || options+=(--report-api-errors no)
    # The tests leave out what cannot be under a tool: each bounds its time, has all streams of a process go
    # on one after another, and does not come through a fork after the driver's start; initcheck also waits
    # for each copy and fill, and takes what another process wrote into memory that is shared by a legacy IPC
    # handle for never written.
    TB_TEST_SLOW=20 TB_TEST_TOOL=$tool bounded "$left" "$log" "$sanitizer" "${options[@]}" "$2"
    status=$?
    [ "$status" -eq 124 ] || [ "$status" -eq 137 ] || finished=1
    errors=$(errors_of "$log" "$finished")
    if [ "$errors" -gt 0 ]; then
        grep -E '^=+ [A-Z]' "$log" | sort | uniq -c | sort -rn | head -n 12
        note sanitizer "$tool $name" FAILED $(($(now) - began)) \
            "$errors errors, $(sums_of "$log")$([ "$finished" = 1 ] || echo ', not finished')"
    elif [ "$finished" = 0 ]; then
        note sanitizer "$tool $name" unfinished $(($(now) - began)) "no error, $(sums_of "$log")"
    elif has_nothing_to_check "$status" "$log"; then
        note sanitizer "$tool $name" ok $(($(now) - began)) "nothing to check: $(sums_of "$log")"
    elif ! grep -qE '^=+ (ERROR|RACECHECK) SUMMARY' "$log"; then
        # It could not run.
        tail -n 3 "$log"
        note sanitizer "$tool $name" unfinished $(($(now) - began)) "the tool gave no summary: see $log"
    elif [ "$status" -ne 0 ]; then
        # Tests that bound times fail here now and then; the tool itself has nothing to say.
        note sanitizer "$tool $name" ok $(($(now) - began)) \
            "clean; of the tests, so slowed, some failed: $(sums_of "$log")"
    else
        note sanitizer "$tool $name" ok $(($(now) - began)) "clean, $(sums_of "$log")"
    fi
}

stage_sanitizer() {
    local tool test deadline left=$((limit_s - SECONDS)) side=${JOBS:-$(((cores + 2) / 3))}
    sanitizer=$(find_sanitizer)
    if [ -z "$sanitizer" ]; then
        note sanitizer all skipped 0 "compute-sanitizer is not installed"
        return
    fi
    mkdir -p "$logs/sanitizer"
    [ "$left" -le "${SANITIZER_S:-280}" ] || left=${SANITIZER_S:-280}
    deadline=$(($(now) + left))
    # Whether it can run here at all: some virtual machines refuse it.
    test=$build/tests/gpu_test_gpu_driver
    bounded 40 "$logs/sanitizer/probe.txt" "$sanitizer" --tool memcheck --target-processes all \
        --report-api-errors no "$test" "$("$test" --list 2>/dev/null | head -n 1)"
    tool=$(grep -iE '^=+ .*(not supported|unable to|internal sanitizer)' "$logs/sanitizer/probe.txt" |
        head -n 1)
    if [ -n "$tool" ]; then
        note sanitizer all skipped 0 "$tool"
        return
    fi
    for tool in memcheck racecheck initcheck; do
        for test in "$build"/tests/gpu_test_*; do
            [ -x "$test" ] || continue
            while [ "$(jobs -pr | wc -l)" -ge "$side" ]; do
                wait -n
            done
            sanitize "$tool" "$test" "$deadline" &
        done
    done
    wait
}

# ---- all of it ----

run_stage() {
    local began
    began=$(now)
    echo "== $1"
    "stage_$1"
    echo "== $1: $(($(now) - began)) s"
    echo "$1 $(($(now) - began)) s" >"$logs/results/.time-$1"
}

wants() { # wants STAGE
    local one
    for one in "${stages[@]}"; do
        [ "$one" != "$1" ] || return 0
    done
    return 1
}

describe_machine() {
    uname -srm
    echo "$cores cores"
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
        nvidia-smi topo -m 2>/dev/null | head -n 12
    fi
}

describe_machine | tee "$logs/machine.txt"
built=0
if [ -z "${PREBUILT:-}" ]; then
    if wants bench || wants examples || wants python; then
        build_package &
    fi
    build_c
    built=$?
    wait
fi
if [ "$built" -eq 0 ]; then
    for stage in bench tests examples; do
        wants "$stage" && run_stage "$stage"
    done
    # They do not disturb each other.
    wants python && run_stage python &
    wants sanitizer && run_stage sanitizer &
    wait
fi

{
    echo "== summary"
    cat "$logs"/results/* 2>/dev/null
    cat "$logs"/results/.time-* 2>/dev/null | tr '\n' ';' | sed 's/;$/\n/; s/;/; /g'
    for word in ok FAILED skipped unfinished; do
        printf '%s %s, ' "$(cat "$logs"/results/* | awk -v word="$word" '$0 ~ " " word " +[0-9]+ s " { n++ } END { print n + 0 }')" "$word"
    done
    echo "$SECONDS s; logs in $logs"
} | tee "$logs/summary.txt"
! grep -qE ' FAILED +[0-9]+ s ' "$logs/summary.txt"

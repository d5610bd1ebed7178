/* The goals: the one table of the numbers to reach. docs/benchmarks.md states it in words;
 * tests/unit/test_bench_goals.c compares the two. */
#ifndef TB_BENCH_GOALS_H
#define TB_BENCH_GOALS_H

#include <stddef.h>

enum tb__goal_kind {
    TB__GOAL_VALUE_AT_MOST, /* the row's value, in its unit */
    TB__GOAL_RATIO_AT_MOST, /* value over baseline */
    TB__GOAL_RATIO_AT_LEAST,
};

struct tb__goal {
    const char *row;
    enum tb__goal_kind kind;
    double limit;
};

static const struct tb__goal tb__goals[] = {
    {"handover/blocking/p50", TB__GOAL_RATIO_AT_MOST, 1.1},
    {"handover/blocking/p99", TB__GOAL_RATIO_AT_MOST, 1.3},
    {"handover/spinning/p50", TB__GOAL_VALUE_AT_MOST, 0.12},
    {"handover/spinning/p99", TB__GOAL_VALUE_AT_MOST, 0.20},
    {"handover/polling/p50", TB__GOAL_VALUE_AT_MOST, 0.12},
    {"handover/polling/p99", TB__GOAL_VALUE_AT_MOST, 0.20},
    {"handover/256MiB-over-8B/p50", TB__GOAL_RATIO_AT_MOST, 1.05},
    {"write/hot/1MiB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"write/hot/6.2MB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"write/cold/1MiB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"write/cold/6.2MB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"write/cold/24.9MB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"write/cold/61.4MB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"write/cold/256MiB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"syscalls/seccomp", TB__GOAL_VALUE_AT_MOST, 0},
    {"syscalls/strace", TB__GOAL_VALUE_AT_MOST, 0},
    {"publish/written/8", TB__GOAL_VALUE_AT_MOST, 15},
    {"publish/written/64", TB__GOAL_VALUE_AT_MOST, 15},
    {"publish/written/1000", TB__GOAL_VALUE_AT_MOST, 20},
    {"publish/tight/8", TB__GOAL_VALUE_AT_MOST, 3},
    {"publish/tight/64", TB__GOAL_VALUE_AT_MOST, 3},
    {"publish/tight/1000", TB__GOAL_VALUE_AT_MOST, 3},
    {"cpu/1080p30", TB__GOAL_VALUE_AT_MOST, 0.5},
    {"example/cpu2cpu", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"kill/reader/known/4MiB", TB__GOAL_VALUE_AT_MOST, 10},
    {"kill/reader/known/256MiB", TB__GOAL_VALUE_AT_MOST, 10},
    {"kill/reader/known/4GiB", TB__GOAL_VALUE_AT_MOST, 10},
    {"kill/reader/slots/4MiB", TB__GOAL_VALUE_AT_MOST, 25},
    {"kill/reader/slots/256MiB", TB__GOAL_VALUE_AT_MOST, 25},
    {"kill/reader/slots/4GiB", TB__GOAL_VALUE_AT_MOST, 25},
    {"kill/owner/known/4MiB", TB__GOAL_VALUE_AT_MOST, 10},
    {"kill/owner/known/256MiB", TB__GOAL_VALUE_AT_MOST, 10},
    {"kill/owner/known/4GiB", TB__GOAL_VALUE_AT_MOST, 10},
    {"memory/reserved", TB__GOAL_VALUE_AT_MOST, 64},
};
#define TB__GOAL_COUNT (sizeof tb__goals / sizeof tb__goals[0])

/* Of `tensorbus bench gpu`; docs/gpu-results.md states it in words. */
static const struct tb__goal tb__gpu_goals[] = {
    {"gpu/copy/to-gpu/1MiB", TB__GOAL_RATIO_AT_LEAST, 0.9},
    {"gpu/copy/to-gpu/6.2MB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"gpu/copy/to-gpu/25MiB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"gpu/copy/to-gpu/64MiB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"gpu/copy/to-gpu/256MiB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"gpu/copy/from-gpu/1MiB", TB__GOAL_RATIO_AT_LEAST, 0.9},
    {"gpu/copy/from-gpu/6.2MB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"gpu/copy/from-gpu/25MiB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"gpu/copy/from-gpu/64MiB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"gpu/copy/from-gpu/256MiB", TB__GOAL_RATIO_AT_LEAST, 0.95},
    {"gpu/rule/6.2MB", TB__GOAL_RATIO_AT_LEAST, 3},
    {"gpu/rule/25MiB", TB__GOAL_RATIO_AT_LEAST, 3},
    {"gpu/rule/25MiB+1", TB__GOAL_RATIO_AT_LEAST, 2.5},
    {"gpu/write/64MiB", TB__GOAL_RATIO_AT_LEAST, 0.97},
    {"gpu/write/256MiB", TB__GOAL_RATIO_AT_LEAST, 0.97},
    {"gpu/handover/bytes", TB__GOAL_VALUE_AT_MOST, 0},
    {"gpu/handover/1MiB", TB__GOAL_RATIO_AT_MOST, 1.05},
    {"gpu/handover/64MiB", TB__GOAL_RATIO_AT_MOST, 1.05},
    {"gpu/handover/1GiB", TB__GOAL_RATIO_AT_MOST, 1.05},
    {"gpu/order/64MiB", TB__GOAL_RATIO_AT_MOST, 1.2},
    {"gpu/order/cpu/producer", TB__GOAL_VALUE_AT_MOST, 10},
    {"gpu/order/cpu/consumer", TB__GOAL_VALUE_AT_MOST, 10},
    {"gpu/import/first", TB__GOAL_VALUE_AT_MOST, 300},
    {"gpu/import/later", TB__GOAL_VALUE_AT_MOST, 2},
    {"gpu/torch/p50", TB__GOAL_RATIO_AT_MOST, 0.1},
};
#define TB__GPU_GOAL_COUNT (sizeof tb__gpu_goals / sizeof tb__gpu_goals[0])

#endif

/* What each suite measures, in the order of its table: floors first where they stand by themselves.
 */
#include "bench/gpu.h"
#include "bench/rows.h"

static const struct tb__bench_group *const local_groups[] = {
    &tb__group_copy,      &tb__group_blocking, &tb__group_size,     &tb__group_spinning,
    &tb__group_roundtrip, &tb__group_publish,  &tb__group_syscalls, &tb__group_cpu,
    &tb__group_kill,      &tb__group_memory,   &tb__group_example,
};
const struct tb__bench_suite tb__suite_local = {
    .name = "local",
    .groups = local_groups,
    .group_count = sizeof local_groups / sizeof local_groups[0],
    .goals = tb__goals,
    .goal_count = TB__GOAL_COUNT,
};

static const struct tb__bench_group *const gpu_groups[] = {
    &tb__group_gpu_copy,     &tb__group_gpu_two,   &tb__group_gpu_rule,   &tb__group_gpu_pin,
    &tb__group_gpu_handover, &tb__group_gpu_order, &tb__group_gpu_import, &tb__group_gpu_torch,
};
const struct tb__bench_suite tb__suite_gpu = {
    .name = "gpu",
    .groups = gpu_groups,
    .group_count = sizeof gpu_groups / sizeof gpu_groups[0],
    .goals = tb__gpu_goals,
    .goal_count = TB__GPU_GOAL_COUNT,
    .describe = tb__gpu_describe,
};

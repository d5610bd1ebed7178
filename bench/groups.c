/* The order of the table: floors first where they stand by themselves. */
#include "bench/rows.h"

const struct tb__bench_group *const tb__bench_groups[] = {
    &tb__group_copy,      &tb__group_blocking, &tb__group_size,     &tb__group_spinning,
    &tb__group_roundtrip, &tb__group_publish,  &tb__group_syscalls, &tb__group_cpu,
    &tb__group_kill,      &tb__group_memory,   &tb__group_example,
};
const size_t tb__bench_group_count = sizeof tb__bench_groups / sizeof tb__bench_groups[0];

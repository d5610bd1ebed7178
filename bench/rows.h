/* The groups of rows; one or a few per file. */
#ifndef TB_BENCH_ROWS_H
#define TB_BENCH_ROWS_H

#include "bench/bench.h"

extern const struct tb__bench_group tb__group_blocking; /* rows_handover.c */
extern const struct tb__bench_group tb__group_spinning;
extern const struct tb__bench_group tb__group_size;
extern const struct tb__bench_group tb__group_copy;      /* rows_copy.c */
extern const struct tb__bench_group tb__group_roundtrip; /* rows_roundtrip.c */
extern const struct tb__bench_group tb__group_publish;   /* rows_publish.c */
extern const struct tb__bench_group tb__group_syscalls;  /* rows_syscalls.c */
extern const struct tb__bench_group tb__group_cpu;       /* rows_cpu.c */
extern const struct tb__bench_group tb__group_kill;      /* rows_kill.c */
extern const struct tb__bench_group tb__group_memory;    /* rows_memory.c */
extern const struct tb__bench_group tb__group_example;   /* rows_example.c */

extern const struct tb__bench_group tb__group_gpu_copy;     /* rows_gpu_copy.c */
extern const struct tb__bench_group tb__group_gpu_two;      /* rows_gpu_copy.c */
extern const struct tb__bench_group tb__group_gpu_rule;     /* rows_gpu_copy.c */
extern const struct tb__bench_group tb__group_gpu_pin;      /* rows_gpu_pin.c */
extern const struct tb__bench_group tb__group_gpu_handover; /* rows_gpu_handover.c */
extern const struct tb__bench_group tb__group_gpu_order;    /* rows_gpu_order.c */
extern const struct tb__bench_group tb__group_gpu_import;   /* rows_gpu_import.c */
extern const struct tb__bench_group tb__group_gpu_torch;    /* rows_gpu_torch.c */

#endif

/* Rows of one-off copies from memory that is not page-locked: as it is, or page-locked around the
 * copy; and the size from which on that pays. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/gpu.h"
#include "bench/processes.h"
#include "bench/rows.h"
#include "cuda/path.h"

#define MIB ((size_t)1 << 20)
#define SIZES 6
#define COPIES 6 /* per block and way */
#define MOST_BYTES (256 * MIB)

static const size_t sizes[SIZES] = {4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB, MOST_BYTES};

static const struct tb__bench_text pin_text = {
    "one process: touched memory of malloc() is copied to the GPU, page-locked before each copy "
    "and no more afterwards",
    "from the call that page-locks to the return of the one that ends it",
    "the driver's copy from the same memory as it is",
};
static const struct tb__bench_text from_text = {
    "the size at which both ways of gpu/pin take the same time: where the lines between the "
    "measured sizes cross. TENSORBUS_GPU_PIN_MIN=BYTES makes the library use another one than it "
    "has built in",
    "none",
    "none",
};
static const struct tb__bench_row rows[SIZES + 1] = {
    {"gpu/pin/4MiB", "GB/s", &pin_text},  {"gpu/pin/8MiB", "GB/s", &pin_text},
    {"gpu/pin/16MiB", "GB/s", &pin_text}, {"gpu/pin/32MiB", "GB/s", &pin_text},
    {"gpu/pin/64MiB", "GB/s", &pin_text}, {"gpu/pin/256MiB", "GB/s", &pin_text},
    {"gpu/pin/from", "MiB", &from_text},
};

struct plan {
    int blocks;
    double ns[2][SIZES][TB__BENCH_MAX_BLOCKS]; /* per copy: as it is, page-locked around it */
};

struct stage {
    tb_cuda_stream stream;
    uint64_t device;
    void *pageable;
};

static tb_status run_block(const struct stage *stage, size_t bytes, int pin, double *ns)
{
    TB__TRY(tb__gpu_copy_pageable(stage->device, stage->pageable, bytes, stage->stream, pin));
    int64_t begin_ns = tb__now_ns();
    for (int i = 0; i < COPIES; i++) {
        TB__TRY(tb__gpu_copy_pageable(stage->device, stage->pageable, bytes, stage->stream, pin));
    }
    *ns = (double)(tb__now_ns() - begin_ns) / COPIES;
    return TB_OK;
}

static tb_status stage_main(struct tb__side *side, void *argument)
{
    struct plan *plan = argument;
    struct stage stage = {0};
    const struct tb__gpu *gpu;
    TB__TRY(tb__gpu_begin(&gpu));
    TB__TRY(tb__gpu_stream_open(&stage.stream));
    TB__TRY(tb__gpu_checked(tb__cuda()->mem_alloc(&stage.device, MOST_BYTES), "cuMemAlloc"));
    stage.pageable = malloc(MOST_BYTES);
    if (stage.pageable == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory");
    }
    memset(stage.pageable, 1, MOST_BYTES);
    for (int block = 0; block < plan->blocks; block++) {
        for (int size = 0; size < SIZES; size++) {
            for (int pin = 0; pin < 2; pin++) {
                TB__TRY(run_block(&stage, sizes[size], pin, &plan->ns[pin][size][block]));
            }
        }
    }
    tb__side_reply(side, 1);
    tb__side_wait(side);
    free(stage.pageable);
    return TB_OK; /* the rest goes with the process */
}

/* Where page-locking begins to pay, in bytes: the last crossing of the two lines, so that it pays
 * from there on; infinite when it never does. */
static double crossing(const double pageable_ns[SIZES], const double pinned_ns[SIZES])
{
    if (pinned_ns[SIZES - 1] > pageable_ns[SIZES - 1]) {
        return INFINITY;
    }
    int size = SIZES - 1;
    while (size > 0 && pinned_ns[size - 1] <= pageable_ns[size - 1]) {
        size--;
    }
    if (size == 0) {
        return (double)sizes[0];
    }
    double below = pinned_ns[size - 1] - pageable_ns[size - 1];
    double above = pageable_ns[size] - pinned_ns[size];
    double step = (double)(sizes[size] - sizes[size - 1]);
    return (double)sizes[size - 1] + step * below / (below + above);
}

static void report_from(struct tb__bench *bench, const double medians[2][SIZES])
{
    double bytes = crossing(medians[0], medians[1]);
    if (isinf(bytes)) {
        tb__bench_skip(bench, rows[SIZES].name, "page-locking for one copy never pays here");
        return;
    }
    struct tb__figure figure = {.value = bytes / (double)MIB};
    figure.min = figure.max = figure.value;
    tb__bench_report(bench, rows[SIZES].name, &figure, NAN,
                     "TENSORBUS_GPU_PIN_MIN=%.0f would use it; built in: %llu", bytes,
                     (unsigned long long)TB__REGISTER_MIN_BYTES);
}

static void report(struct tb__bench *bench, const struct plan *plan)
{
    double medians[2][SIZES];
    for (int size = 0; size < SIZES; size++) {
        struct tb__figure figures[2];
        for (int pin = 0; pin < 2; pin++) {
            double gbps[TB__BENCH_MAX_BLOCKS];
            for (int block = 0; block < plan->blocks; block++) {
                gbps[block] = (double)sizes[size] / plan->ns[pin][size][block];
            }
            tb__figure_of(gbps, plan->blocks, &figures[pin]);
            medians[pin][size] = (double)sizes[size] / figures[pin].value;
        }
        tb__bench_report(bench, rows[size].name, &figures[1], figures[0].value,
                         "baseline [%.1f..%.1f]", figures[0].min, figures[0].max);
    }
    report_from(bench, medians);
}

static tb_status pin_run(struct tb__bench *bench)
{
    struct plan *plan = tb__shared_map(sizeof *plan);
    struct tb__side side = {0};
    if (plan == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory");
    }
    plan->blocks = tb__bench_blocks(bench, 5);
    tb_status status = tb__side_start(&side, "copies", -1, stage_main, plan);
    if (status == TB_OK) {
        status = tb__side_answer(&side, NULL);
    }
    if (status == TB_OK) {
        report(bench, plan);
    }
    for (int row = 0; status != TB_OK && row <= SIZES; row++) {
        tb__bench_skip(bench, rows[row].name, "%s", tb_last_error_text());
    }
    tb__side_stop(&side);
    tb__shared_unmap(plan, sizeof *plan);
    return TB_OK;
}

const struct tb__bench_group tb__group_gpu_pin = {rows, SIZES + 1, pin_run};

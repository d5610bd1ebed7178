/* Copies between host pools and a GPU, over the copy from pinned memory, over what the reference
 * system's rule does, and within the GPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/gpu.h"
#include "bench/processes.h"
#include "bench/rows.h"
#include "cuda/dora_rule.h"

#define MIB (INT64_C(1) << 20)
#define BLOCK_BYTES (INT64_C(1) << 30) /* copied per block */
#define MAX_VARIANTS 2

static const struct tb__bench_text copy_text = {
    "one process: a frame of a host pool is copied into GPU memory, or GPU memory is written into "
    "the pool, one after the other",
    "from the call to the end of the copy",
    "the driver's copy from or to memory that it has allocated itself, pinned, of the same size",
};
static const struct tb__bench_text rule_text = {
    "as gpu/copy/to-gpu; the baseline does what the reference system's rule says for memory that "
    "it "
    "is given: above 26,214,400 bytes it pins, copies and unpins, else it copies pageable memory",
    "from the call to the end of the copy (and of unpinning)",
    "the rule, really executed on touched pageable memory",
};
static const struct tb__bench_text write_text = {
    "one process: a tensor on the GPU is written into a pool on the same GPU",
    "from the call to its return, frame published",
    "the driver's copy between two plain allocations",
};

/* What one side measures: pairs of variants that alternate in blocks. */
enum plan_kind { TO_GPU, FROM_GPU, RULE, WITHIN };

struct plan {
    enum plan_kind kind;
    int64_t bytes;
    int blocks;
    /* Results, shared: GB/s per block. */
    double gbps[MAX_VARIANTS][TB__BENCH_MAX_BLOCKS];
};

/* Of the side. */
struct stage {
    const struct plan *plan;
    tb_cuda_stream stream;
    uint64_t device; /* plain device memory of plan->bytes */
    uint64_t other;  /* the same, for WITHIN */
    void *pinned;
    void *pageable;
    tb_bus *bus;
    tb_pool *pool;
    tb_reader *reader;
    tb_frame *frame;
};

static tb_tensor device_tensor(uint64_t address, int64_t bytes)
{
    return (tb_tensor){.data = (void *)(uintptr_t)address,
                       .device = TB_CUDA(0),
                       .dtype = TB_U8,
                       .ndim = 1,
                       .shape = {bytes}};
}

static tb_status open_stage(struct stage *stage)
{
    const struct tb__gpu *gpu;
    const struct tb__cuda_api *cuda;
    size_t bytes = (size_t)stage->plan->bytes;
    int within = stage->plan->kind == WITHIN;
    TB__TRY(tb__gpu_begin(&gpu));
    cuda = tb__cuda();
    TB__TRY(tb__gpu_stream_open(&stage->stream));
    TB__TRY(tb__gpu_checked(cuda->mem_alloc(&stage->device, bytes), "cuMemAlloc"));
    if (within) {
        TB__TRY(tb__gpu_checked(cuda->mem_alloc(&stage->other, bytes), "cuMemAlloc"));
    }
    TB__TRY(tb__gpu_checked(cuda->mem_host_alloc(&stage->pinned, bytes, 0), "cuMemHostAlloc"));
    stage->pageable = malloc(bytes);
    if (stage->pageable == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory");
    }
    memset(stage->pinned, 1, bytes);
    memset(stage->pageable, 1, bytes);
    TB__TRY(tb__gpu_register("copies", within ? TB_CUDA(0) : TB_CPU, stage->plan->bytes, 3,
                             &stage->bus, &stage->pool));
    if (within) {
        return TB_OK;
    }
    tb_tensor source = {
        .data = stage->pageable, .dtype = TB_U8, .ndim = 1, .shape = {stage->plan->bytes}};
    tb_reader_options options = {.size = sizeof options};
    TB__TRY(tb_pool_write(stage->pool, &source, 0, NULL));
    TB__TRY(tb_reader_open(stage->bus, "copies/p", &options, &stage->reader));
    return tb_reader_newest(stage->reader, 0, &stage->frame);
}

/* ---- variants ---- */

static tb_status copy_pinned(struct stage *stage)
{
    size_t bytes = (size_t)stage->plan->bytes;
    tb__stream raw = (tb__stream)stage->stream;
    int result = stage->plan->kind == FROM_GPU
                     ? tb__cuda()->memcpy_dtoh_async(stage->pinned, stage->device, bytes, raw)
                     : tb__cuda()->memcpy_htod_async(stage->device, stage->pinned, bytes, raw);
    TB__TRY(tb__gpu_checked(result, "the driver's copy"));
    return tb__gpu_stream_wait(stage->stream);
}

static tb_status copy_by_rule(struct stage *stage)
{
    size_t bytes = (size_t)stage->plan->bytes;
    return tb__gpu_copy_pageable(stage->device, stage->pageable, bytes, stage->stream,
                                 tb__should_pin(0, bytes));
}

static tb_status copy_within(struct stage *stage)
{
    TB__TRY(tb__gpu_checked(tb__cuda()->memcpy_dtod_async(stage->other, stage->device,
                                                          (size_t)stage->plan->bytes,
                                                          (tb__stream)stage->stream),
                            "the driver's copy"));
    return tb__gpu_stream_wait(stage->stream);
}

static tb_status copy_ours(struct stage *stage)
{
    tb_tensor device = device_tensor(stage->device, stage->plan->bytes);
    if (stage->plan->kind == FROM_GPU || stage->plan->kind == WITHIN) {
        return tb_pool_write(stage->pool, &device, 0, NULL);
    }
    TB__TRY(tb_frame_copy_on(stage->frame, &device, stage->stream));
    return tb__gpu_stream_wait(stage->stream);
}

typedef tb_status variant(struct stage *stage);

static variant *baseline_of(enum plan_kind kind)
{
    return kind == RULE ? copy_by_rule : kind == WITHIN ? copy_within : copy_pinned;
}

static tb_status run_block(struct stage *stage, variant *run, double *gbps)
{
    int64_t copies = BLOCK_BYTES / stage->plan->bytes;
    copies = copies < 3 ? 3 : copies > 200 ? 200 : copies;
    TB__TRY(run(stage));
    int64_t begin_ns = tb__now_ns();
    for (int64_t i = 0; i < copies; i++) {
        TB__TRY(run(stage));
    }
    int64_t spent_ns = tb__now_ns() - begin_ns;
    *gbps = (double)(copies * stage->plan->bytes) / (double)spent_ns;
    return TB_OK;
}

static tb_status stage_main(struct tb__side *side, void *argument)
{
    struct plan *plan = argument;
    struct stage stage = {.plan = plan};
    TB__TRY(open_stage(&stage));
    for (int block = 0; block < plan->blocks; block++) {
        TB__TRY(run_block(&stage, baseline_of(plan->kind), &plan->gbps[0][block]));
        TB__TRY(run_block(&stage, copy_ours, &plan->gbps[1][block]));
    }
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_bus_close(stage.bus); /* the rest goes with the process */
    return TB_OK;
}

/* ---- rows ---- */

static tb_status measure(struct tb__bench *bench, const char *row, enum plan_kind kind,
                         int64_t bytes)
{
    struct plan *plan = tb__shared_map(sizeof *plan);
    struct tb__side side = {0};
    if (plan == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory");
    }
    *plan = (struct plan){.kind = kind, .bytes = bytes, .blocks = tb__bench_blocks(bench, 7)};
    tb_status status = tb__side_start(&side, "copies", -1, stage_main, plan);
    if (status == TB_OK) {
        status = tb__side_answer(&side, NULL);
    }
    if (status == TB_OK) {
        struct tb__figure baseline;
        struct tb__figure ours;
        tb__figure_of(plan->gbps[0], plan->blocks, &baseline);
        tb__figure_of(plan->gbps[1], plan->blocks, &ours);
        tb__bench_report(bench, row, &ours, baseline.value, "baseline [%.1f..%.1f]", baseline.min,
                         baseline.max);
    } else {
        tb__bench_skip(bench, row, "%s", tb_last_error_text());
    }
    tb__side_stop(&side);
    tb__shared_unmap(plan, sizeof *plan);
    return TB_OK;
}

static const struct tb__bench_row copy_rows[] = {
    {"gpu/copy/to-gpu/1MiB", "GB/s", &copy_text},
    {"gpu/copy/to-gpu/6.2MB", "GB/s", &copy_text},
    {"gpu/copy/to-gpu/25MiB", "GB/s", &copy_text},
    {"gpu/copy/to-gpu/64MiB", "GB/s", &copy_text},
    {"gpu/copy/to-gpu/256MiB", "GB/s", &copy_text},
    {"gpu/copy/from-gpu/1MiB", "GB/s", &copy_text},
    {"gpu/copy/from-gpu/6.2MB", "GB/s", &copy_text},
    {"gpu/copy/from-gpu/25MiB", "GB/s", &copy_text},
    {"gpu/copy/from-gpu/64MiB", "GB/s", &copy_text},
    {"gpu/copy/from-gpu/256MiB", "GB/s", &copy_text},
    {"gpu/write/64MiB", "GB/s", &write_text},
    {"gpu/write/256MiB", "GB/s", &write_text},
};
static const struct {
    enum plan_kind kind;
    int64_t bytes;
} copy_plans[] = {
    {TO_GPU, MIB},        {TO_GPU, 6220800},     {TO_GPU, 25 * MIB},  {TO_GPU, 64 * MIB},
    {TO_GPU, 256 * MIB},  {FROM_GPU, MIB},       {FROM_GPU, 6220800}, {FROM_GPU, 25 * MIB},
    {FROM_GPU, 64 * MIB}, {FROM_GPU, 256 * MIB}, {WITHIN, 64 * MIB},  {WITHIN, 256 * MIB},
};
#define COPY_ROWS (sizeof copy_rows / sizeof copy_rows[0])
_Static_assert(COPY_ROWS == sizeof copy_plans / sizeof copy_plans[0], "a plan for each row");

static tb_status copy_run(struct tb__bench *bench)
{
    for (size_t i = 0; i < COPY_ROWS; i++) {
        if (tb__bench_wants(bench, copy_rows[i].name)) {
            TB__TRY(measure(bench, copy_rows[i].name, copy_plans[i].kind, copy_plans[i].bytes));
        }
    }
    return TB_OK;
}

const struct tb__bench_group tb__group_gpu_copy = {copy_rows, COPY_ROWS, copy_run};

static const struct tb__bench_row rule_rows[] = {
    {"gpu/rule/6.2MB", "GB/s", &rule_text},
    {"gpu/rule/25MiB", "GB/s", &rule_text},
    {"gpu/rule/25MiB+1", "GB/s", &rule_text},
};

static tb_status rule_run(struct tb__bench *bench)
{
    static const int64_t sizes[] = {6220800, 25 * MIB, 25 * MIB + 1};
    for (size_t i = 0; i < 3; i++) {
        if (tb__bench_wants(bench, rule_rows[i].name)) {
            TB__TRY(measure(bench, rule_rows[i].name, RULE, sizes[i]));
        }
    }
    return TB_OK;
}

const struct tb__bench_group tb__group_gpu_rule = {rule_rows, 3, rule_run};

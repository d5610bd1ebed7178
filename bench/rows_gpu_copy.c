/* Copies between host pools and a GPU, over the copy from pinned memory, over what the reference
 * system's rule does, within the GPU, and between two. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/gpu.h"
#include "bench/processes.h"
#include "bench/rows.h"
#include "bench/ways.h"
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
    "it is given: above 26,214,400 bytes it pins, copies and unpins, else it copies pageable "
    "memory",
    "from the call to the end of the copy (and of unpinning)",
    "the rule, really executed on touched pageable memory",
};
static const struct tb__bench_text write_text = {
    "one process: a tensor on the GPU is written into a pool on the same GPU",
    "from the call to its return, frame published",
    "the driver's copy between two plain allocations",
};

static const struct tb__bench_text peer_text = {
    "one process, two GPUs that reach each other: plain memory of the second one is written into a "
    "pool on the first",
    "from the call to its return, frame published",
    "the driver's copy of plain memory from the second GPU to the first",
};
static const struct tb__bench_text hop_text = {
    "as gpu/peer; what is written is a frame of a pool on the second GPU",
    "from the call to its return, frame published",
    "the driver's copy of plain memory from the second GPU to the first",
};
static const struct tb__bench_text staged_text = {
    "as gpu/peer with TENSORBUS_GPU_PEERS=0: through page-locked memory of the host, in chunks of "
    "which one arrives while the next leaves",
    "from the call to its return, frame published",
    "the driver's copy from pinned memory of the same size to the first GPU: one of the two ways",
};

/* What one side measures: pairs of variants that alternate in blocks. */
enum plan_kind { TO_GPU, FROM_GPU, RULE, WITHIN, PEER, HOP, STAGED };

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
    uint64_t other;  /* the same, for WITHIN; between two GPUs on the second one */
    const struct tb__gpu *first, *second;
    void *pinned;
    void *pageable;
    tb_bus *bus;
    tb_pool *pool;
    tb_frame *frame;
};

static tb_tensor device_tensor(uint64_t address, int64_t bytes, int ordinal)
{
    return (tb_tensor){.data = (void *)(uintptr_t)address,
                       .device = TB_CUDA(ordinal),
                       .dtype = TB_U8,
                       .ndim = 1,
                       .shape = {bytes}};
}

/* Write a frame, and take it to be copied from. */
static tb_status first_frame(struct stage *stage, tb_bus *bus, tb_pool *pool,
                             const tb_tensor *source, const char *path)
{
    tb_reader *reader;
    tb_reader_options options = {.size = sizeof options};
    TB__TRY(tb_pool_write(pool, source, 0, NULL));
    TB__TRY(tb_reader_open(bus, path, &options, &reader));
    return tb_reader_newest(reader, 0, &stage->frame);
}

/* The second GPU and memory on it; for HOP a frame of a pool there. */
static tb_status open_second(struct stage *stage)
{
    struct tb__gpu_scope scope;
    int count = 0, can = 0;
    enum plan_kind kind = stage->plan->kind;
    TB__TRY(tb__gpu_count(&count));
    if (count < 2) {
        return TB__FAIL(TB_E_UNSUPPORTED, "needs two GPUs");
    }
    TB__TRY(tb__gpu_get(1, &stage->second));
    TB__TRY(tb__gpu_peer(stage->first, stage->second, &can));
    if (!can && kind != STAGED) {
        return TB__FAIL(TB_E_UNSUPPORTED, "the GPUs do not reach each other");
    }
    TB__TRY(tb__gpu_enter(stage->second, &scope));
    tb_status status = tb__gpu_checked(
        tb__cuda()->mem_alloc(&stage->other, (size_t)stage->plan->bytes), "cuMemAlloc");
    tb__gpu_leave(&scope);
    TB__TRY(status);
    if (kind != HOP) {
        return TB_OK;
    }
    tb_bus *bus;
    tb_pool *pool;
    tb_tensor source = device_tensor(stage->other, stage->plan->bytes, 1);
    TB__TRY(tb__way_register("second", TB_CUDA(1), stage->plan->bytes, 3, &bus, &pool));
    return first_frame(stage, bus, pool, &source, "second/p");
}

static tb_status open_stage(struct stage *stage)
{
    const struct tb__cuda_api *cuda;
    size_t bytes = (size_t)stage->plan->bytes;
    int within = stage->plan->kind == WITHIN;
    int two = stage->plan->kind >= PEER;
    if (stage->plan->kind == STAGED) {
        setenv("TENSORBUS_GPU_PEERS", "0", 1); /* this process's own */
    }
    TB__TRY(tb__gpu_begin(&stage->first));
    cuda = tb__cuda();
    if (two) {
        TB__TRY(open_second(stage));
    }
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
    TB__TRY(tb__way_register("copies", within || two ? TB_CUDA(0) : TB_CPU, stage->plan->bytes, 3,
                             &stage->bus, &stage->pool));
    if (within || two) {
        return TB_OK;
    }
    tb_tensor source = {
        .data = stage->pageable, .dtype = TB_U8, .ndim = 1, .shape = {stage->plan->bytes}};
    return first_frame(stage, stage->bus, stage->pool, &source, "copies/p");
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

static tb_status copy_between(struct stage *stage)
{
    struct tb__gpu_scope scope;
    TB__TRY(tb__gpu_enter(stage->second, &scope));
    tb__context there = scope.context;
    tb__gpu_leave(&scope);
    TB__TRY(tb__gpu_enter(stage->first, &scope));
    int result =
        tb__cuda()->memcpy_peer_async(stage->device, scope.context, stage->other, there,
                                      (size_t)stage->plan->bytes, (tb__stream)stage->stream);
    tb__gpu_leave(&scope);
    TB__TRY(tb__gpu_checked(result, "cuMemcpyPeerAsync"));
    return tb__gpu_stream_wait(stage->stream);
}

static tb_status copy_ours(struct stage *stage)
{
    tb_tensor device = device_tensor(stage->device, stage->plan->bytes, 0);
    tb_tensor second = device_tensor(stage->other, stage->plan->bytes, 1);
    switch (stage->plan->kind) {
    case FROM_GPU:
    case WITHIN:
        return tb_pool_write(stage->pool, &device, 0, NULL);
    case PEER:
    case STAGED:
        return tb_pool_write(stage->pool, &second, 0, NULL);
    case HOP:
        return tb_pool_write(stage->pool, tb_frame_tensor(stage->frame), 0, NULL);
    default:
        break;
    }
    TB__TRY(tb_frame_copy_on(stage->frame, &device, stage->stream));
    return tb__gpu_stream_wait(stage->stream);
}

typedef tb_status variant(struct stage *stage);

static variant *baseline_of(enum plan_kind kind)
{
    switch (kind) {
    case RULE:
        return copy_by_rule;
    case WITHIN:
        return copy_within;
    case PEER:
    case HOP:
        return copy_between;
    default:
        return copy_pinned;
    }
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
struct planned {
    enum plan_kind kind;
    int64_t bytes;
};
static const struct planned copy_plans[] = {
    {TO_GPU, MIB},        {TO_GPU, 6220800},     {TO_GPU, 25 * MIB},  {TO_GPU, 64 * MIB},
    {TO_GPU, 256 * MIB},  {FROM_GPU, MIB},       {FROM_GPU, 6220800}, {FROM_GPU, 25 * MIB},
    {FROM_GPU, 64 * MIB}, {FROM_GPU, 256 * MIB}, {WITHIN, 64 * MIB},  {WITHIN, 256 * MIB},
};
#define COPY_ROWS (sizeof copy_rows / sizeof copy_rows[0])
_Static_assert(COPY_ROWS == sizeof copy_plans / sizeof copy_plans[0], "a plan for each row");

static tb_status run_plans(struct tb__bench *bench, const struct tb__bench_row *rows,
                           const struct planned *plans, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (tb__bench_wants(bench, rows[i].name)) {
            TB__TRY(measure(bench, rows[i].name, plans[i].kind, plans[i].bytes));
        }
    }
    return TB_OK;
}

static tb_status copy_run(struct tb__bench *bench)
{
    return run_plans(bench, copy_rows, copy_plans, COPY_ROWS);
}

const struct tb__bench_group tb__group_gpu_copy = {copy_rows, COPY_ROWS, copy_run};

static const struct tb__bench_row rule_rows[] = {
    {"gpu/rule/6.2MB", "GB/s", &rule_text},
    {"gpu/rule/25MiB", "GB/s", &rule_text},
    {"gpu/rule/25MiB+1", "GB/s", &rule_text},
};

static const struct planned rule_plans[] = {
    {RULE, 6220800}, {RULE, 25 * MIB}, {RULE, 25 * MIB + 1}};

static tb_status rule_run(struct tb__bench *bench)
{
    return run_plans(bench, rule_rows, rule_plans, 3);
}

const struct tb__bench_group tb__group_gpu_rule = {rule_rows, 3, rule_run};

static const struct tb__bench_row two_rows[] = {
    {"gpu/peer/6.2MB", "GB/s", &peer_text},      {"gpu/peer/64MiB", "GB/s", &peer_text},
    {"gpu/peer/256MiB", "GB/s", &peer_text},     {"gpu/hop/64MiB", "GB/s", &hop_text},
    {"gpu/staged/6.2MB", "GB/s", &staged_text},  {"gpu/staged/64MiB", "GB/s", &staged_text},
    {"gpu/staged/256MiB", "GB/s", &staged_text},
};
static const struct planned two_plans[] = {
    {PEER, 6220800},   {PEER, 64 * MIB},   {PEER, 256 * MIB},   {HOP, 64 * MIB},
    {STAGED, 6220800}, {STAGED, 64 * MIB}, {STAGED, 256 * MIB},
};
#define TWO_ROWS (sizeof two_rows / sizeof two_rows[0])
_Static_assert(TWO_ROWS == sizeof two_plans / sizeof two_plans[0], "a plan for each row");

static tb_status two_run(struct tb__bench *bench)
{
    return run_plans(bench, two_rows, two_plans, TWO_ROWS);
}

const struct tb__bench_group tb__group_gpu_two = {two_rows, TWO_ROWS, two_run};

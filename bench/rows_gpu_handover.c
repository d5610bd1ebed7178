/* Handing frames over on one GPU: what a hand-over costs, whatever the size. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "bench/gpu.h"
#include "bench/processes.h"
#include "bench/rows.h"

#define MIB (INT64_C(1) << 20)
#define SLOTS 4
#define HANDOVERS 250
#define SET_BLOCKS 4

static const struct tb__bench_text handover_text = {
    "two processes: one publishes an untouched frame of a GPU's pool on its stream, the other, "
    "spinning, takes it, makes its stream wait for it and releases it on the stream; then the next",
    "from just before publishing to just after the reader has the frame; in rounds of one block of "
    "each size, with new pools after every fourth",
    "the same with frames of 4 KiB; the ratio is the median over rounds, because the processors of "
    "a virtual machine change their pace within one run",
};
static const struct tb__bench_text bytes_text = {
    "the hand-overs of all sizes",
    "bytes that the pool's counters say were copied",
    "none",
};

static const struct tb__gpu_size handover_sizes[] = {
    {"gpu/handover/4KiB", 4096},
    {"gpu/handover/1MiB", MIB},
    {"gpu/handover/64MiB", 64 * MIB},
    {"gpu/handover/1GiB", 1024 * MIB},
};
#define HANDOVER_SIZES (sizeof handover_sizes / sizeof handover_sizes[0])

struct handover {
    int64_t bytes[HANDOVER_SIZES];
    int64_t sent_ns[HANDOVERS];
    int64_t taken_ns[HANDOVERS];
    uint64_t copied_bytes;
};

static void size_name(size_t index, char name[16])
{
    snprintf(name, 16, "size%zu", index);
}

static tb_status publish_some(tb_pool *pool, tb_cuda_stream stream, struct handover *shared,
                              struct tb__side *side)
{
    const struct timespec gap = {.tv_nsec = 50000}; /* so that the streams are idle */
    for (int i = 0; i < HANDOVERS; i++) {
        tb_loan *loan;
        TB__TRY(tb_pool_loan(pool, TB_SECONDS(5), &loan));
        nanosleep(&gap, NULL);
        shared->sent_ns[i] = tb__now_ns();
        TB__TRY(tb_loan_publish_on(loan, stream, NULL));
    }
    (void)side;
    return tb__gpu_stream_wait(stream);
}

static tb_status handover_producer(struct tb__side *side, void *argument)
{
    struct handover *shared = argument;
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_pool *pools[HANDOVER_SIZES];
    tb_cuda_stream stream;
    uint64_t size;
    TB__TRY(tb__gpu_begin(&gpu));
    TB__TRY(tb__gpu_stream_open(&stream));
    tb_bus_options options = {.size = sizeof options, .name = "handover"};
    TB__TRY(tb_bus_open(&options, &bus));
    for (size_t i = 0; i < HANDOVER_SIZES; i++) {
        char name[16];
        size_name(i, name);
        tb_pool_options pool = {.size = sizeof pool,
                                .name = name,
                                .dtype = TB_U8,
                                .ndim = 1,
                                .shape = {shared->bytes[i]},
                                .device = TB_CUDA(0),
                                .slots = SLOTS,
                                .policy = TB_EVERY};
        TB__TRY(tb_pool_register(bus, &pool, &pools[i]));
    }
    tb__side_reply(side, 1);
    while ((size = tb__side_wait(side)) != TB__SIDE_STOP) {
        TB__TRY(publish_some(pools[size - 1], stream, shared, side));
        tb_pool_stats stats = {.size = sizeof stats};
        TB__TRY(tb_pool_get_stats(pools[size - 1], &stats));
        shared->copied_bytes += stats.copied_bytes;
        tb__side_reply(side, 1);
    }
    tb_bus_close(bus);
    return TB_OK;
}

static tb_status take_some(tb_reader *reader, tb_cuda_stream stream, struct handover *shared)
{
    for (int i = 0; i < HANDOVERS; i++) {
        tb_frame *frame;
        tb_status status = tb_reader_next(reader, TB_SECONDS(10), &frame);
        if (status != TB_OK) {
            return status > 0 ? TB__FAIL(TB_E_SYSTEM, "frame %d did not come", i) : status;
        }
        shared->taken_ns[i] = tb__now_ns();
        TB__TRY(tb_frame_wait_on(frame, stream));
        TB__TRY(tb_frame_release_on(frame, stream));
    }
    return tb__gpu_stream_wait(stream);
}

static tb_status handover_consumer(struct tb__side *side, void *argument)
{
    struct handover *shared = argument;
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_reader *readers[HANDOVER_SIZES];
    tb_cuda_stream stream;
    uint64_t size;
    TB__TRY(tb__gpu_begin(&gpu));
    TB__TRY(tb__gpu_stream_open(&stream));
    tb_bus_options options = {.size = sizeof options};
    TB__TRY(tb_bus_open(&options, &bus));
    for (size_t i = 0; i < HANDOVER_SIZES; i++) {
        char name[16];
        char path[40];
        size_name(i, name);
        snprintf(path, sizeof path, "handover/%s", name);
        tb_reader_options open = {.size = sizeof open,
                                  .wait_ns = TB_SECONDS(20),
                                  .spin_us = 100000,
                                  .every = 1,
                                  .stream_ordered = 1,
                                  .start_next = 1};
        TB__TRY(tb_reader_open(bus, path, &open, &readers[i]));
    }
    tb__side_reply(side, 1);
    while ((size = tb__side_wait(side)) != TB__SIDE_STOP) {
        TB__TRY(take_some(readers[size - 1], stream, shared));
        tb__side_reply(side, 1);
    }
    tb_bus_close(bus);
    return TB_OK;
}

static const struct tb__bench_row handover_rows[] = {
    {"gpu/handover/4KiB", "us", &handover_text},  {"gpu/handover/1MiB", "us", &handover_text},
    {"gpu/handover/64MiB", "us", &handover_text}, {"gpu/handover/1GiB", "us", &handover_text},
    {"gpu/handover/bytes", "B", &bytes_text},
};

/* One block of one size: the median, in microseconds. */
static tb_status handover_block(struct tb__side sides[2], struct handover *shared, size_t size,
                                double *us)
{
    double samples[HANDOVERS];
    TB__TRY(tb__side_command(&sides[1], size + 1));
    TB__TRY(tb__side_command(&sides[0], size + 1));
    TB__TRY(tb__side_answer(&sides[1], NULL));
    TB__TRY(tb__side_answer(&sides[0], NULL));
    for (int i = 0; i < HANDOVERS; i++) {
        samples[i] = (double)(shared->taken_ns[i] - shared->sent_ns[i]) / 1e3;
    }
    *us = tb__percentile(samples, HANDOVERS, 0.5);
    return TB_OK;
}

/* Some blocks, between two new processes. */
static tb_status handover_set(struct handover *shared, struct tb__side sides[2], int first, int end,
                              double us[HANDOVER_SIZES][TB__BENCH_MAX_BLOCKS])
{
    TB__TRY(tb__side_start(&sides[0], "producer", -1, handover_producer, shared));
    TB__TRY(tb__side_start(&sides[1], "consumer", -1, handover_consumer, shared));
    for (int i = 0; i < 2; i++) {
        TB__TRY(tb__side_answer(&sides[i], NULL));
    }
    for (int block = first - 1; block < end; block++) { /* the first one warms up */
        for (size_t size = 0; size < HANDOVER_SIZES; size++) {
            double *to = &us[size][block < first ? first : block];
            TB__TRY(handover_block(sides, shared, size, to));
        }
    }
    return TB_OK;
}

static tb_status handover_measure(struct tb__bench *bench, struct handover *shared)
{
    double us[HANDOVER_SIZES][TB__BENCH_MAX_BLOCKS];
    int blocks = tb__bench_blocks(bench, 28); /* short ones: the processors change their pace */
    int sets = 0;
    /* Where a pool's pages lie makes some percent: each set has new ones, so no size keeps its
     * luck. */
    for (int block = 0; block < blocks; block += SET_BLOCKS, sets++) {
        struct tb__side sides[2] = {{0}, {0}};
        int end = block + SET_BLOCKS < blocks ? block + SET_BLOCKS : blocks;
        tb_status status = handover_set(shared, sides, block, end, us);
        tb__side_stop(&sides[1]);
        tb__side_stop(&sides[0]);
        TB__TRY(status);
    }
    struct tb__figure smallest = {.value = NAN};
    for (size_t size = 0; size < HANDOVER_SIZES; size++) {
        struct tb__figure figure;
        tb__figure_of(us[size], blocks, &figure);
        if (size == 0) {
            smallest = figure;
            tb__bench_report(bench, handover_sizes[size].name, &figure, NAN,
                             "median; the reader spins");
        } else {
            tb__bench_report_rounds(bench, handover_sizes[size].name, &figure, &smallest,
                                    "median; the reader spins; ratio: median over rounds");
        }
    }
    struct tb__figure copied;
    double bytes = (double)shared->copied_bytes;
    tb__figure_of(&bytes, 1, &copied);
    tb__bench_report(bench, "gpu/handover/bytes", &copied, NAN, "%d frames of each size",
                     (blocks + sets) * HANDOVERS);
    return TB_OK;
}

static tb_status handover_run(struct tb__bench *bench)
{
    struct handover *shared = tb__shared_map(sizeof *shared);
    if (shared == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory");
    }
    for (size_t i = 0; i < HANDOVER_SIZES; i++) {
        shared->bytes[i] = handover_sizes[i].bytes;
    }
    tb_status status = handover_measure(bench, shared);
    tb__shared_unmap(shared, sizeof *shared);
    return status;
}

const struct tb__bench_group tb__group_gpu_handover = {
    handover_rows, sizeof handover_rows / sizeof handover_rows[0], handover_run};

/* Handing frames over on one GPU: what a hand-over costs, whatever the size; and a producer that
 * fills frames while a consumer reads them, with neither CPU waiting. */
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
#define HANDOVERS 1000
#define FRAMES 200
#define ORDER_SLOTS 16 /* a writer that has to wait sleeps once for several frames */
#define FRAME_BYTES (64 * MIB)

/* ------------------------------------------------------------------ hand-over */

static const struct tb__bench_text handover_text = {
    "two processes: one publishes an untouched frame of a GPU's pool on its stream, the other, "
    "spinning, takes it, makes its stream wait for it and releases it on the stream; then the next",
    "from just before publishing to just after the reader has the frame",
    "the same with frames of 4 KiB",
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

static tb_status handover_measure(struct tb__bench *bench, struct tb__side sides[2],
                                  struct handover *shared)
{
    double us[HANDOVER_SIZES][TB__BENCH_MAX_BLOCKS];
    int blocks = tb__bench_blocks(bench, 7);
    tb__side_main *const mains[] = {handover_producer, handover_consumer};
    for (int i = 0; i < 2; i++) {
        TB__TRY(tb__side_start(&sides[i], i == 0 ? "producer" : "consumer", -1, mains[i], shared));
    }
    for (int i = 0; i < 2; i++) {
        TB__TRY(tb__side_answer(&sides[i], NULL));
    }
    for (int block = -1; block < blocks; block++) { /* the first one warms up */
        for (size_t size = 0; size < HANDOVER_SIZES; size++) {
            TB__TRY(handover_block(sides, shared, size, &us[size][block < 0 ? 0 : block]));
        }
    }
    struct tb__figure smallest = {.value = NAN};
    for (size_t size = 0; size < HANDOVER_SIZES; size++) {
        struct tb__figure figure;
        tb__figure_of(us[size], blocks, &figure);
        smallest = size == 0 ? figure : smallest;
        tb__bench_report(bench, handover_sizes[size].name, &figure,
                         size == 0 ? NAN : smallest.value, "median; the reader spins");
    }
    struct tb__figure copied;
    double bytes = (double)shared->copied_bytes;
    tb__figure_of(&bytes, 1, &copied);
    tb__bench_report(bench, "gpu/handover/bytes", &copied, NAN, "%d frames of each size",
                     (blocks + 1) * HANDOVERS);
    return TB_OK;
}

static tb_status handover_run(struct tb__bench *bench)
{
    struct tb__side sides[2] = {{0}, {0}};
    struct handover *shared = tb__shared_map(sizeof *shared);
    if (shared == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory");
    }
    for (size_t i = 0; i < HANDOVER_SIZES; i++) {
        shared->bytes[i] = handover_sizes[i].bytes;
    }
    tb_status status = handover_measure(bench, sides, shared);
    tb__side_stop(&sides[1]);
    tb__side_stop(&sides[0]);
    tb__shared_unmap(shared, sizeof *shared);
    return status;
}

const struct tb__bench_group tb__group_gpu_handover = {
    handover_rows, sizeof handover_rows / sizeof handover_rows[0], handover_run};

/* ------------------------------------------------------------------ order */

static const struct tb__bench_text order_text = {
    "two processes, no CPU waits: the producer fills 64 MiB on its stream and publishes there, the "
    "consumer's stream waits for each frame, copies its first and last word away and releases it; "
    "every frame is taken",
    "from the first publish to the end of both streams, over the number of frames",
    "the producer's fills alone, of the same slots, without publishing, in the same process",
};
static const struct tb__bench_text cpu_text = {
    "the same run",
    "CPU time of the process, all threads, over the number of frames, without that of its own work "
    "alone: the fills, the copies of words",
    "none",
};

struct order {
    double fill_us[TB__BENCH_MAX_BLOCKS];
    double fill_cpu_us[TB__BENCH_MAX_BLOCKS];
    double frame_us[TB__BENCH_MAX_BLOCKS];
    double producer_us[TB__BENCH_MAX_BLOCKS];
    double consumer_us[TB__BENCH_MAX_BLOCKS];
    double copies_cpu_us[TB__BENCH_MAX_BLOCKS];
    int64_t begun_ns;
    int64_t producer_end_ns;
    int64_t consumer_end_ns;
    uint64_t wrong;
};

#define ORDER_FILL 1
#define ORDER_FRAMES 2

/* The slots' own memory, filled over and over. */
static tb_status fill_alone(tb_pool *pool, tb_cuda_stream stream, double *us, double *cpu_us)
{
    tb_loan *loans[SLOTS];
    for (int i = 0; i < SLOTS; i++) {
        TB__TRY(tb_pool_loan(pool, TB_SECONDS(5), &loans[i]));
    }
    TB__TRY(tb__gpu_stream_wait(stream));
    double before_ms = tb__cpu_ms();
    int64_t begun_ns = tb__now_ns();
    for (int i = 0; i < FRAMES; i++) {
        TB__TRY(tb__gpu_fill(tb_loan_tensor(loans[i % SLOTS])->data, 7, FRAME_BYTES, stream));
    }
    TB__TRY(tb__gpu_stream_await(stream));
    *us = (double)(tb__now_ns() - begun_ns) / 1e3 / FRAMES;
    *cpu_us = (tb__cpu_ms() - before_ms) * 1e3 / FRAMES;
    for (int i = 0; i < SLOTS; i++) {
        tb_loan_cancel(loans[i]);
    }
    return TB_OK;
}

static tb_status fill_frames(tb_pool *pool, tb_cuda_stream stream)
{
    for (uint32_t i = 1; i <= FRAMES; i++) {
        tb_loan *loan;
        TB__TRY(tb_pool_loan(pool, TB_SECONDS(5), &loan));
        TB__TRY(tb__gpu_fill(tb_loan_tensor(loan)->data, i, FRAME_BYTES, stream));
        TB__TRY(tb_loan_publish_on(loan, stream, NULL));
    }
    return tb__gpu_stream_await(stream);
}

static tb_status order_producer(struct tb__side *side, void *argument)
{
    struct order *shared = argument;
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_pool *pool;
    tb_cuda_stream stream;
    uint64_t command;
    int fills = 0;
    int runs = 0;
    TB__TRY(tb__gpu_begin(&gpu));
    TB__TRY(tb__gpu_stream_open(&stream));
    tb_bus_options bus_options = {.size = sizeof bus_options, .name = "order"};
    tb_pool_options options = {.size = sizeof options,
                               .name = "p",
                               .dtype = TB_U8,
                               .ndim = 1,
                               .shape = {FRAME_BYTES},
                               .device = TB_CUDA(0),
                               .slots = ORDER_SLOTS,
                               .policy = TB_EVERY};
    TB__TRY(tb_bus_open(&bus_options, &bus));
    TB__TRY(tb_pool_register(bus, &options, &pool));
    tb__side_reply(side, 1);
    while ((command = tb__side_wait(side)) != TB__SIDE_STOP) {
        if (command == ORDER_FILL) {
            TB__TRY(fill_alone(pool, stream, &shared->fill_us[fills], &shared->fill_cpu_us[fills]));
            fills++;
        } else {
            double before_ms = tb__cpu_ms();
            shared->begun_ns = tb__now_ns();
            TB__TRY(fill_frames(pool, stream));
            shared->producer_end_ns = tb__now_ns();
            shared->producer_us[runs] =
                (tb__cpu_ms() - before_ms) * 1e3 / FRAMES - shared->fill_cpu_us[runs];
            runs++;
        }
        tb__side_reply(side, 1);
    }
    tb_bus_close(bus);
    return TB_OK;
}

static tb_status copy_word(uint32_t *to, uint64_t from, tb_cuda_stream stream)
{
    int result = tb__cuda()->memcpy_dtoh_async(to, from, 4, (tb__stream)stream);
    return result == 0 ? TB_OK : tb__cuda_fail(result, "cuMemcpyDtoHAsync", "4 bytes");
}

static tb_status read_frames(tb_reader *reader, tb_cuda_stream stream, uint32_t *words)
{
    for (uint32_t i = 0; i < FRAMES; i++) {
        tb_frame *frame;
        tb_status status = tb_reader_next(reader, TB_SECONDS(10), &frame);
        if (status != TB_OK) {
            return status > 0 ? TB__FAIL(TB_E_SYSTEM, "frame %u did not come", i) : status;
        }
        uint64_t data = (uint64_t)(uintptr_t)tb_frame_tensor(frame)->data;
        TB__TRY(tb_frame_wait_on(frame, stream));
        TB__TRY(copy_word(&words[2 * i], data, stream));
        TB__TRY(copy_word(&words[2 * i + 1], data + FRAME_BYTES - 4, stream));
        TB__TRY(tb_frame_release_on(frame, stream));
    }
    return tb__gpu_stream_await(stream);
}

/* The consumer's own work, for its CPU time. */
static tb_status copies_alone(tb_cuda_stream stream, uint32_t *words, double *cpu_us)
{
    uint64_t device;
    int result = tb__cuda()->mem_alloc(&device, 4096);
    if (result != 0) {
        return tb__cuda_fail(result, "cuMemAlloc", "4096 bytes");
    }
    double before_ms = tb__cpu_ms();
    for (uint32_t i = 0; i < FRAMES; i++) {
        TB__TRY(copy_word(&words[2 * i], device, stream));
        TB__TRY(copy_word(&words[2 * i + 1], device + 2048, stream));
    }
    TB__TRY(tb__gpu_stream_await(stream));
    *cpu_us = (tb__cpu_ms() - before_ms) * 1e3 / FRAMES;
    tb__cuda_note(tb__cuda()->mem_free(device), "cuMemFree", "4096 bytes");
    return TB_OK;
}

static tb_status order_consumer(struct tb__side *side, void *argument)
{
    struct order *shared = argument;
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_reader *reader;
    tb_cuda_stream stream;
    uint32_t *words;
    int runs = 0;
    TB__TRY(tb__gpu_begin(&gpu));
    TB__TRY(tb__gpu_stream_open(&stream));
    int result = tb__cuda()->mem_host_alloc((void **)&words, FRAMES * 2 * sizeof *words, 0);
    if (result != 0) {
        return tb__cuda_fail(result, "cuMemHostAlloc", "%zu bytes", FRAMES * 2 * sizeof *words);
    }
    tb_bus_options bus_options = {.size = sizeof bus_options};
    tb_reader_options options = {.size = sizeof options,
                                 .wait_ns = TB_SECONDS(20),
                                 .every = 1,
                                 .start_next = 1,
                                 .max_leases = ORDER_SLOTS,
                                 .stream_ordered = 1};
    TB__TRY(tb_bus_open(&bus_options, &bus));
    TB__TRY(tb_reader_open(bus, "order/p", &options, &reader));
    tb__side_reply(side, 1);
    while (tb__side_wait(side) != TB__SIDE_STOP) {
        TB__TRY(copies_alone(stream, words, &shared->copies_cpu_us[runs]));
        tb__side_reply(side, 1);
        tb__side_wait(side);
        double before_ms = tb__cpu_ms();
        TB__TRY(read_frames(reader, stream, words));
        shared->consumer_end_ns = tb__now_ns();
        shared->consumer_us[runs] =
            (tb__cpu_ms() - before_ms) * 1e3 / FRAMES - shared->copies_cpu_us[runs];
        runs++;
        for (uint32_t i = 0; i < FRAMES; i++) {
            shared->wrong += words[2 * i] != i + 1 || words[2 * i + 1] != i + 1;
        }
        tb__side_reply(side, 1);
    }
    tb_bus_close(bus);
    return TB_OK;
}

static const struct tb__bench_row order_rows[] = {
    {"gpu/order/64MiB", "us", &order_text},
    {"gpu/order/cpu/producer", "us", &cpu_text},
    {"gpu/order/cpu/consumer", "us", &cpu_text},
};

static void order_report(struct tb__bench *bench, const struct order *shared, int blocks)
{
    struct tb__figure fill;
    struct tb__figure frame;
    struct tb__figure producer;
    struct tb__figure consumer;
    tb__figure_of(shared->fill_us, blocks, &fill);
    tb__figure_of(shared->frame_us, blocks, &frame);
    tb__figure_of(shared->producer_us, blocks, &producer);
    tb__figure_of(shared->consumer_us, blocks, &consumer);
    tb__bench_report(bench, order_rows[0].name, &frame, fill.value,
                     "%d frames a block, all right at both ends", FRAMES);
    tb__bench_report(bench, order_rows[1].name, &producer, NAN,
                     "loan, publish, and waiting for slots");
    tb__bench_report(bench, order_rows[2].name, &consumer, NAN,
                     "take, wait, release, and sleeping between frames");
}

static tb_status order_measure(struct tb__bench *bench, struct tb__side sides[2],
                               struct order *shared)
{
    int blocks = tb__bench_blocks(bench, 7);
    tb__side_main *const mains[] = {order_producer, order_consumer};
    for (int i = 0; i < 2; i++) {
        TB__TRY(tb__side_start(&sides[i], i == 0 ? "producer" : "consumer", -1, mains[i], shared));
    }
    for (int i = 0; i < 2; i++) {
        TB__TRY(tb__side_answer(&sides[i], NULL));
    }
    for (int block = 0; block < blocks; block++) {
        TB__TRY(tb__side_command(&sides[0], ORDER_FILL));
        TB__TRY(tb__side_answer(&sides[0], NULL));
        TB__TRY(tb__side_command(&sides[1], ORDER_FILL));
        TB__TRY(tb__side_answer(&sides[1], NULL));
        TB__TRY(tb__side_command(&sides[1], ORDER_FRAMES));
        TB__TRY(tb__side_command(&sides[0], ORDER_FRAMES));
        TB__TRY(tb__side_answer(&sides[0], NULL));
        TB__TRY(tb__side_answer(&sides[1], NULL));
        int64_t end_ns = shared->producer_end_ns > shared->consumer_end_ns
                             ? shared->producer_end_ns
                             : shared->consumer_end_ns;
        shared->frame_us[block] = (double)(end_ns - shared->begun_ns) / 1e3 / FRAMES;
    }
    if (shared->wrong != 0) {
        return TB__FAIL(TB_E_CORRUPT, "%llu frames were wrong", (unsigned long long)shared->wrong);
    }
    order_report(bench, shared, blocks);
    return TB_OK;
}

static tb_status order_run(struct tb__bench *bench)
{
    struct tb__side sides[2] = {{0}, {0}};
    struct order *shared = tb__shared_map(sizeof *shared);
    if (shared == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory");
    }
    tb_status status = order_measure(bench, sides, shared);
    tb__side_stop(&sides[1]);
    tb__side_stop(&sides[0]);
    tb__shared_unmap(shared, sizeof *shared);
    return status;
}

const struct tb__bench_group tb__group_gpu_order = {order_rows, 3, order_run};

/* A producer that fills frames while a consumer reads them on one GPU, with neither CPU waiting: in
 * what time, and at what cost for the processors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "bench/gpu.h"
#include "bench/processes.h"
#include "bench/rows.h"

#define MIB (INT64_C(1) << 20)
#define FILLED 4 /* slots that are filled without frames */
#define FRAMES 200
#define ORDER_SLOTS 16 /* a writer that has to wait sleeps once for several frames */
#define FRAME_BYTES (64 * MIB)

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
    "alone: the fills, the copies of words; the note splits a further run up, in which the thread "
    "that works with frames looks at its CPU time after each step",
    "none",
};

/* CPU time of the steps of one process, and how often it slept or was woken, per frame. */
#define STEPS 4
struct steps {
    double us[STEPS];
    double sleeps;
    double wakeups;
};

/* What is due to the step that a thread has done. Nothing is measured without `steps`. */
struct lap {
    struct steps *steps;
    int64_t last_ns;
};

static int64_t thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static struct lap lap_begin(struct steps *steps)
{
    return (struct lap){steps, steps != NULL ? thread_cpu_ns() : 0};
}

static void lap_end(struct lap *lap, int step)
{
    if (lap->steps != NULL) {
        int64_t now_ns = thread_cpu_ns();
        lap->steps->us[step] += (double)(now_ns - lap->last_ns) / 1e3 / FRAMES;
        lap->last_ns = now_ns;
    }
}

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
    struct steps produced; /* loan, fill, publish, the end */
    struct steps consumed; /* take, wait, copy, release */
};

#define ORDER_FILL 1
#define ORDER_FRAMES 2
#define ORDER_STEPS 3

/* The slots' own memory, filled over and over. */
static tb_status fill_alone(tb_pool *pool, tb_cuda_stream stream, double *us, double *cpu_us)
{
    tb_loan *loans[FILLED];
    for (int i = 0; i < FILLED; i++) {
        TB__TRY(tb_pool_loan(pool, TB_SECONDS(5), &loans[i]));
    }
    TB__TRY(tb__gpu_stream_wait(stream));
    double before_ms = tb__cpu_ms();
    int64_t begun_ns = tb__now_ns();
    for (int i = 0; i < FRAMES; i++) {
        TB__TRY(tb__gpu_fill(tb_loan_tensor(loans[i % FILLED])->data, 7, FRAME_BYTES, stream));
    }
    TB__TRY(tb__gpu_stream_await(stream));
    *us = (double)(tb__now_ns() - begun_ns) / 1e3 / FRAMES;
    *cpu_us = (tb__cpu_ms() - before_ms) * 1e3 / FRAMES;
    for (int i = 0; i < FILLED; i++) {
        tb_loan_cancel(loans[i]);
    }
    return TB_OK;
}

static tb_status fill_frames(tb_pool *pool, tb_cuda_stream stream, struct steps *steps)
{
    struct lap lap = lap_begin(steps);
    for (uint32_t i = 1; i <= FRAMES; i++) {
        tb_loan *loan;
        TB__TRY(tb_pool_loan(pool, TB_SECONDS(5), &loan));
        lap_end(&lap, 0);
        TB__TRY(tb__gpu_fill(tb_loan_tensor(loan)->data, i, FRAME_BYTES, stream));
        lap_end(&lap, 1);
        TB__TRY(tb_loan_publish_on(loan, stream, NULL));
        lap_end(&lap, 2);
    }
    tb_status status = tb__gpu_stream_await(stream);
    lap_end(&lap, 3);
    return status;
}

static tb_status fill_in_steps(tb_pool *pool, tb_cuda_stream stream, struct steps *steps)
{
    tb_pool_stats before = {.size = sizeof before};
    tb_pool_stats after = {.size = sizeof after};
    TB__TRY(tb_pool_get_stats(pool, &before));
    TB__TRY(fill_frames(pool, stream, steps));
    TB__TRY(tb_pool_get_stats(pool, &after));
    steps->sleeps = (double)(after.waits - before.waits) / FRAMES;
    steps->wakeups = (double)(after.wakeups - before.wakeups) / FRAMES;
    return TB_OK;
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
        } else if (command == ORDER_STEPS) {
            TB__TRY(fill_in_steps(pool, stream, &shared->produced));
        } else {
            double before_ms = tb__cpu_ms();
            shared->begun_ns = tb__now_ns();
            TB__TRY(fill_frames(pool, stream, NULL));
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

static tb_status read_frames(tb_reader *reader, tb_cuda_stream stream, uint32_t *words,
                             struct steps *steps)
{
    struct lap lap = lap_begin(steps);
    for (uint32_t i = 0; i < FRAMES; i++) {
        tb_frame *frame;
        tb_status status = tb_reader_next(reader, TB_SECONDS(10), &frame);
        if (status != TB_OK) {
            return status > 0 ? TB__FAIL(TB_E_SYSTEM, "frame %u did not come", i) : status;
        }
        lap_end(&lap, 0);
        uint64_t data = (uint64_t)(uintptr_t)tb_frame_tensor(frame)->data;
        TB__TRY(tb_frame_wait_on(frame, stream));
        lap_end(&lap, 1);
        TB__TRY(copy_word(&words[2 * i], data, stream));
        TB__TRY(copy_word(&words[2 * i + 1], data + FRAME_BYTES - 4, stream));
        lap_end(&lap, 2);
        TB__TRY(tb_frame_release_on(frame, stream));
        lap_end(&lap, 3);
    }
    return tb__gpu_stream_await(stream);
}

static tb_status read_in_steps(tb_reader *reader, tb_cuda_stream stream, uint32_t *words,
                               struct steps *steps)
{
    tb_reader_stats before = {.size = sizeof before};
    tb_reader_stats after = {.size = sizeof after};
    TB__TRY(tb_reader_get_stats(reader, &before));
    TB__TRY(read_frames(reader, stream, words, steps));
    TB__TRY(tb_reader_get_stats(reader, &after));
    steps->sleeps = (double)(after.waits - before.waits) / FRAMES;
    return TB_OK;
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
    uint64_t command;
    while ((command = tb__side_wait(side)) != TB__SIDE_STOP) {
        if (command == ORDER_STEPS) {
            TB__TRY(read_in_steps(reader, stream, words, &shared->consumed));
            tb__side_reply(side, 1);
            continue;
        }
        TB__TRY(copies_alone(stream, words, &shared->copies_cpu_us[runs]));
        tb__side_reply(side, 1);
        tb__side_wait(side);
        double before_ms = tb__cpu_ms();
        TB__TRY(read_frames(reader, stream, words, NULL));
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
    const struct steps *produced = &shared->produced;
    const struct steps *consumed = &shared->consumed;
    tb__bench_report(bench, order_rows[1].name, &producer, NAN,
                     "loan %.1f, fill %.1f, publish %.1f us, end %.1f; waits %.2f, wakes %.2f",
                     produced->us[0], produced->us[1], produced->us[2], produced->us[3],
                     produced->sleeps, produced->wakeups);
    tb__bench_report(bench, order_rows[2].name, &consumer, NAN,
                     "take %.1f, wait %.1f, copy %.1f, release %.1f us; sleeps %.2f",
                     consumed->us[0], consumed->us[1], consumed->us[2], consumed->us[3],
                     consumed->sleeps);
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
    for (int i = 1; i >= 0; i--) {
        TB__TRY(tb__side_command(&sides[i], ORDER_STEPS));
    }
    for (int i = 0; i < 2; i++) {
        TB__TRY(tb__side_answer(&sides[i], NULL));
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

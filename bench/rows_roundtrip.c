/* Rows of the filled round trip: both sides write a whole frame for each that they get; ours over
 * the same loop on bare shared memory. */
#include "bench/rows.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "bench/processes.h"
#include "bench/ticks.h"
#include "bench/ways.h"

#define SLOTS 4
#define MAX_TRIPS 4096

static const struct tb__bench_text spinning_text = {
    .does =
        "Two processes on different cores, each with a pool of 4 slots that the other reads, both "
        "spinning (reader option spin_us). One writes a frame with tb_pool_write(), the other "
        "takes it and writes one back. summed: each frame is also summed by its receiver. "
        "Alternates with the same loop on bare shared memory: same copies, same slots, a word that "
        "is spun on.",
    .interval = "The round trip: from just before the write to the answer being held (and summed).",
    .floor = "The bare loop in the same run.",
};
static const struct tb__bench_text blocking_text = {
    .does =
        "As roundtrip/spinning, but both sides sleep while they wait: in tb_reader_next() with "
        "spin_us = 0, and in the bare loop in FUTEX_WAIT. A gap of 1 ms lies between round trips.",
    .interval = "The round trip: from just before the write to the answer being held (and summed).",
    .floor = "The bare loop in the same run.",
};
static const struct tb__bench_row rows[] = {
    {"roundtrip/spinning/6.2MB/filled", "us", &spinning_text},
    {"roundtrip/spinning/6.2MB/summed", "us", &spinning_text},
    {"roundtrip/blocking/6.2MB/filled", "us", &blocking_text},
    {"roundtrip/spinning/4K/filled", "us", &spinning_text},
    {"roundtrip/spinning/4K/summed", "us", &spinning_text},
};
static const struct {
    int64_t bytes;
    int blocking;
    int summed;
} kinds[] = {
    {6220800, 0, 0}, {6220800, 0, 1}, {6220800, 1, 0}, {24883200, 0, 0}, {24883200, 0, 1},
};
#define KIND_COUNT ((int)(sizeof kinds / sizeof kinds[0]))

/* Words of the bare loop, one line each, and the results. */
struct trip_shm {
    _Alignas(64) _Atomic uint32_t words[2][16]; /* [side][0]: frames that the side has sent */
    double trip_ns[MAX_TRIPS];
    uint64_t sum; /* so that no compiler leaves the summing out */
};

struct trip {
    const char *names[2]; /* endpoints of both sides; NULL: bare */
    size_t bytes;
    int blocking;
    int summed;
    struct trip_shm *shm;
    uint8_t *rings[2]; /* bare: what each side writes into */
    size_t stride_bytes;
    struct tb__side sides[2];
    struct tb__series series;
    /* Of the side's own process. */
    int self;
    uint8_t *source;
    uint32_t sent;
    uint32_t seen;
    tb_bus *bus;
    tb_pool *pool;
    tb_reader *reader;
};

static uint64_t sum_words(const void *data, size_t bytes)
{
    const uint64_t *words = data;
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / 8; i++) {
        sum += words[i];
    }
    return sum;
}

static tb_status bare_send(struct trip *t)
{
    _Atomic uint32_t *word = &t->shm->words[t->self][0];
    uint8_t *slot = t->rings[t->self] + t->sent++ % SLOTS * t->stride_bytes;
    tb__copy_store(slot, t->source, t->bytes, t->bytes * SLOTS);
    atomic_fetch_add_explicit(word, 1, memory_order_release);
    if (t->blocking) {
        syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    return TB_OK;
}

static tb_status bare_receive(struct trip *t)
{
    _Atomic uint32_t *word = &t->shm->words[!t->self][0];
    int64_t deadline = tb__deadline_ns(TB_SECONDS(5));
    for (uint64_t i = 1; atomic_load_explicit(word, memory_order_acquire) == t->seen; i++) {
        if (t->blocking) {
            struct timespec limit = tb__timespec(TB_SECONDS(1));
            syscall(SYS_futex, word, FUTEX_WAIT, t->seen, &limit, NULL, 0);
        }
        if ((t->blocking || (i & 0xfffff) == 0) && tb__left_ns(deadline) == 0) {
            return TB__FAIL(TB_AGAIN, "the other side does not answer");
        }
    }
    if (t->summed) {
        uint8_t *slot = t->rings[!t->self] + t->seen % SLOTS * t->stride_bytes;
        t->shm->sum = sum_words(slot, t->bytes);
    }
    t->seen++;
    return TB_OK;
}

static tb_status our_send(struct trip *t)
{
    tb_tensor tensor = {.data = t->source,
                        .device = TB_CPU,
                        .dtype = TB_U8,
                        .ndim = 1,
                        .shape = {(int64_t)t->bytes}};
    return tb_pool_write(t->pool, &tensor, TB_SECONDS(1), NULL);
}

static tb_status our_receive(struct trip *t)
{
    tb_frame *frame;
    tb_status status = tb_reader_next(t->reader, TB_SECONDS(5), &frame);
    if (status != TB_OK) {
        return status == TB_AGAIN ? TB__FAIL(TB_AGAIN, "the other side does not answer") : status;
    }
    if (t->summed) {
        t->shm->sum = sum_words(tb_frame_tensor(frame)->data, t->bytes);
    }
    tb_frame_release(frame);
    return TB_OK;
}

static tb_status send_one(struct trip *t)
{
    return t->names[0] != NULL ? our_send(t) : bare_send(t);
}

static tb_status receive_one(struct trip *t)
{
    return t->names[0] != NULL ? our_receive(t) : bare_receive(t);
}

static tb_status ping_block(struct trip *t, uint32_t trips)
{
    for (uint32_t i = 0; i < trips; i++) {
        if (t->blocking) {
            struct timespec gap = tb__timespec(1000000);
            clock_nanosleep(CLOCK_MONOTONIC, 0, &gap, NULL);
        }
        uint64_t start = tb__ticks();
        TB__TRY(send_one(t));
        TB__TRY(receive_one(t));
        t->shm->trip_ns[i] = tb__ticks_to_ns(start, tb__ticks());
    }
    return TB_OK;
}

static tb_status pong_block(struct trip *t, uint32_t trips)
{
    for (uint32_t i = 0; i < trips; i++) {
        TB__TRY(receive_one(t));
        TB__TRY(send_one(t));
    }
    return TB_OK;
}

/* Either side. The pools are registered first; the readers are opened at the first command, when
 * both pools exist. */
static tb_status trip_main(struct tb__side *side, void *argument)
{
    struct trip *t = argument;
    uint64_t trips;
    t->self = side == &t->sides[1];
    t->source = aligned_alloc(4096, t->stride_bytes);
    if (t->source == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a frame");
    }
    memset(t->source, t->self + 1, t->stride_bytes);
    if (t->names[0] != NULL) {
        TB__TRY(tb__way_register(t->names[t->self], TB_CPU, (int64_t)t->bytes, SLOTS, &t->bus,
                                 &t->pool));
    }
    tb__side_reply(side, 1);
    while ((trips = tb__side_wait(side)) != TB__SIDE_STOP) {
        if (t->names[0] != NULL && t->reader == NULL) {
            TB__TRY(
                tb__way_attach(t->names[!t->self], t->blocking ? 0 : 1000000, &t->bus, &t->reader));
            tb__side_reply(side, 1);
            continue;
        }
        TB__TRY(t->self ? pong_block(t, (uint32_t)trips) : ping_block(t, (uint32_t)trips));
        tb__side_reply(side, 1);
    }
    tb_reader_close(t->reader);
    tb_pool_close(t->pool);
    tb_bus_close(t->bus);
    return TB_OK;
}

static tb_status trip_start(struct trip *t, const int cpus[2], size_t samples)
{
    t->stride_bytes = (t->bytes + 4095) & ~(size_t)4095;
    TB__TRY(tb__series_init(&t->series, samples));
    t->shm = tb__shared_map(sizeof *t->shm);
    for (int i = 0; i < 2 && t->names[0] == NULL; i++) {
        t->rings[i] = tb__shared_map(t->stride_bytes * SLOTS);
    }
    if (t->shm == NULL || (t->names[0] == NULL && (t->rings[0] == NULL || t->rings[1] == NULL))) {
        return TB__FAIL(TB_E_NOMEM, "no shared memory for the round trip");
    }
    for (int i = 0; i < 2; i++) {
        TB__TRY(tb__side_start(&t->sides[i], i ? "pong" : "ping", cpus[i], trip_main, t));
        TB__TRY(tb__side_answer(&t->sides[i], NULL));
    }
    for (int i = 0; i < 2 && t->names[0] != NULL; i++) {
        TB__TRY(tb__side_command(&t->sides[i], 1));
        TB__TRY(tb__side_answer(&t->sides[i], NULL));
    }
    return TB_OK;
}

static tb_status trip_block(struct trip *t, uint32_t trips)
{
    for (int i = 1; i >= 0; i--) {
        TB__TRY(tb__side_command(&t->sides[i], trips));
    }
    for (int i = 0; i < 2; i++) {
        TB__TRY(tb__side_answer(&t->sides[i], NULL));
    }
    for (uint32_t i = 0; i < trips; i++) {
        TB__TRY(tb__series_add(&t->series, t->shm->trip_ns[i]));
    }
    tb__series_end_block(&t->series);
    return TB_OK;
}

static void trip_fini(struct trip *t)
{
    tb__side_stop(&t->sides[1]);
    tb__side_stop(&t->sides[0]);
    tb__series_fini(&t->series);
    tb__shared_unmap(t->shm, sizeof *t->shm);
    for (int i = 0; i < 2; i++) {
        tb__shared_unmap(t->rings[i], t->stride_bytes * SLOTS);
    }
}

static tb_status measure(struct trip t[2], int blocks, uint32_t trips)
{
    int cpus[2];
    TB__TRY(tb__two_cpus(&cpus[0], &cpus[1]));
    for (int i = 0; i < 2; i++) {
        TB__TRY(trip_start(&t[i], cpus, (size_t)blocks * trips));
    }
    for (int block = 0; block < blocks; block++) {
        for (int i = 0; i < 2; i++) {
            TB__TRY(trip_block(&t[i], trips));
        }
    }
    return TB_OK;
}

static tb_status run_kind(struct tb__bench *bench, int kind)
{
    struct trip t[2] = {{.names = {NULL, NULL}}, {.names = {"ping", "pong"}}};
    uint32_t trips = kinds[kind].bytes > 10000000 ? 40 : 150;
    struct tb__figure bare, ours;
    for (int i = 0; i < 2; i++) {
        t[i].bytes = (size_t)kinds[kind].bytes;
        t[i].blocking = kinds[kind].blocking;
        t[i].summed = kinds[kind].summed;
    }
    trips = tb__bench_quick(bench) ? trips / 2 : trips;
    tb_status status = measure(t, tb__bench_blocks(bench, 9), trips);
    if (status == TB_OK) {
        status = tb__series_blocks(&t[0].series, 0.5, 1e-3, &bare);
    }
    if (status == TB_OK) {
        status = tb__series_blocks(&t[1].series, 0.5, 1e-3, &ours);
    }
    if (status == TB_OK) {
        struct tb__figure tail;
        status = tb__series_pooled(&t[1].series, 0.99, 1e-3, &tail);
        tb__bench_report(bench, rows[kind].name, &ours, bare.value, "p99 %.0f us, %d slots each",
                         tail.value, SLOTS);
    }
    trip_fini(&t[0]);
    trip_fini(&t[1]);
    return status;
}

static tb_status roundtrip_run(struct tb__bench *bench)
{
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        if (tb__bench_wants(bench, rows[kind].name)) {
            TB__TRY(run_kind(bench, kind));
        }
    }
    return TB_OK;
}

const struct tb__bench_group tb__group_roundtrip = {rows, sizeof rows / sizeof rows[0],
                                                    roundtrip_run};

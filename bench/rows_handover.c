/* Rows of the one-way hand-over: asleep, spinning, and large against small frames. */
#include "bench/rows.h"

#include <math.h>

#include "bench/handover.h"

static const struct tb__bench_text futex_text = {
    .does = "Two processes on different cores. The sender sleeps at least 1.05 ms, then adds to a "
            "shared word and calls FUTEX_WAKE; the receiver sleeps in FUTEX_WAIT. No library of "
            "ours.",
    .interval = "One way: from just before the store to the receiver having read the new word.",
    .floor =
        "This is the floor: the kernel's cost of waking a sleeping process on another core, on a "
        "virtual machine mostly the exit from its idle state.",
};
static const struct tb__bench_text blocking_text = {
    .does = "Two processes on different cores. The sender sleeps at least 1.05 ms, borrows a slot, "
            "then publishes it untouched; the reader sleeps in tb_reader_next() with spin_us = 0. "
            "Alternates in blocks with floor/futex.",
    .interval =
        "One way: from just before tb_loan_publish() to tb_reader_next() having returned the "
        "leased frame.",
    .floor = "The same percentile of floor/futex in the same run.",
};
static const struct tb__bench_text word_text = {
    .does = "Two processes on different cores. The sender adds to a shared word every 2 us; the "
            "receiver spins on it. No library of ours.",
    .interval = "One way: from just before the store to the receiver having read the new word.",
    .floor = "This is the floor: one cache line moving from core to core, and reading the clock.",
};
static const struct tb__bench_text spinning_text = {
    .does = "Two processes on different cores. The sender borrows a slot and publishes it "
            "untouched every "
            "2 us; the reader waits in tb_reader_next() with spin_us = 1,000,000. Alternates with "
            "floor/spin.",
    .interval =
        "One way: from just before tb_loan_publish() to tb_reader_next() having returned the "
        "leased frame.",
    .floor = "The same percentile of floor/spin in the same run. Needs two free cores.",
};
static const struct tb__bench_text polling_text = {
    .does = "As handover/spinning, but the reader calls tb_reader_next() with timeout 0 in a loop.",
    .interval =
        "One way: from just before tb_loan_publish() to tb_reader_next() having returned the "
        "leased frame.",
    .floor = "The same percentile of floor/spin in the same run. Needs two free cores.",
};
static const struct tb__bench_text size_text = {
    .does = "As handover/blocking, for a pool of 256 MiB frames and one of 8 byte frames, "
            "alternating in "
            "blocks; the payload is not touched by either side.",
    .interval =
        "One way: from just before tb_loan_publish() to tb_reader_next() having returned the "
        "leased frame.",
    .floor =
        "The median of the 8 byte frames in the same run: a hand-over must not depend on the size.",
};

static const struct tb__bench_row blocking_rows[] = {
    {"floor/futex/p50", "us", &futex_text},
    {"floor/futex/p99", "us", &futex_text},
    {"handover/blocking/p50", "us", &blocking_text},
    {"handover/blocking/p99", "us", &blocking_text},
};
static const struct tb__bench_row spinning_rows[] = {
    {"floor/spin/p50", "us", &word_text},
    {"floor/spin/p99", "us", &word_text},
    {"handover/spinning/p50", "us", &spinning_text},
    {"handover/spinning/p99", "us", &spinning_text},
    {"handover/polling/p50", "us", &polling_text},
    {"handover/polling/p99", "us", &polling_text},
};
static const struct tb__bench_row size_rows[] = {
    {"handover/256MiB-over-8B/p50", "us", &size_text},
};

/* Report p50 (median over blocks) and p99 (pooled), over those of a floor if there is one. */
static tb_status report_percentiles(struct tb__bench *bench, const char *const rows[2],
                                    const struct tb__handover *h, const struct tb__handover *floor)
{
    struct tb__figure figure, below = {.value = NAN};
    double slept = 100.0 * (double)h->slept / (double)h->series.count;
    for (int i = 0; i < 2; i++) {
        if (i == 0) {
            TB__TRY(tb__series_blocks(&h->series, 0.5, 1e-3, &figure));
        } else {
            TB__TRY(tb__series_pooled(&h->series, 0.99, 1e-3, &figure));
        }
        if (floor != NULL && i == 0) {
            TB__TRY(tb__series_blocks(&floor->series, 0.5, 1e-3, &below));
        } else if (floor != NULL) {
            TB__TRY(tb__series_pooled(&floor->series, 0.99, 1e-3, &below));
        }
        if (h->asleep) {
            tb__bench_report(bench, rows[i], &figure, below.value,
                             "%zu samples, %.1f %% of wake-ups slept", h->series.count, slept);
        } else {
            tb__bench_report(bench, rows[i], &figure, below.value, "%zu samples, %llu slept",
                             h->series.count, (unsigned long long)h->slept);
        }
    }
    return TB_OK;
}

/* Report p50 and p99 of all ways that were measured; the first is the floor and stands by itself.
 */
static tb_status report_ways(struct tb__bench *bench, const char *const (*rows)[2],
                             struct tb__handover *h, int count, tb_status status)
{
    for (int i = 0; i < count; i++) {
        if (h[i].status == TB_OK && h[i].series.count > 0) {
            const struct tb__handover *floor = i > 0 && h[0].status == TB_OK ? &h[0] : NULL;
            tb_status reported = report_percentiles(bench, rows[i], &h[i], floor);
            status = status == TB_OK ? reported : status;
        }
    }
    for (int i = 0; i < count; i++) {
        tb__handover_fini(&h[i]);
    }
    return status;
}

static tb_status blocking_run(struct tb__bench *bench)
{
    struct tb__handover h[2] = {
        {.way = {.name = "floor", .type = &tb__way_futex}, .asleep = 1},
        {.way = {.name = "blocking", .type = &tb__way_pool, .bytes = 6220800, .slots = 4},
         .asleep = 1},
    };
    struct tb__handover_plan plan = {
        .blocks = tb__bench_blocks(bench, 12),
        .samples = tb__bench_quick(bench) ? 200 : 350,
    };
    static const char *const rows[2][2] = {
        {"floor/futex/p50", "floor/futex/p99"},
        {"handover/blocking/p50", "handover/blocking/p99"},
    };
    tb_status status = tb__handover_measure(h, 2, &plan);
    return report_ways(bench, rows, h, 2, status);
}

static tb_status spinning_run(struct tb__bench *bench)
{
    struct tb__handover h[3] = {
        {.way = {.name = "floor", .type = &tb__way_word}},
        {.way = {.name = "spinning",
                 .type = &tb__way_pool,
                 .bytes = 6220800,
                 .slots = 4,
                 .spin_us = 1000000}},
        {.way = {.name = "polling", .type = &tb__way_poll, .bytes = 6220800, .slots = 4}},
    };
    struct tb__handover_plan plan = {
        .blocks = tb__bench_blocks(bench, 10),
        .samples = tb__bench_quick(bench) ? 5000 : 20000,
    };
    static const char *const rows[3][2] = {
        {"floor/spin/p50", "floor/spin/p99"},
        {"handover/spinning/p50", "handover/spinning/p99"},
        {"handover/polling/p50", "handover/polling/p99"},
    };
    tb_status status = tb__handover_measure(h, 3, &plan);
    return report_ways(bench, rows, h, 3, status);
}

static tb_status size_run(struct tb__bench *bench)
{
    struct tb__handover h[2] = {
        {.way = {.name = "small", .type = &tb__way_pool, .bytes = 8, .slots = 2}, .asleep = 1},
        {.way = {.name = "large", .type = &tb__way_pool, .bytes = INT64_C(256) << 20, .slots = 2},
         .asleep = 1},
    };
    struct tb__handover_plan plan = {
        .blocks = tb__bench_blocks(bench, 14),
        .samples = tb__bench_quick(bench) ? 150 : 300,
    };
    struct tb__figure small, large;
    tb_status status = tb__handover_measure(h, 2, &plan);
    if (status == TB_OK) {
        status = tb__series_blocks(&h[0].series, 0.5, 1e-3, &small);
    }
    if (status == TB_OK) {
        status = tb__series_blocks(&h[1].series, 0.5, 1e-3, &large);
    }
    if (status == TB_OK) {
        tb__bench_report(bench, size_rows[0].name, &large, small.value,
                         "untouched; %.1f %% of wake-ups slept",
                         100.0 * (double)(h[0].slept + h[1].slept) /
                             (double)(h[0].series.count + h[1].series.count));
    }
    tb__handover_fini(&h[0]);
    tb__handover_fini(&h[1]);
    return status;
}

const struct tb__bench_group tb__group_blocking = {
    blocking_rows, sizeof blocking_rows / sizeof blocking_rows[0], blocking_run};
const struct tb__bench_group tb__group_spinning = {
    spinning_rows, sizeof spinning_rows / sizeof spinning_rows[0], spinning_run};
const struct tb__bench_group tb__group_size = {size_rows, 1, size_run};

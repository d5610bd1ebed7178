/* Rows of what publishing costs for each reader that is attached and does nothing. */
#include "bench/rows.h"

#include <math.h>
#include <stdio.h>

#include "base/copy.h"
#include "bench/processes.h"
#include "bench/ticks.h"
#include "bench/ways.h"

#define SLOTS 4
#define FRAME_BYTES 6220800
#define TIGHT_BATCH 500

static const struct tb__bench_text tight_text = {
    .does =
        "One owner with four pools of 6.2 MB frames, read by 1, 8, 64 and 1,000 readers of another "
        "process: attached, holding nothing, not asleep on us. The owner borrows a slot and "
        "publishes it in a tight loop; the pools take turns block by block.",
    .interval =
        "tb_pool_loan() and tb_loan_publish() together, by batches of 500. For 8 and more readers "
        "the figure is (cost with n readers - cost with 1) / (n - 1).",
    .floor = "Reading one cache line per reader from the owner's own cache: 1 to 2 ns.",
};
static const struct tb__bench_text written_text = {
    .does = "As publish/tight, with 6.2 MB written into the slot between loan and publish, which "
            "evicts the readers' pages from the near caches.",
    .interval =
        "tb_pool_loan() plus tb_loan_publish(), without the writing. For 8 and more readers the "
        "figure is (cost with n readers - cost with 1) / (n - 1).",
    .floor = "Reading one cache line per reader from the last-level cache or memory: 5 to 15 ns.",
};

static const struct tb__bench_row rows[] = {
    {"publish/tight/1", "ns", &tight_text},      {"publish/tight/8", "ns", &tight_text},
    {"publish/tight/64", "ns", &tight_text},     {"publish/tight/1000", "ns", &tight_text},
    {"publish/written/1", "ns", &written_text},  {"publish/written/8", "ns", &written_text},
    {"publish/written/64", "ns", &written_text}, {"publish/written/1000", "ns", &written_text},
};
static const int reader_counts[] = {1, 8, 64, 1000};
#define POOLS 4

struct publish_job {
    uint32_t samples;  /* per block */
    double *sample_ns; /* shared */
};

static void pool_name(int index, char name[32])
{
    snprintf(name, 32, "publisher-%d", reader_counts[index]);
}

/* The process of the readers: opens all, then sleeps on its pipe. */
static tb_status readers_main(struct tb__side *side, void *argument)
{
    tb_bus *bus = NULL;
    (void)argument;
    tb__raise_descriptors();
    for (int i = 0; i < POOLS; i++) {
        char name[32];
        pool_name(i, name);
        for (int r = 0; r < reader_counts[i]; r++) {
            tb_reader *reader;
            TB__TRY(tb__way_attach(name, 0, &bus, &reader));
        }
    }
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_bus_close(bus); /* closes the readers too */
    return TB_OK;
}

static tb_status tight_samples(tb_pool *pool, const struct publish_job *job)
{
    for (uint32_t i = 0; i < job->samples; i++) {
        uint64_t start = tb__ticks();
        for (int n = 0; n < TIGHT_BATCH; n++) {
            tb_loan *loan;
            TB__TRY(tb_pool_loan(pool, TB_POLL, &loan));
            TB__TRY(tb_loan_publish(loan, NULL));
        }
        job->sample_ns[i] = tb__ticks_to_ns(start, tb__ticks()) / TIGHT_BATCH;
    }
    return TB_OK;
}

static tb_status written_samples(tb_pool *pool, const struct publish_job *job, const void *source)
{
    for (uint32_t i = 0; i < job->samples; i++) {
        tb_loan *loan;
        uint64_t start = tb__ticks();
        TB__TRY(tb_pool_loan(pool, TB_POLL, &loan));
        double loan_ns = tb__ticks_to_ns(start, tb__ticks());
        tb__copy_store(tb_loan_tensor(loan)->data, source, FRAME_BYTES, SLOTS * FRAME_BYTES);
        start = tb__ticks();
        TB__TRY(tb_loan_publish(loan, NULL));
        job->sample_ns[i] = loan_ns + tb__ticks_to_ns(start, tb__ticks());
    }
    return TB_OK;
}

/* The owner: a command is 1 + pool, plus 16 for the rows with writing. Every pool has its own bus,
 * as if it were of its own process. */
static tb_status owner_main(struct tb__side *side, void *argument)
{
    struct publish_job *job = argument;
    tb_bus *buses[POOLS] = {NULL};
    tb_pool *pools[POOLS] = {NULL};
    static uint8_t source[FRAME_BYTES];
    uint64_t command;
    tb__raise_descriptors();
    for (int i = 0; i < POOLS; i++) {
        char name[32];
        pool_name(i, name);
        TB__TRY(tb__way_register(name, TB_CPU, FRAME_BYTES, SLOTS, &buses[i], &pools[i]));
    }
    tb__side_reply(side, 1);
    while ((command = tb__side_wait(side)) != TB__SIDE_STOP) {
        tb_pool *pool = pools[(command - 1) % 16];
        TB__TRY(command > 16 ? written_samples(pool, job, source) : tight_samples(pool, job));
        tb__side_reply(side, 1);
    }
    for (int i = 0; i < POOLS; i++) {
        tb_pool_close(pools[i]);
        tb_bus_close(buses[i]);
    }
    return TB_OK;
}

static tb_status measure(struct publish_job *job, struct tb__side *owner, struct tb__side *readers,
                         int blocks, double cost[2][POOLS][TB__BENCH_MAX_BLOCKS])
{
    int first, second;
    TB__TRY(tb__two_cpus(&first, &second));
    TB__TRY(tb__side_start(owner, "owner", second, owner_main, job));
    TB__TRY(tb__side_answer(owner, NULL));
    TB__TRY(tb__side_start(readers, "readers", first, readers_main, NULL));
    TB__TRY(tb__side_answer(readers, NULL));
    for (int block = 0; block < blocks; block++) {
        for (int written = 0; written < 2; written++) {
            for (int i = 0; i < POOLS; i++) {
                TB__TRY(tb__side_command(owner, (uint64_t)(1 + i + 16 * written)));
                TB__TRY(tb__side_answer(owner, NULL));
                cost[written][i][block] = tb__percentile(job->sample_ns, job->samples, 0.5);
            }
        }
    }
    return TB_OK;
}

static void report(struct tb__bench *bench, int blocks, double cost[2][POOLS][TB__BENCH_MAX_BLOCKS])
{
    for (int written = 0; written < 2; written++) {
        for (int i = 0; i < POOLS; i++) {
            struct tb__figure whole, figure;
            double each[TB__BENCH_MAX_BLOCKS];
            tb__figure_of(cost[written][i], blocks, &whole);
            figure = whole;
            if (i > 0) {
                for (int block = 0; block < blocks; block++) {
                    each[block] = (cost[written][i][block] - cost[written][0][block]) /
                                  (reader_counts[i] - 1);
                }
                tb__figure_of(each, blocks, &figure);
            }
            tb__bench_report(bench, rows[written * POOLS + i].name, &figure, NAN,
                             i > 0 ? "per extra reader; loan + publish with %d: %.0f ns"
                                   : "loan + publish with %d reader: %.0f ns",
                             reader_counts[i], whole.value);
        }
    }
}

static tb_status publish_run(struct tb__bench *bench)
{
    static double cost[2][POOLS][TB__BENCH_MAX_BLOCKS];
    struct tb__side owner = {0}, readers = {0};
    int blocks = tb__bench_blocks(bench, 9);
    struct publish_job job = {.samples = tb__bench_quick(bench) ? 60 : 150};
    size_t bytes = job.samples * sizeof(double);
    job.sample_ns = tb__shared_map(bytes);
    if (job.sample_ns == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no shared memory");
    }
    tb_status status = measure(&job, &owner, &readers, blocks, cost);
    tb__side_stop(&readers);
    tb__side_stop(&owner);
    tb__shared_unmap(job.sample_ns, bytes);
    if (status == TB_OK) {
        report(bench, blocks, cost);
    }
    return status;
}

const struct tb__bench_group tb__group_publish = {rows, sizeof rows / sizeof rows[0], publish_run};

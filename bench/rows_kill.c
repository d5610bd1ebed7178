/* Rows of how soon a killed process is noticed and its slots are free, whatever its size. */
#include "bench/rows.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/machine.h"
#include "bench/processes.h"
#include "bench/ways.h"

#define SLOTS 4
#define FRAME_BYTES 1048576
#define LEASES 3 /* all slots but the one that the owner may always write */

static const struct tb__bench_text known_text = {
    .does = "A reader process with so much private memory resident holds leases on all slots but "
            "one and is killed with SIGKILL. The owner looks at tb_pool_get_stats() every 50 us.",
    .interval = "From just before kill() to the owner's count of readers having dropped to 0.",
    .floor =
        "The kernel marks a robust futex word 0.1 to 0.5 ms after SIGKILL at any size; the socket "
        "hangs up only when the memory is gone, about 70 ms per GiB.",
};
static const struct tb__bench_text slots_text = {
    .does = "A reader process with so much private memory resident holds leases on all slots but "
            "one and is killed with SIGKILL. The owner waits in tb_pool_loan() and takes slots "
            "until it has all that the dead one held.",
    .interval = "From just before kill() to the last of three loans having returned.",
    .floor =
        "As for kill/reader/known, plus 10 ms in which siblings of the dying thread may still run.",
};
static const struct tb__bench_text owner_text = {
    .does = "An owner process with so much private memory resident is killed with SIGKILL while it "
            "fills a loan. A reader sleeps in tb_reader_next() meanwhile.",
    .interval = "From just before kill() to tb_reader_next() having returned TB_E_OWNER_DIED.",
    .floor =
        "The kernel marks a robust futex word 0.1 to 0.5 ms after SIGKILL at any size; the socket "
        "hangs up only when the memory is gone, about 70 ms per GiB.",
};

#define SIZES 3
static const uint64_t resident_bytes[SIZES] = {UINT64_C(4) << 20, UINT64_C(256) << 20,
                                               UINT64_C(4) << 30};

enum trial { READER_KNOWN, READER_SLOTS, OWNER_KNOWN, TRIALS };

/* In the order of trials and sizes. */
static const struct tb__bench_row rows[TRIALS * SIZES] = {
    {"kill/reader/known/4MiB", "ms", &known_text},
    {"kill/reader/known/256MiB", "ms", &known_text},
    {"kill/reader/known/4GiB", "ms", &known_text},
    {"kill/reader/slots/4MiB", "ms", &slots_text},
    {"kill/reader/slots/256MiB", "ms", &slots_text},
    {"kill/reader/slots/4GiB", "ms", &slots_text},
    {"kill/owner/known/4MiB", "ms", &owner_text},
    {"kill/owner/known/256MiB", "ms", &owner_text},
    {"kill/owner/known/4GiB", "ms", &owner_text},
};

struct kill_job {
    enum trial trial;
    uint64_t resident;
    const char *name;
    int64_t *noticed_ns; /* shared: CLOCK_MONOTONIC */
};

/* Small pages, as most programs have: their number is what makes a process slow to die. */
static tb_status become_resident(uint64_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return TB__FAIL_ERRNO(TB_E_NOMEM, "cannot map %llu bytes", (unsigned long long)bytes);
    }
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    for (uint64_t at = 0; at < bytes; at += 4096) {
        *(volatile char *)(memory + at) = 1;
    }
    return TB_OK;
}

static tb_status owner_open(const struct kill_job *job, tb_bus **bus, tb_pool **pool)
{
    return tb__way_register(job->name, TB_CPU, FRAME_BYTES, SLOTS, bus, pool);
}

static tb_status publish_some(tb_pool *pool, int count)
{
    for (int i = 0; i < count; i++) {
        tb_loan *loan;
        TB__TRY(tb_pool_loan(pool, TB_SECONDS(1), &loan));
        TB__TRY(tb_loan_publish(loan, NULL));
    }
    return TB_OK;
}

/* Owner that watches a reader die: command 1 publishes what the reader takes, command 2 watches. */
static tb_status watching_owner_main(struct tb__side *side, void *argument)
{
    struct kill_job *job = argument;
    tb_bus *bus = NULL;
    tb_pool *pool = NULL;
    TB__TRY(owner_open(job, &bus, &pool));
    tb__side_reply(side, 1);
    tb__side_wait(side);
    TB__TRY(publish_some(pool, LEASES));
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb__side_reply(side, 1); /* from here on it looks */
    if (job->trial == READER_KNOWN) {
        tb_pool_stats stats = {.size = sizeof stats, .readers = 1};
        while (stats.readers > 0) {
            usleep(50);
            TB__TRY(tb_pool_get_stats(pool, &stats));
        }
    } else {
        tb_loan *loans[LEASES];
        for (int i = 0; i < LEASES; i++) {
            tb_status status = tb_pool_loan(pool, TB_SECONDS(20), &loans[i]);
            if (status != TB_OK) {
                return status == TB_AGAIN ? TB__FAIL(TB_AGAIN, "slots never came free") : status;
            }
        }
        *job->noticed_ns = tb__now_ns();
        for (int i = 0; i < LEASES; i++) {
            tb_loan_cancel(loans[i]);
        }
    }
    if (job->trial == READER_KNOWN) {
        *job->noticed_ns = tb__now_ns();
    }
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_pool_close(pool);
    tb_bus_close(bus);
    return TB_OK;
}

/* Reader that is killed while it holds frames. */
static tb_status dying_reader_main(struct tb__side *side, void *argument)
{
    struct kill_job *job = argument;
    tb_bus *bus = NULL;
    tb_reader *reader;
    TB__TRY(become_resident(job->resident));
    TB__TRY(tb__way_attach(job->name, 0, &bus, &reader));
    tb__side_reply(side, 1);
    tb__side_wait(side);
    for (int i = 0; i < LEASES; i++) {
        tb_frame *frame; /* held until the end */
        tb_status status = tb_reader_next(reader, TB_SECONDS(5), &frame);
        if (status != TB_OK) {
            return status == TB_AGAIN ? TB__FAIL(TB_AGAIN, "no frame to hold") : status;
        }
    }
    tb__side_reply(side, 1);
    for (;;) {
        pause();
    }
}

/* Owner that is killed while it fills a slot. */
static tb_status dying_owner_main(struct tb__side *side, void *argument)
{
    struct kill_job *job = argument;
    tb_bus *bus = NULL;
    tb_pool *pool = NULL;
    tb_loan *loan;
    TB__TRY(become_resident(job->resident));
    TB__TRY(owner_open(job, &bus, &pool));
    TB__TRY(tb_pool_loan(pool, TB_SECONDS(1), &loan));
    tb__side_reply(side, 1);
    for (;;) {
        pause();
    }
}

/* Reader that watches its owner die. */
static tb_status watching_reader_main(struct tb__side *side, void *argument)
{
    struct kill_job *job = argument;
    tb_bus *bus = NULL;
    tb_reader *reader;
    tb_frame *frame;
    TB__TRY(tb__way_attach(job->name, 0, &bus, &reader));
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb__side_reply(side, 1);
    tb_status status = tb_reader_next(reader, TB_SECONDS(20), &frame);
    *job->noticed_ns = tb__now_ns();
    if (status != TB_E_OWNER_DIED) {
        return TB__FAIL(TB_E_SYSTEM, "expected TB_E_OWNER_DIED, got %s", tb_status_name(status));
    }
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_reader_close(reader);
    tb_bus_close(bus);
    return TB_OK;
}

/* Start both, bring them to the point, kill one, hear from the other. */
static tb_status trial_steps(struct kill_job *job, struct tb__side *owner, struct tb__side *reader,
                             double *ms)
{
    int reader_dies = job->trial != OWNER_KNOWN;
    struct tb__side *victim = reader_dies ? reader : owner;
    struct tb__side *watcher = reader_dies ? owner : reader;
    TB__TRY(tb__side_start(owner, "owner", -1, reader_dies ? watching_owner_main : dying_owner_main,
                           job));
    TB__TRY(tb__side_answer(owner, NULL));
    TB__TRY(tb__side_start(reader, "reader", -1,
                           reader_dies ? dying_reader_main : watching_reader_main, job));
    TB__TRY(tb__side_answer(reader, NULL));
    if (reader_dies) {
        TB__TRY(tb__side_command(owner, 1));
        TB__TRY(tb__side_answer(owner, NULL));
        TB__TRY(tb__side_command(reader, 1));
        TB__TRY(tb__side_answer(reader, NULL));
    }
    TB__TRY(tb__side_command(watcher, 2));
    TB__TRY(tb__side_answer(watcher, NULL));
    usleep(20000); /* the watcher has gone to sleep */
    int64_t start = tb__now_ns();
    tb__side_kill(victim);
    TB__TRY(tb__side_answer(watcher, NULL));
    *ms = (double)(*job->noticed_ns - start) / 1e6;
    return TB_OK;
}

static tb_status run_trial(struct kill_job *job, double *ms)
{
    static int serial;
    char name[32];
    struct tb__side owner = {0}, reader = {0};
    snprintf(name, sizeof name, "killed-%d", serial++);
    job->name = name;
    tb_status status = trial_steps(job, &owner, &reader, ms);
    if (job->trial != OWNER_KNOWN) {
        tb__side_kill(&reader);
    } else {
        tb__side_kill(&owner);
    }
    tb__side_stop(&reader);
    tb__side_stop(&owner);
    return status;
}

static tb_status run_size(struct tb__bench *bench, int size, int64_t *noticed_ns)
{
    double ms[TRIALS][TB__BENCH_MAX_BLOCKS];
    int blocks = size == 2 ? 5 : tb__bench_blocks(bench, 9);
    if (size == 2 && tb__bench_quick(bench)) {
        blocks = 1; /* touching 4 GiB is slow; a single trial is printed as such */
    }
    for (int block = 0; block < blocks; block++) {
        for (int trial = 0; trial < TRIALS; trial++) {
            struct kill_job job = {(enum trial)trial, resident_bytes[size], NULL, noticed_ns};
            if (tb__bench_wants(bench, rows[trial * SIZES + size].name)) {
                TB__TRY(run_trial(&job, &ms[trial][block]));
            }
        }
    }
    for (int trial = 0; trial < TRIALS; trial++) {
        const char *name = rows[trial * SIZES + size].name;
        if (tb__bench_wants(bench, name)) {
            struct tb__figure figure;
            tb__figure_of(ms[trial], blocks, &figure);
            tb__bench_report(bench, name, &figure, NAN, "%d kills, slowest %.2f ms", blocks,
                             figure.max);
        }
    }
    return TB_OK;
}

static tb_status kill_run(struct tb__bench *bench)
{
    tb_status status = TB_OK;
    int64_t *noticed_ns = tb__shared_map(sizeof *noticed_ns);
    if (noticed_ns == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no shared memory");
    }
    for (int size = 0; size < SIZES && status == TB_OK; size++) {
        uint64_t available = tb__machine_available_bytes();
        if (available < resident_bytes[size] / 2 * 3) {
            status = TB__FAIL(TB_E_NOMEM, "%llu MiB of memory are free: not enough for this victim",
                              (unsigned long long)(available >> 20));
        } else {
            status = run_size(bench, size, noticed_ns);
        }
    }
    tb__shared_unmap(noticed_ns, sizeof *noticed_ns);
    return status;
}

const struct tb__bench_group tb__group_kill = {rows, sizeof rows / sizeof rows[0], kill_run};

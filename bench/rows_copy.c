/* Rows of copying: the floors (each kind of store, hot and cold, by size), and tb_pool_write() over
 * the best of them. All in one process, alternating in blocks. */
#include "bench/rows.h"

#include <math.h>
#include <stdio.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "bench/copies.h"
#include "bench/machine.h"
#include "bench/processes.h"
#include "bench/ways.h"

static const struct tb__bench_text copy_text = {
    .does =
        "One process copies a private buffer, the same each time, into the next slot of a ring in "
        "a memfd. hot: the ring fits the last-level cache; cold: it is four times as large. plain "
        "is glibc's memcpy, streaming uses non-temporal stores and sfence, rep is rep movsb.",
    .interval = "Copies of about 30 ms per block, after one round of the ring to settle the "
                "caches. Each block has a ring of its own.",
    .floor = "This is a floor: what moving that many bytes costs here.",
};
static const struct tb__bench_text write_text = {
    .does = "tb_pool_write() of the same private buffer into a pool with the same number of slots, "
            "without readers, alternating in blocks with the three kinds of copies of the same "
            "size and cache state, in the same process, each block in new memory.",
    .interval =
        "From the call of tb_pool_write() to its return, about 30 ms per block, after one round "
        "of the ring.",
    .floor = "The fastest of the three copies in the same run: the largest of their medians.",
};

#define CELL_ROWS(CELL)                                                                            \
    {"copy/plain/" CELL, "GB/s", &copy_text}, {"copy/streaming/" CELL, "GB/s", &copy_text},        \
        {"copy/rep/" CELL, "GB/s", &copy_text},                                                    \
    {                                                                                              \
        "write/" CELL, "GB/s", &write_text                                                         \
    }

static const struct tb__cell cells[] = {
    {"hot/1MiB", (size_t)1 << 20, 1},      {"hot/6.2MB", 6220800, 1},
    {"cold/1MiB", (size_t)1 << 20, 0},     {"cold/6.2MB", 6220800, 0},
    {"cold/24.9MB", 24883200, 0},          {"cold/61.4MB", 61440000, 0},
    {"cold/256MiB", (size_t)256 << 20, 0},
};
#define CELL_COUNT ((int)(sizeof cells / sizeof cells[0]))

/* In the order of the cells, four each. */
static const struct tb__bench_row rows[] = {
    CELL_ROWS("hot/1MiB"),    CELL_ROWS("hot/6.2MB"),   CELL_ROWS("cold/1MiB"),
    CELL_ROWS("cold/6.2MB"),  CELL_ROWS("cold/24.9MB"), CELL_ROWS("cold/61.4MB"),
    CELL_ROWS("cold/256MiB"),
};

/* The three kinds, and ours. */
#define VARIANTS (TB__FLOOR_KINDS + 1)
#define OURS TB__FLOOR_KINDS
#define KEPT_BYTES ((size_t)9 << 20)
#define NEW_RING ((uint64_t)VARIANTS)

struct copy_job {
    const struct tb__cell *cell;
    uint32_t slots;
    int quick;
    double *gbps; /* shared: result of the last command */
};

/* tb_pool_write(), timed like a copy. */
static tb_status write_some(tb_pool *pool, const struct tb__copy_ring *ring, uint32_t copies)
{
    tb_tensor tensor = {.data = ring->source,
                        .device = TB_CPU,
                        .dtype = TB_U8,
                        .ndim = 1,
                        .shape = {(int64_t)ring->bytes}};
    for (uint32_t i = 0; i < copies; i++) {
        tb_status status = tb_pool_write(pool, &tensor, TB_POLL, NULL);
        if (status != TB_OK) {
            return status == TB_AGAIN ? TB__FAIL(TB_AGAIN, "no free slot without readers") : status;
        }
    }
    return TB_OK;
}

static tb_status write_run(tb_pool *pool, const struct tb__copy_ring *ring, uint32_t copies,
                           double *gbps)
{
    TB__TRY(write_some(pool, ring, ring->count));
    int64_t start = tb__now_ns();
    TB__TRY(write_some(pool, ring, copies));
    *gbps = (double)ring->bytes * copies / (double)(tb__now_ns() - start);
    return TB_OK;
}

/* A pool for one block. */
static tb_status measure_writes(const struct copy_job *job, const struct tb__copy_ring *ring,
                                uint32_t copies)
{
    tb_bus *bus = NULL;
    tb_pool *pool = NULL;
    tb_status status =
        tb__way_register("writer", TB_CPU, (int64_t)ring->bytes, ring->count, &bus, &pool);
    if (status == TB_OK) {
        status = write_run(pool, ring, copies, job->gbps);
    }
    tb_pool_close(pool);
    tb_bus_close(bus);
    return status;
}

/* What is freed is what the next ring gets: in one run rep movsb was at 57 GB/s in every block and
 * in the next at 65. Where pages matter most, some are kept each time (to the end of the process).
 */
static tb_status keep_pages(const struct tb__cell *cell)
{
    size_t bytes = cell->hot ? KEPT_BYTES : 0;
    if (bytes > 0 && mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) == MAP_FAILED) {
        return TB__FAIL_ERRNO(TB_E_NOMEM, "no memory to keep");
    }
    return TB_OK;
}

/* The measuring process: each command is a variant, plus 1, plus NEW_RING for a new ring. Each
 * block has new memory: which pages it gets makes several percent, so no variant keeps its luck. */
static tb_status copy_main(struct tb__side *side, void *argument)
{
    struct copy_job *job = argument;
    struct tb__copy_ring ring = {0};
    uint64_t command;
    tb_status status = TB_OK;
    tb__side_reply(side, 1);
    while (status == TB_OK && (command = tb__side_wait(side)) != TB__SIDE_STOP) {
        if (command > NEW_RING || ring.slots == NULL) {
            tb__copy_ring_destroy(&ring);
            TB__TRY(keep_pages(job->cell));
            TB__TRY(tb__copy_ring_create(&ring, job->cell->bytes, job->slots));
        }
        uint64_t variant = (command - 1) % NEW_RING;
        uint32_t copies = tb__copy_ring_copies(&ring, job->quick);
        if (variant < OURS) {
            tb__copy_ring_run(&ring, (enum tb__copy_kind)variant, copies, job->gbps);
        } else {
            status = measure_writes(job, &ring, copies);
        }
        if (status == TB_OK) {
            tb__side_reply(side, 1);
        }
    }
    tb__copy_ring_destroy(&ring);
    return status;
}

static const char *row_name(int cell, int variant)
{
    return rows[cell * VARIANTS + variant].name;
}

static tb_status measure_cell(struct copy_job *job, int blocks,
                              double gbps[VARIANTS][TB__BENCH_MAX_BLOCKS], int done[VARIANTS])
{
    struct tb__machine machine;
    struct tb__side side;
    tb__machine_find(&machine);
    int cpu = machine.second_cpu >= 0 ? machine.second_cpu : machine.first_cpu;
    tb_status status = tb__side_start(&side, "copier", cpu, copy_main, job);
    if (status == TB_OK) {
        status = tb__side_answer(&side, NULL);
    }
    for (int block = 0; block < blocks && status == TB_OK; block++) {
        /* Each is the first as often as the others: what it finds in the cache is what the one
         * before has left. */
        uint64_t fresh = NEW_RING;
        for (int turn = 0; turn < VARIANTS && status == TB_OK; turn++) {
            int variant = (block + turn) % VARIANTS;
            if (variant < OURS && !tb__copy_available((enum tb__copy_kind)variant)) {
                continue;
            }
            status = tb__side_command(&side, (uint64_t)variant + fresh + 1);
            if (status == TB_OK) {
                status = tb__side_answer(&side, NULL);
            }
            fresh = 0;
            gbps[variant][block] = *job->gbps;
            done[variant] += status == TB_OK;
        }
    }
    tb__side_stop(&side);
    return status;
}

static void report_cell(struct tb__bench *bench, int cell, const struct copy_job *job,
                        double gbps[VARIANTS][TB__BENCH_MAX_BLOCKS], const int done[VARIANTS])
{
    struct tb__figure figures[VARIANTS];
    double best = NAN;
    int best_kind = 0;
    for (int kind = 0; kind < OURS; kind++) {
        tb__figure_of(gbps[kind], done[kind], &figures[kind]);
        if (done[kind] > 0 && !(figures[kind].value <= best)) {
            best = figures[kind].value;
            best_kind = kind;
        }
    }
    for (int kind = 0; kind < OURS; kind++) {
        if (done[kind] > 0) {
            tb__bench_report(bench, row_name(cell, kind), &figures[kind], NAN, "%u slots",
                             job->slots);
        } else {
            tb__bench_skip(bench, row_name(cell, kind), "not on this processor");
        }
    }
    if (done[OURS] >= 5) {
        size_t ring_bytes = job->cell->bytes * job->slots;
        enum tb__copy_kind chosen = tb__copy_choose(job->cell->bytes, ring_bytes);
        tb__figure_of(gbps[OURS], done[OURS], &figures[OURS]);
        tb__bench_report(bench, row_name(cell, OURS), &figures[OURS], best,
                         "%u slots; best copy: %s; chosen: %s", job->slots,
                         tb__copy_kind_name((enum tb__copy_kind)best_kind),
                         tb__copy_kind_name(chosen));
    }
}

static int cell_wanted(const struct tb__bench *bench, int cell)
{
    for (int variant = 0; variant < VARIANTS; variant++) {
        if (tb__bench_wants(bench, row_name(cell, variant))) {
            return 1;
        }
    }
    return 0;
}

static tb_status copy_run(struct tb__bench *bench)
{
    tb_status status = TB_OK;
    double *shared = tb__shared_map(sizeof *shared);
    if (shared == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no shared memory");
    }
    for (int cell = 0; cell < CELL_COUNT; cell++) {
        double gbps[VARIANTS][TB__BENCH_MAX_BLOCKS];
        int done[VARIANTS] = {0};
        struct copy_job job = {.cell = &cells[cell],
                               .slots = tb__cell_slots(&cells[cell]),
                               .quick = tb__bench_quick(bench),
                               .gbps = shared};
        if (!cell_wanted(bench, cell)) {
            continue;
        }
        if (job.slots == 0) {
            for (int variant = 0; variant < VARIANTS; variant++) {
                tb__bench_skip(bench, row_name(cell, variant), "one slot fills the cache");
            }
            continue;
        }
        /* Which pages a block gets matters most where they fit the cache. */
        int blocks = tb__bench_blocks(bench, job.cell->hot ? 25 : 9);
        tb_status one = measure_cell(&job, blocks, gbps, done);
        report_cell(bench, cell, &job, gbps, done);
        if (one != TB_OK) {
            tb__bench_skip(bench, row_name(cell, OURS), "%s", tb_last_error_text());
            status = one;
        }
    }
    tb__shared_unmap(shared, sizeof *shared);
    return status;
}

const struct tb__bench_group tb__group_copy = {rows, sizeof rows / sizeof rows[0], copy_run};

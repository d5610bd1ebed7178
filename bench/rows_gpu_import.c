/* Attaching to a pool on a GPU, and taking a frame of it once attached. */
#include <math.h>

#include "base/clock.h"
#include "bench/gpu.h"
#include "bench/processes.h"
#include "bench/rows.h"

#define BYTES (INT64_C(64) << 20)
#define ACQUIRES 2000

static const struct tb__bench_text first_text = {
    "two processes, both with the driver open: one has a pool of 64 MiB slots on the GPU, the "
    "other "
    "opens a reader of it, which maps the GPU's memory, and closes it, over and over",
    "from the call of tb_reader_open() to its return",
    "none",
};
static const struct tb__bench_text later_text = {
    "the reader stays open and takes the newest frame by its handle, and releases it",
    "from the call of tb_reader_frame() to the return of tb_frame_release()",
    "none",
};

struct import {
    double first_us[TB__BENCH_MAX_BLOCKS];
    double later_us[TB__BENCH_MAX_BLOCKS];
    tb_handle handle;
    int blocks;
};

static tb_status owner_main(struct tb__side *side, void *argument)
{
    struct import *shared = argument;
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_pool *pool;
    tb_loan *loan;
    TB__TRY(tb__gpu_begin(&gpu));
    TB__TRY(tb__gpu_register("import", TB_CUDA(0), BYTES, 4, &bus, &pool));
    TB__TRY(tb_pool_loan(pool, 0, &loan));
    TB__TRY(tb_loan_publish(loan, &shared->handle));
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_bus_close(bus);
    return TB_OK;
}

static tb_status open_once(tb_bus *bus, double *us)
{
    tb_reader *reader;
    int64_t begun_ns = tb__now_ns();
    TB__TRY(tb_reader_open(bus, "import/p", NULL, &reader));
    *us = (double)(tb__now_ns() - begun_ns) / 1e3;
    tb_reader_close(reader);
    return TB_OK;
}

static tb_status acquire_some(tb_reader *reader, const tb_handle *handle, double *us)
{
    int64_t begun_ns = tb__now_ns();
    for (int i = 0; i < ACQUIRES; i++) {
        tb_frame *frame;
        TB__TRY(tb_reader_frame(reader, handle, &frame));
        tb_frame_release(frame);
    }
    *us = (double)(tb__now_ns() - begun_ns) / 1e3 / ACQUIRES;
    return TB_OK;
}

static tb_status reader_main(struct tb__side *side, void *argument)
{
    struct import *shared = argument;
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_reader *reader;
    TB__TRY(tb__gpu_begin(&gpu));
    tb_bus_options options = {.size = sizeof options};
    TB__TRY(tb_bus_open(&options, &bus));
    double ignored;
    TB__TRY(open_once(bus, &ignored)); /* the connection, and the driver's first import */
    for (int i = 0; i < shared->blocks; i++) {
        TB__TRY(open_once(bus, &shared->first_us[i]));
    }
    TB__TRY(tb_reader_open(bus, "import/p", NULL, &reader));
    for (int i = 0; i < shared->blocks; i++) {
        TB__TRY(acquire_some(reader, &shared->handle, &shared->later_us[i]));
    }
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_bus_close(bus);
    return TB_OK;
}

static const struct tb__bench_row rows[] = {
    {"gpu/import/first", "us", &first_text},
    {"gpu/import/later", "us", &later_text},
};

static tb_status measure(struct tb__side sides[2], struct import *shared)
{
    TB__TRY(tb__side_start(&sides[0], "owner", -1, owner_main, shared));
    TB__TRY(tb__side_answer(&sides[0], NULL));
    TB__TRY(tb__side_start(&sides[1], "reader", -1, reader_main, shared));
    return tb__side_answer(&sides[1], NULL);
}

static tb_status import_run(struct tb__bench *bench)
{
    struct tb__side sides[2] = {{0}, {0}};
    struct import *shared = tb__shared_map(sizeof *shared);
    if (shared == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory");
    }
    shared->blocks = tb__bench_blocks(bench, 15);
    tb_status status = measure(sides, shared);
    if (status == TB_OK) {
        struct tb__figure first;
        struct tb__figure later;
        tb__figure_of(shared->first_us, shared->blocks, &first);
        tb__figure_of(shared->later_us, shared->blocks, &later);
        tb__bench_report(bench, rows[0].name, &first, NAN, "4 slots of 64 MiB in one allocation");
        tb__bench_report(bench, rows[1].name, &later, NAN, "%d a block", ACQUIRES);
    }
    tb__side_stop(&sides[1]);
    tb__side_stop(&sides[0]);
    tb__shared_unmap(shared, sizeof *shared);
    return status;
}

const struct tb__bench_group tb__group_gpu_import = {rows, 2, import_run};

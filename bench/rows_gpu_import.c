/* Attaching to a pool on a GPU, and taking a frame of it once attached. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "bench/gpu.h"
#include "bench/processes.h"
#include "bench/rows.h"
#include "bench/ways.h"

#define BYTES (INT64_C(64) << 20)
#define ACQUIRES 2000
#define OPENS 5 /* a block; of which the median counts */

static const struct tb__bench_text first_text = {
    "two processes, both with the driver open: one has a pool of 64 MiB slots on the GPU, the "
    "other opens a reader of it, which maps the GPU's memory, and closes it, over and over",
    "from the call of tb_reader_open() to its return; the connection of the two is made in it",
    "none",
};
static const struct tb__bench_text connected_text = {
    "the same while the reader's process has another pool of the owner's open: they are connected",
    "from the call of tb_reader_open() to its return",
    "none",
};
static const struct tb__bench_text handshake_text = {
    "gpu/import/first with a pool of 4 slots of 4 KiB on the CPU, of the same process: connecting, "
    "asking for it, its descriptors, the mapping of its words",
    "from the call of tb_reader_open() to its return",
    "none",
};
static const struct tb__bench_text driver_text = {
    "the openings of gpu/import/first, a second time, with a clock around each call of the driver",
    "the sum of the calls; the note has the median of each",
    "none",
};
static const struct tb__bench_text later_text = {
    "the reader stays open and takes the newest frame by its handle, and releases it",
    "from the call of tb_reader_frame() to the return of tb_frame_release()",
    "none",
};

/* ---- a clock around calls of the driver ---- */

enum timed_call { IMPORT, PROPERTIES, RESERVE, MAP, ACCESS, OPEN_IPC, TIMED_CALLS };

static const char *const call_names[TIMED_CALLS] = {
    "import", "properties", "reserve", "map", "set access", "open IPC handle",
};

static struct tb__cuda_api real;
static double spent_us[TIMED_CALLS];

static int spent(enum timed_call call, int64_t begun_ns, int result)
{
    spent_us[call] += (double)(tb__now_ns() - begun_ns) / 1e3;
    return result;
}

#define TIMED(call, parameters, calling)                                                           \
    static int timed_##call parameters                                                             \
    {                                                                                              \
        int64_t begun_ns = tb__now_ns();                                                           \
        int result = calling;                                                                      \
        return spent(call, begun_ns, result);                                                      \
    }
TIMED(IMPORT, (unsigned long long *out, void *handle, unsigned type),
      real.mem_import(out, handle, type))
TIMED(PROPERTIES, (struct tb__mem_prop * out, unsigned long long handle),
      real.mem_get_prop(out, handle))
TIMED(RESERVE,
      (uint64_t * out, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags),
      real.mem_address_reserve(out, bytes, alignment, wanted, flags))
TIMED(MAP,
      (uint64_t address, size_t bytes, size_t offset, unsigned long long handle,
       unsigned long long flags),
      real.mem_map(address, bytes, offset, handle, flags))
TIMED(ACCESS, (uint64_t address, size_t bytes, const struct tb__mem_access *access, size_t count),
      real.mem_set_access(address, bytes, access, count))
TIMED(OPEN_IPC, (uint64_t * out, struct tb__ipc_handle handle, unsigned flags),
      real.ipc_open_mem_handle(out, handle, flags))

/* For the rest of this process; what the driver lacks nobody calls. */
static void time_driver(void)
{
    struct tb__cuda_api *api = (struct tb__cuda_api *)tb__cuda();
    real = *api;
    api->mem_import = timed_IMPORT;
    api->mem_get_prop = timed_PROPERTIES;
    api->mem_address_reserve = timed_RESERVE;
    api->mem_map = timed_MAP;
    api->mem_set_access = timed_ACCESS;
    api->ipc_open_mem_handle = timed_OPEN_IPC;
}

/* ---- the two processes ---- */

struct import {
    double first_us[TB__BENCH_MAX_BLOCKS];
    double connected_us[TB__BENCH_MAX_BLOCKS];
    double handshake_us[TB__BENCH_MAX_BLOCKS];
    double driver_us[TB__BENCH_MAX_BLOCKS];
    double call_us[TIMED_CALLS][TB__BENCH_MAX_BLOCKS];
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
    tb_pool *cpu_pool;
    tb_loan *loan;
    tb_pool_options cpu = {
        .size = sizeof cpu, .name = "cpu", .dtype = TB_U8, .ndim = 1, .shape = {4096}, .slots = 4};
    TB__TRY(tb__gpu_begin(&gpu));
    TB__TRY(tb__way_register("import", TB_CUDA(0), BYTES, 4, &bus, &pool));
    TB__TRY(tb_pool_register(bus, &cpu, &cpu_pool));
    TB__TRY(tb_pool_loan(pool, 0, &loan));
    TB__TRY(tb_loan_publish(loan, &shared->handle));
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_bus_close(bus);
    return TB_OK;
}

/* Attach and detach several times; the median of the attaching. */
static tb_status open_some(tb_bus *bus, const char *path, double *us)
{
    double samples[OPENS];
    for (int i = 0; i < OPENS; i++) {
        tb_reader *reader;
        int64_t begun_ns = tb__now_ns();
        TB__TRY(tb_reader_open(bus, path, NULL, &reader));
        samples[i] = (double)(tb__now_ns() - begun_ns) / 1e3;
        tb_reader_close(reader);
    }
    *us = tb__percentile(samples, OPENS, 0.5);
    return TB_OK;
}

static tb_status time_calls(tb_bus *bus, struct import *shared, int block)
{
    double samples[TIMED_CALLS][OPENS];
    for (int i = 0; i < OPENS; i++) {
        tb_reader *reader;
        memset(spent_us, 0, sizeof spent_us);
        TB__TRY(tb_reader_open(bus, "import/p", NULL, &reader));
        for (int call = 0; call < TIMED_CALLS; call++) {
            samples[call][i] = spent_us[call];
        }
        tb_reader_close(reader);
    }
    for (int call = 0; call < TIMED_CALLS; call++) {
        shared->call_us[call][block] = tb__percentile(samples[call], OPENS, 0.5);
        shared->driver_us[block] += shared->call_us[call][block];
    }
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
    TB__TRY(open_some(bus, "import/p", &ignored)); /* the driver's first import */
    for (int i = 0; i < shared->blocks; i++) {
        TB__TRY(open_some(bus, "import/p", &shared->first_us[i]));
        TB__TRY(open_some(bus, "import/cpu", &shared->handshake_us[i]));
        TB__TRY(tb_reader_open(bus, "import/cpu", NULL, &reader));
        TB__TRY(open_some(bus, "import/p", &shared->connected_us[i]));
        tb_reader_close(reader);
    }
    TB__TRY(tb_reader_open(bus, "import/p", NULL, &reader));
    for (int i = 0; i < shared->blocks; i++) {
        TB__TRY(acquire_some(reader, &shared->handle, &shared->later_us[i]));
    }
    tb_reader_close(reader);
    time_driver();
    for (int i = 0; i < shared->blocks; i++) {
        TB__TRY(time_calls(bus, shared, i));
    }
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_bus_close(bus);
    return TB_OK;
}

static const struct tb__bench_row rows[] = {
    {"gpu/import/first", "us", &first_text},
    {"gpu/import/connected", "us", &connected_text},
    {"gpu/import/handshake", "us", &handshake_text},
    {"gpu/import/driver", "us", &driver_text},
    {"gpu/import/later", "us", &later_text},
};

/* "import 81, reserve 12, ...", in microseconds. */
static void calls_text(const struct import *shared, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int call = 0; call < TIMED_CALLS && used < size; call++) {
        struct tb__figure figure;
        tb__figure_of(shared->call_us[call], shared->blocks, &figure);
        if (figure.value > 0) {
            used += (size_t)snprintf(text + used, size - used, "%s%s %.0f", used > 0 ? ", " : "",
                                     call_names[call], figure.value);
        }
    }
}

static void report(struct tb__bench *bench, const struct import *shared)
{
    char calls[160];
    struct tb__figure first;
    struct tb__figure connected;
    struct tb__figure handshake;
    struct tb__figure driver;
    struct tb__figure later;
    tb__figure_of(shared->first_us, shared->blocks, &first);
    tb__figure_of(shared->connected_us, shared->blocks, &connected);
    tb__figure_of(shared->handshake_us, shared->blocks, &handshake);
    tb__figure_of(shared->driver_us, shared->blocks, &driver);
    tb__figure_of(shared->later_us, shared->blocks, &later);
    calls_text(shared, calls, sizeof calls);
    tb__bench_report(bench, rows[0].name, &first, NAN, "4 slots of 64 MiB in one allocation");
    tb__bench_report(bench, rows[1].name, &connected, NAN, "the connection is there");
    tb__bench_report(bench, rows[2].name, &handshake, NAN, "a pool on the CPU");
    tb__bench_report(bench, rows[3].name, &driver, NAN, "%s", calls);
    tb__bench_report(bench, rows[4].name, &later, NAN, "%d a block", ACQUIRES);
}

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
        report(bench, shared);
    }
    tb__side_stop(&sides[1]);
    tb__side_stop(&sides[0]);
    tb__shared_unmap(shared, sizeof *shared);
    return status;
}

const struct tb__bench_group tb__group_gpu_import = {rows, sizeof rows / sizeof rows[0],
                                                     import_run};

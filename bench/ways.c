/* The floors and our own way of handing over. */
#include "bench/ways.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/processes.h"

#define TAKE_TIMEOUT TB_SECONDS(5)

tb_status tb__way_init(struct tb__way *way)
{
    way->shm = tb__shared_map(sizeof *way->shm);
    return way->shm != NULL ? TB_OK : TB__FAIL(TB_E_NOMEM, "no shared memory for %s", way->name);
}

void tb__way_fini(struct tb__way *way)
{
    tb__shared_unmap(way->shm, sizeof *way->shm);
    way->shm = NULL;
}

static tb_status nothing(struct tb__way *way)
{
    (void)way;
    return TB_OK;
}

static void close_nothing(struct tb__way *way)
{
    (void)way;
}

static uint64_t count_sleeps(struct tb__way *way)
{
    return way->sleeps;
}

/* Bare futex: the least that waking a sleeping process can cost on this machine. */

static tb_status futex_publish(struct tb__way *way)
{
    atomic_fetch_add_explicit(&way->shm->word, 1, memory_order_release);
    syscall(SYS_futex, &way->shm->word, FUTEX_WAKE, 1, NULL, NULL, 0);
    return TB_OK;
}

static tb_status futex_take(struct tb__way *way)
{
    struct timespec limit = tb__timespec(TAKE_TIMEOUT);
    while (atomic_load_explicit(&way->shm->word, memory_order_acquire) == way->seen) {
        long result = syscall(SYS_futex, &way->shm->word, FUTEX_WAIT, way->seen, &limit, NULL, 0);
        if (result == 0) {
            way->sleeps++;
        } else if (errno == ETIMEDOUT) {
            return TB__FAIL(TB_AGAIN, "%s: nothing came", way->name);
        }
    }
    way->seen++;
    return TB_OK;
}

const struct tb__way_type tb__way_futex = {
    .open_sender = nothing,
    .open_receiver = nothing,
    .prepare = nothing,
    .publish = futex_publish,
    .take = futex_take,
    .drop = nothing,
    .slept = count_sleeps,
    .close = close_nothing,
};

/* A word that the receiver spins on: the least that passing a cache line can cost. */

static tb_status word_publish(struct tb__way *way)
{
    atomic_fetch_add_explicit(&way->shm->word, 1, memory_order_release);
    return TB_OK;
}

static tb_status word_take(struct tb__way *way)
{
    int64_t deadline = tb__deadline_ns(TAKE_TIMEOUT);
    for (uint64_t i = 1; atomic_load_explicit(&way->shm->word, memory_order_acquire) == way->seen;
         i++) {
        if ((i & 0xfffff) == 0 && tb__left_ns(deadline) == 0) {
            return TB__FAIL(TB_AGAIN, "%s: nothing came", way->name);
        }
    }
    way->seen++;
    return TB_OK;
}

const struct tb__way_type tb__way_word = {
    .open_sender = nothing,
    .open_receiver = nothing,
    .prepare = nothing,
    .publish = word_publish,
    .take = word_take,
    .drop = nothing,
    .close = close_nothing,
};

/* Ours. */

tb_status tb__way_register(const char *name, tb_device device, int64_t bytes, uint32_t slots,
                           tb_bus **bus, tb_pool **pool)
{
    tb_bus_options bus_options = {
        .size = sizeof bus_options, .name = name, .max_connections = 4096, .max_pages = 8192};
    tb_pool_options options = {.size = sizeof options,
                               .name = "p",
                               .dtype = TB_U8,
                               .ndim = 1,
                               .shape = {bytes},
                               .device = device,
                               .slots = slots};
    TB__TRY(tb_bus_open(&bus_options, bus));
    return tb_pool_register(*bus, &options, pool);
}

tb_status tb__way_attach(const char *name, uint32_t spin_us, tb_bus **bus, tb_reader **reader)
{
    char path[96];
    tb_reader_options options = {
        .size = sizeof options, .wait_ns = TB_SECONDS(10), .start_next = 1, .spin_us = spin_us};
    snprintf(path, sizeof path, "%.64s/p", name);
    if (*bus == NULL) {
        TB__TRY(tb_bus_open(NULL, bus));
    }
    return tb_reader_open(*bus, path, &options, reader);
}

static tb_status pool_open_sender(struct tb__way *way)
{
    return tb__way_register(way->name, TB_CPU, way->bytes, way->slots, &way->bus, &way->pool);
}

static tb_status pool_open_receiver(struct tb__way *way)
{
    return tb__way_attach(way->name, way->spin_us, &way->bus, &way->reader);
}

static tb_status pool_prepare(struct tb__way *way)
{
    return tb_pool_loan(way->pool, TB_SECONDS(1), &way->loan);
}

static tb_status pool_publish(struct tb__way *way)
{
    return tb_loan_publish(way->loan, NULL);
}

static tb_status pool_take(struct tb__way *way)
{
    tb_status status = tb_reader_next(way->reader, TAKE_TIMEOUT, &way->frame);
    return status == TB_AGAIN ? TB__FAIL(TB_AGAIN, "%s: nothing came", way->name) : status;
}

static tb_status poll_take(struct tb__way *way)
{
    int64_t deadline = tb__deadline_ns(TAKE_TIMEOUT);
    tb_status status;
    for (uint64_t i = 1; (status = tb_reader_next(way->reader, TB_POLL, &way->frame)) == TB_AGAIN;
         i++) {
        if ((i & 0xffff) == 0 && tb__left_ns(deadline) == 0) {
            return TB__FAIL(TB_AGAIN, "%s: nothing came", way->name);
        }
    }
    return status;
}

static tb_status pool_drop(struct tb__way *way)
{
    tb_frame_release(way->frame);
    return TB_OK;
}

static uint64_t pool_slept(struct tb__way *way)
{
    tb_reader_stats stats = {.size = sizeof stats};
    return tb_reader_get_stats(way->reader, &stats) == TB_OK ? stats.waits : 0;
}

static void pool_close(struct tb__way *way)
{
    tb_reader_close(way->reader);
    tb_pool_close(way->pool);
    tb_bus_close(way->bus);
}

const struct tb__way_type tb__way_pool = {
    .open_sender = pool_open_sender,
    .open_receiver = pool_open_receiver,
    .prepare = pool_prepare,
    .publish = pool_publish,
    .take = pool_take,
    .drop = pool_drop,
    .slept = pool_slept,
    .close = pool_close,
};

const struct tb__way_type tb__way_poll = {
    .open_sender = pool_open_sender,
    .open_receiver = pool_open_receiver,
    .prepare = pool_prepare,
    .publish = pool_publish,
    .take = poll_take,
    .drop = pool_drop,
    .slept = pool_slept,
    .close = pool_close,
};

/* Ways of handing something from one process to another: the floors, made of bare system calls and
 * words, and ours. One interface, so that all are measured by the same loops. */
#ifndef TB_BENCH_WAYS_H
#define TB_BENCH_WAYS_H

#include <stdatomic.h>
#include <stdint.h>

#include <tensorbus/pool.h>
#include <tensorbus/reader.h>

#include "base/error.h"

/* Mapped before the sides start; written by the side that each field names. */
struct tb__way_shm {
    _Alignas(64) _Atomic uint32_t word; /* sender: what the floors wait for */
    _Alignas(
        64) _Atomic uint32_t receiving; /* receiver: number of the block that it is ready for */
    uint64_t slept;                     /* receiver: of the block's takes, how many slept */
};

struct tb__way;

struct tb__way_type {
    tb_status (*open_sender)(struct tb__way *way);
    tb_status (*open_receiver)(struct tb__way *way);
    tb_status (*prepare)(struct tb__way *way); /* sender, before the time stamp */
    tb_status (*publish)(struct tb__way *way); /* sender, after it */
    tb_status (*take)(struct tb__way *way);    /* receiver; its time stamp follows at once */
    tb_status (*drop)(struct tb__way *way);    /* receiver, after the time stamp */
    uint64_t (*slept)(struct tb__way *way);    /* receiver: takes that slept so far; may be NULL */
    void (*close)(struct tb__way *way);        /* either side */
};

struct tb__way {
    const char *name; /* a valid name of an endpoint */
    const struct tb__way_type *type;
    int64_t bytes; /* of a frame; untouched */
    uint32_t slots;
    uint32_t spin_us; /* option of the reader */
    struct tb__way_shm *shm;
    /* Of the side's own process. */
    uint32_t seen;
    uint64_t sleeps;
    tb_bus *bus;
    tb_pool *pool;
    tb_loan *loan;
    tb_reader *reader;
    tb_frame *frame;
};

extern const struct tb__way_type tb__way_futex; /* a word and FUTEX_WAKE: the bare wake-up */
extern const struct tb__way_type tb__way_word;  /* a word that the receiver spins on */
extern const struct tb__way_type tb__way_pool;  /* loan, publish; tb_reader_next() that waits */
extern const struct tb__way_type
    tb__way_poll; /* the same; tb_reader_next() with timeout 0 in a loop */

/* Map the shared words. */
tb_status tb__way_init(struct tb__way *way);
void tb__way_fini(struct tb__way *way);

/* Open a bus and register a pool of `bytes` uint8 under "<name>/p". */
tb_status tb__way_register(const char *name, tb_device device, int64_t bytes, uint32_t slots,
                           tb_bus **bus, tb_pool **pool);
/* Open a bus without a name and a reader of "<name>/p", waiting up to 10 s for it. */
tb_status tb__way_attach(const char *name, uint32_t spin_us, tb_bus **bus, tb_reader **reader);

#endif

/* Promised frames: numbered, and their handles given out, before they are written, so that a handle
 * travels while the bytes are copied.
 *
 * The record's `promised` names the generation from before anybody has the handle until the slot's
 * word says that it is published, or `failed` that it never will be. Leases know nothing of it: the
 * slot is being written all the while. The head stays before a promised frame, as before one that
 * another writer has not completed yet, so a promise always ends: kept, broken, or with its owner.
 *
 * Writers' threads promise; readers' threads wait. */
#include <sched.h>

#include "base/clock.h"
#include "base/stamp.h"
#include "pool/order.h"
#include "pool/promise.h"
#include "pool/wake.h"

/* Long enough for any copy; an owner that stands still is not waited for for ever. */
#define PATIENCE_NS INT64_C(10000000000)

/* ---- the owner's side ---- */

/* Generations beyond the head have one turn each. A slot for each bounds all but those that were
 * promised and given up: they must leave room for the others. */
static int has_room(const tb_pool *pool)
{
    return tb__gen_distance(tb__a64_load_relaxed(pool->segment.head),
                            tb__a64_load_relaxed(&pool->reserved)) < TB__TURNS - TB_MAX_SLOTS;
}

tb_status tb_loan_promise(tb_loan *loan, tb_handle *out)
{
    if (loan == NULL || out == NULL) {
        return TB__FAIL(TB_E_INVALID, "%s is NULL", loan == NULL ? "loan" : "out");
    }
    tb_pool *pool = loan->pool;
    TB__TRY(tb__bus_check(pool->bus));
    if (pool->device != NULL) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool `%s` is on a GPU: publish its frames on a stream, before the stream "
                        "has done its work",
                        pool->name);
    }
    if (atomic_load_explicit(&pool->freed, memory_order_relaxed)) {
        return tb__pool_fail_freed(pool);
    }
    if (loan->promised == 0) {
        size_t bytes;
        TB__TRY(tb__loan_bytes(loan, &bytes));
        if (!has_room(pool)) {
            return TB__FAIL(
                TB_E_LIMIT,
                "pool `%s`: too many frames were promised and given up while frame %llu "
                "is not published: publish or cancel its loan first",
                pool->name,
                (unsigned long long)(tb__gen_next(tb__a64_load_relaxed(pool->segment.head)) >> 1));
        }
        tb__loan_record(loan, bytes, (uint64_t)tb__stamp_ns());
        loan->promised = tb__generation_reserve(pool);
        /* Pairs with the acquire load of who has the handle, which it gets after this. */
        tb__a64_store_release(&pool->segment.records[loan->slot].promised, loan->promised);
    }
    tb__handle_fill(pool, loan->slot, loan->promised, out);
    return TB_OK;
}

void tb__promise_kept(tb_loan *loan)
{
    loan->promised = 0;
    /* Release: after the generation in the slot's word; pairs with the reader's acquire load. The
     * caller moves the head and wakes the readers, with a full fence between. */
    tb__a64_store_release(&loan->pool->segment.records[loan->slot].promised, 0);
}

void tb__promise_broken(tb_loan *loan)
{
    tb_pool *pool = loan->pool;
    struct tb__record_shm *record = &pool->segment.records[loan->slot];
    uint64_t g = loan->promised;
    loan->promised = 0;
    tb__a64_store_relaxed(&record->failed, g);
    /* Release: after `failed`; pairs with the reader's acquire load. */
    tb__a64_store_release(&record->promised, 0);
    tb__head_advance(pool, g); /* a full fence before the look at the armed flags */
    tb__wake(pool, TB__WAKE_ALL);
}

/* ---- the reader's side ---- */

/* Whether it is this very thread that is to publish the frame. */
static int is_own(const tb_reader *reader, const tb_handle *handle)
{
    int own = 0;
    tb__bus_lock(reader->bus);
    for (const tb_pool *pool = reader->layer->pools; pool != NULL && !own; pool = pool->next) {
        own = __builtin_memcmp(pool->uid, reader->uid, sizeof pool->uid) == 0 &&
              tb__a32_load_relaxed(&pool->loans[handle->slot].thread) == tb__thread_id();
    }
    tb__bus_unlock(reader->bus);
    return own;
}

/* Who was rung while the promise stands: the writer is at the end of its copy. */
static void look_until_decided(const tb_reader *reader, const struct tb__a64 *promised, uint64_t g)
{
    int64_t until_ns = tb__now_ns() + TB__RUNG_SPIN_NS;
    while (tb__a64_load_relaxed(promised) == g && tb__reader_look(reader) == TB_OK &&
           tb__now_ns() < until_ns) {
        for (int i = 0; i < 64 && tb__a64_load_relaxed(promised) == g; i++) {
            tb__pause();
        }
        sched_yield();
    }
}

static void sleep_until_decided(tb_reader *reader, const struct tb__a64 *promised, uint64_t g,
                                int64_t deadline_ns)
{
    struct tb__page_shm *page = reader->page.shm;
    uint32_t seen = tb__bus_bell(reader->bus);
    atomic_fetch_or(&page->armed.value, TB__ARMED_SLEEP);
    /* Full fence between arming and the last look; pairs with the owner's in tb__head_advance(). */
    tb__fence_full();
    uint32_t life = tb__a32_load_relaxed(&page->owner_life);
    if (tb__a64_load_acquire(promised) == g && tb__reader_look(reader) == TB_OK) {
        struct tb__life_watch watch = {&page->owner_life, life};
        tb__a64_add_relaxed(&page->waits, 1);
        tb__bus_sleep(reader->bus, seen, &watch, 1, deadline_ns);
    }
    if ((tb__a32_load_relaxed(&page->armed) & TB__ARMED_SLEEP) == 0) {
        look_until_decided(reader, promised, g);
    }
}

tb_status tb__promise_await(tb_reader *reader, const tb_handle *handle)
{
    const struct tb__a64 *promised = &reader->segment.records[handle->slot].promised;
    const struct tb__a64 *gen = &reader->segment.gens[handle->slot];
    unsigned long long sequence = tb_handle_sequence(handle);
    const char *owner = tb__lifeline_peer_name(reader->line);
    int64_t deadline_ns = tb__deadline_ns(PATIENCE_NS);
    if (is_own(reader, handle)) {
        return TB__FAIL(TB_E_DEADLOCK,
                        "frame %llu of pool `%s/%s` was promised by this thread, which waits for "
                        "itself: publish its loan first",
                        sequence, owner, reader->name);
    }
    for (;;) {
        tb_status ended = tb__reader_look(reader);
        /* Pairs with the owner's release stores: payload and record are visible. */
        if (tb__a64_load_acquire(promised) != handle->generation) {
            return TB_OK;
        }
        if (ended != TB_OK) {
            /* It may have died between publishing the frame and taking the promise back. */
            return ended != TB_E_FREED && tb__a64_load_acquire(gen) == handle->generation
                       ? TB_OK
                       : tb__reader_fail(reader, ended);
        }
        if (tb__left_ns(deadline_ns) == 0) {
            return TB__FAIL(TB_AGAIN,
                            "frame %llu of pool `%s/%s` was promised, and is not published yet: %s "
                            "(pid %u)",
                            sequence, owner, reader->name,
                            tb__interrupted() ? "the wait for its owner was interrupted"
                                              : "after 10 s; does its owner stand still?",
                            tb__lifeline_peer_pid(reader->line));
        }
        sleep_until_decided(reader, promised, handle->generation, deadline_ns);
    }
}

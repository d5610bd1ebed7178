/* The end of pools whose slots are their users' memory: not before nobody uses it any more. On the
 * thread that closes the pool, on the watching thread for pools that were left to it, or on the
 * thread that closes the bus, when that one has ended. */
#define TB_LOG_TOPIC "pool"
#include "pool/adopt.h"
#include "pool/claim.h"

#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy_team.h"
#include "base/log.h"
#include "pool/order.h"

#define LOOK_MIN_NS INT64_C(1000000)
#define LOOK_MAX_NS INT64_C(50000000)
#define BUS_PATIENCE_NS INT64_C(10000000000)

/* ---- whether it is used ---- */

static int holds_anything(const struct tb__page_ref *ref)
{
    for (uint32_t e = 0; e < ref->who->max_leases; e++) {
        /* seq_cst: after the mark; pairs with the reader's store of an entry before its second look
         * at the slot. */
        if (tb__a64_load_seq(tb__page_entry(ref->shm, e)) != 0) {
            return 1;
        }
    }
    return 0;
}

/* Has another process opened the memory? In this one a reader uses the owner's own address. */
static int is_importer(const struct tb__attached *who)
{
    return tb__lifeline_peer_pid(who->line) != (uint32_t)getpid();
}

/* Whoever holds any frame; where memory must outlive its importers, whoever is attached. */
static int is_used(const tb_pool *pool, const struct tb__page_set *set)
{
    int until_detached = pool->segment.view.device_kind == TB__PLACE_IPC;
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        int attached = until_detached && is_importer(set->refs[i].who);
        if ((attached || holds_anything(&set->refs[i])) &&
            !tb__attached_void(set->refs[i].who, tb__now_ns())) {
            return 1;
        }
    }
    return 0;
}

/* As a writer would claim them (lease.h), but all slots or none, and whatever generation is held:
 * of a live pool's slot it is an older one. */
static int take_all(tb_pool *pool)
{
    struct tb__a64 *gens = pool->segment.gens;
    const uint32_t slots = pool->slots;
    uint64_t before[TB_MAX_SLOTS];
    for (uint32_t s = 0; s < slots; s++) {
        before[s] = tb__a64_load_relaxed(&gens[s]);
        if (tb__gen_is_frame(before[s])) {
            /* seq_cst: mark before looking; pairs with the reader's entry and second look. */
            tb__a64_store_seq(&gens[s], tb__gen_claimed(before[s]));
        }
    }
    tb__fence_full();
    int used = is_used(pool, atomic_load(&pool->pages));
    uint64_t writing = tb__gen_writing(tb__a64_load_relaxed(pool->segment.head));
    for (uint32_t s = 0; s < slots; s++) {
        tb__a64_store_seq(&gens[s], used ? before[s] : writing);
    }
    return !used;
}

/* The pool was freed, and nobody writes it any more. Whether nobody holds a frame of it: then
 * nobody ever will. */
static int is_unused(tb_pool *pool)
{
    struct tb__adoption *adoption = &pool->adoption;
    if (!adoption->unused) {
        /* Looked at first: frames that are held are not disturbed. */
        adoption->unused = !is_used(pool, tb__pages_enter(pool)) && take_all(pool);
        tb__pages_leave(pool);
    }
    return adoption->unused;
}

/* ---- one pool ---- */

static void unlink_pool(tb_pool *pool, int detach)
{
    tb__bus_lock(pool->bus);
    tb_pool **at = &pool->layer->pools;
    while (*at != pool) {
        at = &(*at)->next;
    }
    *at = pool->next;
    if (detach) {
        tb__detach_all(pool);
    }
    tb__bus_unlock(pool->bus);
}

/* Unlink and destroy the pool, and tell its user. */
static void end_pool(tb_pool *pool)
{
    struct tb__adoption adoption = pool->adoption;
    unlink_pool(pool, 1);
    tb__pool_destroy(pool);
    if (adoption.unused && adoption.release != NULL) {
        adoption.release(adoption.context);
    }
}

void tb__adoption_close(tb_pool *pool)
{
    struct tb__pool_layer *layer = pool->layer;
    if (!layer->readers_end) { /* else the bus closes, and has done this */
        tb__copy_team_destroy(pool->copy_team);
        pool->copy_team = NULL;
        tb__bus_lock(pool->bus);
        pool->adoption.ending = 1; /* nobody completes its frames but this thread */
        tb__bus_unlock(pool->bus);
        tb__watch_leave(layer);
        tb__order_end(pool);
    }
    if (atomic_load(&pool->order) != NULL) {
        /* A stream may still write it: it stays as it is, and its user is told nothing. */
        unlink_pool(pool, 0);
        return;
    }
    if (layer->readers_end || is_unused(pool)) {
        end_pool(pool);
        return;
    }
    tb__bus_lock(pool->bus);
    pool->adoption.ending = 2;
    layer->ending_look_ns = LOOK_MIN_NS;
    tb__bus_unlock(pool->bus);
    tb__watch_changed(layer);
}

/* ---- those that were left to the watching thread ---- */

/* The next one after `number`, in the order of registration; bus mutex held. */
static tb_pool *next_ending(struct tb__pool_layer *layer, uint64_t number)
{
    tb_pool *next = NULL;
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        if (pool->adoption.ending == 2 && pool->number > number &&
            (next == NULL || pool->number < next->number)) {
            next = pool;
        }
    }
    return next;
}

int64_t tb__adoption_look(struct tb__pool_layer *layer)
{
    uint64_t number = 0;
    int left = 0;
    for (;;) {
        tb__bus_lock(layer->bus);
        tb_pool *pool = next_ending(layer, number);
        tb__bus_unlock(layer->bus);
        if (pool == NULL) {
            break;
        }
        number = pool->number; /* nobody else ends it while this thread runs */
        if (is_unused(pool)) {
            end_pool(pool);
        } else {
            left = 1;
        }
    }
    if (!left) {
        return TB__NO_DEADLINE;
    }
    /* Who gives a frame back rings nobody here: looked for ever less often. */
    tb__bus_lock(layer->bus);
    int64_t wait_ns = layer->ending_look_ns;
    layer->ending_look_ns = wait_ns * 2 < LOOK_MAX_NS ? wait_ns * 2 : LOOK_MAX_NS;
    tb__bus_unlock(layer->bus);
    return tb__deadline_ns(wait_ns);
}

/* ---- the bus closes ---- */

static void free_it(tb_pool *pool)
{
    if (!atomic_exchange(&pool->freed, 1)) {
        tb__a64_store_relaxed(&pool->segment.counters->freed, 1);
        tb__pages_tell(pool, TB__PAGE_FREED);
    }
}

/* Returns how many are in use; `say`: names their holders. */
static uint32_t count_used(struct tb__pool_layer *layer, int say)
{
    uint32_t used = 0;
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        /* With a stream at work on it for ever, it stays in use. */
        if (!pool->adoption.on || atomic_load(&pool->order) != NULL || is_unused(pool)) {
            continue;
        }
        used++;
        if (say) {
            tb__holders_fail(pool);
            tb_log_error(
                "pool `%s` is closed, but its adopted memory is still used 10 s later, and "
                "must stay until this process ends: %s",
                pool->name, tb_last_error_text());
        }
    }
    return used;
}

void tb__adoption_close_all(struct tb__pool_layer *layer)
{
    const struct timespec pause = {.tv_nsec = LOOK_MIN_NS};
    int64_t deadline_ns = tb__deadline_ns(BUS_PATIENCE_NS);
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        if (pool->adoption.on) {
            free_it(pool);
            tb__order_end(pool);
        }
    }
    while (count_used(layer, tb__left_ns(deadline_ns) == 0) != 0 && tb__left_ns(deadline_ns) != 0) {
        nanosleep(&pause, NULL);
    }
}

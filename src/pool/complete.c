/* Completing frames that GPUs work on. See order.h.
 *
 * Threads: users' threads, the watching thread, threads of the driver. No mutex is taken: a
 * compare-and-swap of the slot's word makes one thread do it. */
#define TB_LOG_TOPIC "pool"
#include "base/log.h"
#include "pool/order_work.h"
#include "pool/wake.h"

/* Raise the gates of readers that came when the frame was on its way already, and of those that a
 * failed stream did not reach. */
static void raise_gates(tb_pool *pool, uint32_t slot, uint64_t g, uint64_t value)
{
    const struct tb__page_set *set = tb__pages_enter(pool);
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        struct tb__gates_shm *gates = set->refs[i].who->gates;
        if (gates != NULL) {
            tb__gate_raise(&gates->gate[slot], g, value);
        }
    }
    tb__pages_leave(pool);
}

/* The GPU has finished frame g, or never will. Nobody else completes it: `g` was taken from the
 * slot's word by this thread. Calls no driver: it may run inside a host function. `ring`: writers
 * that wait for a slot are told; a writer that completes tells the others itself. */
static void complete(struct tb__work *work, uint64_t g, int failed, int ring)
{
    tb_pool *pool = work->pool;
    struct tb__record_shm *record = &pool->segment.records[work->slot];
    if (failed) {
        atomic_store(&atomic_load(&work->side)->stuck, 1);
        /* seq_cst: before the gates are raised and `pending` is taken back; whoever leases g later
         * sees it. */
        tb__a64_store_seq(&record->failed, g);
        raise_gates(pool, work->slot, g, g + TB__GATE_POISON);
        tb__a64_add_relaxed(&pool->segment.counters->incomplete, 1);
        /* Before the slot is no writer's any more: the next one waits for who holds g. */
        tb__a64_store_release(&pool->given_up[work->slot], g);
    } else {
        /* Pairs with the reader's acquire load: the frame is visible with the generation. */
        tb__a64_store_release(&pool->segment.gens[work->slot], g);
        raise_gates(pool, work->slot, g, g);
        tb__a64_add_relaxed(&pool->segment.counters->frames, 1);
        tb__a64_add_relaxed(&pool->segment.counters->bytes, tb__a64_load_relaxed(&work->bytes));
    }
    /* seq_cst: before this slot can be marked claimed; see tb__lease_look_pending(). */
    tb__a64_store_seq(&record->pending, 0);
    tb__head_advance(pool, g);
    if (failed) {
        tb__loan_discard(pool, work->slot);
    } else {
        tb__loan_end(&pool->loans[work->slot]);
    }
    tb__wake(pool, TB__WAKE_UNGATED);
    if (ring && atomic_load(&pool->waiters) != 0) {
        tb__bus_ring_self(pool->bus);
    }
    /* Last: who sees that nothing is pending may end the pool. */
    atomic_fetch_sub(&work->order->pending, 1);
}

/* Returns whether it was this call that completed it. */
static int try_complete(struct tb__work *work, uint64_t g, int failed, int ring)
{
    int mine = tb__a64_cas(&work->g, &g, 0);
    if (mine) {
        complete(work, g, failed, ring);
    }
    return mine;
}

/* Whether the GPU has finished frame g of this slot, as far as streams have said so. For another
 * generation than the pending one it may say anything: who completes compares. */
static int is_done(const struct tb__work *work, uint64_t g)
{
    /* Pairs with the release store in issue(): the side is at least as new. */
    uint64_t ticket = tb__a64_load_acquire(&work->ticket);
    if (ticket == 0) {
        /* Pairs with the stream's write behind the frame's work. */
        return tb__gate_reached(tb__a64_load_acquire(&work->order->done[work->slot]), g);
    }
    const struct tb__order_side *side = atomic_load(&work->side);
    /* Pairs with the release in tb__order_called(). */
    return (int64_t)(tb__a64_load_acquire(&side->came) - ticket) >= 0;
}

/* Returns the generation that stays pending in the slot, or 0. */
static uint64_t complete_done(struct tb__order *order, uint32_t slot, int ring, int *completed)
{
    struct tb__work *work = &order->work[slot];
    uint64_t g = tb__a64_load_acquire(&work->g);
    if (g == 0 || !is_done(work, g)) {
        return g;
    }
    *completed |= try_complete(work, g, 0, ring);
    return 0;
}

void tb__order_called(void *argument)
{
    struct tb__order_side *side = argument;
    struct tb__order *order = side->order;
    int completed = 0;
    /* A stream calls in order: so many of its frames are done. Nobody else writes it. */
    tb__a64_store_release(&side->came, tb__a64_load_relaxed(&side->came) + 1);
    for (uint32_t s = 0; s < order->slots && atomic_load(&order->pending) != 0; s++) {
        if (s % TB__ORDER_SIDES == side->turn) {
            complete_done(order, s, 1, &completed);
        }
    }
}

int tb__order_complete(tb_pool *pool)
{
    struct tb__order *order = atomic_load(&pool->order);
    int completed = 0;
    for (uint32_t s = 0; s < pool->slots && atomic_load(&order->pending) != 0; s++) {
        complete_done(order, s, 0, &completed);
    }
    return completed;
}

/* Whether what a failed query said means that the frame will never be finished: its context is
 * broken or gone. Otherwise the stream may well be at work in the slot still. */
static int is_lost(void)
{
    tb_error error;
    tb_last_error(&error);
    return tb__cuda_is_sticky(error.cuda_code) ||
           error.cuda_code == TB__CUDA_CONTEXT_IS_DESTROYED ||
           error.cuda_code == TB__CUDA_INVALID_CONTEXT ||
           error.cuda_code == TB__CUDA_INVALID_HANDLE || error.cuda_code == TB__CUDA_DEINITIALIZED;
}

/* Ask the driver about a frame that takes long. TB_OK: it is done; TB_AGAIN: not yet; else its
 * stream has failed. */
static tb_status ask(struct tb__work *work, uint64_t g)
{
    const tb_pool *pool = work->pool;
    tb_status status = TB_AGAIN;
    /* With the mutex, or the event might be made anew under our eyes. A publisher may have it for
     * as long as its stream is full, and that stream may wait for this thread to open a gate. */
    if (pthread_mutex_trylock(&work->order->mutex) != 0) {
        return TB_AGAIN;
    }
    if (tb__a64_load_relaxed(&work->g) == g) {
        status = tb__gpu_event_query(&work->event);
    }
    pthread_mutex_unlock(&work->order->mutex);
    if (status >= 0) {
        return status;
    }
    if (is_lost()) {
        tb_log_error("pool `%s`, frame %llu: its stream failed: %s", pool->name,
                     (unsigned long long)(g >> 1), tb_last_error_text());
        return status;
    }
    tb_log_warn_limited("pool `%s`, frame %llu: is its stream well? %s: asked again", pool->name,
                        (unsigned long long)(g >> 1), tb_last_error_text());
    return TB_AGAIN;
}

/* A frame that was pending at the last look, too: most are done before a second. */
static void look_at_slow(struct tb__work *work, uint64_t g)
{
    if (tb__a64_load_relaxed(&work->seen) != g) {
        tb__a64_store_relaxed(&work->seen, g);
        return;
    }
    tb_status status = ask(work, g);
    /* Where a stream writes `done`, it writes gates before: they stay until it has. */
    if (status < 0 || (status == TB_OK && tb__a64_load_acquire(&work->ticket) != 0)) {
        try_complete(work, g, status < 0, 1);
    }
}

uint32_t tb__order_settle(tb_pool *pool)
{
    struct tb__order *order = atomic_load(&pool->order);
    if (order == NULL || atomic_load(&order->pending) == 0) {
        return 0;
    }
    for (uint32_t s = 0; s < pool->slots; s++) {
        int completed = 0;
        uint64_t g = complete_done(order, s, 1, &completed);
        if (g != 0) {
            look_at_slow(&order->work[s], g);
        }
    }
    return atomic_load(&order->pending);
}

int tb__order_gates_idle(tb_pool *pool, const struct tb__attached *who)
{
    struct tb__order *order = atomic_load(&pool->order);
    if (order == NULL || who->last_gated == 0) {
        return 1;
    }
    for (uint32_t s = 0; s < pool->slots; s++) {
        uint64_t g = tb__a64_load_acquire(&order->work[s].g);
        if (g != 0 && tb__gen_distance(g, who->last_gated) >= 0) {
            return 0;
        }
    }
    return 1;
}

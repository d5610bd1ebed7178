/* Publishing on a stream. See order.h.
 *
 * Threads: users' threads, one at a time per pool, under the order's mutex. */
#define TB_LOG_TOPIC "pool"
#include <tensorbus/cuda.h>

#include "base/clock.h"
#include "base/log.h"
#include "pool/order_work.h"
#include "pool/wake.h"
#include "pool/write.h"

#define GATES_AT_ONCE 63

/* Mutex held: list the writes that open the gates of all readers that order themselves on a GPU.
 * Returns how many; more than `room` are left to the CPU, when the frame is completed. */
static uint32_t list_gates(const struct tb__page_set *set, const struct tb__gpu *gpu, uint32_t slot,
                           uint64_t g, struct tb__stream_op *ops, uint32_t room)
{
    uint32_t count = 0;
    for (uint32_t i = 0; set != NULL && i < set->count && set->gated_count > 0 && count < room;
         i++) {
        struct tb__attached *who = set->refs[i].who;
        if (who->gates == NULL) {
            continue;
        }
        if (tb__mapped_get(&who->gates_mapped, gpu, who->gates, TB__GATES_BYTES, 0) != TB_OK) {
            tb_log_warn_limited("the gates of a reader (pid %u) are opened by the CPU: %s",
                                tb__lifeline_peer_pid(who->line), tb_last_error_text());
            continue;
        }
        who->last_gated = g;
        ops[count++] = (struct tb__stream_op){
            .write = 1,
            .address = tb__mapped_address(&who->gates_mapped, who->gates, &who->gates->gate[slot]),
            .value = g,
        };
    }
    return count;
}

/* Mark the place behind the frame's work. An event belongs to one context: made anew for another.
 */
static tb_status mark(struct tb__work *work, const struct tb__stream_at *at)
{
    if (work->event.gpu == NULL || work->context != at->scope.context) {
        tb__gpu_event_destroy(&work->event);
        TB__TRY(tb__gpu_event_create_at(at, &work->event));
        work->context = at->scope.context;
    }
    return tb__gpu_event_record_at(&work->event, at);
}

static int has_cpu_readers(const struct tb__page_set *set)
{
    return set != NULL && set->count > set->gated_count;
}

/* Mutex held: the words that the side's stream is to write: the readers' gates, and ours. */
static tb_status list_words(struct tb__work *work, const struct tb__page_set *set,
                            const struct tb__gpu *gpu, uint64_t g, struct tb__stream_op *ops,
                            uint32_t *count)
{
    struct tb__order *order = work->order;
    struct tb__a64 *done = &order->done[work->slot];
    TB__TRY(tb__mapped_get(&order->done_mapped, gpu, order->done, TB__GATES_BYTES, 0));
    *count = list_gates(set, gpu, work->slot, g, ops, GATES_AT_ONCE);
    ops[(*count)++] = (struct tb__stream_op){
        .write = 1,
        .address = tb__mapped_address(&order->done_mapped, order->done, done),
        .value = g,
    };
    return TB_OK;
}

/* A side as this call sees it: mostly its context is current. */
static tb_status side_look(const struct tb__order_side *side, const struct tb__stream_at *at,
                           struct tb__stream_at *out)
{
    *out = (struct tb__stream_at){
        .stream = side->stream, .gpu = side->gpu, .scope.context = side->context};
    return side->context == at->scope.context ? TB_OK : tb__stream_look(side->stream, NULL, out);
}

/* Mutex held: the side comes behind the user's work, and writes what is listed. */
static tb_status follow(const struct tb__work *work, const struct tb__order_side *side,
                        const struct tb__stream_at *at, const struct tb__stream_op *ops,
                        uint32_t count)
{
    struct tb__stream_at behind;
    TB__TRY(side_look(side, at, &behind));
    tb_status status = tb__gpu_event_wait_at(&work->event, &behind);
    if (status == TB_OK && count > 0) {
        status = tb__stream_at_batch(&behind, ops, count);
    }
    tb__stream_leave(&behind);
    return status;
}

/* Mutex held: behind the user's work, say that it is done: to the readers, and to us. */
static tb_status enqueue(struct tb__work *work, const struct tb__page_set *set,
                         const struct tb__stream_at *at, uint64_t g)
{
    struct tb__stream_op ops[GATES_AT_ONCE + 1];
    uint32_t count = 0;
    int words = tb__order_way(at->gpu) == TB__ORDER_WORDS;
    struct tb__order_side *side;
    work->followed = 0;
    if (words) {
        TB__TRY(list_words(work, set, at->gpu, g, ops, &count));
    }
    TB__TRY(mark(work, at));
    TB__TRY(tb__order_side_get(work->order, work->slot, at, &side));
    atomic_store(&work->side, side);
    /* Pairs with the acquire load in is_done(). */
    tb__a64_store_release(&work->ticket, words ? 0 : side->asked + 1);
    work->followed = 1;
    return follow(work, side, at, ops, count);
}

/* Mutex held: have the CPU complete the frame when the GPU has. */
static tb_status call_back(struct tb__order_side *side, const struct tb__stream_at *at)
{
    struct tb__stream_at behind;
    TB__TRY(side_look(side, at, &behind));
    tb_status status = tb__stream_at_host_func(&behind, tb__order_called, side);
    side->asked += status == TB_OK;
    tb__stream_leave(&behind);
    return status;
}

/* Mutex held: number the frame, enqueue what announces it, show it. */
static tb_status issue(struct tb__order *order, tb_loan *loan, const struct tb__stream_at *at,
                       tb_handle *out)
{
    tb_pool *pool = loan->pool;
    struct tb__work *work = &order->work[loan->slot];
    size_t bytes;
    TB__TRY(tb__loan_bytes(loan, &bytes));
    tb__loan_record(loan, bytes, (uint64_t)tb__now_ns());
    tb__fence_stores();
    uint64_t g = tb__generation_reserve(pool);
    const struct tb__page_set *set = tb__pages_enter(pool);
    tb_status status = enqueue(work, set, at, g);
    if (status != TB_OK) {
        tb__pages_leave(pool);
        /* What the stream was told already can only open gates for a frame that nobody saw. */
        tb__a64_add_relaxed(&pool->segment.counters->incomplete, 1);
        tb__order_issued(pool, g);
        tb__head_advance(pool, g);
        return status;
    }
    if (out != NULL) {
        tb__handle_fill(pool, loan->slot, g, out);
    }
    tb__a64_store_relaxed(&work->bytes, bytes);
    /* Pairs with tb__lease_try_pending(): the record is visible. */
    tb__a64_store_release(&pool->segment.records[loan->slot].pending, g);
    tb__order_issued(pool, g);
    atomic_fetch_add(&order->pending, 1);
    /* It is the GPU's now: who waits for it waits for that. */
    tb__a32_store_relaxed(&loan->thread, 0);
    /* From here on another thread may complete it. */
    tb__a64_store_release(&work->g, g);
    int call = has_cpu_readers(set) || tb__a64_load_relaxed(&work->ticket) != 0;
    /* Between the frame and the armed flags, as for any publisher. */
    tb__fence_full();
    tb__wake_listed(pool, set, TB__WAKE_GATED);
    tb__pages_leave(pool);
    if (call && call_back(atomic_load(&work->side), at) != TB_OK) {
        tb_log_warn_limited("pool `%s`: %s: readers see its frames a millisecond late", pool->name,
                            tb_last_error_text());
    }
    return TB_OK;
}

/* The user's work on the slot may be under way, and so may writes of its gates: wait for both.
 * Keeps the error that led here. */
static void drain(const struct tb__work *work, const struct tb__stream_at *at)
{
    tb_error kept;
    tb_last_error(&kept);
    tb_status ignored = tb__stream_synchronize(at->stream, at->gpu);
    struct tb__order_side *side = atomic_load(&work->side);
    if (work->followed && !atomic_load(&side->stuck)) {
        ignored = tb__stream_synchronize(side->stream, side->gpu);
    }
    (void)ignored;
    tb__error_restore(&kept);
}

/* Which may be any stream, of any device. */
static tb_status publish(tb_loan *loan, tb__stream stream, tb_handle *out)
{
    tb_pool *pool = loan->pool;
    struct tb__order *order;
    struct tb__stream_at at;
    TB__TRY(tb__cuda_need());
    TB__TRY(tb__order_get(pool, &order));
    /* As long as what the driver is to be told now. */
    tb__wake_early(pool, TB__WAKE_GATED);
    TB__TRY(
        tb__stream_look(stream, pool->device != NULL ? tb__device_gpu(pool->device) : NULL, &at));
    tb__order_lock(order);
    tb_status status = issue(order, loan, &at, out);
    tb__order_unlock(order);
    if (status != TB_OK) {
        drain(&order->work[loan->slot], &at);
    }
    tb__stream_leave(&at);
    return status;
}

tb_status tb_loan_publish_on(tb_loan *loan, tb_cuda_stream stream, tb_handle *out)
{
    if (loan == NULL) {
        return TB__FAIL(TB_E_INVALID, "loan is NULL");
    }
    tb_pool *pool = loan->pool;
    TB__TRY(tb__bus_check(pool->bus));
    tb_status status = TB_OK;
    if (loan->ahead != NULL) {
        tb__write_ahead_end(loan, 1);
    }
    if (loan->promised != 0) {
        status = TB__FAIL(TB_E_UNSUPPORTED,
                          "pool `%s`: a frame that was promised is published without a stream",
                          pool->name);
    } else {
        status = atomic_load(&pool->freed) ? tb__pool_fail_freed(pool)
                                           : publish(loan, (tb__stream)stream, out);
    }
    if (status != TB_OK) {
        tb__loan_discard(pool, loan->slot);
        return status;
    }
    tb__watch_kick(pool->layer);
    return TB_OK;
}

/* Publishing on a stream. See order.h.
 *
 * Threads: users' threads, one at a time per pool, under the order's mutex. */
#define TB_LOG_TOPIC "pool"
#include <tensorbus/cuda.h>

#include "base/clock.h"
#include "base/log.h"
#include "pool/order_work.h"

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

static void wake_gated(const struct tb__page_set *set)
{
    for (uint32_t i = 0; set != NULL && i < set->count && set->gated_count > 0; i++) {
        if (set->refs[i].who->gates != NULL &&
            tb__a32_load_relaxed(&set->refs[i].shm->armed) != 0) {
            tb__wake_armed(&set->refs[i]);
        }
    }
}

/* Mark the place behind the frame's work. An event belongs to one context: made anew for another.
 */
static tb_status mark(struct tb__work *work, const struct tb__gpu *gpu, tb__stream stream)
{
    struct tb__gpu_scope scope;
    TB__TRY(tb__stream_enter(stream, gpu, &scope));
    tb__context context = scope.context;
    tb__gpu_leave(&scope);
    if (work->event.gpu == NULL || work->context != context) {
        tb__gpu_event_destroy(&work->event);
        TB__TRY(tb__gpu_event_create(gpu, stream, 0, &work->event));
        work->context = context;
    }
    return tb__gpu_event_record(&work->event, stream);
}

static int has_cpu_readers(const struct tb__page_set *set)
{
    return set != NULL && set->count > set->gated_count;
}

/* Mutex held. One that is stuck is left to the driver, which may yet call a host function. */
static tb_status side_get(struct tb__work *work, const struct tb__gpu *gpu,
                          struct tb__order_side **out)
{
    struct tb__order_side *side = &work->order->sides[work->slot % TB__ORDER_SIDES];
    if (side->gpu != gpu || atomic_load(&side->stuck)) {
        if (side->gpu != NULL) {
            tb__stream_destroy(side->gpu, side->stream); /* when it has done what it was given */
            work->order->keep = work->order->keep || atomic_load(&side->stuck);
        }
        side->gpu = NULL;
        TB__TRY(tb__stream_create(gpu, &side->stream));
        atomic_store(&side->stuck, 0);
        side->gpu = gpu;
    }
    *out = side;
    return TB_OK;
}

/* Mutex held: behind the user's work, say that it is done: to the readers, and to us. */
static tb_status enqueue(struct tb__work *work, const struct tb__page_set *set,
                         const struct tb__gpu *gpu, tb__stream stream, uint64_t g)
{
    struct tb__order *order = work->order;
    struct tb__a64 *done = &order->done[work->slot];
    struct tb__stream_op ops[GATES_AT_ONCE + 1];
    uint32_t count = list_gates(set, gpu, work->slot, g, ops, GATES_AT_ONCE);
    ops[count++] = (struct tb__stream_op){
        .write = 1,
        .address = tb__mapped_address(&order->done_mapped, order->done, done),
        .value = g,
    };
    struct tb__order_side *side;
    TB__TRY(mark(work, gpu, stream));
    TB__TRY(side_get(work, gpu, &side));
    TB__TRY(tb__gpu_event_wait(&work->event, side->stream, side->gpu));
    return tb__stream_batch(side->stream, side->gpu, ops, count);
}

/* Mutex held: have the CPU complete the frame when the GPU has. */
static tb_status call_back(struct tb__work *work)
{
    const struct tb__order_side *side = &work->order->sides[work->slot % TB__ORDER_SIDES];
    return tb__stream_host_func(side->stream, side->gpu, tb__order_host_function, work);
}

/* Mutex held: number the frame, enqueue what announces it, show it. */
static tb_status issue(struct tb__order *order, tb_loan *loan, const struct tb__gpu *gpu,
                       tb__stream stream, tb_handle *out)
{
    tb_pool *pool = loan->pool;
    struct tb__work *work = &order->work[loan->slot];
    size_t bytes;
    TB__TRY(tb__loan_bytes(loan, &bytes));
    tb__loan_record(loan, bytes, (uint64_t)tb__now_ns());
    tb__fence_stores();
    uint64_t g = tb__generation_reserve(pool);
    const struct tb__page_set *set = tb__pages_enter(pool);
    tb_status status = enqueue(work, set, gpu, stream, g);
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
    tb__a32_store_relaxed(&loan->thread,
                          0); /* it is the GPU's now: who waits for it waits for that */
    /* From here on another thread may complete it. */
    tb__a64_store_release(&work->g, g);
    int cpu_readers = has_cpu_readers(set);
    /* Between the frame and the armed flags, as for any publisher. */
    tb__fence_full();
    wake_gated(set);
    tb__pages_leave(pool);
    if (cpu_readers && call_back(work) != TB_OK) {
        tb_log_warn_limited("pool `%s`: %s: readers see its frames a millisecond late", pool->name,
                            tb_last_error_text());
    }
    return TB_OK;
}

/* Keeps the error that led here. */
static void drain(const struct tb__gpu *gpu, tb__stream stream)
{
    tb_error kept;
    tb_last_error(&kept);
    tb_status ignored = tb__stream_synchronize(stream, gpu);
    (void)ignored;
    tb__error_restore(&kept);
}

tb_status tb_loan_publish_on(tb_loan *loan, tb_cuda_stream stream, tb_handle *out)
{
    if (loan == NULL) {
        return TB__FAIL(TB_E_INVALID, "loan is NULL");
    }
    tb_pool *pool = loan->pool;
    const struct tb__gpu *gpu;
    struct tb__order *order;
    TB__TRY(tb__bus_check(pool->bus));
    tb_status status = atomic_load(&pool->freed) ? tb__pool_fail_freed(pool) : tb__cuda_need();
    if (status == TB_OK) {
        status = tb__stream_device(
            (tb__stream)stream, pool->device != NULL ? tb__device_gpu(pool->device) : NULL, &gpu);
    }
    if (status == TB_OK) {
        status = tb__order_get(pool, gpu, &order);
    }
    if (status == TB_OK) {
        tb__order_lock(order);
        status = issue(order, loan, gpu, (tb__stream)stream, out);
        tb__order_unlock(order);
        if (status != TB_OK) {
            /* The user's work on the slot may be under way, and writes of its gates. */
            drain(gpu, (tb__stream)stream);
        }
    }
    if (status != TB_OK) {
        tb__loan_discard(pool, loan->slot);
        return status;
    }
    tb__watch_kick(pool->layer);
    return TB_OK;
}

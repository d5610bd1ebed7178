/* Loans: borrow a slot, fill it in place, publish it. Writers' threads. */
#include "base/clock.h"
#include "base/extent.h"
#include "base/stamp.h"
#include "pool/claim.h"
#include "pool/order.h"
#include "pool/promise.h"
#include "pool/wake.h"
#include "pool/write.h"

tb_status tb__pool_fail_freed(const tb_pool *pool)
{
    return TB__FAIL(TB_E_FREED,
                    "pool `%s` was freed: it cannot be written any more; register another one",
                    pool->name);
}

tb_status tb_pool_loan(tb_pool *pool, int64_t timeout_ns, tb_loan **out)
{
    if (pool == NULL) {
        return TB__FAIL(TB_E_INVALID, "pool is NULL");
    }
    TB__TRY(tb__bus_check(pool->bus));
    if (atomic_load_explicit(&pool->freed, memory_order_relaxed)) {
        return tb__pool_fail_freed(pool);
    }
    uint32_t slot;
    TB__TRY(tb__claim(pool, timeout_ns, &slot));
    tb_loan *loan = &pool->loans[slot];
    tb__a32_store_relaxed(&loan->thread, tb__thread_id());
    loan->copies = 0;
    loan->promised = 0;
    loan->ahead = NULL;
    if (pool->varying) {
        uint8_t *data = loan->tensor.data;
        loan->tensor = pool->proto;
        loan->tensor.data = data;
    }
    *out = loan;
    return TB_OK;
}

const tb_tensor *tb_loan_tensor(const tb_loan *loan)
{
    return loan != NULL ? &loan->tensor : NULL;
}

/* The reach of the strides of a tensor, or which of them is wrong. */
static tb_status check_strides(const tb_tensor *tensor, const int64_t *strides, uint64_t *extent)
{
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (strides[i] < 0) {
            return TB__FAIL(TB_E_INVALID, "stride %d is negative: %lld", i, (long long)strides[i]);
        }
    }
    return tb__extent_bytes(tensor, strides, extent)
               ? TB_OK
               : TB__FAIL(TB_E_LIMIT, "strides and shape overflow");
}

tb_status tb_loan_reshape(tb_loan *loan, int32_t ndim, const int64_t *shape, const int64_t *strides)
{
    if (loan == NULL || (shape == NULL && ndim > 0)) {
        return TB__FAIL(TB_E_INVALID, "%s is NULL", loan == NULL ? "loan" : "shape");
    }
    tb_pool *pool = loan->pool;
    if (!pool->varying) {
        return TB__FAIL(TB_E_MISMATCH,
                        "pool `%s` has a fixed shape: register it with capacity_bytes to vary it",
                        pool->name);
    }
    if (ndim < 0 || ndim > TB_MAX_NDIM) {
        return TB__FAIL(TB_E_INVALID, "%d dimensions: 0 to %d are possible", ndim, TB_MAX_NDIM);
    }
    tb_tensor tensor = {.device = pool->proto.device, .dtype = pool->proto.dtype, .ndim = ndim};
    for (int32_t i = 0; i < ndim; i++) {
        tensor.shape[i] = shape[i];
    }
    size_t bytes;
    TB__TRY(tb_tensor_bytes(&tensor, &bytes));
    uint64_t extent = bytes;
    if (strides != NULL) {
        TB__TRY(check_strides(&tensor, strides, &extent));
    }
    if (loan->promised != 0 &&
        bytes != tb__a64_load_relaxed(&pool->segment.records[loan->slot].bytes)) {
        return TB__FAIL(
            TB_E_MISMATCH,
            "pool `%s`: this loan's frame was promised with %llu bytes, %zu are another "
            "frame: give the loan its shape first",
            pool->name,
            (unsigned long long)tb__a64_load_relaxed(&pool->segment.records[loan->slot].bytes),
            bytes);
    }
    uint64_t capacity = pool->segment.view.slot_bytes;
    if (extent > capacity || bytes > capacity) {
        return TB__FAIL(TB_E_MISMATCH, "pool `%s`: %llu bytes do not fit its slots of %llu",
                        pool->name, (unsigned long long)(extent > bytes ? extent : bytes),
                        (unsigned long long)capacity);
    }
    tensor.data = loan->tensor.data;
    loan->tensor = tensor;
    if (strides != NULL) {
        for (int32_t i = 0; i < ndim; i++) {
            loan->strides[i] = strides[i];
        }
        loan->tensor.strides = loan->strides;
    }
    return TB_OK;
}

void tb__loan_record(const tb_loan *loan, uint64_t bytes, uint64_t stamp_ns)
{
    tb_pool *pool = loan->pool;
    struct tb__record_shm *record = &pool->segment.records[loan->slot];
    tb__a64_store_relaxed(&record->stamp_ns, stamp_ns);
    tb__a64_store_relaxed(&record->bytes, bytes);
    tb__a32_store_relaxed(&record->copies, loan->copies);
    if (pool->varying) {
        const tb_tensor *tensor = &loan->tensor;
        tb__a32_store_relaxed(&record->ndim, (uint32_t)tensor->ndim);
        tb__a32_store_relaxed(&record->strided, tensor->strides != NULL);
        for (int32_t i = 0; i < tensor->ndim; i++) {
            tb__a64_store_relaxed(&record->shape[i], (uint64_t)tensor->shape[i]);
            if (tensor->strides != NULL) {
                tb__a64_store_relaxed(&record->strides[i], (uint64_t)tensor->strides[i]);
            }
        }
    }
}

/* Take the next generation: publishers are numbered in the order in which they come here. */
uint64_t tb__generation_reserve(tb_pool *pool)
{
    uint64_t g = tb__a64_add(&pool->reserved, 2) + 2;
    return g != 0 ? g : tb__a64_add(&pool->reserved, 2) + 2;
}

static struct tb__a64 *turn_of(tb_pool *pool, uint64_t g)
{
    return &pool->turns[(g >> 1) % TB__TURNS];
}

/* Move the head over every frame that is complete, so that readers see frames in order and without
 * gaps although publishers overtake each other. Nobody waits: whoever comes last moves it for all.
 */
void tb__head_advance(tb_pool *pool, uint64_t g)
{
    struct tb__a64 *head = pool->segment.head;
    if (tb__gen_next(tb__a64_load_relaxed(head)) == g) {
        /* Only this thread can move the head to g: nobody was told that g is complete. */
        tb__a64_store_release(head, g);
    } else {
        tb__a64_store_seq(turn_of(pool, g), g);
    }
    /* Pairs with itself in another thread: head and turn are stored before the other is read. Also
     * the full fence between publishing and the armed flags. */
    tb__fence_full();
    for (;;) {
        uint64_t now = tb__a64_load_seq(head);
        uint64_t next = tb__gen_next(now);
        if (tb__a64_load_seq(turn_of(pool, next)) != next) {
            return;
        }
        tb__a64_cas(head, &now, next);
    }
}

tb_status tb__loan_bytes(const tb_loan *loan, size_t *out)
{
    *out = loan->pool->proto_bytes;
    return loan->pool->varying ? tb_tensor_bytes(&loan->tensor, out) : TB_OK;
}

void tb__handle_fill(const tb_pool *pool, uint32_t slot, uint64_t g, tb_handle *out)
{
    const struct tb__record_shm *record = &pool->segment.records[slot];
    *out = (tb_handle){.generation = g,
                       .slot = slot,
                       .stamp_ns = tb__a64_load_relaxed(&record->stamp_ns),
                       .bytes = tb__a64_load_relaxed(&record->bytes)};
    __builtin_memcpy(out->pool_uid, pool->uid, sizeof out->pool_uid);
}

void tb__loan_end(tb_loan *loan)
{
    /* From here on another writer may take the slot away again; until it has said who it is, nobody
     * takes it for this thread. */
    tb__a32_store_relaxed(&loan->thread, 0);
    /* Pairs with the exchange in try_claim(). */
    tb__a32_store_release(&loan->active, TB__LOAN_NONE);
}

tb_status tb_loan_publish(tb_loan *loan, tb_handle *out)
{
    if (loan == NULL) {
        return TB__FAIL(TB_E_INVALID, "loan is NULL");
    }
    tb_pool *pool = loan->pool;
    TB__TRY(tb__bus_check(pool->bus));
    if (atomic_load_explicit(&pool->freed, memory_order_relaxed)) {
        tb__loan_discard(pool, loan->slot);
        return tb__pool_fail_freed(pool);
    }
    size_t bytes;
    tb_status status = tb__loan_bytes(loan, &bytes);
    if (status != TB_OK) { /* not after a reshape: somebody wrote to it */
        tb__loan_discard(pool, loan->slot);
        return status;
    }
    if (__builtin_expect(loan->ahead != NULL, 0)) { /* nobody may write into a published frame */
        tb__write_ahead_end(loan, 1);
    }
    /* The user may have used non-temporal stores, which no release store orders. */
    tb__fence_stores();
    /* A spinning reader has the line of the head: ask for it while the clock is read. */
    tb__prefetch_write(pool->segment.head);
    uint64_t g = loan->promised;
    /* The handle of a promised frame has its stamp. */
    tb__loan_record(loan, bytes,
                    __builtin_expect(g == 0, 1)
                        ? (uint64_t)tb__stamp_ns()
                        : tb__a64_load_relaxed(&pool->segment.records[loan->slot].stamp_ns));
    /* Frames that GPUs work on are numbered under a mutex: readers see them before the head does.
     */
    struct tb__order *order = atomic_load_explicit(&pool->order, memory_order_acquire);
    if (__builtin_expect(order != NULL, 0)) {
        tb__order_lock(order);
    }
    g = __builtin_expect(g == 0, 1) ? tb__generation_reserve(pool) : g;
    /* Pairs with the reader's acquire load: payload and record are visible with the generation. */
    tb__a64_store_release(&pool->segment.gens[loan->slot], g);
    if (__builtin_expect(order != NULL, 0)) {
        if (loan->promised == 0) { /* a later frame may have been issued since it was numbered */
            tb__order_issued(pool, g);
        }
        tb__order_unlock(order);
    }
    if (__builtin_expect(loan->promised != 0, 0)) {
        tb__promise_kept(loan);
    }
    tb__head_advance(pool, g);
    tb__a64_add_relaxed(&pool->segment.counters->frames, 1);
    tb__a64_add_relaxed(&pool->segment.counters->bytes, bytes);
    if (out != NULL) {
        tb__handle_fill(pool, loan->slot, g, out);
    }
    tb__loan_end(loan);
    tb__wake(pool, TB__WAKE_ALL);
    if (__builtin_expect(atomic_load_explicit(&pool->waiters, memory_order_relaxed) != 0, 0)) {
        tb__bus_ring_self(pool->bus);
    }
    return TB_OK;
}

void tb__loan_discard(tb_pool *pool, uint32_t slot)
{
    if (__builtin_expect(pool->loans[slot].ahead != NULL, 0)) {
        tb__write_ahead_end(&pool->loans[slot], 0);
    }
    if (__builtin_expect(pool->loans[slot].promised != 0, 0)) {
        tb__promise_broken(&pool->loans[slot]);
    }
    /* The generation stays odd: nobody ever takes the half-written bytes for a frame. */
    tb__a32_store_relaxed(&pool->loans[slot].thread, 0);
    /* seq_cst: before the look at the waiters, who count themselves before they look at the slots.
     */
    tb__a32_store_seq(&pool->loans[slot].active, TB__LOAN_NONE);
    if (atomic_load(&pool->waiters) != 0) {
        tb__bus_ring_self(pool->bus);
    }
}

void tb_loan_cancel(tb_loan *loan)
{
    if (loan != NULL && tb__bus_check(loan->pool->bus) == TB_OK) {
        tb__loan_discard(loan->pool, loan->slot);
    }
}

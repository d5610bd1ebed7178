/* Making and ending what an owner keeps of frames that GPUs work on. See order.h.
 *
 * Threads: users' threads publish, one at a time per pool, under the order's mutex. */
#define TB_LOG_TOPIC "pool"
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "pool/order_work.h"

#define SIDE_PATIENCE_NS INT64_C(1000000000)
#define END_PATIENCE_NS INT64_C(10000000000)

void tb__order_lock(struct tb__order *order)
{
    if (order != NULL) {
        pthread_mutex_lock(&order->mutex);
    }
}

void tb__order_unlock(struct tb__order *order)
{
    if (order != NULL) {
        pthread_mutex_unlock(&order->mutex);
    }
}

void tb__order_issued(tb_pool *pool, uint64_t g)
{
    /* Pairs with the acquire load of a reader that orders itself on a GPU: the frame's slot is seen
     * with its generation. */
    tb__a64_store_release(&pool->segment.counters->issued, g);
}

/* ---- making one ---- */

/* What host functions may still look at, until the process ends. */
static _Atomic(struct tb__order *) kept_orders;

static void keep_for_ever(struct tb__order *order)
{
    order->next_kept = atomic_load(&kept_orders);
    while (!atomic_compare_exchange_weak(&kept_orders, &order->next_kept, order)) {
    }
}

/* Returns 0 when a host function may still come. */
static int side_end(struct tb__order_side *side)
{
    const struct timespec pause = {.tv_nsec = 100000};
    int64_t deadline_ns = tb__deadline_ns(SIDE_PATIENCE_NS);
    int busy = atomic_load(&side->stuck);
    while (!busy && tb__stream_query(side->stream, side->gpu) == TB_AGAIN) {
        busy = tb__left_ns(deadline_ns) == 0;
        nanosleep(&pause, NULL);
    }
    tb__stream_destroy(side->gpu, side->stream);
    return !busy;
}

static void order_free(struct tb__order *order)
{
    if (order == NULL) {
        return;
    }
    int busy = 0; /* a stream that is well but slow may still write the words */
    for (struct tb__order_side *side = atomic_load(&order->sides); side != NULL;
         side = side->next) {
        int ended = side_end(side);
        order->keep |= !ended;
        busy |= !ended && !atomic_load(&side->stuck);
    }
    for (uint32_t s = 0; s < TB_MAX_SLOTS; s++) {
        tb__gpu_event_destroy(&order->work[s].event);
    }
    if (!busy) {
        tb__mapped_end(&order->done_mapped);
    }
    if (!busy && order->done != NULL) {
        munmap(order->done, TB__GATES_BYTES);
    }
    pthread_mutex_destroy(&order->mutex);
    if (order->keep) {
        keep_for_ever(order);
        return;
    }
    for (struct tb__order_side *side = atomic_load(&order->sides); side != NULL;) {
        struct tb__order_side *next = side->next;
        free(side);
        side = next;
    }
    free(order);
}

static tb_status order_create(tb_pool *pool, struct tb__order **out)
{
    struct tb__order *order = calloc(1, sizeof *order);
    if (order == NULL) {
        return TB__FAIL(TB_E_NOMEM, "pool `%s`: no memory for frames of a GPU", pool->name);
    }
    pthread_mutex_init(&order->mutex, NULL);
    order->slots = pool->slots;
    for (uint32_t s = 0; s < pool->slots; s++) {
        order->work[s].pool = pool;
        order->work[s].order = order;
        order->work[s].slot = s;
    }
    void *done = mmap(NULL, TB__GATES_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (done == MAP_FAILED) {
        tb_status status = TB__FAIL_ERRNO(TB_E_NOMEM, "pool `%s`: words for a GPU", pool->name);
        order_free(order);
        return status;
    }
    madvise(done, TB__GATES_BYTES, MADV_DONTFORK);
    order->done = done;
    *out = order;
    return TB_OK;
}

tb_status tb__order_get(tb_pool *pool, struct tb__order **out)
{
    struct tb__order *order = atomic_load(&pool->order);
    if (order == NULL) {
        TB__TRY(tb__watch_start(pool->layer));
        TB__TRY(order_create(pool, &order));
        struct tb__order *before = NULL;
        /* Frames that are numbered just now by writers that know of no order are complete when they
         * are seen, so they need none. */
        tb__order_issued(pool, tb__a64_load_acquire(pool->segment.head));
        if (!atomic_compare_exchange_strong(&pool->order, &before, order)) {
            order_free(order);
            order = before;
        }
    }
    *out = order;
    return TB_OK;
}

/* ---- sides ---- */

static tb_status side_create(struct tb__order *order, uint32_t turn, const struct tb__stream_at *at,
                             struct tb__order_side **out)
{
    struct tb__order_side *side = calloc(1, sizeof *side);
    if (side == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a stream of cuda:%d", at->gpu->ordinal);
    }
    tb_status status = tb__stream_create(at->gpu, &side->stream);
    if (status != TB_OK) {
        free(side);
        return status;
    }
    side->order = order;
    side->gpu = at->gpu;
    side->context = at->scope.context; /* which is current */
    side->turn = turn;
    side->next = atomic_load(&order->sides);
    atomic_store(&order->sides, side);
    *out = side;
    return TB_OK;
}

tb_status tb__order_side_get(struct tb__order *order, uint32_t slot, const struct tb__stream_at *at,
                             struct tb__order_side **out)
{
    uint32_t turn = slot % TB__ORDER_SIDES;
    struct tb__order_side *side = atomic_load(&order->sides);
    while (side != NULL &&
           !(side->gpu == at->gpu && side->turn == turn && !atomic_load(&side->stuck))) {
        side = side->next;
    }
    *out = side;
    return side != NULL ? TB_OK : side_create(order, turn, at, out);
}

/* ---- ending ---- */

int tb__order_drain(tb_pool *pool)
{
    struct timespec pause = {.tv_nsec = 100000};
    int64_t deadline_ns = tb__deadline_ns(END_PATIENCE_NS);
    while (tb__order_settle(pool) != 0) {
        if (tb__left_ns(deadline_ns) == 0) {
            tb_log_error("pool `%s` is closed, but a stream did not finish a frame of it within "
                         "10 s: its memory stays until the process ends",
                         pool->name);
            return 0;
        }
        nanosleep(&pause, NULL);
    }
    return 1;
}

int tb__order_end(tb_pool *pool)
{
    if (!tb__order_drain(pool)) {
        return 0;
    }
    order_free(atomic_exchange(&pool->order, NULL));
    return 1;
}

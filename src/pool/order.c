/* Publishing on a stream, and what follows when the GPU has finished. See order.h.
 *
 * Threads: users' threads publish, one at a time per pool, under the order's mutex; completing
 * takes no mutex: a compare-and-swap of the slot's word makes one thread do it. */
#define TB_LOG_TOPIC "pool"
#include "pool/order.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <tensorbus/cuda.h>

#include "base/clock.h"
#include "base/log.h"
#include "cuda/event.h"
#include "cuda/order.h"

#define GATES_AT_ONCE 63
#define SIDES 2
#define SIDE_PATIENCE_NS INT64_C(1000000000)
#define END_PATIENCE_NS INT64_C(10000000000)

/* One slot. */
struct work {
    tb_pool *pool;
    struct tb__order *order;
    uint32_t slot;
    struct tb__a64 g; /* pending generation; 0: none. Set under the mutex, taken by who completes */
    struct tb__a64 bytes;
    struct tb__gpu_event event; /* behind the frame's work */
    tb__context context;        /* of the event */
};

/* A stream of ours that waits for the event behind a frame's work and then says that it is done, so
 * that the producer's own stream goes straight on. Frames that share one wait for each other, so
 * there are several. */
struct side {
    const struct tb__gpu *gpu; /* NULL: not made yet */
    tb__stream stream;
    _Atomic int stuck; /* it waits behind a frame that was given up: no more use of it */
};

struct tb__order {
    pthread_mutex_t mutex;
    struct tb__a64 *done; /* a page of words, one per slot, that streams write */
    struct tb__mapped done_mapped;
    _Atomic uint32_t pending;
    struct side sides[SIDES]; /* slot s uses s % SIDES */
    int keep;                 /* a host function may come after the end */
    struct tb__order *next_kept;
    struct work work[TB_MAX_SLOTS];
};

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
static int side_end(struct side *side)
{
    const struct timespec pause = {.tv_nsec = 100000};
    int64_t deadline_ns = tb__deadline_ns(SIDE_PATIENCE_NS);
    if (side->gpu == NULL) {
        return 1;
    }
    int busy = atomic_load(&side->stuck);
    while (!busy && tb__stream_query(side->stream, side->gpu) == TB_AGAIN) {
        busy = tb__left_ns(deadline_ns) == 0;
        nanosleep(&pause, NULL);
    }
    tb__stream_destroy(side->gpu, side->stream);
    side->gpu = NULL;
    return !busy;
}

static void order_free(struct tb__order *order)
{
    if (order == NULL) {
        return;
    }
    int busy = 0; /* a stream that is well but slow may still write the words */
    for (uint32_t i = 0; i < SIDES; i++) {
        int ended = side_end(&order->sides[i]);
        order->keep |= !ended;
        busy |= !ended && !atomic_load(&order->sides[i].stuck);
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
    } else {
        free(order);
    }
}

static tb_status order_create(tb_pool *pool, const struct tb__gpu *gpu, struct tb__order **out)
{
    struct tb__order *order = calloc(1, sizeof *order);
    if (order == NULL) {
        return TB__FAIL(TB_E_NOMEM, "pool `%s`: no memory for frames of a GPU", pool->name);
    }
    pthread_mutex_init(&order->mutex, NULL);
    for (uint32_t s = 0; s < pool->slots; s++) {
        order->work[s].pool = pool;
        order->work[s].order = order;
        order->work[s].slot = s;
    }
    void *done = mmap(NULL, TB__GATES_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    tb_status status = TB_OK;
    if (done == MAP_FAILED) {
        status = TB__FAIL_ERRNO(TB_E_NOMEM, "pool `%s`: words for a GPU", pool->name);
    } else {
        madvise(done, TB__GATES_BYTES, MADV_DONTFORK);
        order->done = done;
        status = tb__mapped_get(&order->done_mapped, gpu, done, TB__GATES_BYTES, 0);
    }
    if (status != TB_OK) {
        order_free(order);
        return status;
    }
    *out = order;
    return TB_OK;
}

static tb_status order_get(tb_pool *pool, const struct tb__gpu *gpu, struct tb__order **out)
{
    struct tb__order *order = atomic_load(&pool->order);
    if (order == NULL) {
        TB__TRY(tb__watch_start(pool->layer));
        TB__TRY(order_create(pool, gpu, &order));
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

/* ---- completing ---- */

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
static void complete(struct work *work, uint64_t g, int failed, int ring)
{
    tb_pool *pool = work->pool;
    struct tb__record_shm *record = &pool->segment.records[work->slot];
    if (failed) {
        atomic_store(&work->order->sides[work->slot % SIDES].stuck, 1);
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
    tb__wake_cpu_readers(pool);
    if (ring && atomic_load(&pool->waiters) != 0) {
        tb__bus_ring_self(pool->bus);
    }
    /* Last: who sees that nothing is pending may end the pool. */
    atomic_fetch_sub(&work->order->pending, 1);
}

/* Returns whether it was this call that completed it. */
static int try_complete(struct work *work, uint64_t g, int failed, int ring)
{
    int mine = tb__a64_cas(&work->g, &g, 0);
    if (mine) {
        complete(work, g, failed, ring);
    }
    return mine;
}

/* On a thread of the driver. */
static void host_function(void *argument)
{
    struct work *work = argument;
    uint64_t g = tb__a64_load_acquire(&work->g);
    if (g != 0 && tb__gate_reached(tb__a64_load_acquire(&work->order->done[work->slot]), g)) {
        try_complete(work, g, 0, 1);
    }
}

/* Returns the generation that stays pending in the slot, or 0. */
static uint64_t complete_done(struct tb__order *order, uint32_t slot, int ring, int *completed)
{
    struct work *work = &order->work[slot];
    uint64_t g = tb__a64_load_acquire(&work->g);
    /* Pairs with the stream's write behind the frame's work. */
    if (g == 0 || !tb__gate_reached(tb__a64_load_acquire(&order->done[slot]), g)) {
        return g;
    }
    *completed |= try_complete(work, g, 0, ring);
    return 0;
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

static int has_failed(const tb_pool *pool, const struct work *work, uint64_t g)
{
    if (tb__gpu_event_query(&work->event) >= 0) {
        return 0;
    }
    int lost = is_lost();
    if (lost) {
        tb_log_error("pool `%s`, frame %llu: its stream failed: %s", pool->name,
                     (unsigned long long)(g >> 1), tb_last_error_text());
    } else {
        tb_log_warn_limited("pool `%s`, frame %llu: is its stream well? %s: asked again",
                            pool->name, (unsigned long long)(g >> 1), tb_last_error_text());
    }
    return lost;
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
        if (g != 0 && has_failed(pool, &order->work[s], g)) {
            try_complete(&order->work[s], g, 1, 1);
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

/* ---- publishing ---- */

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
static tb_status mark(struct work *work, const struct tb__gpu *gpu, tb__stream stream)
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
static tb_status side_get(struct work *work, const struct tb__gpu *gpu, struct side **out)
{
    struct side *side = &work->order->sides[work->slot % SIDES];
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
static tb_status enqueue(struct work *work, const struct tb__page_set *set,
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
    struct side *side;
    TB__TRY(mark(work, gpu, stream));
    TB__TRY(side_get(work, gpu, &side));
    TB__TRY(tb__gpu_event_wait(&work->event, side->stream, side->gpu));
    return tb__stream_batch(side->stream, side->gpu, ops, count);
}

/* Mutex held: have the CPU complete the frame when the GPU has. */
static tb_status call_back(struct work *work)
{
    const struct side *side = &work->order->sides[work->slot % SIDES];
    return tb__stream_host_func(side->stream, side->gpu, host_function, work);
}

/* Mutex held: number the frame, enqueue what announces it, show it. */
static tb_status issue(struct tb__order *order, tb_loan *loan, const struct tb__gpu *gpu,
                       tb__stream stream, tb_handle *out)
{
    tb_pool *pool = loan->pool;
    struct work *work = &order->work[loan->slot];
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
        status = order_get(pool, gpu, &order);
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

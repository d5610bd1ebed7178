/* What the owner keeps of frames that GPUs work on: shared by order.c, which makes and ends it,
 * publish_on.c, which publishes frames, and complete.c, which completes them. */
#ifndef TB_POOL_ORDER_WORK_H
#define TB_POOL_ORDER_WORK_H

#include "cuda/event.h"
#include "cuda/order.h"
#include "pool/order.h"

/* A stream of ours that waits for the event behind a frame's work and then says that it is done, so
 * that the producer's own stream goes straight on. Frames that share one wait for each other, so
 * each device has several. Made once, kept until the order ends: its host functions name it. */
struct tb__order_side {
    struct tb__order_side *next;
    struct tb__order *order;
    const struct tb__gpu *gpu;
    uint32_t turn; /* it serves slots s with s % TB__ORDER_SIDES == turn */
    tb__context context;
    tb__stream stream;
    uint64_t asked;      /* host functions that were enqueued; mutex */
    struct tb__a64 came; /* ... and that were called, in the same order */
    _Atomic int stuck;   /* it waits behind a frame that was given up: no more use of it */
};
#define TB__ORDER_SIDES 2

/* One slot. What belongs to the pending frame is set before g is, under the mutex. */
struct tb__work {
    tb_pool *pool;
    struct tb__order *order;
    uint32_t slot;
    struct tb__a64 g; /* pending generation; 0: none. Set under the mutex, taken by who completes */
    struct tb__a64 bytes;
    _Atomic(struct tb__order_side *) side; /* that comes behind the frame's work */
    struct tb__a64 ticket;      /* done when the side's `came` is that far; 0: when `done` is g */
    struct tb__gpu_event event; /* behind the frame's work */
    tb__context context;        /* of the event */
    int followed; /* the side was told of the frame that is being published; who has the slot */
    struct tb__a64 seen; /* generation that the last look for slow ones found pending */
};

struct tb__order {
    pthread_mutex_t mutex;
    struct tb__a64 *done;          /* a page of words, one per slot, that streams write */
    struct tb__mapped done_mapped; /* mutex */
    _Atomic uint32_t pending;
    uint32_t slots;
    _Atomic(struct tb__order_side *) sides; /* grows only; mutex */
    int keep;                               /* a host function may come after the end */
    struct tb__order *next_kept;
    struct tb__work work[TB_MAX_SLOTS];
};

/* order.c: the pool's, made when it is first needed. */
tb_status tb__order_get(tb_pool *pool, struct tb__order **out);
/* Mutex held: the side for a slot and the device of a stream. */
tb_status tb__order_side_get(struct tb__order *order, uint32_t slot, const struct tb__stream_at *at,
                             struct tb__order_side **out);

/* complete.c: to be called on a thread of the driver, with the side whose stream got there. */
void tb__order_called(void *argument);

#endif

/* What the owner keeps of frames that GPUs work on: shared by order.c, which makes and ends it,
 * publish_on.c, which publishes frames, and complete.c, which completes them. */
#ifndef TB_POOL_ORDER_WORK_H
#define TB_POOL_ORDER_WORK_H

#include "cuda/event.h"
#include "cuda/order.h"
#include "pool/order.h"

#define TB__ORDER_SIDES 2

/* One slot. */
struct tb__work {
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
struct tb__order_side {
    const struct tb__gpu *gpu; /* NULL: not made yet */
    tb__stream stream;
    _Atomic int stuck; /* it waits behind a frame that was given up: no more use of it */
};

struct tb__order {
    pthread_mutex_t mutex;
    struct tb__a64 *done; /* a page of words, one per slot, that streams write */
    struct tb__mapped done_mapped;
    _Atomic uint32_t pending;
    struct tb__order_side sides[TB__ORDER_SIDES]; /* slot s uses s % TB__ORDER_SIDES */
    int keep;                                     /* a host function may come after the end */
    struct tb__order *next_kept;
    struct tb__work work[TB_MAX_SLOTS];
};

/* order.c: the pool's, made when it is first needed. */
tb_status tb__order_get(tb_pool *pool, const struct tb__gpu *gpu, struct tb__order **out);

/* complete.c: to be called on a thread of the driver, with a slot's work. */
void tb__order_host_function(void *argument);

#endif

/* Attaching ahead: pools of which handles will come are opened before the first of them is taken,
 * so that it finds its frame although the pool's owner may be dead by then.
 *
 * The service thread hears of a pool and may not wait; a thread of its own attaches, and ends when
 * there is nothing left to do. */
#ifndef TB_NODE_AHEAD_H
#define TB_NODE_AHEAD_H

#include <pthread.h>

#include "endpoint/bus.h"
#include "wire/stream.h"

struct tb__ahead {
    tb_bus *bus;
    pthread_mutex_t mutex;
    struct tb__stream_pool_wire pools[TB__STREAM_POOLS]; /* to do */
    uint32_t count;
    pthread_t thread;
    int started; /* to be joined */
    int running;
    int quit;
};

void tb__ahead_init(struct tb__ahead *ahead, tb_bus *bus);
/* No more of it; waits for an attachment that is being made. */
void tb__ahead_stop(struct tb__ahead *ahead);
/* After the service thread has ended. */
void tb__ahead_fini(struct tb__ahead *ahead);

/* Attach to a pool soon. Service thread; never waits for long. With too much to do already the pool
 * is attached to at its first handle. */
void tb__ahead_add(struct tb__ahead *ahead, const struct tb__stream_pool_wire *pool);

/* Attach now. Any other thread. A pool that cannot be had is left to its handles. */
void tb__ahead_attach(tb_bus *bus, const struct tb__stream_pool_wire *pool);

#endif

/* Frames that GPUs are working on, as their owner keeps them.
 *
 * A frame that is published on a stream is *pending* until the GPU has finished it: its slot stays
 * the writer's, its generation word says "being written", and its record names the pending
 * generation, which only readers that order themselves on a GPU may lease. Behind the user's work
 * the stream writes the generation into the gate of each of those readers and into a `done` word of
 * ours. Completing the frame, which makes it visible to everybody else, is done by whoever comes
 * first: a host function of the driver when readers of the CPU are attached, the next writer, or
 * the watching thread, which looks every millisecond while something is pending. */
#ifndef TB_POOL_ORDER_H
#define TB_POOL_ORDER_H

#include "pool/state.h"

/* With a pool's order made, everybody who numbers frames holds this. NULL: does nothing. */
void tb__order_lock(struct tb__order *order);
void tb__order_unlock(struct tb__order *order);

/* Frame g of this order was numbered and is to be seen. Mutex held. */
void tb__order_issued(tb_pool *pool, uint64_t g);

/* Complete what the GPUs have finished. Any thread; calls no driver, and does not ring writers that
 * wait for a slot: returns whether they should be. */
int tb__order_complete(tb_pool *pool);
/* And give up what they never will finish. Returns what stays pending. A thread that may call the
 * driver. */
uint32_t tb__order_settle(tb_pool *pool);

/* Whether no stream of ours writes this reader's gates any more. */
int tb__order_gates_idle(tb_pool *pool, const struct tb__attached *who);

/* Wait until nothing is pending; and end it. Both return 0 when a GPU does not come to an end: its
 * memory must stay. */
int tb__order_drain(tb_pool *pool);
int tb__order_end(tb_pool *pool);

#endif

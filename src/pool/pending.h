/* Requests to attach to a pool: answered at once, or kept until they can be. */
#ifndef TB_POOL_PENDING_H
#define TB_POOL_PENDING_H

#include "pool/state.h"

/* Service thread, bus mutex held: attach, refuse, or keep the request. */
void tb__pending_open(struct tb__pool_layer *layer, struct tb__lifeline *line, uint32_t request,
                      const struct tb__pool_open_wire *wire);
/* Bus mutex held, any thread: answer those who waited for this pool. Leaves the thread's last error
 * alone. */
void tb__pending_serve(struct tb__pool_layer *layer, tb_pool *pool);
/* Service thread, hook of the bus, takes the mutex: a hand-over on this line has ended. */
void tb__pending_landed(void *state, struct tb__lifeline *line);
/* Bus mutex held: forget what the line waits for, or only its request of this number (not 0). */
void tb__pending_cancel(struct tb__pool_layer *layer, const struct tb__lifeline *line,
                        uint32_t request);
/* Forget all, at the end of the layer. */
void tb__pending_fini(struct tb__pool_layer *layer);

#endif

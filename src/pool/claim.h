/* Finding a slot for a writer, and who stands in the way. */
#ifndef TB_POOL_CLAIM_H
#define TB_POOL_CLAIM_H

#include "pool/state.h"

/* Take a slot that the policy lets go, to be written by the caller. TB_AGAIN: none within the time,
 * counted as a drop, and told by whom they are held; TB_E_DEADLOCK: the caller waits for itself. */
tb_status tb__claim(tb_pool *pool, int64_t timeout_ns, uint32_t *out_slot);
/* Whether a reader's claims are void: dead, and settled. */
int tb__attached_void(struct tb__attached *who, int64_t now_ns);
/* Raise the waiting flags; pair with tb__wait_end(). */
void tb__wait_begin(tb_pool *pool);
void tb__wait_end(tb_pool *pool);
/* Sleep until something may have changed: pages' life words are watched. */
void tb__wait_sleep(tb_pool *pool, uint32_t seen, int64_t deadline_ns);

/* holders.c: explain who holds what; find out whether the calling thread waits for itself. */
tb_status tb__holders_fail(tb_pool *pool);
int tb__holders_only_self(tb_pool *pool);

#endif

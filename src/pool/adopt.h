/* Pools whose slots are memory that their user allocated (tensorbus/adopt.h). */
#ifndef TB_POOL_ADOPT_H
#define TB_POOL_ADOPT_H

#include "pool/state.h"

/* adopt.c: make the memory that options->adopt names the slots of a pool that is being built;
 * `spec` learns where they lie. What it took is given back by tb__adoption_fini(), also after a
 * failure. */
tb_status tb__pool_adopt(tb_pool *pool, const tb_pool_options *options,
                         struct tb__doradma_spec *spec);
void tb__adoption_fini(tb_pool *pool);

/* adopt_map.c: whether host memory is where a descriptor's memory, from `offset` on, is mapped
 * shared and writable. TB_E_INVALID says how it is not. */
tb_status tb__mapping_check(const void *data, uint64_t bytes, int borrow_fd, uint64_t offset);

/* adopt_end.c: close a pool: end it now, or leave it to the watching thread, which looks at those
 * that were left to it, and returns until when it sleeps. */
void tb__adoption_close(tb_pool *pool);
int64_t tb__adoption_look(struct tb__pool_layer *layer);
/* The bus closes: wait for all of them, 10 s at most. */
void tb__adoption_close_all(struct tb__pool_layer *layer);

#endif

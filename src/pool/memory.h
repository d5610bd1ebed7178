/* The segment of a pool, on its owner's side. */
#ifndef TB_POOL_MEMORY_H
#define TB_POOL_MEMORY_H

#include "pool/state.h"

/* Make it, with its slots, as the layout has it: checked against what the machine has left, and
 * mapped. Destroying takes one that is half made. */
tb_status tb__segment_create(tb_pool *pool, const tb_pool_options *options,
                             const struct tb__doradma_spec *spec,
                             const struct tb__doradma_layout *layout);
void tb__segment_destroy(tb_pool *pool);

#endif

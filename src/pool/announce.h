/* What the runner is told of a process's pools, so that it can name those that nobody freed. */
#ifndef TB_POOL_ANNOUNCE_H
#define TB_POOL_ANNOUNCE_H

#include "pool/state.h"

/* `type` is TB__MSG_POOL_ADDED or TB__MSG_POOL_REMOVED. The first pool added connects to the
 * runner: not with the bus mutex held. A runner that is not there is no error. */
void tb__pool_announce(tb_pool *pool, uint16_t type);

#endif

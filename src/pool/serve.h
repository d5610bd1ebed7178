/* Requests of other processes about this one's pools. */
#ifndef TB_POOL_SERVE_H
#define TB_POOL_SERVE_H

#include "pool/state.h"

/* The bus's handler of TB__MSG_POOL_OPEN to TB__MSG_POOL_READERS and of TB__MSG_CANCEL; `context`
 * is the layer. Service thread. */
void tb__pool_serve(void *context, struct tb__lifeline *line, struct tb__msg *msg);

#endif

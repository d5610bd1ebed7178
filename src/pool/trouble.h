/* What hindered a reader, told to the owner of the pool: an import that was denied, a registration
 * that the driver refused, a broken context. The owner counts it, logs it and keeps the newest
 * where tools see it. */
#ifndef TB_POOL_TROUBLE_H
#define TB_POOL_TROUBLE_H

#include "pool/state.h"

/* Reader: send this thread's last error, whose status it is, to the owner; the same kind of trouble
 * once per reader. Never waits, keeps the last error, and is of no consequence when it fails. */
void tb__trouble_tell(tb_reader *reader);
/* The same when it comes from the driver, and nothing otherwise: users' mistakes are theirs.
 * Returns `status`. */
tb_status tb__trouble_check(tb_reader *reader, tb_status status);

/* Owner: note what a reader said; service thread, bus mutex held. */
void tb__trouble_note(tb_pool *pool, const struct tb__attached *who,
                      const struct tb__trouble_wire *wire);

/* Anybody who maps the segment: how many there were, and the newest. */
void tb__trouble_read(const struct tb__segment *segment, tb_pool_stats *out);

#endif

/* Frames whose handle is given out before they are written. */
#ifndef TB_POOL_PROMISE_H
#define TB_POOL_PROMISE_H

#include "pool/state.h"

/* A promised frame is published: g is in the slot's word; or will never be. */
void tb__promise_kept(tb_loan *loan);
void tb__promise_broken(tb_loan *loan);
/* A reader waits for the frame of a handle that was promised. TB_OK: it is decided. */
tb_status tb__promise_await(tb_reader *reader, const tb_handle *handle);

#endif

/* Writing by copy, shared between write.c (on the CPU) and write_device.c (by a GPU). */
#ifndef TB_POOL_WRITE_H
#define TB_POOL_WRITE_H

#include "pool/state.h"

/* Whether a tensor, on any device, can be copied into a slot of the pool; and its packed size. */
tb_status tb__write_check(const tb_pool *pool, const tb_tensor *tensor, size_t *bytes);

/* Copy into a loan of a pool of which it or the tensor is on a GPU; done when it returns. */
tb_status tb__write_device(tb_loan *loan, const tb_tensor *tensor, size_t bytes);

/* End what tb_loan_write_ahead() began (loan->ahead is not NULL): with the copy made, or left. */
void tb__write_ahead_end(tb_loan *loan, int finish);

/* Register a pool's host slots with a GPU's driver, once; NULL: the current GPU's. */
tb_status tb__pool_pin(tb_pool *pool, const struct tb__gpu *gpu);

#endif

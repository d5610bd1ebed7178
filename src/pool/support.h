/* What nodes need of pools beyond the public interface. */
#ifndef TB_POOL_SUPPORT_H
#define TB_POOL_SUPPORT_H

#include <tensorbus/pool.h>
#include <tensorbus/reader.h>

/* Attach to a pool of which handles will come, so that the first of them finds its frame although
 * the owner may be dead by then. Waits as tb_frame_open(), with its results. */
tb_status tb__pool_expect(tb_bus *bus, const uint8_t uid[16]);

/* The frame is held for others, not by the thread that acquired it: a thread that waits for its
 * slot waits for them, so this is no deadlock. */
void tb__frame_disown(tb_frame *frame);

/* Count a loan that was filled by copying `bytes` bytes, as tb_pool_write() would. */
void tb__loan_count_copy(tb_loan *loan, uint64_t bytes);

#endif

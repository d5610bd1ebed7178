/* Small services for the node layer. Any thread. */
#include "pool/support.h"

#include "pool/state.h"

void tb__frame_disown(tb_frame *frame)
{
    tb__a32_store_relaxed(&frame->thread, 0);
}

void tb__loan_count_copy(tb_loan *loan, uint64_t bytes)
{
    struct tb__counters_shm *counters = loan->pool->segment.counters;
    loan->copies = 1;
    tb__a64_add_relaxed(&counters->copies, 1);
    tb__a64_add_relaxed(&counters->copied_bytes, bytes);
}

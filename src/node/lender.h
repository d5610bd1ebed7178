/* The lender: leases frames, of this process's pools or of others', for messages in flight.
 *
 * A `backpressure` input keeps a handle's frame until its message was taken, so the sender must
 * hold it, also when it only forwards it. The lender keeps one reader per pool for that, with as
 * many leases as a reader can have; readers that nothing is held of are closed when room is needed.
 */
#ifndef TB_NODE_LENDER_H
#define TB_NODE_LENDER_H

#include <pthread.h>

#include "node/hold.h"

#define TB__LENDER_POOLS 64

struct tb__lender {
    tb_bus *bus;
    pthread_mutex_t mutex;
    struct tb__lender_entry {
        uint8_t uid[16];
        tb_reader *reader;
        _Atomic uint32_t users; /* holds, and threads that make one */
        uint64_t used_at;
    } * entries[TB__LENDER_POOLS];
    uint32_t count;
    uint64_t clock;
};

void tb__lender_init(struct tb__lender *lender, tb_bus *bus);
/* After all holds are gone. */
void tb__lender_fini(struct tb__lender *lender);

/* Hold the frame of a handle; the caller gets one reference. TB_E_STALE, TB_E_FREED, TB_E_NOT_FOUND
 * as tb_reader_frame(); TB_E_BUSY when all leases are in use: some message must be taken first. */
tb_status tb__lender_hold(struct tb__lender *lender, const tb_handle *handle,
                          struct tb__hold **out);

#endif

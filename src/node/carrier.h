/* Carriers: the frames in which values travel that are too large for a message slot.
 *
 * The node keeps pools for them by size class, made and grown on demand, at most 1 GiB in all. Each
 * pool has a reader of the node's own, so that a frame stays leased from its publication until the
 * last message that names it was taken or dropped. The pools' names begin with `_`. */
#ifndef TB_NODE_CARRIER_H
#define TB_NODE_CARRIER_H

#include <pthread.h>

#include "node/hold.h"
#include <tensorbus/pool.h>

#define TB__CARRIER_MAX_BYTES (UINT64_C(1) << 30)
#define TB__CARRIER_POOLS 64

struct tb__carrier_pool {
    tb_pool *pool;
    tb_reader *reader;
    uint64_t capacity_bytes; /* of a slot */
    uint32_t slots;
    _Atomic uint32_t users; /* loans and holds */
};

struct tb__carriers {
    tb_bus *bus;
    pthread_mutex_t mutex;
    struct tb__carrier_pool *pools[TB__CARRIER_POOLS];
    uint32_t count;
    uint64_t bytes; /* of all slots */
    uint64_t next_number;
};

/* A slot to fill. */
struct tb__carrier {
    struct tb__carrier_pool *from;
    tb_loan *loan;
    uint8_t *data;
    uint64_t working_set_bytes; /* for tb__copy_store() */
};

void tb__carriers_init(struct tb__carriers *carriers, tb_bus *bus);
/* After all holds are gone. The pools stay for their readers until the bus closes. */
void tb__carriers_fini(struct tb__carriers *carriers);

/* Borrow a slot of at least `bytes`. TB_AGAIN when memory for it must come free first, TB_E_LIMIT
 * when it never can. */
tb_status tb__carriers_loan(struct tb__carriers *carriers, uint64_t bytes, struct tb__carrier *out);
/* Publish it and hold the frame. Consumes the carrier, also on failure. */
tb_status tb__carriers_publish(struct tb__carriers *carriers, struct tb__carrier *carrier,
                               uint64_t bytes, tb_handle *handle, struct tb__hold **out);

#endif

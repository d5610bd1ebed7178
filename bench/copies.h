/* Copies into a ring of slots, timed: the floors of everything that moves bytes. */
#ifndef TB_BENCH_COPIES_H
#define TB_BENCH_COPIES_H

#include <stddef.h>
#include <stdint.h>

#include "base/copy.h"
#include "base/error.h"

/* The floors: plain, non-temporal and `rep movsb`, as any program may copy. The kind that we made,
 * interleaved, is none of them. */
#define TB__FLOOR_KINDS 3

/* One size in one cache state. */
struct tb__cell {
    const char *name; /* "hot/6.2MB" */
    size_t bytes;
    int hot; /* 1: the ring fits the last-level cache; 0: it is four times as large */
};

/* Slots of the ring: at most 4 when hot, at least 2 when cold. 0 when no ring of that size is hot.
 */
uint32_t tb__cell_slots(const struct tb__cell *cell);

/* A ring in a memfd, like a pool's, and a private source; both touched. */
struct tb__copy_ring {
    uint8_t *slots;
    uint8_t *source;
    size_t bytes;
    size_t stride_bytes;
    uint32_t count;
    uint32_t next;
};

tb_status tb__copy_ring_create(struct tb__copy_ring *ring, size_t bytes, uint32_t count);
void tb__copy_ring_destroy(struct tb__copy_ring *ring);

/* Copies per block: about 30 ms, and at least one round of the ring. */
uint32_t tb__copy_ring_copies(const struct tb__copy_ring *ring, int quick);

/* One round to settle the caches, then `copies` copies. *gbps in 1e9 bytes per second. */
void tb__copy_ring_run(struct tb__copy_ring *ring, enum tb__copy_kind kind, uint32_t copies,
                       double *gbps);

#endif

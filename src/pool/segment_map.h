/* Mapping what an owner sent. */
#ifndef TB_POOL_SEGMENT_MAP_H
#define TB_POOL_SEGMENT_MAP_H

#include "pool/state.h"

/* Map a segment, checked, read-only; populated if asked for, so that a later read never faults. On
 * failure, too, unmap. */
tb_status tb__segment_map(struct tb__segment *segment, int borrow_fd,
                          const struct tb__pool_wire *answer, int populate);
void tb__segment_unmap(struct tb__segment *segment);
/* The same for the memfd with the slots of a segment whose owner adopted it. tb__segment_unmap()
 * undoes it, too. */
tb_status tb__slots_map(struct tb__segment *segment, int borrow_fd, const char *name, int populate);

/* The whole pages of a descriptor's file, of whatever size they are, around a range of it. */
struct tb__window {
    uint64_t offset; /* to map from */
    uint64_t bytes;
    uint64_t skip; /* from there to the range */
};
tb_status tb__window_of(int borrow_fd, uint64_t offset, uint64_t bytes, struct tb__window *out);

#endif

/* Registrations of memory that is not ours and comes back: a camera driver's buffers, an array that
 * is written again and again.
 *
 * Page-locking is remembered by the kernel for the pages, not for the address: when somebody unmaps
 * a range and maps another at its place, a registration that was kept would go on reading the old
 * pages, in silence. So only ranges whose owner has promised to keep them are registered for
 * longer than one copy. Within what was promised, those that come back are registered, up to a
 * bound; beyond it the least recently used one goes, when no copy uses it.
 *
 * Only whole pages within a range are registered: what else lies on its first and last page belongs
 * to somebody who copies it in his own way, which the driver refuses for memory that is locked in
 * part. For the same reason a copy is cut where locked pages begin and end; one that ends in host
 * memory then waits for its ends, which are pageable. Any thread. */
#ifndef TB_CUDA_HOST_CACHE_H
#define TB_CUDA_HOST_CACHE_H

#include <stdint.h>

#include "cuda/host_memory.h"
#include "cuda/order.h"

#define TB__HOST_CACHE_BYTES ((uint64_t)1 << 30)
#define TB__HOST_CACHE_COUNT 256

/* The range stays mapped to the same pages until tb__host_forget(). It may be promised several
 * times, also overlapping; the same range is counted. TB_E_INVALID: empty. TB_E_NOMEM. */
tb_status tb__host_promise(void *ptr, uint64_t bytes);

/* End of a promise: nothing uses the range any more. TB_E_NOT_FOUND: it was not promised. */
tb_status tb__host_forget(void *ptr, uint64_t bytes);

/* A registration for one copy. */
struct tb__host_lease {
    void *range;       /* NULL: none */
    uint64_t from, to; /* the part of the copy's range that is locked */
};

/* Whether the range lies in a promised one and pages of it are registered now: 1, with a lease; 0:
 * copy another way: no page of it is registered here. A registration that fails is no failure. */
int tb__host_cache_get(const struct tb__gpu *gpu, const void *ptr, uint64_t bytes,
                       struct tb__host_lease *out);

/* Give a lease back: the copy is enqueued in the stream (`done`: it has ended). */
void tb__host_cache_put(struct tb__host_lease *lease, tb__stream stream, const struct tb__gpu *gpu,
                        int done);

/* Let go of all registrations that overlap a range which cannot be cut, when the copies that use
 * them have ended. */
void tb__host_cache_unlock(const void *ptr, uint64_t bytes);

/* The bounds, for tests and small machines; what is in use may exceed them. */
void tb__host_cache_limit(uint64_t bytes, uint32_t count);

/* Give all registrations back that no copy uses; promises stay. */
void tb__host_cache_trim(void);

struct tb__host_cache_stats {
    uint32_t promised, registered;
    uint64_t bytes;
    uint64_t hits, misses, evicted;
};
void tb__host_cache_stats(struct tb__host_cache_stats *out);

#endif

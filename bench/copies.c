/* Timing copies of each kind. */
#include "bench/copies.h"

#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/fd.h"

#define PAGE_BYTES ((size_t)4096)

uint32_t tb__cell_slots(const struct tb__cell *cell)
{
    size_t cache = tb__copy_cache_bytes();
    if (cell->hot) {
        size_t fit = cache / 4 * 3 / cell->bytes;
        return fit < 4 ? (uint32_t)fit : 4;
    }
    size_t slots = 4 * cache / cell->bytes + 1;
    return slots < 2 ? 2 : slots > 256 ? 256 : (uint32_t)slots;
}

tb_status tb__copy_ring_create(struct tb__copy_ring *ring, size_t bytes, uint32_t count)
{
    int fd = -1;
    *ring = (struct tb__copy_ring){.bytes = bytes, .count = count};
    ring->stride_bytes = (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    TB__TRY(tb__memfd_create("bench-ring", (uint64_t)ring->stride_bytes * count, &fd));
    void *slots = mmap(NULL, ring->stride_bytes * count, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_POPULATE, fd, 0);
    tb__fd_close(&fd);
    void *source = mmap(NULL, ring->stride_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    ring->slots = slots != MAP_FAILED ? slots : NULL;
    ring->source = source != MAP_FAILED ? source : NULL;
    if (ring->slots == NULL || ring->source == NULL) {
        tb__copy_ring_destroy(ring);
        return TB__FAIL(TB_E_NOMEM, "no memory for %u slots of %zu bytes", count, bytes);
    }
    memset(ring->source, 1, ring->stride_bytes);
    return TB_OK;
}

void tb__copy_ring_destroy(struct tb__copy_ring *ring)
{
    if (ring->slots != NULL) {
        munmap(ring->slots, ring->stride_bytes * ring->count);
    }
    if (ring->source != NULL) {
        munmap(ring->source, ring->stride_bytes);
    }
    *ring = (struct tb__copy_ring){0};
}

uint32_t tb__copy_ring_copies(const struct tb__copy_ring *ring, int quick)
{
    /* At 25 GB/s, 30 ms are 750 MB. */
    size_t copies = (quick ? (size_t)250000000 : (size_t)750000000) / ring->bytes;
    return copies > ring->count ? (uint32_t)copies : ring->count;
}

static void copy_some(struct tb__copy_ring *ring, enum tb__copy_kind kind, uint32_t copies)
{
    for (uint32_t i = 0; i < copies; i++) {
        tb__copy_with(kind, ring->slots + ring->next * ring->stride_bytes, ring->source,
                      ring->bytes);
        ring->next = (ring->next + 1) % ring->count;
    }
}

void tb__copy_ring_run(struct tb__copy_ring *ring, enum tb__copy_kind kind, uint32_t copies,
                       double *gbps)
{
    copy_some(ring, kind, ring->count);
    int64_t start = tb__now_ns();
    copy_some(ring, kind, copies);
    int64_t end = tb__now_ns();
    *gbps = (double)ring->bytes * copies / (double)(end - start);
}

/* Memories of every kind to copy between. */
#ifndef TB_TESTS_SIDES_H
#define TB_TESTS_SIDES_H

#include <sys/mman.h>

#include "cuda/copy.h"
#include "cuda/device_memory.h"
#include "cuda/host_memory.h"
#include "tests/cuda/kit.h"

#define MIB ((uint64_t)1 << 20)

/* One side: pageable (-2) or page-locked (-1) host memory, or of a GPU. */
struct side {
    int where;
    uint64_t bytes;
    void *host;
    struct tb__host_registration registration;
    struct tb__device_memory device;
    struct tb__copy_end end;
};

static inline struct side side_make(int where, uint64_t bytes)
{
    struct side side = {.where = where, .bytes = bytes};
    if (where >= 0) {
        OK(tb__device_alloc(gpu_at(where), bytes, &side.device));
        side.end = (struct tb__copy_end){.ptr = side.device.ptr, .gpu = gpu_at(where)};
        return side;
    }
    side.host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(side.host != MAP_FAILED);
    if (where == -1) {
        OK(tb__host_register(gpu_at(0), side.host, bytes, 0, &side.registration));
    }
    side.end = (struct tb__copy_end){.ptr = (uint64_t)(uintptr_t)side.host};
    return side;
}

static inline void side_drop(struct side *side)
{
    if (side->where >= 0) {
        tb__device_free(&side->device);
        return;
    }
    tb__host_unregister(&side->registration);
    munmap(side->host, side->bytes);
}

static inline void side_fill(struct side *side, uint64_t bytes, unsigned seed)
{
    if (side->where >= 0) {
        kit_fill(side->where, side->device.ptr, bytes, seed);
    } else {
        kit_pattern(side->host, bytes, seed);
    }
}

static inline void side_expect(int line, const struct side *side, uint64_t bytes, unsigned seed)
{
    if (side->where >= 0) {
        kit_expect(__FILE__, line, side->where, side->device.ptr, bytes, seed);
    } else if (!kit_same(side->host, bytes, seed)) {
        kit_fail(__FILE__, line, "host bytes are not those of seed %u", seed);
    }
}

#endif

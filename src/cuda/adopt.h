/* Making memory that a user allocated a pool's: which kinds other processes can map at all, and the
 * handle or descriptor by which they do. Any thread; one struct belongs to one thread at a time. */
#ifndef TB_CUDA_ADOPT_H
#define TB_CUDA_ADOPT_H

#include <tensorbus/memory.h>

#include "cuda/device_memory.h"

struct tb__adopted {
    tb_memory_kind kind;
    const struct tb__gpu *gpu; /* NULL: host memory without a GPU */
    uint64_t address;          /* the user's: of the device, or of the CPU for SHARED_PINNED */
    uint64_t bytes;
    uint64_t offset;       /* of the address in what is exported, */
    uint64_t export_bytes; /* ... and how large that is */
    /* To export with tb__device_export_fd() or tb__device_export_ipc(); what it maps stays the
     * user's. Kind NONE for SHARED_PINNED, whose memfd is borrow_fd. */
    struct tb__device_memory memory;
    int borrow_fd;
};

/* Find out how a range can be exported; the user keeps it until tb__adopted_release().
 * TB_E_UNSUPPORTED: its kind cannot be shared (named, with what to use instead). TB_E_INVALID: it
 * reaches beyond its allocation. */
tb_status tb__adopt(const void *address, uint64_t bytes, struct tb__adopted *out);
void tb__adopted_release(struct tb__adopted *adopted);

#endif

/* Page-locking host memory that was allocated otherwise, so that GPUs copy from and to it at the
 * bus's full speed and reach it in kernels. Memory of ours is registered once, for its whole life.
 * Any thread. */
#ifndef TB_CUDA_HOST_MEMORY_H
#define TB_CUDA_HOST_MEMORY_H

#include <stdint.h>

#include "cuda/device.h"

struct tb__host_registration {
    const struct tb__gpu *gpu; /* NULL: empty */
    void *ptr;
    uint64_t bytes;
    uint64_t device_ptr; /* the same memory for kernels and streams of every GPU */
    int owned;           /* 0: somebody else had registered it, and will unregister it */
};

/* Register memory for all GPUs. read_only: the mapping is, so the registration must be, too
 * (TB_E_UNSUPPORTED where the device cannot). Memory that somebody else (PyTorch, say) has
 * registered as a whole is taken as it is; TB_E_EXISTS when only a part of it is registered. */
tb_status tb__host_register(const struct tb__gpu *gpu, void *ptr, uint64_t bytes, int read_only,
                            struct tb__host_registration *out);

/* Give a registration back, before the memory is unmapped and after all work with it is done. Takes
 * empty ones. In a forked child it only forgets. */
void tb__host_unregister(struct tb__host_registration *registration);

/* The whole pages within a range: what can be locked of it without its neighbours on the first and
 * the last page. *from == *to: there are none. */
void tb__whole_pages(uint64_t ptr, uint64_t bytes, uint64_t *from, uint64_t *to);

/* Whether a range is page-locked as a whole: its address for the GPU, or 0. */
uint64_t tb__host_device_address(const void *ptr, uint64_t bytes);

#endif

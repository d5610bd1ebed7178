/* Advice and prefetching of managed memory, by the calls of CUDA 12.2 or, before, the older ones.
 * The device's context is current. gpu NULL: the CPU. */
#ifndef TB_CUDA_MANAGED_H
#define TB_CUDA_MANAGED_H

#include <tensorbus/memory.h>

#include "cuda/device.h"

#define TB__ADVICE_ALL                                                                             \
    (TB_ADVICE_READ_MOSTLY | TB_ADVICE_PREFER_DEVICE | TB_ADVICE_PREFER_CPU |                      \
     TB_ADVICE_ACCESSED_BY_DEVICE | TB_ADVICE_ACCESSED_BY_CPU)

/* Whether advice and prefetching mean anything on a device. TB_E_UNSUPPORTED. */
tb_status tb__managed_check(const struct tb__gpu *gpu, const char *what);

struct tb__managed {
    uint64_t address;
    uint64_t bytes;
};

/* advice: TB_ADVICE_* bits, about `gpu`. */
tb_status tb__managed_advise(const struct tb__managed *memory, uint32_t advice,
                             const struct tb__gpu *gpu);
tb_status tb__managed_prefetch(const struct tb__managed *memory, const struct tb__gpu *gpu,
                               tb__stream stream);

#endif

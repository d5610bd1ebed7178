/* Which way bytes go between two kinds of memory: pure functions, tested over all their cases. */
#ifndef TB_CUDA_PATH_H
#define TB_CUDA_PATH_H

#include <stdint.h>

enum tb__memory_class {
    TB__HOST_PAGEABLE = 0, /* ordinary memory of a process */
    TB__HOST_LOCKED = 1,   /* page-locked: pools that GPUs use, pinned allocations */
    TB__GPU = 2,
    TB__MEMORY_CLASSES = 3,
};

enum tb__path {
    TB__PATH_NONE = 0,        /* there is nothing to copy */
    TB__PATH_CPU = 1,         /* between host memories, by the CPU */
    TB__PATH_DMA = 2,         /* between locked host memory and a GPU, at the bus's full speed */
    TB__PATH_DRIVER = 3,      /* ... and pageable memory: the driver stages it, the CPU works */
    TB__PATH_REGISTER = 4,    /* ... page-locked for this one copy, where that pays */
    TB__PATH_SAME_DEVICE = 5, /* within one GPU */
    TB__PATH_PEER = 6,        /* one GPU reads the other's memory */
    TB__PATH_STAGED = 7,      /* between GPUs, through pinned host memory, both halves at once */
    TB__PATHS = 8,
};

/* What the choice depends on. */
struct tb__path_case {
    enum tb__memory_class src;
    enum tb__memory_class dst;
    int same_device; /* both on one GPU */
    int peer;        /* the GPUs reach each other's memory */
    int exportable;  /* the process that copies can map both sides; 0: only through host memory */
    uint64_t bytes;
};

/* From how many bytes on page-locking a pageable range for one copy is faster than the driver's own
 * staging: measured on an H200, where locking and unlocking cost 53 us per MiB and the driver
 * stages 12 GB/s. Row gpu/pin/from of `tensorbus bench gpu` measures it for the GPU at hand, and
 * TENSORBUS_GPU_PIN_MIN sets it. */
#define TB__REGISTER_MIN_BYTES ((uint64_t)20 << 20)

enum tb__path tb__path_choose(const struct tb__path_case *c, uint64_t register_min_bytes);

/* "none", "cpu", "dma", "driver", "register", "same-device", "peer", "staged". */
const char *tb__path_name(enum tb__path path);

/* Whether a range that its user promised to keep is worth a registration that stays: when it comes
 * back, or is so large that one copy pays for it. */
int tb__should_register(uint64_t bytes, uint64_t times_seen, uint64_t register_min_bytes);

#endif

/* Memory that CPU and GPU both use without a copy, to fill frames and payloads in.
 *
 * tb_alloc() takes a kind and gives an object; tb_memory_data() is the memory; tb_memory_free()
 * ends both. Nothing here is needed for pools, which allocate their own. Which kinds other
 * processes can map, and why the others never can, tell tb_memory_can_share() and docs/gpu.md.
 * Memory is aligned to 256 bytes at least, which is what inference engines ask for; it is not
 * cleared. */
#ifndef TENSORBUS_MEMORY_H
#define TENSORBUS_MEMORY_H

#include <tensorbus/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tb_memory tb_memory;

typedef enum tb_memory_kind {
    TB_MEMORY_UNKNOWN = 0,
    TB_MEMORY_PINNED = 1,         /* host memory, page-locked and mapped for all GPUs */
    TB_MEMORY_DEVICE = 2,         /* a GPU's own memory; pools can adopt it */
    TB_MEMORY_STREAM_ORDERED = 3, /* a GPU's, from its stream-ordered pool */
    TB_MEMORY_MANAGED = 4,        /* moves between CPU and GPU by itself */
    TB_MEMORY_SHARED_PINNED = 5,  /* as PINNED, in shared memory; pools can adopt it */
    TB_MEMORY_LOCKED = 6,         /* host memory that is never swapped out; needs no GPU */
    TB_MEMORY_PAGEABLE = 7,       /* of others only: ordinary host memory */
    TB_MEMORY_VIRTUAL = 8         /* of others only: a GPU's virtual memory without a descriptor */
} tb_memory_kind;

#define TB_MEMORY_ALIGNMENT 256
#define TB_MEMORY_MAX_ALIGNMENT ((uint64_t)2 << 20)

/* Advice about managed memory, and about no other: bits. */
enum {
    TB_ADVICE_READ_MOSTLY = 1,   /* copies on every side that reads; writes are expensive */
    TB_ADVICE_PREFER_DEVICE = 2, /* it lives on the GPU; the CPU reads it from there if it can */
    TB_ADVICE_PREFER_CPU = 4,    /* it lives in host memory */
    TB_ADVICE_ACCESSED_BY_DEVICE = 8, /* the GPU keeps it mapped wherever it lives */
    TB_ADVICE_ACCESSED_BY_CPU = 16
};

typedef struct tb_memory_options {
    size_t size; /* sizeof(tb_memory_options) */
    tb_memory_kind kind;
    tb_device device; /* TB_CUDA(n); 0: the device of the current CUDA context, else the first */
    uint64_t bytes;
    uint64_t alignment; /* a power of two up to TB_MEMORY_MAX_ALIGNMENT; 0: TB_MEMORY_ALIGNMENT */
    uint32_t advice;    /* MANAGED: TB_ADVICE_* bits */
    uint32_t reserved;  /* 0 */
    void *stream;       /* STREAM_ORDERED: a CUstream or cudaStream_t; NULL: the default stream */
} tb_memory_options;

/** Allocate.
 *  Units:   bytes, at least 1; they may be rounded up.
 *  Owner:   the caller; end with tb_memory_free(). Options are copied.
 *  Returns: TB_OK, TB_E_INVALID (kind, size, alignment, device), TB_E_NOMEM (names what is free),
 *           TB_E_LIMIT (locked memory: names the limit and how to raise it), TB_E_UNSUPPORTED (no
 *           driver, no GPU, or not on this device), TB_E_NOT_FOUND (device), TB_E_SYSTEM,
 *           TB_E_FORKED.
 *  Threads: any.   Waits: while memory is allocated and locked; the first use of a GPU up to a
 *           second.   Source: src/cuda/alloc.c */
TB_API TB_MUST_USE tb_status tb_alloc(const tb_memory_options *options, tb_memory **out);

/** Free. NULL is allowed. Nothing may use the memory any more; STREAM_ORDERED is freed in the
 *  order of the stream that it was allocated on. In a forked child a GPU's memory is the parent's.
 *  Owner:   takes the memory.   Threads: any, after all use has ended.   Waits: for the device, as
 *           its driver does.   Source: src/cuda/alloc.c */
TB_API void tb_memory_free(tb_memory *memory);

/** Free STREAM_ORDERED memory in the order of another stream.
 *  Owner:   takes the memory, also on failure.
 *  Returns: TB_OK, TB_E_INVALID (NULL; another kind: it is freed all the same), TB_E_SYSTEM.
 *  Threads: any.   Waits: never.   Source: src/cuda/alloc.c */
TB_API TB_MUST_USE tb_status tb_memory_free_on(tb_memory *memory, void *stream);

/** First byte: for kinds that the CPU can use its address, else the address on the device.
 *  Owner:   borrowed; valid until tb_memory_free().   Returns: NULL for NULL.
 *  Threads: any.   Waits: never.   Source: src/cuda/memory_object.c */
TB_API void *tb_memory_data(const tb_memory *memory);

typedef struct tb_memory_info {
    size_t size; /* sizeof(tb_memory_info), set by the caller */
    tb_memory_kind kind;
    tb_device device;     /* TB_CPU for LOCKED */
    void *data;           /* the CPU's address; NULL when it has none */
    uint64_t device_data; /* address for kernels of the device; 0 for LOCKED */
    uint64_t bytes;       /* asked for */
    uint64_t alignment;   /* that data and device_data have, at least */
    int32_t can_share;    /* 1: pools can adopt it */
    int32_t reserved;
} tb_memory_info;

/** What is known about memory.
 *  Owner:   *out is the caller's; its size field says how much of it is filled.
 *  Returns: TB_OK, TB_E_INVALID (NULL, size).   Threads: any.   Waits: never.
 *  Source:  src/cuda/memory_object.c */
TB_API TB_MUST_USE tb_status tb_memory_get_info(const tb_memory *memory, tb_memory_info *out);

/** The memory that an address lies in.
 *  Owner:   borrowed: whoever allocated it may free it.
 *  Returns: TB_OK, TB_E_NOT_FOUND (not from tb_alloc()).   Threads: any.   Waits: never.
 *  Source:  src/cuda/memory_object.c */
TB_API TB_MUST_USE tb_status tb_memory_find(const void *address, tb_memory **out);

/** What kind of memory an address is, whoever allocated it (PyTorch, cudaMalloc(), malloc()).
 *  Returns: TB_OK (without a driver everything of others is PAGEABLE), TB_E_INVALID (NULL),
 *           TB_E_FORKED.   *device (may be NULL) is the GPU that it belongs to, or TB_CPU.
 *  Threads: any.   Waits: never; a driver that nobody has opened yet is not opened.
 *  Source:  src/cuda/adopt.c */
TB_API TB_MUST_USE tb_status tb_memory_kind_of(const void *address, tb_memory_kind *out,
                                               tb_device *device);

/** Whether other processes can map memory of a kind.
 *  Returns: 1 or 0; *why (may be NULL) is a static sentence that says why, and what to use instead.
 *  Threads: any.   Waits: never.   Source: src/cuda/adopt.c */
TB_API int tb_memory_can_share(tb_memory_kind kind, const char **why);

/** Name of a kind, such as "shared-pinned"; "?" for an unknown one.
 *  Owner:   static.   Threads: any.   Waits: never.   Source: src/cuda/adopt.c */
TB_API const char *tb_memory_kind_name(tb_memory_kind kind);

/** Advise where managed memory lives and who uses it.
 *  Shape:   advice is TB_ADVICE_* bits; device is the GPU that they speak of (0: the memory's own).
 *  Returns: TB_OK, TB_E_UNSUPPORTED (any other kind, by name; the device), TB_E_INVALID,
 *           TB_E_SYSTEM, TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/cuda/memory_object.c */
TB_API TB_MUST_USE tb_status tb_memory_advise(tb_memory *memory, uint32_t advice, tb_device device);

/** Move managed memory to a device, or to the CPU (TB_CPU), in the order of a stream.
 *  Returns: TB_OK, TB_E_UNSUPPORTED (any other kind, by name; the device), TB_E_INVALID,
 *           TB_E_SYSTEM, TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/cuda/memory_object.c */
TB_API TB_MUST_USE tb_status tb_memory_prefetch(tb_memory *memory, tb_device device, void *stream);

/** Promise that memory of one's own stays mapped to the same pages until tb_memory_forget(). When
 *  it is copied to or from a GPU again and again it is then page-locked once, not each time.
 *  Without the promise it is never locked for longer than a copy: an address that is unmapped and
 *  mapped anew would go on being read from its old pages.
 *  Units:   bytes.   Owner: the memory stays the caller's.
 *  Returns: TB_OK (also without a GPU), TB_E_INVALID, TB_E_NOMEM.
 *  Threads: any.   Waits: never.   Source: src/cuda/memory_object.c */
TB_API TB_MUST_USE tb_status tb_memory_promise(void *data, uint64_t bytes);

/** End a promise, with the same arguments, before the memory is freed and after all its copies.
 *  Returns: TB_OK, TB_E_NOT_FOUND (not promised), TB_E_BUSY (another thread is copying it).
 *  Threads: any.   Waits: while it is unlocked.   Source: src/cuda/memory_object.c */
TB_API TB_MUST_USE tb_status tb_memory_forget(void *data, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif

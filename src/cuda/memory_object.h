/* The object behind tb_memory, and the tree that holds all of them. */
#ifndef TB_CUDA_MEMORY_OBJECT_H
#define TB_CUDA_MEMORY_OBJECT_H

#include <tensorbus/memory.h>

#include "cuda/device_memory.h"
#include "cuda/order.h"

struct tb_memory {
    tb_memory_kind kind;
    const struct tb__gpu *gpu; /* NULL for LOCKED */
    uint64_t bytes;
    uint64_t alignment;
    uint64_t mapped_bytes; /* from `base` on */
    void *base;            /* CPU: what was mapped or allocated; NULL when the CPU has no address */
    void *data;            /* base, aligned */
    uint64_t device_base;  /* the same for the device */
    uint64_t device_data;
    int fd; /* SHARED_PINNED: its memfd, sealed against resizing */
    tb__stream stream;
    const struct tb__gpu *stream_gpu;
    struct tb__host_registration registration;
    struct tb__device_memory device;
};

/* Put an object into the tree, and take it out. Any thread. */
tb_status tb__memory_note(struct tb_memory *memory);
void tb__memory_unnote(const struct tb_memory *memory);

#endif

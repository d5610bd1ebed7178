/* How two strided tensors of one shape are walked together: loops, outermost first, around blocks
 * of bytes that are contiguous in both; and how many of the loops one call of the driver takes.
 * Pure functions. */
#ifndef TB_CUDA_COPY_WALK_H
#define TB_CUDA_COPY_WALK_H

#include <tensorbus/tensor.h>

struct tb__walk {
    int count;                  /* loops; 0: one block is all */
    int64_t shape[TB_MAX_NDIM]; /* repetitions, at least 2 */
    int64_t dst[TB_MAX_NDIM];   /* strides in bytes */
    int64_t src[TB_MAX_NDIM];
    uint64_t block_bytes; /* 0: the tensors are empty */
};

/* Both have passed tb_tensor_bytes() and have the same shape and dtype. */
void tb__walk_build(const tb_tensor *dst, const tb_tensor *src, struct tb__walk *out);

/* How many of the innermost loops a copy of pitched rows takes at once: 0, 1 (rows) or 2 (slices of
 * rows). Overlapping, reversed or repeated rows cannot be. */
int tb__walk_planes(const struct tb__walk *walk, uint64_t max_pitch);

/* Calls that the walk needs when `planes` loops are in each; saturates. */
uint64_t tb__walk_calls(const struct tb__walk *walk, int planes);

/* Step an index over the first `loops` loops; 0 after the last. */
int tb__walk_step(const struct tb__walk *walk, int loops, int64_t index[TB_MAX_NDIM]);

/* Offsets of an index over the first `loops` loops, in bytes. */
void tb__walk_offsets(const struct tb__walk *walk, int loops, const int64_t index[TB_MAX_NDIM],
                      int64_t *dst, int64_t *src);

/* The bytes that a tensor reaches: *first from its data (negative with reversed dimensions), *bytes
 * long. 0 when it is empty or reaches beyond an address. */
int tb__tensor_reach(const tb_tensor *tensor, int64_t *first, uint64_t *bytes);

#endif

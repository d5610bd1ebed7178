/* How far a strided tensor reaches into memory. */
#ifndef TB_BASE_EXTENT_H
#define TB_BASE_EXTENT_H

#include <tensorbus/tensor.h>

/* Bytes from the first to behind the last element of a tensor that has passed tb_tensor_bytes(),
 * with strides in elements; 0 when it is empty. Returns 0 when a stride is negative or the sum
 * overflows. */
static inline int tb__extent_bytes(const tb_tensor *tensor, const int64_t *strides, uint64_t *out)
{
    uint64_t last = 0;
    uint64_t elements;
    int empty = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        uint64_t step = 0;
        if (tensor->shape[i] == 0) {
            empty = 1;
        } else if (strides[i] < 0 ||
                   __builtin_mul_overflow((uint64_t)strides[i], (uint64_t)tensor->shape[i] - 1,
                                          &step) ||
                   __builtin_add_overflow(last, step, &last)) {
            return 0;
        }
    }
    if (empty) {
        *out = 0;
        return 1;
    }
    return !__builtin_add_overflow(last, 1, &elements) &&
           !__builtin_mul_overflow(elements, tb_dtype_bytes(tensor->dtype), out);
}

#endif

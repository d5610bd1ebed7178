/* Walking two strided tensors. */
#include "cuda/copy_walk.h"

/* Byte strides wrap like the addresses that they are added to; valid tensors stay inside memory. */
static int64_t wrapping_mul(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

static void byte_strides(const tb_tensor *tensor, int64_t out[TB_MAX_NDIM])
{
    int64_t element = (int64_t)tb_dtype_bytes(tensor->dtype);
    int64_t packed = element;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        out[i] = tensor->strides != NULL ? wrapping_mul(tensor->strides[i], element) : packed;
        packed = wrapping_mul(packed, tensor->shape[i]);
    }
}

void tb__walk_build(const tb_tensor *dst, const tb_tensor *src, struct tb__walk *out)
{
    int64_t element = (int64_t)tb_dtype_bytes(src->dtype);
    int64_t to[TB_MAX_NDIM] = {0}, from[TB_MAX_NDIM] = {0};
    byte_strides(dst, to);
    byte_strides(src, from);
    *out = (struct tb__walk){.block_bytes = (uint64_t)element};
    for (int i = 0; i < src->ndim; i++) {
        if (src->shape[i] <= 0) {
            out->block_bytes = 0;
            out->count = 0;
            return;
        }
        if (src->shape[i] == 1) {
            continue;
        }
        int last = out->count - 1;
        if (last >= 0 && out->dst[last] == wrapping_mul(src->shape[i], to[i]) &&
            out->src[last] == wrapping_mul(src->shape[i], from[i])) {
            out->shape[last] *= src->shape[i]; /* both walk on as if it were one dimension */
        } else {
            last = out->count++;
            out->shape[last] = src->shape[i];
        }
        out->dst[last] = to[i];
        out->src[last] = from[i];
    }
    int last = out->count - 1;
    if (last >= 0 && out->dst[last] == element && out->src[last] == element) {
        out->block_bytes = (uint64_t)wrapping_mul(element, out->shape[last]);
        out->count--;
    }
}

static int is_pitch(int64_t stride, uint64_t block_bytes, uint64_t max_pitch)
{
    return stride > 0 && (uint64_t)stride >= block_bytes && (uint64_t)stride <= max_pitch;
}

/* Slices of `rows` rows that lie a whole number of rows apart, at least as many as there are. */
static int is_slice(int64_t stride, int64_t pitch, int64_t rows)
{
    return stride > 0 && stride % pitch == 0 && stride / pitch >= rows;
}

int tb__walk_planes(const struct tb__walk *walk, uint64_t max_pitch)
{
    int row = walk->count - 1;
    if (row < 0 || !is_pitch(walk->dst[row], walk->block_bytes, max_pitch) ||
        !is_pitch(walk->src[row], walk->block_bytes, max_pitch)) {
        return 0;
    }
    int slice = row - 1;
    return slice >= 0 && is_slice(walk->dst[slice], walk->dst[row], walk->shape[row]) &&
                   is_slice(walk->src[slice], walk->src[row], walk->shape[row])
               ? 2
               : 1;
}

uint64_t tb__walk_calls(const struct tb__walk *walk, int planes)
{
    uint64_t calls = 1;
    for (int i = 0; i < walk->count - planes; i++) {
        if (__builtin_mul_overflow(calls, (uint64_t)walk->shape[i], &calls)) {
            return UINT64_MAX;
        }
    }
    return calls;
}

int tb__walk_step(const struct tb__walk *walk, int loops, int64_t index[TB_MAX_NDIM])
{
    for (int i = loops - 1; i >= 0; i--) {
        if (++index[i] < walk->shape[i]) {
            return 1;
        }
        index[i] = 0;
    }
    return 0;
}

void tb__walk_offsets(const struct tb__walk *walk, int loops, const int64_t index[TB_MAX_NDIM],
                      int64_t *dst, int64_t *src)
{
    uint64_t to = 0, from = 0;
    for (int i = 0; i < loops; i++) {
        to += (uint64_t)wrapping_mul(index[i], walk->dst[i]);
        from += (uint64_t)wrapping_mul(index[i], walk->src[i]);
    }
    *dst = (int64_t)to;
    *src = (int64_t)from;
}

int tb__tensor_reach(const tb_tensor *tensor, int64_t *first, uint64_t *bytes)
{
    int64_t element = (int64_t)tb_dtype_bytes(tensor->dtype);
    int64_t low = 0, high = element, packed = 1;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        int64_t way = tensor->strides != NULL ? tensor->strides[i] : packed;
        if (tensor->shape[i] <= 0 || __builtin_mul_overflow(way, element, &way) ||
            __builtin_mul_overflow(way, tensor->shape[i] - 1, &way) ||
            __builtin_add_overflow(way < 0 ? low : high, way, way < 0 ? &low : &high) ||
            __builtin_mul_overflow(packed, tensor->shape[i], &packed)) {
            return 0;
        }
    }
    *first = low;
    *bytes = (uint64_t)high - (uint64_t)low;
    return 1;
}

/* Strided copies. A contiguous pair is a flat copy; else the rows go
 *   by the CPU         between host memories;
 *   by pieces          from scattered host memory to a GPU, and between GPUs that cannot reach each
 *                      other: packed into a pinned chunk, then one flat copy;
 *   by pitched copies  everything else: as many loops as possible in each call. */
#include "cuda/copy_tensor.h"

#include <string.h>

#include "base/copy.h"
#include "cuda/copy.h"
#include "cuda/copy_walk.h"
#include "cuda/host_cache.h"
#include "cuda/host_memory.h"
#include "cuda/order.h"
#include "cuda/transit.h"

/* More single calls than this is no copy any more. */
#define MAX_CALLS 65536
/* Rows shorter than this are packed by the CPU faster than the bus fetches them one by one. */
#define MIN_ROW_BYTES 512

struct travel {
    tb_tensor dst, src;
    const struct tb__gpu *dst_gpu, *src_gpu; /* NULL: host */
    tb__stream stream;
    const struct tb__gpu *stream_gpu;
    const struct tb__gpu *gpu; /* the one that copies */
    struct tb__walk walk;
    struct tb__host_lease lease;
    struct tb__copy_result result;
};

/* ------------------------------------------------------------------ one call of the driver */

/* Where a copy begins, and of what type the two sides are. */
struct corner {
    uint64_t dst, src;
    int dst_is_host, src_is_host;
};

static int call_rows(const struct tb__walk *walk, const struct corner *at, tb__stream stream)
{
    int row = walk->count - 1;
    const struct tb__memcpy2d copy = {
        .src_type = at->src_is_host ? TB__MEMORYTYPE_HOST : TB__MEMORYTYPE_DEVICE,
        .src_host = at->src_is_host ? (const void *)(uintptr_t)at->src : NULL,
        .src_device = at->src_is_host ? 0 : at->src,
        .src_pitch = (size_t)walk->src[row],
        .dst_type = at->dst_is_host ? TB__MEMORYTYPE_HOST : TB__MEMORYTYPE_DEVICE,
        .dst_host = at->dst_is_host ? (void *)(uintptr_t)at->dst : NULL,
        .dst_device = at->dst_is_host ? 0 : at->dst,
        .dst_pitch = (size_t)walk->dst[row],
        .width_bytes = walk->block_bytes,
        .height = (size_t)walk->shape[row],
    };
    return tb__cuda()->memcpy2d_async(&copy, stream);
}

static int call_slices(const struct tb__walk *walk, const struct corner *at, tb__stream stream)
{
    int row = walk->count - 1, slice = row - 1;
    const struct tb__memcpy3d copy = {
        .src_type = at->src_is_host ? TB__MEMORYTYPE_HOST : TB__MEMORYTYPE_DEVICE,
        .src_host = at->src_is_host ? (const void *)(uintptr_t)at->src : NULL,
        .src_device = at->src_is_host ? 0 : at->src,
        .src_pitch = (size_t)walk->src[row],
        .src_height = (size_t)(walk->src[slice] / walk->src[row]),
        .dst_type = at->dst_is_host ? TB__MEMORYTYPE_HOST : TB__MEMORYTYPE_DEVICE,
        .dst_host = at->dst_is_host ? (void *)(uintptr_t)at->dst : NULL,
        .dst_device = at->dst_is_host ? 0 : at->dst,
        .dst_pitch = (size_t)walk->dst[row],
        .dst_height = (size_t)(walk->dst[slice] / walk->dst[row]),
        .width_bytes = walk->block_bytes,
        .height = (size_t)walk->shape[row],
        .depth = (size_t)walk->shape[slice],
    };
    return tb__cuda()->memcpy3d_async(&copy, stream);
}

static int call_block(const struct tb__walk *walk, const struct corner *at, tb__stream stream)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    if (at->src_is_host) {
        return cuda->memcpy_htod_async(at->dst, (const void *)(uintptr_t)at->src, walk->block_bytes,
                                       stream);
    }
    if (at->dst_is_host) {
        return cuda->memcpy_dtoh_async((void *)(uintptr_t)at->dst, at->src, walk->block_bytes,
                                       stream);
    }
    return cuda->memcpy_dtod_async(at->dst, at->src, walk->block_bytes, stream);
}

/* All of a walk, on a stream of `gpu`. *result: of the call that failed. */
static tb_status call_all(const struct tb__walk *walk, const struct corner *begin,
                          const struct tb__gpu *gpu, tb__stream stream, int *result)
{
    static const char *const names[] = {"cuMemcpyAsync", "cuMemcpy2DAsync", "cuMemcpy3DAsync"};
    struct tb__gpu_scope scope;
    int planes = tb__walk_planes(walk, gpu->max_pitch);
    int loops = walk->count - planes;
    int64_t index[TB_MAX_NDIM] = {0};
    *result = TB__CUDA_SUCCESS;
    TB__TRY(tb__stream_enter(stream, gpu, &scope));
    do {
        int64_t dst = 0, src = 0;
        tb__walk_offsets(walk, loops, index, &dst, &src);
        struct corner at = *begin;
        at.dst += (uint64_t)dst;
        at.src += (uint64_t)src;
        *result = planes == 2   ? call_slices(walk, &at, stream)
                  : planes == 1 ? call_rows(walk, &at, stream)
                                : call_block(walk, &at, stream);
    } while (*result == TB__CUDA_SUCCESS && tb__walk_step(walk, loops, index));
    tb__gpu_leave(&scope);
    return *result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(*result, names[planes],
                               "rows of %llu bytes, %d loops around them, cuda:%d",
                               (unsigned long long)walk->block_bytes, walk->count, gpu->ordinal);
}

/* ------------------------------------------------------------------ by the CPU */

static tb_status go_cpu(struct travel *travel)
{
    const struct tb__walk *walk = &travel->walk;
    int64_t index[TB_MAX_NDIM] = {0};
    if (tb_tensor_is_packed(&travel->dst)) {
        tb__copy_strided(travel->dst.data, &travel->src);
        return TB_OK;
    }
    do {
        int64_t dst = 0, src = 0;
        tb__walk_offsets(walk, walk->count, index, &dst, &src);
        memcpy((char *)travel->dst.data + dst, (const char *)travel->src.data + src,
               walk->block_bytes);
    } while (tb__walk_step(walk, walk->count, index));
    return TB_OK;
}

/* ------------------------------------------------------------------ by pieces */

/* Put a piece into a chunk, packed. */
static tb_status fill(const struct travel *travel, const tb_tensor *piece,
                      struct tb__transit *transit, struct tb__chunk *chunk)
{
    if (travel->src_gpu == NULL) {
        tb__copy_strided(chunk->host, piece);
        return TB_OK;
    }
    tb_tensor packed = *piece;
    packed.strides = NULL;
    packed.data = chunk->host;
    struct tb__walk walk;
    int result = 0;
    tb__walk_build(&packed, piece, &walk);
    const struct corner at = {.dst = (uint64_t)(uintptr_t)chunk->host,
                              .src = (uint64_t)(uintptr_t)piece->data,
                              .dst_is_host = 1};
    return call_all(&walk, &at, travel->src_gpu, transit->in, &result);
}

/* A piece of the source, from *done bytes of the packed destination on. What does not fit a chunk
 * is cut along its first dimension; a dimension of one is dropped. */
static tb_status send_piece(const struct travel *travel, tb_tensor piece,
                            struct tb__transit *transit, uint64_t *done)
{
    size_t bytes = 0;
    TB__TRY(tb_tensor_bytes(&piece, &bytes));
    if (bytes <= TB__CHUNK_BYTES) {
        struct tb__chunk *chunk = NULL;
        TB__TRY(tb__transit_chunk(transit, &chunk));
        TB__TRY(fill(travel, &piece, transit, chunk));
        TB__TRY(
            tb__transit_send(transit, chunk, (uint64_t)(uintptr_t)travel->dst.data + *done, bytes));
        *done += bytes;
        return TB_OK;
    }
    int64_t rows = piece.shape[0];
    uint64_t row_bytes = bytes / (uint64_t)rows;
    int64_t step = rows == 1 ? 1 : (int64_t)(TB__CHUNK_BYTES / row_bytes);
    step = step > 0 ? step : 1;
    int64_t stride = (int64_t)((uint64_t)piece.strides[0] * (uint64_t)tb_dtype_bytes(piece.dtype));
    for (int64_t row = 0; row < rows; row += step) {
        tb_tensor part = piece;
        part.data = (void *)((uintptr_t)piece.data + (uint64_t)row * (uint64_t)stride);
        part.shape[0] = rows - row < step ? rows - row : step;
        if (part.shape[0] == 1) {
            part.ndim--;
            part.strides++;
            memmove(part.shape, part.shape + 1, sizeof part.shape - sizeof part.shape[0]);
        }
        TB__TRY(send_piece(travel, part, transit, done));
    }
    return TB_OK;
}

static tb_status go_pieces(struct travel *travel)
{
    struct tb__transit *transit = NULL;
    uint64_t done = 0;
    if (!tb_tensor_is_packed(&travel->dst)) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "a strided tensor cannot be copied into a strided one on a GPU that cannot "
                        "reach it: make one of them contiguous first");
    }
    if (travel->src_gpu == NULL && travel->result.path == TB__PATH_DMA) {
        /* The CPU reads now what the stream may be about to write. */
        TB__TRY(tb__stream_synchronize(travel->stream, travel->stream_gpu));
    }
    travel->result.path = TB__PATH_STAGED;
    TB__TRY(tb__transit_take(travel->src_gpu, travel->dst_gpu, 1, &transit));
    tb_status status = tb__transit_begin(transit, travel->stream, travel->stream_gpu);
    if (status == TB_OK) {
        status = send_piece(travel, travel->src, transit, &done);
    }
    if (status == TB_OK) {
        status = tb__transit_end(transit, travel->stream, travel->stream_gpu);
    }
    if (status != TB_OK) {
        tb__transit_abandon(transit, travel->stream, travel->stream_gpu);
    }
    tb__transit_give(transit);
    travel->result.src_busy = travel->src_gpu != NULL;
    travel->result.dst_busy = 1;
    return status;
}

/* ------------------------------------------------------------------ by pitched copies */

static tb_status pitched_on(const void *work, tb__stream stream, int *result)
{
    const struct travel *travel = work;
    const struct corner at = {.dst = (uint64_t)(uintptr_t)travel->dst.data,
                              .src = (uint64_t)(uintptr_t)travel->src.data,
                              .dst_is_host = travel->dst_gpu == NULL,
                              .src_is_host = travel->src_gpu == NULL};
    return call_all(&travel->walk, &at, travel->gpu, stream, result);
}

static tb_status go_pitched(struct travel *travel)
{
    int result = TB__CUDA_SUCCESS;
    int planes = tb__walk_planes(&travel->walk, travel->gpu->max_pitch);
    uint64_t calls = tb__walk_calls(&travel->walk, planes);
    if (calls > MAX_CALLS) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "a tensor so scattered takes %llu copies of %llu bytes: make it contiguous "
                        "first",
                        (unsigned long long)calls, (unsigned long long)travel->walk.block_bytes);
    }
    tb_error kept;
    tb_last_error(&kept);
    tb_status status = tb__transit_bracket(travel->gpu, travel->stream, travel->stream_gpu,
                                           pitched_on, travel, &result);
    int peer = travel->result.path == TB__PATH_PEER;
    if (peer && tb__copy_open_source((uint64_t)(uintptr_t)travel->src.data, travel->gpu, result)) {
        status = tb__transit_bracket(travel->gpu, travel->stream, travel->stream_gpu, pitched_on,
                                     travel, &result);
    }
    int refused =
        peer && (result == TB__CUDA_INVALID_VALUE || result == TB__CUDA_PEER_ACCESS_UNSUPPORTED);
    if (status == TB_OK || refused) {
        tb__error_restore(&kept);
    }
    if (refused) {
        return go_pieces(travel);
    }
    travel->result.src_busy = travel->result.dst_busy = 1;
    return status;
}

/* ------------------------------------------------------------------ finding the way */

static int is_locked(struct travel *travel, const tb_tensor *host)
{
    int64_t first = 0;
    uint64_t bytes = 0;
    if (!tb__tensor_reach(host, &first, &bytes)) {
        return 0;
    }
    const char *from = (const char *)host->data + first;
    uint64_t begin = (uint64_t)(uintptr_t)from;
    if (tb__host_cache_get(travel->gpu, from, bytes, &travel->lease)) {
        if (travel->lease.from == begin && travel->lease.to == begin + bytes) {
            return 1;
        }
        /* Rows cannot be cut where the locked pages begin and end. */
        tb__host_cache_put(&travel->lease, travel->stream, travel->stream_gpu, 1);
        tb__host_cache_unlock(from, bytes);
    }
    return tb__host_device_address(from, bytes) != 0;
}

static tb_status go(struct travel *travel)
{
    int peer = 0;
    travel->gpu = travel->dst_gpu != NULL ? travel->dst_gpu : travel->src_gpu;
    if (travel->gpu == NULL) {
        travel->result.path = TB__PATH_CPU;
        return go_cpu(travel);
    }
    TB__TRY(tb__cuda_need());
    TB__TRY(tb__stream_device(travel->stream, travel->gpu, &travel->stream_gpu));
    if (travel->src_gpu != NULL && travel->dst_gpu != NULL) {
        travel->result.path =
            travel->src_gpu == travel->dst_gpu ? TB__PATH_SAME_DEVICE : TB__PATH_PEER;
        TB__TRY(tb__gpu_peer(travel->dst_gpu, travel->src_gpu, &peer));
        return peer ? go_pitched(travel) : go_pieces(travel);
    }
    int locked = is_locked(travel, travel->src_gpu == NULL ? &travel->src : &travel->dst);
    travel->result.path = locked ? TB__PATH_DMA : TB__PATH_DRIVER;
    int scattered = tb__walk_planes(&travel->walk, travel->gpu->max_pitch) == 0 ||
                    travel->walk.block_bytes < MIN_ROW_BYTES;
    return travel->src_gpu == NULL && (!locked || scattered) && tb_tensor_is_packed(&travel->dst)
               ? go_pieces(travel)
               : go_pitched(travel);
}

static tb_status check(const tb_tensor *dst, const tb_tensor *src, size_t *bytes)
{
    size_t dst_bytes = 0;
    TB__TRY(tb_tensor_bytes(src, bytes));
    TB__TRY(tb_tensor_bytes(dst, &dst_bytes));
    char a[128], b[128];
    if (dst->dtype != src->dtype || dst->ndim != src->ndim ||
        memcmp(dst->shape, src->shape, (size_t)src->ndim * sizeof src->shape[0]) != 0) {
        return TB__FAIL(TB_E_MISMATCH, "copying %s into %s", tb_tensor_describe(src, a, sizeof a),
                        tb_tensor_describe(dst, b, sizeof b));
    }
    if (*bytes > 0 && (src->data == NULL || dst->data == NULL)) {
        return TB__FAIL(TB_E_INVALID, "copying %s %s NULL", tb_tensor_describe(src, a, sizeof a),
                        src->data == NULL ? "from" : "to");
    }
    return TB_OK;
}

static tb_status find_gpu(tb_device device, const struct tb__gpu **out)
{
    *out = NULL;
    return device == TB_CPU ? TB_OK : tb__gpu_of_device(device, out);
}

/* Strides of its own for a tensor that has none: pieces are cut along them. */
static void give_strides(tb_tensor *tensor, int64_t strides[TB_MAX_NDIM])
{
    int64_t packed = 1;
    for (int i = tensor->ndim - 1; i >= 0 && tensor->strides == NULL; i--) {
        strides[i] = packed;
        packed *= tensor->shape[i];
    }
    tensor->strides = tensor->strides == NULL ? strides : tensor->strides;
}

tb_status tb__gpu_copy_tensor(const tb_tensor *dst, const tb_tensor *src, tb__stream stream,
                              struct tb__copy_result *result)
{
    struct travel travel = {.dst = *dst, .src = *src, .stream = stream};
    int64_t strides[TB_MAX_NDIM] = {0};
    size_t bytes = 0;
    TB__TRY(check(dst, src, &bytes));
    if (bytes > 0) {
        TB__TRY(find_gpu(dst->device, &travel.dst_gpu));
        TB__TRY(find_gpu(src->device, &travel.src_gpu));
        tb__walk_build(dst, src, &travel.walk);
    }
    if (travel.walk.count == 0) {
        const struct tb__copy flat = {.dst = {(uint64_t)(uintptr_t)dst->data, travel.dst_gpu, 0},
                                      .src = {(uint64_t)(uintptr_t)src->data, travel.src_gpu, 0},
                                      .bytes = bytes};
        return tb__gpu_copy(&flat, stream, result);
    }
    give_strides(&travel.src, strides);
    tb_status status = go(&travel);
    tb__host_cache_put(&travel.lease, stream, travel.stream_gpu,
                       status == TB_OK && !travel.result.src_busy && !travel.result.dst_busy);
    TB__TRY(status);
    if (result != NULL) {
        *result = travel.result;
    }
    return TB_OK;
}

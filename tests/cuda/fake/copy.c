/* Copies. Addresses are checked when a copy is enqueued, as the real driver does, and again when it
 * is done. A host range that is not page-locked is read before the call returns (the driver has a
 * staging buffer of its own) and written before it returns; page-locked ones when the stream gets
 * there. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda/fake/fake.h"

/* One side of a copy: rows of `width`, `pitch` apart, in slices `slice` apart. */
struct side {
    uint64_t address; /* of the device, or of the host */
    int is_host;
    int named; /* cuMemcpyPeer: 1 + the device of the context that was named for it */
    size_t pitch, slice;
};

struct job {
    struct side dst, src;
    size_t width, height, depth;
    int device;     /* the stream's */
    int current;    /* of the context that was current: virtual memory must be open to it */
    char *snapshot; /* of a pageable source: packed; behind the job itself */
};

static size_t reach(const struct side *side, const struct job *job)
{
    return (job->depth - 1) * side->slice + (job->height - 1) * side->pitch + job->width;
}

/* The lock is held. */
static char *resolve(const struct side *side, const struct job *job, int writing)
{
    if (side->is_host) {
        return (char *)(uintptr_t)side->address;
    }
    struct range *range = range_find(side->address);
    int device = job->device;
    if (side->named > 0) {
        device = side->named - 1; /* devices need not reach each other */
    } else if (range != NULL && range->kind == RANGE_RESERVED) {
        device = job->current;
    }
    return fake_resolve(side->address, reach(side, job), device, writing);
}

static void rows(char *dst, const struct side *to, const char *src, const struct side *from,
                 const struct job *job)
{
    for (size_t z = 0; z < job->depth; z++) {
        for (size_t y = 0; y < job->height; y++) {
            memmove(dst + z * to->slice + y * to->pitch, src + z * from->slice + y * from->pitch,
                    job->width);
        }
    }
}

static int copy_run(struct work *work)
{
    struct job *job = work->owned;
    const struct side packed = {.pitch = job->width, .slice = job->width * job->height};
    fake_lock();
    char *dst = resolve(&job->dst, job, 1);
    const char *src = job->snapshot != NULL ? job->snapshot : resolve(&job->src, job, 0);
    unsigned slow = fake.slow_to_device && !job->src.is_host ? 0 : fake.slow_us;
    fake_unlock(0);
    if (dst == NULL || src == NULL) {
        return TB__CUDA_ILLEGAL_ADDRESS; /* freed meanwhile */
    }
    if (slow > 0) {
        usleep(slow);
    }
    rows(dst, &job->dst, src, job->snapshot != NULL ? &packed : &job->src, job);
    return 0;
}

/* Enqueue; takes nothing. The lock is held. */
static int copy_enqueue(const char *name, const struct job *given, tb__stream handle)
{
    int code = 0;
    struct CUstream_st *stream = stream_of(handle, &code);
    if (stream == NULL) {
        return code;
    }
    struct job *job = malloc(sizeof *job + given->width * given->height * given->depth);
    *job = *given;
    job->device = stream->context->device;
    job->current = fake_current() != NULL ? fake_current()->device : job->device;
    int dst_locked = job->dst.is_host ? fake_host_locked((void *)(uintptr_t)job->dst.address,
                                                         reach(&job->dst, job))
                                      : 1;
    int src_locked = job->src.is_host ? fake_host_locked((void *)(uintptr_t)job->src.address,
                                                         reach(&job->src, job))
                                      : 1;
    if (resolve(&job->dst, job, 1) == NULL || resolve(&job->src, job, 0) == NULL ||
        dst_locked < 0 || src_locked < 0) {
        free(job);
        return TB__CUDA_INVALID_VALUE;
    }
    if (src_locked == 0) {
        const struct side packed = {.pitch = job->width, .slice = job->width * job->height};
        job->snapshot = (char *)(job + 1);
        rows(job->snapshot, &packed, resolve(&job->src, job, 0), &job->src, job);
    }
    struct work *work = work_make(name, copy_run);
    work->owned = job;
    stream_enqueue(stream, work);
    return dst_locked == 0 ? stream_wait_ticket(stream, stream->enqueued) : 0;
}

static int copy_flat(const char *name, struct side dst, struct side src, size_t bytes,
                     tb__stream handle)
{
    if (bytes == 0) {
        return 0;
    }
    dst.pitch = dst.slice = src.pitch = src.slice = bytes;
    const struct job job = {.dst = dst, .src = src, .width = bytes, .height = 1, .depth = 1};
    fake_lock();
    return fake_unlock(copy_enqueue(name, &job, handle));
}

static struct side device_side(uint64_t address)
{
    return (struct side){.address = address};
}

static struct side host_side(const void *host)
{
    return (struct side){.address = (uint64_t)(uintptr_t)host, .is_host = 1};
}

FAKE_API int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t bytes, tb__stream stream)
{
    ENTER("cuMemcpyHtoDAsync_v2");
    return copy_flat("cuMemcpyHtoDAsync_v2", device_side(dst), host_side(src), bytes, stream);
}

FAKE_API int cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t bytes, tb__stream stream)
{
    ENTER("cuMemcpyDtoHAsync_v2");
    return copy_flat("cuMemcpyDtoHAsync_v2", host_side(dst), device_side(src), bytes, stream);
}

FAKE_API int cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t bytes, tb__stream stream)
{
    ENTER("cuMemcpyDtoDAsync_v2");
    return copy_flat("cuMemcpyDtoDAsync_v2", device_side(dst), device_side(src), bytes, stream);
}

FAKE_API int cuMemcpyPeerAsync(uint64_t dst, tb__context dst_context, uint64_t src,
                               tb__context src_context, size_t bytes, tb__stream stream)
{
    ENTER("cuMemcpyPeerAsync");
    if (dst_context == NULL || src_context == NULL) {
        return TB__CUDA_INVALID_CONTEXT;
    }
    struct side to = device_side(dst), from = device_side(src);
    to.named = ((struct fake_context *)dst_context)->device + 1;
    from.named = ((struct fake_context *)src_context)->device + 1;
    return copy_flat("cuMemcpyPeerAsync", to, from, bytes, stream);
}

static int pitch_check(size_t pitch, size_t width)
{
    return pitch >= width && pitch <= 0x7fffffff ? 0 : TB__CUDA_INVALID_VALUE;
}

static struct side typed_side(unsigned type, const void *host, uint64_t device, size_t pitch,
                              size_t slice)
{
    struct side side = type == TB__MEMORYTYPE_HOST ? host_side(host) : device_side(device);
    side.pitch = pitch;
    side.slice = slice;
    return side;
}

FAKE_API int cuMemcpy2DAsync_v2(const struct tb__memcpy2d *c, tb__stream stream)
{
    ENTER("cuMemcpy2DAsync_v2");
    if (c->src_x_bytes + c->src_y + c->dst_x_bytes + c->dst_y != 0 ||
        pitch_check(c->src_pitch, c->width_bytes) != 0 ||
        pitch_check(c->dst_pitch, c->width_bytes) != 0) {
        return TB__CUDA_INVALID_VALUE;
    }
    if (c->width_bytes == 0 || c->height == 0) {
        return 0;
    }
    const struct job job = {
        .dst = typed_side(c->dst_type, c->dst_host, c->dst_device, c->dst_pitch, 0),
        .src = typed_side(c->src_type, c->src_host, c->src_device, c->src_pitch, 0),
        .width = c->width_bytes,
        .height = c->height,
        .depth = 1};
    fake_lock();
    return fake_unlock(copy_enqueue("cuMemcpy2DAsync_v2", &job, stream));
}

FAKE_API int cuMemcpy3DAsync_v2(const struct tb__memcpy3d *c, tb__stream stream)
{
    ENTER("cuMemcpy3DAsync_v2");
    if (c->src_x_bytes + c->src_y + c->src_z + c->src_lod + c->dst_x_bytes + c->dst_y + c->dst_z +
                c->dst_lod !=
            0 ||
        pitch_check(c->src_pitch, c->width_bytes) != 0 ||
        pitch_check(c->dst_pitch, c->width_bytes) != 0 || c->src_height < c->height ||
        c->dst_height < c->height) {
        return TB__CUDA_INVALID_VALUE;
    }
    if (c->width_bytes == 0 || c->height == 0 || c->depth == 0) {
        return 0;
    }
    const struct job job = {.dst = typed_side(c->dst_type, c->dst_host, c->dst_device, c->dst_pitch,
                                              c->dst_pitch * c->dst_height),
                            .src = typed_side(c->src_type, c->src_host, c->src_device, c->src_pitch,
                                              c->src_pitch * c->src_height),
                            .width = c->width_bytes,
                            .height = c->height,
                            .depth = c->depth};
    fake_lock();
    return fake_unlock(copy_enqueue("cuMemcpy3DAsync_v2", &job, stream));
}

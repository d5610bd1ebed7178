/* Flat copies: which path, and going it. */
#define TB_LOG_TOPIC "cuda"
#include "cuda/copy.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/copy.h"
#include "base/log.h"
#include "base/size.h"
#include "cuda/device_vmm.h"
#include "cuda/host_cache.h"
#include "cuda/order.h"
#include "cuda/transit.h"

static _Atomic uint64_t register_min; /* 0: TENSORBUS_GPU_PIN_MIN was not looked at yet */

/* The threshold that `tensorbus bench gpu` has found here, or the one of path.h. */
static uint64_t register_min_wanted(void)
{
    const char *value = getenv("TENSORBUS_GPU_PIN_MIN");
    char *end;
    if (value == NULL || value[0] == '\0') {
        return TB__REGISTER_MIN_BYTES;
    }
    errno = 0;
    unsigned long long bytes = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end != '\0' || errno != 0 || bytes == 0) {
        tb_log_warn("TENSORBUS_GPU_PIN_MIN is `%.40s`, which is no number of bytes from 1 on: %llu "
                    "is used",
                    value, (unsigned long long)TB__REGISTER_MIN_BYTES);
        return TB__REGISTER_MIN_BYTES;
    }
    return bytes;
}

void tb__copy_set_register_min(uint64_t bytes)
{
    atomic_store_explicit(&register_min, bytes, memory_order_relaxed);
}

uint64_t tb__copy_register_min(void)
{
    uint64_t bytes = atomic_load_explicit(&register_min, memory_order_relaxed);
    if (bytes == 0) {
        bytes = register_min_wanted();
        atomic_store_explicit(&register_min, bytes, memory_order_relaxed);
    }
    return bytes;
}

/* A copy on its way: what was found out about it. */
struct travel {
    const struct tb__copy *job;
    tb__stream stream; /* the user's */
    const struct tb__gpu *stream_gpu;
    const struct tb__gpu *gpu; /* the one that copies */
    struct tb__host_lease lease;
    uint64_t locked_from, locked_to; /* of the host's side: page-locked within; equal: all alike */
    struct tb__copy_result result;
};

static const char *describe(const struct tb__copy *job, char text[TB__SIZE_TEXT + 48])
{
    char size[TB__SIZE_TEXT], src[16] = "host", dst[16] = "host";
    if (job->src.gpu != NULL) {
        snprintf(src, sizeof src, "cuda:%d", job->src.gpu->ordinal);
    }
    if (job->dst.gpu != NULL) {
        snprintf(dst, sizeof dst, "cuda:%d", job->dst.gpu->ordinal);
    }
    snprintf(text, TB__SIZE_TEXT + 48, "%s from %s to %s", tb__size_text(job->bytes, size), src,
             dst);
    return text;
}

/* ------------------------------------------------------------------ one call of the driver */

static int call(const struct tb__copy *job, tb__stream stream, const char **name)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    if (job->src.gpu == NULL) {
        *name = "cuMemcpyHtoDAsync";
        return cuda->memcpy_htod_async(job->dst.ptr, (const void *)(uintptr_t)job->src.ptr,
                                       job->bytes, stream);
    }
    if (job->dst.gpu == NULL) {
        *name = "cuMemcpyDtoHAsync";
        return cuda->memcpy_dtoh_async((void *)(uintptr_t)job->dst.ptr, job->src.ptr, job->bytes,
                                       stream);
    }
    *name = "cuMemcpyDtoDAsync";
    return cuda->memcpy_dtod_async(job->dst.ptr, job->src.ptr, job->bytes, stream);
}

/* The part of a job from one host address to another. */
static struct tb__copy part_of(const struct tb__copy *job, uint64_t from, uint64_t to)
{
    uint64_t host = job->src.gpu == NULL ? job->src.ptr : job->dst.ptr;
    struct tb__copy part = *job;
    part.src.ptr += from - host;
    part.dst.ptr += from - host;
    part.bytes = to - from;
    return part;
}

/* A job as one, or cut where the locked pages of its host side begin and end. The locked part is
 * the first: what is pageable may make the call wait. */
static int cut(const struct travel *travel, struct tb__copy parts[3])
{
    const struct tb__copy *job = travel->job;
    uint64_t host = job->src.gpu == NULL ? job->src.ptr : job->dst.ptr;
    int count = 0;
    if (travel->locked_from == travel->locked_to) {
        parts[count++] = *job;
        return count;
    }
    parts[count++] = part_of(job, travel->locked_from, travel->locked_to);
    if (host < travel->locked_from) {
        parts[count++] = part_of(job, host, travel->locked_from);
    }
    if (travel->locked_to < host + job->bytes) {
        parts[count++] = part_of(job, travel->locked_to, host + job->bytes);
    }
    return count;
}

/* Enqueue the copy on a stream of the device that copies. */
static tb_status enqueue(const void *work, tb__stream stream, int *result)
{
    const struct travel *travel = work;
    struct tb__copy parts[3];
    struct tb__gpu_scope scope;
    const char *name = "";
    int count = cut(travel, parts);
    TB__TRY(tb__stream_enter(stream, travel->gpu, &scope));
    for (int i = 0; i < count && *result == TB__CUDA_SUCCESS; i++) {
        *result = call(&parts[i], stream, &name);
    }
    tb__gpu_leave(&scope);
    char text[TB__SIZE_TEXT + 48];
    return *result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(*result, name, "%s", describe(travel->job, text));
}

/* The same for a user's stream of any device. */
static tb_status one_call(const struct travel *travel, int *result)
{
    return tb__transit_bracket(travel->gpu, travel->stream, travel->stream_gpu, enqueue, travel,
                               result);
}

/* ------------------------------------------------------------------ the paths */

static tb_status go_cpu(struct travel *travel)
{
    const struct tb__copy *job = travel->job;
    tb__copy_store((void *)(uintptr_t)job->dst.ptr, (const void *)(uintptr_t)job->src.ptr,
                   job->bytes, job->bytes);
    return TB_OK;
}

static tb_status go_call(struct travel *travel)
{
    int result = 0;
    const struct tb__copy *job = travel->job;
    TB__TRY(one_call(travel, &result));
    /* The driver returns when it has read a pageable source, or written a pageable destination. */
    int pageable = travel->result.path == TB__PATH_DRIVER;
    travel->result.src_busy = !pageable;
    travel->result.dst_busy = !pageable || job->src.gpu == NULL;
    return TB_OK;
}

/* Page-lock the host side's whole pages for this copy, and wait for it. */
static tb_status go_register(struct travel *travel)
{
    const struct tb__copy *job = travel->job;
    const struct tb__copy_end *host = job->src.gpu == NULL ? &job->src : &job->dst;
    struct tb__host_registration registration = {0};
    int read_only = job->src.gpu == NULL && travel->gpu->read_only_host_register;
    uint64_t from = 0, to = 0;
    tb_error kept;
    tb_last_error(&kept);
    tb__whole_pages(host->ptr, job->bytes, &from, &to);
    if (from == to || tb__host_register(travel->gpu, (void *)(uintptr_t)from, to - from, read_only,
                                        &registration) != TB_OK) {
        tb__error_restore(&kept); /* the driver's own way always works */
        travel->result.path = TB__PATH_DRIVER;
        return go_call(travel);
    }
    int result = 0;
    travel->locked_from = from;
    travel->locked_to = to;
    tb_status status = one_call(travel, &result);
    /* Also after a failure: something may be under way. */
    tb_status waited = tb__stream_synchronize(travel->stream, travel->stream_gpu);
    tb__host_unregister(&registration);
    return status != TB_OK ? status : waited;
}

static tb_status go_staged(struct travel *travel)
{
    const struct tb__copy *job = travel->job;
    struct tb__transit *transit = NULL;
    TB__TRY(tb__transit_take(job->src.gpu, job->dst.gpu, 1, &transit));
    tb_status status = tb__transit_begin(transit, travel->stream, travel->stream_gpu);
    if (status == TB_OK) {
        status = tb__transit_copy(transit, job->dst.ptr, job->src.ptr, job->bytes);
    }
    if (status == TB_OK) {
        status = tb__transit_end(transit, travel->stream, travel->stream_gpu);
    }
    if (status != TB_OK) {
        tb__transit_abandon(transit, travel->stream, travel->stream_gpu);
    }
    tb__transit_give(transit);
    travel->result.src_busy = travel->result.dst_busy = 1;
    return status;
}

int tb__copy_open_source(uint64_t src, const struct tb__gpu *gpu, int result)
{
    tb_error kept;
    if (result != TB__CUDA_INVALID_VALUE) {
        return 0;
    }
    tb_last_error(&kept);
    tb_status status = tb__vmm_open_to(src, gpu);
    tb__error_restore(&kept);
    return status == TB_OK;
}

/* Another library's memory that peer access does not cover, virtual or of a stream-ordered pool: by
 * the call that lets each side be used by a context of its own device. */
static tb_status enqueue_named(const void *work, tb__stream stream, int *result)
{
    const struct travel *travel = work;
    const struct tb__copy *job = travel->job;
    struct tb__gpu_scope scope;
    TB__TRY(tb__gpu_enter(job->src.gpu, &scope));
    tb__context there = scope.context;
    tb__gpu_leave(&scope);
    TB__TRY(tb__stream_enter(stream, travel->gpu, &scope));
    *result = tb__cuda()->memcpy_peer_async(job->dst.ptr, scope.context, job->src.ptr, there,
                                            job->bytes, stream);
    tb__gpu_leave(&scope);
    char text[TB__SIZE_TEXT + 48];
    return *result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(*result, "cuMemcpyPeerAsync", "%s", describe(job, text));
}

/* What the driver refuses at once: the way through the host is open. */
static tb_status go_peer(struct travel *travel)
{
    int result = 0;
    tb_error kept;
    tb_last_error(&kept);
    tb_status status = one_call(travel, &result);
    if (tb__copy_open_source(travel->job->src.ptr, travel->gpu, result)) {
        status = one_call(travel, &result);
    }
    if (result == TB__CUDA_INVALID_VALUE) {
        status = tb__transit_bracket(travel->gpu, travel->stream, travel->stream_gpu, enqueue_named,
                                     travel, &result);
    }
    if (status == TB_OK || result == TB__CUDA_INVALID_VALUE ||
        result == TB__CUDA_PEER_ACCESS_UNSUPPORTED) {
        tb__error_restore(&kept); /* what led to another way is nobody's error */
    }
    if (result == TB__CUDA_INVALID_VALUE || result == TB__CUDA_PEER_ACCESS_UNSUPPORTED) {
        travel->result.path = TB__PATH_STAGED;
        return go_staged(travel);
    }
    travel->result.src_busy = travel->result.dst_busy = 1;
    return status;
}

static tb_status go(struct travel *travel)
{
    switch (travel->result.path) {
    case TB__PATH_NONE:
        return TB_OK;
    case TB__PATH_CPU:
        return go_cpu(travel);
    case TB__PATH_REGISTER:
        return go_register(travel);
    case TB__PATH_PEER:
        return go_peer(travel);
    case TB__PATH_STAGED:
        return go_staged(travel);
    default:
        return go_call(travel);
    }
}

/* ------------------------------------------------------------------ finding the path */

static enum tb__memory_class classify(struct travel *travel, const struct tb__copy_end *end)
{
    const void *host = (const void *)(uintptr_t)end->ptr;
    if (end->gpu != NULL) {
        return TB__GPU;
    }
    if (end->locked || travel->gpu == NULL) {
        return TB__HOST_LOCKED;
    }
    /* Ours first: what is registered here may be taken away again. */
    if (tb__host_cache_get(travel->gpu, host, travel->job->bytes, &travel->lease)) {
        travel->locked_from = travel->lease.from;
        travel->locked_to = travel->lease.to;
        return TB__HOST_LOCKED;
    }
    return tb__host_device_address(host, travel->job->bytes) != 0 ? TB__HOST_LOCKED
                                                                  : TB__HOST_PAGEABLE;
}

static tb_status plan(struct travel *travel)
{
    const struct tb__copy *job = travel->job;
    const struct tb__gpu *src = job->src.gpu, *dst = job->dst.gpu;
    struct tb__path_case c = {.same_device = src == dst, .exportable = 1, .bytes = job->bytes};
    /* Between two devices the destination's copies: it is ours, and reads what it was allowed to.
     */
    travel->gpu = dst != NULL ? dst : src;
    if (travel->gpu != NULL) {
        TB__TRY(tb__cuda_need());
        TB__TRY(tb__stream_device(travel->stream, travel->gpu, &travel->stream_gpu));
    }
    if (src != NULL && dst != NULL) {
        TB__TRY(tb__gpu_peer(dst, src, &c.peer));
    }
    c.src = classify(travel, &job->src);
    c.dst = classify(travel, &job->dst);
    travel->result.path = tb__path_choose(&c, tb__copy_register_min());
    return TB_OK;
}

static tb_status check(const struct tb__copy *job)
{
    if (job->bytes > 0 && (job->src.ptr == 0 || job->dst.ptr == 0)) {
        return TB__FAIL(TB_E_INVALID, "copying %llu bytes %s NULL", (unsigned long long)job->bytes,
                        job->src.ptr == 0 ? "from" : "to");
    }
    return TB_OK;
}

tb_status tb__gpu_copy(const struct tb__copy *job, tb__stream stream,
                       struct tb__copy_result *result)
{
    struct travel travel = {.job = job, .stream = stream};
    TB__TRY(check(job));
    if (job->bytes > 0) {
        TB__TRY(plan(&travel));
        tb_status status = go(&travel);
        tb__host_cache_put(&travel.lease, stream, travel.stream_gpu,
                           status == TB_OK && !travel.result.src_busy && !travel.result.dst_busy);
        TB__TRY(status);
    }
    if (result != NULL) {
        *result = travel.result;
    }
    return TB_OK;
}

void tb__copy_trim(void)
{
    tb__transit_trim();
    tb__host_cache_trim();
}

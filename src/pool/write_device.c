/* Copies that a GPU makes: into slots, out of frames, and between any two tensors. Users' threads.
 */
#define TB_LOG_TOPIC "pool"
#include <tensorbus/cuda.h>

#include "base/copy.h"
#include "base/log.h"
#include "cuda/copy_tensor.h"
#include "cuda/event.h"
#include "cuda/order.h"
#include "pool/order.h"
#include "pool/support.h"
#include "pool/trouble.h"
#include "pool/write.h"

/* ---- host memory of ours that a GPU copies from and to: registered once ---- */

tb_status tb__pool_pin(tb_pool *pool, const struct tb__gpu *gpu)
{
    if (gpu == NULL) {
        TB__TRY(tb__cuda_need());
        TB__TRY(tb__gpu_current(&gpu));
    }
    uint64_t bytes;
    uint8_t *pages = tb__segment_pages(&pool->segment, &bytes);
    pthread_mutex_lock(&pool->map_mutex);
    tb_status status = tb__mapped_get(&pool->mapped, gpu, pages, bytes, 0);
    pthread_mutex_unlock(&pool->map_mutex);
    return status;
}

static tb_status pin_reader(tb_reader *reader, const struct tb__gpu *gpu)
{
    uint64_t bytes;
    uint8_t *pages = tb__segment_pages(&reader->segment, &bytes);
    pthread_mutex_lock(&reader->map_mutex);
    tb_status status = tb__mapped_get(&reader->segment_mapped, gpu, pages, bytes, 1);
    pthread_mutex_unlock(&reader->map_mutex);
    return status;
}

/* Page locking is a matter of speed: where it is not to be had, the copy goes through memory that
 * is locked. */
static void pin_if_possible(tb_status status)
{
    if (status != TB_OK) {
        tb_log_info("copies of a GPU go through a staging buffer: %s", tb_last_error_text());
    }
}

static int lies_in(const struct tb__segment *segment, const void *data)
{
    uint64_t bytes;
    const uint8_t *pages = tb__segment_pages(segment, &bytes);
    return (uintptr_t)data - (uintptr_t)pages < bytes;
}

/* A frame, or a slot, of host memory that is copied to a GPU as any tensor is: found by where it
 * lies. Its holder keeps the reader or the pool open meanwhile. */
static void pin_source(tb_pool *pool, const tb_tensor *tensor, const struct tb__gpu *gpu)
{
    struct tb__pool_layer *layer = pool->layer;
    tb__bus_lock(layer->bus);
    tb_reader *reader = layer->readers;
    while (reader != NULL && (reader->device != NULL || !lies_in(&reader->segment, tensor->data))) {
        reader = reader->next;
    }
    tb_pool *own = reader == NULL ? layer->pools : NULL;
    while (own != NULL && (own->device != NULL || !lies_in(&own->segment, tensor->data))) {
        own = own->next;
    }
    tb__bus_unlock(layer->bus);
    if (reader != NULL) {
        pin_if_possible(tb__trouble_check(reader, pin_reader(reader, gpu)));
    } else if (own != NULL) {
        pin_if_possible(tb__pool_pin(own, gpu));
    }
}

/* The host's memory on either side of a copy into a loan. */
static tb_status pin_for_write(tb_pool *pool, const tb_tensor *tensor)
{
    const struct tb__gpu *gpu;
    if (pool->device == NULL && tensor->device != TB_CPU) {
        TB__TRY(tb__gpu_of_device(tensor->device, &gpu));
        pin_if_possible(tb__pool_pin(pool, gpu));
    } else if (pool->device != NULL && tensor->device == TB_CPU) {
        pin_source(pool, tensor, tb__device_gpu(pool->device));
    }
    return TB_OK;
}

/* What the default stream of `gpu` gets next comes behind what that of `copies` has. */
static tb_status follow_back(tb__stream stream, const struct tb__gpu *copies,
                             const struct tb__gpu *gpu)
{
    tb_status status = tb__stream_follow(stream, copies, stream, gpu);
    if (status != TB_OK) {
        tb_error kept;
        tb_last_error(&kept);
        (void)!tb__stream_synchronize(stream, copies);
        tb__error_restore(&kept);
    }
    return status;
}

/* A copy on the default stream of `copies`, in the order of that of `gpu`, too: the one waits for
 * the other, before and after. `stream`: which default stream. */
static tb_status copy_across(const tb_tensor *destination, const tb_tensor *source,
                             tb__stream stream, const struct tb__gpu *gpu,
                             const struct tb__gpu *copies)
{
    TB__TRY(tb__stream_follow(stream, gpu, stream, copies));
    TB__TRY(tb__gpu_copy_tensor(destination, source, stream, NULL));
    return follow_back(stream, copies, gpu);
}

/* A tensor on another GPU than the one that copies was filled in the order of a stream there. */
static tb_status copy_behind_source(const tb_tensor *destination, const tb_tensor *source,
                                    tb__stream stream, const struct tb__gpu *copies)
{
    const struct tb__gpu *from = copies;
    if (source->device != TB_CPU) {
        TB__TRY(tb__gpu_of_device(source->device, &from));
        TB__TRY(tb__stream_device(stream, from, &from)); /* a stream of its own: of one device */
    }
    return from == copies ? tb__gpu_copy_tensor(destination, source, stream, NULL)
                          : copy_across(destination, source, stream, from, copies);
}

static int between_hosts(const tb_tensor *destination, const tb_tensor *source)
{
    return destination->device == TB_CPU && source->device == TB_CPU;
}

/* The one that makes a copy, on this stream: between two GPUs the destination's. */
static tb_status copying(const tb_tensor *destination, const tb_tensor *source, tb__stream stream,
                         const struct tb__gpu **out)
{
    TB__TRY(tb__gpu_of_device(destination->device != TB_CPU ? destination->device : source->device,
                              out));
    return tb__stream_device(stream, *out, out);
}

/* In the order of the default stream, as the driver's own copies that wait; and wait. */
static tb_status copy_now(const tb_tensor *destination, const tb_tensor *source)
{
    const struct tb__gpu *copies;
    if (between_hosts(destination, source)) {
        return tb__gpu_copy_tensor(destination, source, NULL, NULL);
    }
    TB__TRY(copying(destination, source, NULL, &copies));
    TB__TRY(copy_behind_source(destination, source, NULL, copies));
    return tb__stream_synchronize(NULL, copies);
}

/* In the order of a stream. The default stream is the one of `home`, or of the current device, as
 * for all that is done with a pool; the copy may be on the default stream of another GPU. */
static tb_status copy_on(const tb_tensor *destination, const tb_tensor *source, tb__stream stream,
                         const struct tb__device_share *home)
{
    const struct tb__gpu *gpu;
    const struct tb__gpu *copies;
    if (between_hosts(destination, source)) {
        return tb__gpu_copy_tensor(destination, source, stream, NULL);
    }
    TB__TRY(tb__stream_device(stream, home != NULL ? tb__device_gpu(home) : NULL, &gpu));
    TB__TRY(copying(destination, source, stream, &copies));
    if (gpu == copies) {
        return copy_behind_source(destination, source, stream, copies);
    }
    if (source->device == TB_CPU || source->device == TB_CUDA(gpu->ordinal)) {
        return copy_across(destination, source, stream, gpu, copies);
    }
    TB__TRY(tb__stream_follow(stream, gpu, stream, copies));
    TB__TRY(copy_behind_source(destination, source, stream, copies));
    return follow_back(stream, copies, gpu);
}

/* ---- writing ---- */

/* Enqueue the copy of a tensor into a loan whose shape it has. */
static tb_status enqueue_copy(tb_loan *loan, const tb_tensor *tensor, size_t bytes,
                              tb_cuda_stream stream)
{
    tb_pool *pool = loan->pool;
    if (pool->varying) {
        TB__TRY(tb_loan_reshape(loan, tensor->ndim, tensor->shape, NULL));
    }
    TB__TRY(pin_for_write(pool, tensor));
    TB__TRY(copy_on(&loan->tensor, tensor, (tb__stream)stream, pool->device));
    tb__loan_count_copy(loan, bytes);
    return TB_OK;
}

tb_status tb__write_device(tb_loan *loan, const tb_tensor *tensor, size_t bytes)
{
    tb_pool *pool = loan->pool;
    if (pool->varying) {
        TB__TRY(tb_loan_reshape(loan, tensor->ndim, tensor->shape, NULL));
    }
    TB__TRY(pin_for_write(pool, tensor));
    TB__TRY(copy_now(&loan->tensor, tensor));
    tb__loan_count_copy(loan, bytes);
    return TB_OK;
}

tb_status tb_pool_write_on(tb_pool *pool, const tb_tensor *tensor, tb_cuda_stream stream,
                           int64_t timeout_ns, tb_handle *out)
{
    if (pool == NULL || tensor == NULL) {
        return TB__FAIL(TB_E_INVALID, "%s is NULL", pool == NULL ? "pool" : "tensor");
    }
    TB__TRY(tb__bus_check(pool->bus));
    size_t bytes;
    TB__TRY(tb__write_check(pool, tensor, &bytes));
    TB__TRY(tb__cuda_need());
    tb_loan *loan;
    TB__TRY(tb_pool_loan(pool, timeout_ns, &loan));
    tb_status status = enqueue_copy(loan, tensor, bytes, stream);
    if (status != TB_OK) {
        tb_loan_cancel(loan);
        return status;
    }
    return tb_loan_publish_on(loan, stream, out);
}

/* ---- reading ---- */

static tb_status check_destination(const tb_frame *frame, const tb_tensor *destination)
{
    const tb_tensor *source = &frame->tensor;
    int same = destination->dtype == source->dtype && destination->ndim == source->ndim;
    for (int32_t i = 0; same && i < source->ndim; i++) {
        same = destination->shape[i] == source->shape[i];
    }
    if (same) {
        return TB_OK;
    }
    char given[160];
    char wanted[160];
    return TB__FAIL(TB_E_MISMATCH, "a frame of pool `%s` is %s, it does not fit %s",
                    frame->reader->name, tb_tensor_describe(source, wanted, sizeof wanted),
                    tb_tensor_describe(destination, given, sizeof given));
}

tb_status tb_frame_copy_on(tb_frame *frame, const tb_tensor *destination, tb_cuda_stream stream)
{
    if (frame == NULL || destination == NULL) {
        return TB__FAIL(TB_E_INVALID, "%s is NULL", frame == NULL ? "frame" : "destination");
    }
    TB__TRY(tb__bus_check(frame->reader->bus));
    TB__TRY(check_destination(frame, destination));
    TB__TRY(tb__cuda_need());
    TB__TRY(tb_frame_wait_on(frame, stream));
    if (frame->reader->device == NULL && destination->device != TB_CPU) {
        const struct tb__gpu *gpu;
        TB__TRY(tb__gpu_of_device(destination->device, &gpu));
        pin_if_possible(tb__trouble_check(frame->reader, pin_reader(frame->reader, gpu)));
    }
    return tb__trouble_check(frame->reader, copy_on(destination, &frame->tensor, (tb__stream)stream,
                                                    frame->reader->device));
}

/* ---- any two tensors ---- */

static tb_status check_pair(const tb_tensor *destination, const tb_tensor *source)
{
    size_t a;
    size_t b;
    if (destination == NULL || source == NULL) {
        return TB__FAIL(TB_E_INVALID, "%s is NULL", source == NULL ? "source" : "destination");
    }
    TB__TRY(tb_tensor_bytes(destination, &a));
    TB__TRY(tb_tensor_bytes(source, &b));
    int same = destination->dtype == source->dtype && destination->ndim == source->ndim;
    for (int32_t i = 0; same && i < source->ndim; i++) {
        same = destination->shape[i] == source->shape[i];
    }
    char given[160];
    char wanted[160];
    return same ? TB_OK
                : TB__FAIL(TB_E_MISMATCH, "%s does not fit %s",
                           tb_tensor_describe(source, given, sizeof given),
                           tb_tensor_describe(destination, wanted, sizeof wanted));
}

tb_status tb_copy_on(const tb_tensor *destination, const tb_tensor *source, tb_cuda_stream stream)
{
    TB__TRY(check_pair(destination, source));
    TB__TRY(tb__cuda_need());
    return copy_on(destination, source, (tb__stream)stream, NULL);
}

tb_status tb_copy(const tb_tensor *destination, const tb_tensor *source)
{
    TB__TRY(check_pair(destination, source));
    if (destination->device != TB_CPU || source->device != TB_CPU) {
        TB__TRY(tb__cuda_need());
    }
    return copy_now(destination, source);
}

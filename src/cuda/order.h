/* Order on the GPU: words that streams write and wait for, functions that the CPU is called with.
 * Nothing here waits, but tb__stream_synchronize().
 *
 * A stream is a CUstream or cudaStream_t of the user or of ours; NULL and 1 are the default stream
 * of the context that is current, 2 the one of the thread. `gpu` is the device of the stream, as
 * tb__stream_device() found it: calls are made in the stream's own context. Any thread. */
#ifndef TB_CUDA_ORDER_H
#define TB_CUDA_ORDER_H

#include <stdint.h>

#include "cuda/device.h"

/* The device of a stream. For default streams: `otherwise` if it is not NULL, else the device of
 * the current context. TB_E_INVALID: it is no stream of a live context. */
tb_status tb__stream_device(tb__stream stream, const struct tb__gpu *otherwise,
                            const struct tb__gpu **out);

/* Make a stream's context current; end with tb__gpu_leave(). */
tb_status tb__stream_enter(tb__stream stream, const struct tb__gpu *gpu, struct tb__gpu_scope *out);

/* A stream as one call sees it, looked at once: its device, and its context made current until
 * tb__stream_leave(). What follows in the call asks the driver nothing any more. */
struct tb__stream_at {
    tb__stream stream;
    const struct tb__gpu *gpu;
    struct tb__gpu_scope scope;
};
/* For default streams as tb__stream_device(), as are the errors. */
tb_status tb__stream_look(tb__stream stream, const struct tb__gpu *otherwise,
                          struct tb__stream_at *out);
void tb__stream_leave(struct tb__stream_at *at);

/* How frames are ordered between the streams of a device and those of others. */
enum tb__order_way {
    TB__ORDER_WORDS = 0, /* streams write and wait for words in memory */
    TB__ORDER_CPU = 1,   /* they cannot: the CPU is told by them, and waits in their place */
    TB__ORDER_WAYS = 2,
};
/* Pure: follows from the device's abilities alone. */
enum tb__order_way tb__order_way(const struct tb__gpu *gpu);

/* A stream of ours that does not order itself by the default stream. */
tb_status tb__stream_create(const struct tb__gpu *gpu, tb__stream *out);
void tb__stream_destroy(const struct tb__gpu *gpu, tb__stream stream);

/* One step of a stream on a 64-bit word that the GPU reaches: device memory, or page-locked host
 * memory by its device address. A write comes after everything that was enqueued before and is
 * visible to all with it; a wait lets nothing pass until (int64_t)(*word - value) >= 0. */
struct tb__stream_op {
    int write; /* 0: wait */
    uint64_t address;
    uint64_t value;
};
/* Several in order, by one call. On failure it is not known how many of them the stream has. */
tb_status tb__stream_at_batch(const struct tb__stream_at *at, const struct tb__stream_op *ops,
                              uint32_t count);

/* Call a function on a thread of the driver when the stream gets there. It must not call CUDA, nor
 * wait for what needs the GPU. It is not called when the context breaks before. */
tb_status tb__stream_at_host_func(const struct tb__stream_at *at, tb__host_fn *function,
                                  void *argument);

/* Wait for all that was enqueued; ask whether it is done (TB_AGAIN: not yet). Both report what went
 * wrong in the stream. */
tb_status tb__stream_synchronize(tb__stream stream, const struct tb__gpu *gpu);
tb_status tb__stream_query(tb__stream stream, const struct tb__gpu *gpu);

#endif

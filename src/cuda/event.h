/* Events: a mark in a stream that other streams of this process wait for, and that the CPU asks
 * about. None is shared with another process: architecture.md says why. Any thread; one struct
 * belongs to one thread at a time. */
#ifndef TB_CUDA_EVENT_H
#define TB_CUDA_EVENT_H

#include "cuda/order.h"

struct tb__gpu_event {
    const struct tb__gpu *gpu; /* NULL: empty */
    tb__event event;
};

/* An event for streams of the context of `stream` (NULL: the device's own). */
tb_status tb__gpu_event_create(const struct tb__gpu *gpu, tb__stream stream,
                               struct tb__gpu_event *out);
void tb__gpu_event_destroy(struct tb__gpu_event *event);

/* Mark the place in the stream; an earlier mark is forgotten. */
tb_status tb__gpu_event_record(const struct tb__gpu_event *event, tb__stream stream);

/* Let nothing pass in a stream (of any device) before what was marked last is done. */
tb_status tb__gpu_event_wait(const struct tb__gpu_event *event, tb__stream stream,
                             const struct tb__gpu *stream_gpu);

/* The same three with a stream that was looked at. */
tb_status tb__gpu_event_create_at(const struct tb__stream_at *at, struct tb__gpu_event *out);
tb_status tb__gpu_event_record_at(const struct tb__gpu_event *event,
                                  const struct tb__stream_at *at);
tb_status tb__gpu_event_wait_at(const struct tb__gpu_event *event, const struct tb__stream_at *at);

/* Done (TB_OK) or not (TB_AGAIN); wait on the CPU. */
tb_status tb__gpu_event_query(const struct tb__gpu_event *event);
tb_status tb__gpu_event_synchronize(const struct tb__gpu_event *event);

/* Let a stream come after what another has now, of whatever devices they are. */
tb_status tb__stream_follow(tb__stream first, const struct tb__gpu *first_gpu, tb__stream second,
                            const struct tb__gpu *second_gpu);

#endif

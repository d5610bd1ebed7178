/* Events: a mark in a stream that other streams wait for, and that the CPU asks about. Those of
 * other processes can, too, but frames are not ordered so: architecture.md says why. Any thread;
 * one struct belongs to one thread at a time. */
#ifndef TB_CUDA_EVENT_H
#define TB_CUDA_EVENT_H

#include <stdint.h>

#include "cuda/order.h"

struct tb__gpu_event {
    const struct tb__gpu *gpu; /* NULL: empty */
    tb__event event;
    int imported;
};

/* An event for streams of the context of `stream` (NULL: the device's own). shared: it can be
 * exported; TB_E_UNSUPPORTED where the device has no such events. */
tb_status tb__gpu_event_create(const struct tb__gpu *gpu, tb__stream stream, int shared,
                               struct tb__gpu_event *out);
void tb__gpu_event_destroy(struct tb__gpu_event *event);

/* Mark the place in the stream; an earlier mark is forgotten. */
tb_status tb__gpu_event_record(const struct tb__gpu_event *event, tb__stream stream);

/* Let nothing pass in a stream (of any device) before what was marked last is done. */
tb_status tb__gpu_event_wait(const struct tb__gpu_event *event, tb__stream stream,
                             const struct tb__gpu *stream_gpu);

/* The same three with a stream that was looked at. */
tb_status tb__gpu_event_create_at(const struct tb__stream_at *at, int shared,
                                  struct tb__gpu_event *out);
tb_status tb__gpu_event_record_at(const struct tb__gpu_event *event,
                                  const struct tb__stream_at *at);
tb_status tb__gpu_event_wait_at(const struct tb__gpu_event *event, const struct tb__stream_at *at);

/* Done (TB_OK) or not (TB_AGAIN); wait on the CPU. */
tb_status tb__gpu_event_query(const struct tb__gpu_event *event);
tb_status tb__gpu_event_synchronize(const struct tb__gpu_event *event);

/* The handle is valid as long as the event. A mark is seen by another process when it was recorded
 * before that process waits: who exports tells it so. */
tb_status tb__gpu_event_export(const struct tb__gpu_event *event, uint8_t handle[64]);
tb_status tb__gpu_event_import(const struct tb__gpu *gpu, const uint8_t handle[64],
                               struct tb__gpu_event *out);

/* Let a stream come after what another has now, of whatever devices they are. */
tb_status tb__stream_follow(tb__stream first, const struct tb__gpu *first_gpu, tb__stream second,
                            const struct tb__gpu *second_gpu);

#endif

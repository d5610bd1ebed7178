/* The few calls of libcuda that the extension itself needs: to order two streams of others, and to
 * know where memory of others lies. The driver is not loaded for it: whoever has a stream or memory
 * of a GPU has loaded it. Any thread, with the GIL, which is released where a call waits: streams
 * take work only while their queues have room. */
#ifndef PY_CUDA_DOOR_H
#define PY_CUDA_DOOR_H

#include "module.h"

/* The device whose context is current on this thread; 0 when none is, or without a driver. */
int py_cuda_current(void);

/* Number of the device that an address lies on; -1: it is none of a GPU's. */
int py_cuda_device_of(const void *address);

/* Make `stream` wait for what `other` was given up to now. Both may be default streams: NULL and 1
 * are the legacy one, 2 is the thread's. Returns 0, or -1 with an exception set. Waits. */
int py_cuda_follow(struct py_state *state, tb_cuda_stream stream, tb_cuda_stream other);

/* A mark behind what a stream was given up to now. NULL: the driver has none to give. Waits. */
struct py_cuda_mark;
struct py_cuda_mark *py_cuda_mark(tb_cuda_stream stream, tb_device device);
int py_cuda_passed(const struct py_cuda_mark *mark); /* 1: passed, or its context is gone */
void py_cuda_await(const struct py_cuda_mark *mark); /* waits */
void py_cuda_unmark(struct py_cuda_mark *take_mark);

#endif

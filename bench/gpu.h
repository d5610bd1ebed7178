/* What the rows of `tensorbus bench gpu` share. Each side of a measurement is a process of its own;
 * the parent opens no driver. Sides use the driver through the library's door, for the floors too.
 */
#ifndef TB_BENCH_GPU_H
#define TB_BENCH_GPU_H

#include <stdio.h>

#include <tensorbus/cuda.h>

#include "bench/bench.h"
#include "cuda/device.h"

struct tb__gpu_size {
    const char *name;
    int64_t bytes;
};

/* The GPU, its driver and its memory, in a line: asked in a process of its own. Returns 0 when
 * there is none, with the reason in the line. */
int tb__gpu_describe(FILE *out);

/* Side: open the driver and enter device 0. */
tb_status tb__gpu_begin(const struct tb__gpu **out);
tb_status tb__gpu_stream_open(tb_cuda_stream *out);
tb_status tb__gpu_stream_wait(tb_cuda_stream stream);
tb_status tb__gpu_stream_await(tb_cuda_stream stream); /* asleep: the driver's own wait spins */
/* Fill device memory with a word, on the stream: the kernel of the benches. */
tb_status tb__gpu_fill(void *data, uint32_t value, int64_t bytes, tb_cuda_stream stream);

/* A call of the driver's, in a measurement: TB_OK, or its failure. */
tb_status tb__gpu_checked(int result, const char *call);
/* Copy from memory of malloc() to the device and wait, page-locked around the copy or as it is. */
tb_status tb__gpu_copy_pageable(uint64_t device, void *host, size_t bytes, tb_cuda_stream stream,
                                int pin);

/* Milliseconds of CPU time of this process, all threads. */
double tb__cpu_ms(void);

#endif

/* What the GPU tests share. They use the driver alone, through the library's door: its memsets are
 * the kernels that fill frames. The same tests run with the fake driver of tests/cuda. */
#ifndef TB_TESTS_GPU_SUPPORT_H
#define TB_TESTS_GPU_SUPPORT_H

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <tensorbus/tensorbus.h>

#include "cuda/device.h"
#include "harness/harness.h"

#define CHECK_CUDA(call) CHECK_EQ((call), 0)

/* Memsets, which the library itself never calls. */
typedef int gpu_fill_function(uint64_t address, unsigned value, size_t count,
                              tb_cuda_stream stream);

static inline gpu_fill_function *gpu_fill_call(void)
{
    static gpu_fill_function *call;
    if (call == NULL) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        CHECK(library != NULL);
        call = (gpu_fill_function *)dlsym(library, "cuMemsetD32Async");
        CHECK(call != NULL);
    }
    return call;
}

/* Skip without a GPU; else device 0. Its primary context stays current on this thread. */
static inline const struct tb__gpu *gpu_need(void)
{
    const struct tb__gpu *gpu;
    struct tb__gpu_scope scope;
    harness_allow_driver();
    if (tb__cuda_need() != TB_OK) {
        harness_skip(tb_last_error_text());
    }
    CHECK_OK(tb__gpu_get(0, &gpu));
    CHECK_OK(tb__gpu_enter(gpu, &scope));
    return gpu;
}

/* Under a tool of compute-sanitizer (any if NULL), which scripts/gpu.sh names in TB_TEST_TOOL: the
 * test ends here, since the tool does not let the driver do what it is about. */
static inline void gpu_skip_under(const char *tool, const char *why)
{
    const char *running = getenv("TB_TEST_TOOL");
    if (running != NULL && (tool == NULL || strcmp(running, tool) == 0)) {
        harness_skip(why);
    }
}

/* For tests that read what another process wrote into memory shared by a legacy IPC handle. */
static inline void gpu_skip_foreign_reads(void)
{
    gpu_skip_under("initcheck", "initcheck sees the writes of one process only");
}

static inline tb_cuda_stream gpu_stream(void)
{
    tb__stream stream;
    CHECK_CUDA(tb__cuda()->stream_create(&stream, 1 /* non-blocking */));
    return (tb_cuda_stream)stream;
}

static inline void gpu_stream_end(tb_cuda_stream stream)
{
    CHECK_CUDA(tb__cuda()->stream_synchronize((tb__stream)stream));
    CHECK_CUDA(tb__cuda()->stream_destroy((tb__stream)stream));
}

static inline void gpu_synchronize(tb_cuda_stream stream)
{
    CHECK_CUDA(tb__cuda()->stream_synchronize((tb__stream)stream));
}

/* uint32[count] that lie somewhere. */
static inline tb_tensor gpu_words(void *data, tb_device device, int64_t count)
{
    return (tb_tensor){
        .data = data, .device = device, .dtype = TB_U32, .ndim = 1, .shape = {count}};
}

/* All 32-bit words of a packed tensor on a GPU become `value`, on the stream. */
static inline void gpu_fill(const tb_tensor *tensor, uint32_t value, tb_cuda_stream stream)
{
    size_t bytes;
    CHECK_OK(tb_tensor_bytes(tensor, &bytes));
    CHECK_CUDA(gpu_fill_call()((uint64_t)(uintptr_t)tensor->data, value, bytes / 4, stream));
}

/* The first and the last 32-bit word of a tensor on a GPU must both be `value`. */
static inline void gpu_check(const tb_tensor *tensor, uint32_t value)
{
    size_t bytes;
    uint32_t words[2];
    CHECK_OK(tb_tensor_bytes(tensor, &bytes));
    uint8_t *data = tensor->data;
    for (int i = 0; i < 2; i++) {
        tb_tensor source = gpu_words(data + (i == 0 ? 0 : bytes - 4), tensor->device, 1);
        tb_tensor destination = gpu_words(&words[i], TB_CPU, 1);
        CHECK_OK(tb_copy(&destination, &source));
    }
    CHECK_EQ(words[0], value);
    CHECK_EQ(words[1], value);
}

static inline tb_bus *gpu_open_bus(const char *name)
{
    tb_bus *bus;
    tb_bus_options options = {.size = sizeof options, .name = name};
    CHECK_OK(tb_bus_open(&options, &bus));
    return bus;
}

/* Options of a pool of uint32[words] on a device. */
static inline tb_pool_options gpu_words_options(const char *name, tb_device device, int64_t words,
                                                uint32_t slots)
{
    return (tb_pool_options){.size = sizeof(tb_pool_options),
                             .name = name,
                             .dtype = TB_U32,
                             .ndim = 1,
                             .shape = {words},
                             .device = device,
                             .slots = slots};
}

static inline tb_pool *gpu_register(tb_bus *bus, const char *name, tb_device device, int64_t words,
                                    uint32_t slots)
{
    tb_pool *pool;
    tb_pool_options options = gpu_words_options(name, device, words, slots);
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    return pool;
}

static inline tb_reader *gpu_open_reader(tb_bus *bus, const char *path, uint32_t stream_ordered)
{
    tb_reader *reader;
    tb_reader_options options = {
        .size = sizeof options, .wait_ns = TB_SECONDS(20), .stream_ordered = stream_ordered};
    CHECK_OK(tb_reader_open(bus, path, &options, &reader));
    return reader;
}

/* Fill a slot on the stream and publish it there. */
static inline void gpu_publish(tb_pool *pool, uint32_t value, tb_cuda_stream stream,
                               tb_handle *handle)
{
    tb_loan *loan;
    CHECK_OK(tb_pool_loan(pool, TB_SECONDS(20), &loan));
    gpu_fill(tb_loan_tensor(loan), value, stream);
    CHECK_OK(tb_loan_publish_on(loan, stream, handle));
}

/* Free memory of the device, in MiB. */
static inline uint64_t gpu_free_mib(const struct tb__gpu *gpu)
{
    uint64_t free_bytes;
    uint64_t total_bytes;
    CHECK_OK(tb__gpu_memory(gpu, &free_bytes, &total_bytes));
    return free_bytes >> 20;
}

#endif

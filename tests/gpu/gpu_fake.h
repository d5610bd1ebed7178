/* What the GPU tests know of the driver beneath them: whether it is the fake one, what it has left,
 * and a brake that holds a stream up until the test lets it go, with any driver. */
#ifndef TB_TESTS_GPU_FAKE_H
#define TB_TESTS_GPU_FAKE_H

#include <pthread.h>
#include <unistd.h>

#include "cuda/host_memory.h"
#include "cuda/order.h"
#include "gpu/gpu_support.h"
#include "tests/cuda/fake/control.h"

/* NULL with a real driver, or with none. */
static inline const struct fake_control *gpu_fake(void)
{
    static const struct fake_control *control;
    if (control == NULL) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        control = library != NULL ? dlsym(library, "fake_cuda_control") : NULL;
    }
    return control;
}

static pid_t gpu_process; /* that has opened the driver */

/* Nothing of ours is left with the driver but the primary contexts. */
static inline void gpu_check_clean(void)
{
    struct fake_leaks l;
    if (gpu_fake() == NULL || gpu_process != getpid()) {
        return;
    }
    gpu_fake()->leaks(&l);
    if (l.allocations + l.registrations + l.blocks + l.reservations + l.opened + l.externals +
                l.streams + l.events + l.contexts !=
            0 ||
        l.device_bytes != 0) {
        FAIL("left with the driver: %d allocations, %d registrations, %d blocks, %d reservations, "
             "%d opened, %d externals, %d streams, %d events, %d contexts, %zu bytes",
             l.allocations, l.registrations, l.blocks, l.reservations, l.opened, l.externals,
             l.streams, l.events, l.contexts, l.device_bytes);
    }
}

/* The machine that the fake plays for this process and those forked from it; before the driver is
 * opened. A real one is what it is. */
static inline void gpu_machine(const char *machine)
{
    setenv("FAKE_CUDA", machine, 1);
}

/* As gpu_need(), and the process must leave nothing behind when it ends by itself. */
static inline const struct tb__gpu *gpu_begin(void)
{
    const struct tb__gpu *gpu = gpu_need();
    gpu_process = getpid();
    atexit(gpu_check_clean);
    return gpu;
}

static inline void gpu_need_fake(void)
{
    if (gpu_fake() == NULL) {
        harness_skip("a real driver does not fail when it is told to");
    }
}

/* A device beside the first, after gpu_begin(). */
static inline const struct tb__gpu *gpu_second(void)
{
    const struct tb__gpu *gpu;
    int count;
    CHECK_OK(tb__gpu_count(&count));
    if (count < 2) {
        harness_skip("one GPU only");
    }
    CHECK_OK(tb__gpu_get(1, &gpu));
    return gpu;
}

/* A stream of a device of choice. */
static inline tb_cuda_stream gpu_stream_on(const struct tb__gpu *gpu)
{
    tb__stream stream;
    CHECK_OK(tb__stream_create(gpu, &stream));
    return (tb_cuda_stream)stream;
}

static inline int gpu_is_idle(tb_cuda_stream stream)
{
    int result = tb__cuda()->stream_query((tb__stream)stream);
    return result == 0 ? 1 : result == TB__CUDA_NOT_READY ? 0 : -result;
}

static inline void *gpu_pinned(size_t bytes)
{
    void *memory;
    CHECK_CUDA(tb__cuda()->mem_host_alloc(&memory, bytes, 3 /* portable, mapped */));
    memset(memory, 0, bytes);
    return memory;
}

static inline void gpu_pinned_end(void *memory)
{
    CHECK_CUDA(tb__cuda()->mem_free_host(memory));
}

/* ---- a brake ---- */

struct gpu_brake {
    uint64_t *word;
    uint64_t put;
    uint64_t held; /* by a function on a thread of the driver: reached */
};

/* For a test whose roles alone put brakes on; the rest are asked when they do. */
static inline void gpu_need_brake(void)
{
    gpu_skip_under("initcheck", "initcheck waits for every copy and fill: no stream is held up");
}

static inline void gpu_brake_init(struct gpu_brake *brake)
{
    *brake = (struct gpu_brake){.word = gpu_pinned(sizeof(uint64_t))};
}

/* On a thread of the driver. */
static inline void gpu_brake_hold(void *argument)
{
    struct gpu_brake *brake = argument;
    uint64_t until = ++brake->held;
    while ((int64_t)(__atomic_load_n(brake->word, __ATOMIC_SEQ_CST) - until) < 0) {
        usleep(100);
    }
}

/* The stream comes to a halt here. Past the library, which may have been told to do without words
 * in memory. */
static inline void gpu_brake_put(struct gpu_brake *brake, const struct tb__gpu *gpu,
                                 tb_cuda_stream stream)
{
    uint64_t address = tb__host_device_address(brake->word, sizeof *brake->word);
    tb__stream raw = (tb__stream)stream;
    struct tb__gpu_scope scope;
    gpu_need_brake();
    brake->put++;
    CHECK_OK(tb__stream_enter(raw, gpu, &scope));
    int result = tb__cuda()->stream_wait64(raw, address, brake->put, TB__STREAM_WAIT_VALUE_GEQ);
    if (result == TB__CUDA_NOT_SUPPORTED) {
        result = tb__cuda()->launch_host_func(raw, gpu_brake_hold, brake);
    }
    tb__gpu_leave(&scope);
    CHECK_CUDA(result);
}

/* The same by a function of the user's that does not return: the driver calls one after another. */
static inline void gpu_brake_put_function(struct gpu_brake *brake, tb_cuda_stream stream)
{
    gpu_need_brake();
    brake->put++;
    CHECK_CUDA(tb__cuda()->launch_host_func((tb__stream)stream, gpu_brake_hold, brake));
}

/* All streams that it holds up go on. */
static inline void gpu_brake_off(struct gpu_brake *brake)
{
    __atomic_store_n(brake->word, brake->put, __ATOMIC_SEQ_CST);
}

static inline void gpu_brake_end(struct gpu_brake *brake)
{
    gpu_brake_off(brake);
    gpu_pinned_end(brake->word);
}

/* ---- reading ---- */

/* Where a stream writes the first and the last word of a frame. */
struct gpu_seen {
    uint32_t *words;
};

static inline void gpu_seen_init(struct gpu_seen *seen)
{
    seen->words = gpu_pinned(2 * sizeof(uint32_t));
}

static inline void gpu_seen_end(struct gpu_seen *seen)
{
    gpu_pinned_end(seen->words);
}

/* What a kernel of the reader would do with a frame: look at it, on the stream. */
static inline void gpu_look_on(const tb_frame *frame, tb_cuda_stream stream, struct gpu_seen *seen)
{
    uint64_t data = (uint64_t)(uintptr_t)tb_frame_tensor(frame)->data;
    size_t bytes;
    CHECK_OK(tb_tensor_bytes(tb_frame_tensor(frame), &bytes));
    CHECK_CUDA(tb__cuda()->memcpy_dtoh_async(&seen->words[0], data, 4, (tb__stream)stream));
    CHECK_CUDA(
        tb__cuda()->memcpy_dtoh_async(&seen->words[1], data + bytes - 4, 4, (tb__stream)stream));
}

static inline void gpu_check_seen(const struct gpu_seen *seen, uint32_t value)
{
    CHECK_EQ(seen->words[0], value);
    CHECK_EQ(seen->words[1], value);
}

static inline tb_frame_info gpu_info(const tb_frame *frame)
{
    tb_frame_info info = {.size = sizeof info};
    CHECK_OK(tb_frame_get_info(frame, &info));
    return info;
}

static inline tb_pool_stats gpu_pool_stats(tb_pool *pool)
{
    tb_pool_stats stats = {.size = sizeof stats};
    CHECK_OK(tb_pool_get_stats(pool, &stats));
    return stats;
}

static inline tb_reader_stats gpu_reader_stats(tb_reader *reader)
{
    tb_reader_stats stats = {.size = sizeof stats};
    CHECK_OK(tb_reader_get_stats(reader, &stats));
    return stats;
}

#endif

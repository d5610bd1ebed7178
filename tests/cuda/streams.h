/* Work of a stream in one call, which the library puts together from parts: it looks at a stream
 * once for several. And words for it. */
#ifndef TB_TESTS_STREAMS_H
#define TB_TESTS_STREAMS_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "cuda/copy.h"
#include "cuda/host_memory.h"
#include "cuda/order.h"
#include "tests/cuda/kit.h"

/* A page of words that streams of all devices reach. */
struct words {
    _Atomic uint64_t *host;
    struct tb__host_registration registration;
};

static inline struct words words_make(void)
{
    struct words words = {0};
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    words.host = at;
    OK(tb__host_register(gpu_at(0), at, 4096, 0, &words.registration));
    return words;
}

static inline void words_drop(struct words *words)
{
    tb__host_unregister(&words->registration);
    munmap((void *)words->host, 4096);
}

static inline tb_status stream_batch(tb__stream stream, const struct tb__gpu *gpu,
                                     const struct tb__stream_op *ops, uint32_t count)
{
    struct tb__stream_at at = {.stream = stream, .gpu = gpu};
    TB__TRY(tb__stream_enter(stream, gpu, &at.scope));
    tb_status status = tb__stream_at_batch(&at, ops, count);
    tb__stream_leave(&at);
    return status;
}

static inline tb_status stream_write64(tb__stream stream, const struct tb__gpu *gpu,
                                       uint64_t address, uint64_t value)
{
    return stream_batch(stream, gpu, &(struct tb__stream_op){1, address, value}, 1);
}

static inline tb_status stream_wait64(tb__stream stream, const struct tb__gpu *gpu,
                                      uint64_t address, uint64_t value)
{
    return stream_batch(stream, gpu, &(struct tb__stream_op){0, address, value}, 1);
}

static inline tb_status stream_host_func(tb__stream stream, const struct tb__gpu *gpu,
                                         tb__host_fn *function, void *argument)
{
    struct tb__stream_at at = {.stream = stream, .gpu = gpu};
    TB__TRY(tb__stream_enter(stream, gpu, &at.scope));
    tb_status status = tb__stream_at_host_func(&at, function, argument);
    tb__stream_leave(&at);
    return status;
}

/* Copy, and wait until it is done. */
static inline tb_status copy_and_wait(const struct tb__copy *job, tb__stream stream)
{
    struct tb__copy_result result;
    const struct tb__gpu *otherwise = job->dst.gpu != NULL ? job->dst.gpu : job->src.gpu;
    const struct tb__gpu *gpu = NULL;
    TB__TRY(tb__gpu_copy(job, stream, &result));
    if (!result.src_busy && !result.dst_busy) {
        return TB_OK;
    }
    TB__TRY(tb__stream_device(stream, otherwise, &gpu));
    return tb__stream_synchronize(stream, gpu);
}

#endif

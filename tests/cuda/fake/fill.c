/* Filling memory with a word: the library never does, tests and benches use it for a kernel. */
#include <unistd.h>

#include "tests/cuda/fake/fake.h"

static int fill_run(struct work *work)
{
    uint64_t address = work->args[0];
    uint32_t value = (uint32_t)work->args[1];
    size_t count = (size_t)work->args[2];
    fake_lock();
    uint32_t *words = (uint32_t *)fake_resolve(address, count * 4, (int)work->args[3], 1);
    unsigned slow = fake.slow_us;
    fake_unlock(0);
    if (words == NULL) {
        return TB__CUDA_ILLEGAL_ADDRESS;
    }
    if (slow > 0) {
        usleep(slow);
    }
    for (size_t i = 0; i < count; i++) {
        words[i] = value;
    }
    return 0;
}

FAKE_API int cuMemsetD32Async(uint64_t address, unsigned value, size_t count, tb__stream handle)
{
    int code = 0;
    ENTER("cuMemsetD32Async");
    fake_lock();
    struct CUstream_st *stream = stream_of(handle, &code);
    if (stream == NULL) {
        return fake_unlock(code);
    }
    int device = stream->context->device;
    if (fake_resolve(address, count * 4, device, 1) == NULL) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    struct work *work = work_make("cuMemsetD32Async", fill_run);
    work->args[0] = address;
    work->args[1] = value;
    work->args[2] = count;
    work->args[3] = (uint64_t)device;
    stream_enqueue(stream, work);
    return fake_unlock(0);
}

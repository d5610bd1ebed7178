/* See gpu.h. */
#include "bench/gpu.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "bench/processes.h"

#define NON_BLOCKING 1u

typedef int fill_function(uint64_t address, unsigned value, size_t count, tb_cuda_stream stream);

tb_status tb__gpu_begin(const struct tb__gpu **out)
{
    struct tb__gpu_scope scope; /* for the life of the process */
    TB__TRY(tb__cuda_need());
    TB__TRY(tb__gpu_get(0, out));
    return tb__gpu_enter(*out, &scope);
}

tb_status tb__gpu_stream_open(tb_cuda_stream *out)
{
    tb__stream stream;
    int result = tb__cuda()->stream_create(&stream, NON_BLOCKING);
    if (result != 0) {
        return tb__cuda_fail(result, "cuStreamCreate", "%u", NON_BLOCKING);
    }
    *out = (tb_cuda_stream)stream;
    return TB_OK;
}

tb_status tb__gpu_stream_wait(tb_cuda_stream stream)
{
    int result = tb__cuda()->stream_synchronize((tb__stream)stream);
    return result == 0 ? TB_OK : tb__cuda_fail(result, "cuStreamSynchronize", "a stream");
}

tb_status tb__gpu_stream_await(tb_cuda_stream stream)
{
    const struct timespec pause = {.tv_nsec = 100000};
    int result;
    while ((result = tb__cuda()->stream_query((tb__stream)stream)) == TB__CUDA_NOT_READY) {
        nanosleep(&pause, NULL);
    }
    return result == 0 ? TB_OK : tb__cuda_fail(result, "cuStreamQuery", "a stream");
}

tb_status tb__gpu_fill(void *data, uint32_t value, int64_t bytes, tb_cuda_stream stream)
{
    static fill_function *fill;
    if (fill == NULL) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        fill = library != NULL ? (fill_function *)dlsym(library, "cuMemsetD32Async") : NULL;
    }
    if (fill == NULL) {
        return TB__FAIL(TB_E_UNSUPPORTED, "libcuda.so.1 has no cuMemsetD32Async");
    }
    int result = fill((uint64_t)(uintptr_t)data, value, (size_t)bytes / 4, stream);
    return result == 0 ? TB_OK
                       : tb__cuda_fail(result, "cuMemsetD32Async", "%lld bytes", (long long)bytes);
}

tb_status tb__gpu_checked(int result, const char *call)
{
    return result == 0 ? TB_OK : tb__cuda_fail(result, call, "in a measurement");
}

tb_status tb__gpu_copy_pageable(uint64_t device, void *host, size_t bytes, tb_cuda_stream stream,
                                int pin)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    if (pin) {
        TB__TRY(tb__gpu_checked(cuda->mem_host_register(host, bytes, 0), "cuMemHostRegister"));
    }
    TB__TRY(tb__gpu_checked(cuda->memcpy_htod_async(device, host, bytes, (tb__stream)stream),
                            "the driver's copy"));
    TB__TRY(tb__gpu_stream_wait(stream));
    return pin ? tb__gpu_checked(cuda->mem_host_unregister(host), "cuMemHostUnregister") : TB_OK;
}

double tb__cpu_ms(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3;
}

/* ---- the machine ---- */

struct description {
    char text[200];
};

static tb_status describe_main(struct tb__side *side, void *argument)
{
    struct description *description = argument;
    const struct tb__gpu *gpu;
    int version = 0;
    TB__TRY(tb__gpu_begin(&gpu));
    tb__cuda()->driver_get_version(&version);
    snprintf(description->text, sizeof description->text,
             "GPU: %s, %llu GiB, driver API %d.%d, stream memory operations: %s", gpu->name,
             (unsigned long long)(gpu->total_bytes >> 30), version / 1000, version % 1000 / 10,
             gpu->stream_mem_ops_64 ? "yes" : "no");
    tb__side_reply(side, 1);
    return TB_OK;
}

int tb__gpu_describe(FILE *out)
{
    struct description *description = tb__shared_map(sizeof *description);
    struct tb__side side = {0};
    if (description == NULL) {
        return 1; /* the rows will say why */
    }
    tb_status status = tb__side_start(&side, "driver", -1, describe_main, description);
    if (status == TB_OK) {
        status = tb__side_answer(&side, NULL);
    }
    fprintf(out, "%s\n", status == TB_OK ? description->text : tb_last_error_text());
    tb__side_stop(&side);
    tb__shared_unmap(description, sizeof *description);
    return status == TB_OK;
}

/* Managed memory. */
#include "cuda/managed.h"

tb_status tb__managed_check(const struct tb__gpu *gpu, const char *what)
{
    return gpu->concurrent_managed
               ? TB_OK
               : TB__FAIL(
                     TB_E_UNSUPPORTED,
                     "%s of managed memory: cuda:%d (%s) and the CPU cannot use it at the same "
                     "time, so it lives where it is used",
                     what, gpu->ordinal, gpu->name);
}

static struct tb__mem_location location(const struct tb__gpu *gpu)
{
    return gpu != NULL ? (struct tb__mem_location){TB__MEM_LOCATION_TYPE_DEVICE, gpu->device}
                       : (struct tb__mem_location){TB__MEM_LOCATION_TYPE_HOST, 0};
}

static tb_status advise(const struct tb__managed *memory, unsigned advice,
                        const struct tb__gpu *gpu)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    int device = gpu != NULL ? gpu->device : TB__DEVICE_CPU;
    int result = cuda->mem_advise2 != NULL
                     ? cuda->mem_advise2(memory->address, memory->bytes, advice, location(gpu))
                 : cuda->mem_advise1 != NULL
                     ? cuda->mem_advise1(memory->address, memory->bytes, advice, device)
                     : TB__CUDA_NOT_SUPPORTED;
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuMemAdvise", "%llu bytes, advice %u, device %d",
                               (unsigned long long)memory->bytes, advice, device);
}

tb_status tb__managed_advise(const struct tb__managed *memory, uint32_t advice,
                             const struct tb__gpu *gpu)
{
    static const struct {
        uint32_t bit;
        unsigned advice;
        int about_cpu;
    } parts[] = {
        {TB_ADVICE_READ_MOSTLY, TB__MEM_ADVISE_SET_READ_MOSTLY, 0},
        {TB_ADVICE_PREFER_DEVICE, TB__MEM_ADVISE_SET_PREFERRED_LOCATION, 0},
        {TB_ADVICE_PREFER_CPU, TB__MEM_ADVISE_SET_PREFERRED_LOCATION, 1},
        {TB_ADVICE_ACCESSED_BY_DEVICE, TB__MEM_ADVISE_SET_ACCESSED_BY, 0},
        {TB_ADVICE_ACCESSED_BY_CPU, TB__MEM_ADVISE_SET_ACCESSED_BY, 1},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (advice & parts[i].bit) {
            TB__TRY(advise(memory, parts[i].advice, parts[i].about_cpu ? NULL : gpu));
        }
    }
    return TB_OK;
}

tb_status tb__managed_prefetch(const struct tb__managed *memory, const struct tb__gpu *gpu,
                               tb__stream stream)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    int device = gpu != NULL ? gpu->device : TB__DEVICE_CPU;
    int result = cuda->mem_prefetch2 != NULL
                     ? cuda->mem_prefetch2(memory->address, memory->bytes, location(gpu), 0, stream)
                 : cuda->mem_prefetch1 != NULL
                     ? cuda->mem_prefetch1(memory->address, memory->bytes, device, stream)
                     : TB__CUDA_NOT_SUPPORTED;
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuMemPrefetchAsync", "%llu bytes to device %d",
                               (unsigned long long)memory->bytes, device);
}

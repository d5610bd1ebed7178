/* The table of devices: filled once, never changed. */
#include "cuda/device_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TB_LOG_TOPIC "cuda"
#include "base/log.h"

struct tb__gpu_table tb__gpus = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------------ filling */

struct question {
    int which;
    int *answer;
};

/* A driver that does not know a question knows no such ability either. */
static tb_status ask(const struct tb__gpu *gpu, const struct question *questions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int which = questions[i].which;
        int result = tb__cuda()->device_get_attribute(questions[i].answer, which, gpu->device);
        if (result == TB__CUDA_INVALID_VALUE) {
            *questions[i].answer = 0;
        } else if (result != TB__CUDA_SUCCESS) {
            return tb__cuda_fail(result, "cuDeviceGetAttribute", "attribute %d of cuda:%d", which,
                                 gpu->ordinal);
        }
    }
    return TB_OK;
}

/* TENSORBUS_GPU_ORDER=cpu: streams do as if they could not wait for words in memory. */
static int words_wanted(void)
{
    const char *order = getenv("TENSORBUS_GPU_ORDER");
    if (order == NULL || order[0] == '\0') {
        return 1;
    }
    if (strcmp(order, "cpu") == 0) {
        return 0;
    }
    tb_log_warn_limited(
        "TENSORBUS_GPU_ORDER is `%.40s`, `cpu` alone means something: it is not used", order);
    return 1;
}

static tb_status find_abilities(struct tb__gpu *gpu)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    int pitch = 0;
    const struct question questions[] = {
        {TB__ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &gpu->capability_major},
        {TB__ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &gpu->capability_minor},
        {TB__ATTRIBUTE_INTEGRATED, &gpu->integrated},
        {TB__ATTRIBUTE_UNIFIED_ADDRESSING, &gpu->unified},
        {TB__ATTRIBUTE_CAN_MAP_HOST_MEMORY, &gpu->can_map_host},
        {TB__ATTRIBUTE_HOST_REGISTER_SUPPORTED, &gpu->host_register},
        {TB__ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
         &gpu->host_pointer_is_device_pointer},
        {TB__ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, &gpu->read_only_host_register},
        {TB__ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &gpu->vmm},
        {TB__ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &gpu->posix_fd},
        {TB__ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, &gpu->stream_mem_ops_64},
        {TB__ATTRIBUTE_DMA_BUF_SUPPORTED, &gpu->dma_buf},
        {TB__ATTRIBUTE_MANAGED_MEMORY, &gpu->managed},
        {TB__ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, &gpu->concurrent_managed},
        {TB__ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, &gpu->pageable_access},
        {TB__ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &gpu->memory_pools},
        {TB__ATTRIBUTE_MAX_PITCH, &pitch},
    };
    TB__TRY(ask(gpu, questions, sizeof questions / sizeof questions[0]));
    gpu->max_pitch = (uint64_t)pitch;
    /* An ability is of no use where this driver lacks a call for it. */
    gpu->vmm = gpu->vmm && cuda->mem_create != NULL && cuda->mem_release != NULL &&
               cuda->mem_address_reserve != NULL && cuda->mem_address_free != NULL &&
               cuda->mem_map != NULL && cuda->mem_unmap != NULL && cuda->mem_set_access != NULL &&
               cuda->mem_get_granularity != NULL && cuda->mem_get_prop != NULL;
    gpu->posix_fd =
        gpu->posix_fd && gpu->vmm && cuda->mem_export != NULL && cuda->mem_import != NULL;
    gpu->stream_mem_ops_64 = gpu->stream_mem_ops_64 && cuda->stream_write64 != NULL &&
                             cuda->stream_wait64 != NULL && cuda->stream_batch != NULL &&
                             words_wanted();
    gpu->memory_pools =
        gpu->memory_pools && cuda->mem_alloc_async != NULL && cuda->mem_free_async != NULL;
    return TB_OK;
}

static tb_status find_identity(struct tb__gpu *gpu)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    int ordinal = gpu->ordinal;
    int result = cuda->device_get(&gpu->device, ordinal);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuDeviceGet", "cuda:%d", ordinal);
    }
    result = cuda->device_get_name(gpu->name, sizeof gpu->name, gpu->device);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuDeviceGetName", "cuda:%d", ordinal);
    }
    gpu->name[sizeof gpu->name - 1] = '\0';
    size_t total = 0;
    result = cuda->device_total_mem(&total, gpu->device);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuDeviceTotalMem", "cuda:%d", ordinal);
    }
    gpu->total_bytes = total;
    struct tb__cuda_uuid whole = {{0}}, mine = {{0}};
    result = cuda->device_get_uuid(&whole, gpu->device);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuDeviceGetUuid", "cuda:%d", ordinal);
    }
    mine = whole;
    /* The first version of the call names the GPU, the second the instance. */
    if (cuda->device_get_uuid2 != NULL) {
        result = cuda->device_get_uuid2(&mine, gpu->device);
        if (result != TB__CUDA_SUCCESS) {
            return tb__cuda_fail(result, "cuDeviceGetUuid", "cuda:%d", ordinal);
        }
    }
    gpu->mig = memcmp(&mine, &whole, sizeof mine) != 0;
    memcpy(gpu->uuid, &mine, sizeof gpu->uuid);
    return TB_OK;
}

static tb_status find_granularity(struct tb__gpu *gpu)
{
    if (!gpu->vmm) {
        return TB_OK;
    }
    struct tb__mem_prop prop = {
        .type = TB__MEM_ALLOCATION_TYPE_PINNED,
        .requested_handle_types = gpu->posix_fd ? TB__MEM_HANDLE_TYPE_POSIX_FD : 0,
        .location = {TB__MEM_LOCATION_TYPE_DEVICE, gpu->device},
    };
    size_t granularity = 0;
    int result = tb__cuda()->mem_get_granularity(&granularity, &prop, TB__MEM_GRANULARITY_MINIMUM);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuMemGetAllocationGranularity", "cuda:%d", gpu->ordinal);
    }
    if (granularity == 0 || (granularity & (granularity - 1)) != 0) {
        return TB__FAIL(TB_E_SYSTEM, "virtual memory of cuda:%d comes in pages of %zu bytes",
                        gpu->ordinal, granularity);
    }
    gpu->granularity = granularity;
    return TB_OK;
}

static tb_status describe(struct tb__gpu *gpu)
{
    TB__TRY(find_identity(gpu));
    TB__TRY(find_abilities(gpu));
    return find_granularity(gpu);
}

static void entries_free(struct tb__gpu_entry *entries, int count)
{
    for (int i = 0; entries != NULL && i < count; i++) {
        free(entries[i].can_peer);
    }
    free(entries);
}

static tb_status entries_make(struct tb__gpu_entry **out, int *out_count)
{
    int count = 0;
    int result = tb__cuda()->device_get_count(&count);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuDeviceGetCount", "%s", "");
    }
    struct tb__gpu_entry *entries = calloc((size_t)count, sizeof *entries);
    tb_status status = TB_OK;
    for (int i = 0; entries != NULL && status == TB_OK && i < count; i++) {
        entries[i].can_peer = calloc((size_t)count, 1);
        entries[i].gpu.ordinal = i;
        status = describe(&entries[i].gpu);
        if (entries[i].can_peer == NULL) {
            entries_free(entries, count);
            entries = NULL;
        }
    }
    if (entries == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a table of %d GPUs", count);
    }
    if (status != TB_OK) {
        entries_free(entries, count);
        return status;
    }
    *out = entries;
    *out_count = count;
    return TB_OK;
}

/* The lock is held. */
static tb_status table_fill(void)
{
    if (tb__gpus.entries != NULL) {
        return TB_OK;
    }
    return entries_make(&tb__gpus.entries, &tb__gpus.count);
}

tb_status tb__gpus_need(void)
{
    TB__TRY(tb__cuda_need());
    pthread_mutex_lock(&tb__gpus.lock);
    tb_status status = table_fill();
    pthread_mutex_unlock(&tb__gpus.lock);
    return status;
}

/* ------------------------------------------------------------------ looking up */

const char *tb__gpu_uuid_text(const uint8_t uuid[16], int mig, char text[TB__UUID_TEXT])
{
    int used = snprintf(text, TB__UUID_TEXT, "%s", mig ? "MIG-" : "GPU-");
    for (int i = 0; i < 16; i++) {
        used += snprintf(text + used, TB__UUID_TEXT - (size_t)used, "%02x%s", uuid[i],
                         i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
    }
    return text;
}

/* " (CUDA_VISIBLE_DEVICES is `...`)" when that may be why. */
static const char *visible_note(char text[128])
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    text[0] = '\0';
    if (visible != NULL) {
        snprintf(text, 128, " (CUDA_VISIBLE_DEVICES is `%.64s`)", visible);
    }
    return text;
}

tb_status tb__gpu_count(int *out)
{
    TB__TRY(tb__gpus_need());
    *out = tb__gpus.count;
    return TB_OK;
}

tb_status tb__gpu_get(int ordinal, const struct tb__gpu **out)
{
    TB__TRY(tb__gpus_need());
    if (ordinal < 0 || ordinal >= tb__gpus.count) {
        char note[128];
        return TB__FAIL(TB_E_NOT_FOUND, "there is no cuda:%d: this process sees %d device%s%s",
                        ordinal, tb__gpus.count,
                        tb__gpus.count == 1 ? ", cuda:0" : "s, from cuda:0 on", visible_note(note));
    }
    *out = &tb__gpus.entries[ordinal].gpu;
    return TB_OK;
}

tb_status tb__gpu_by_uuid(const uint8_t uuid[16], const struct tb__gpu **out)
{
    TB__TRY(tb__gpus_need());
    for (int i = 0; i < tb__gpus.count; i++) {
        if (memcmp(tb__gpus.entries[i].gpu.uuid, uuid, 16) == 0) {
            *out = &tb__gpus.entries[i].gpu;
            return TB_OK;
        }
    }
    char text[TB__UUID_TEXT], note[128];
    return TB__FAIL(TB_E_NOT_FOUND,
                    "the device %s is not among the %d that this process sees%s: start it with "
                    "that device visible",
                    tb__gpu_uuid_text(uuid, 0, text), tb__gpus.count, visible_note(note));
}

tb_status tb__gpu_current(const struct tb__gpu **out)
{
    TB__TRY(tb__gpus_need());
    tb__context context = NULL;
    int device = -1;
    const struct tb__cuda_api *cuda = tb__cuda();
    int result = cuda->ctx_get_current(&context);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuCtxGetCurrent", "%s", "");
    }
    if (context != NULL) {
        result = cuda->ctx_get_device(&device);
        if (result != TB__CUDA_SUCCESS) {
            return tb__cuda_fail(result, "cuCtxGetDevice", "%s", "");
        }
    }
    int ordinal = 0;
    for (int i = 0; i < tb__gpus.count; i++) {
        ordinal = tb__gpus.entries[i].gpu.device == device ? i : ordinal;
    }
    tb_log_info("`cuda` without a number is cuda:%d here, %s", ordinal,
                context != NULL ? "the device of the current context"
                                : "the first: no context is current");
    *out = &tb__gpus.entries[ordinal].gpu;
    return TB_OK;
}

tb_status tb__gpu_of_device(tb_device device, const struct tb__gpu **out)
{
    if ((device & ~0xffff) != TB_CUDA(0)) {
        return TB__FAIL(TB_E_INVALID, "device 0x%x is no GPU: TB_CUDA(n) is cuda:n",
                        (unsigned)device);
    }
    return device == TB_CUDA_CURRENT ? tb__gpu_current(out) : tb__gpu_get(device & 0xffff, out);
}

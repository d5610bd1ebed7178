/* Plain, managed and page-locked memory, registrations, questions about pointers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/fake/fake.h"

static void unback(struct range *range)
{
    size_t whole = (range->bytes + PAGE - 1) / PAGE * PAGE;
    munmap((void *)(uintptr_t)range->base, whole);
    munmap(range->host, whole);
}

static int take_memory(int device, size_t bytes)
{
    struct fake_device *d = &fake.devices[device];
    if (bytes > d->total - d->used) {
        return TB__CUDA_OUT_OF_MEMORY;
    }
    d->used += bytes;
    return 0;
}

/* Work that may still use the device's memory is done first, as with the real call. */
static void device_wait(int device)
{
    context_wait(&fake.primaries[device]);
    for (struct fake_context *c = fake.contexts; c != NULL; c = c->next) {
        if (c->device == device) {
            context_wait(c);
        }
    }
}

static int allocate(enum range_kind kind, size_t bytes, uint64_t *out)
{
    struct fake_context *context = NULL;
    int code = fake_context_check(&context);
    if (code == 0 && bytes == 0) {
        code = TB__CUDA_INVALID_VALUE;
    }
    if (code == 0) {
        code = take_memory(context->device, bytes);
    }
    if (code != 0) {
        return code;
    }
    struct range *range = range_add(kind, context->device, 0, 0);
    code = range_back(range, bytes);
    if (code != 0) {
        fake.devices[context->device].used -= bytes;
        range_remove(range);
        return code;
    }
    if (kind == RANGE_MANAGED) {
        /* The CPU reaches it: the device address is the host's. */
        munmap((void *)(uintptr_t)range->base, (bytes + PAGE - 1) / PAGE * PAGE);
        range->base = (uint64_t)(uintptr_t)range->host;
    }
    *out = range->base;
    return 0;
}

FAKE_API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    ENTER("cuMemGetInfo_v2");
    struct fake_context *context = NULL;
    fake_lock();
    int code = fake_context_check(&context);
    if (code == 0) {
        *total_bytes = fake.devices[context->device].total;
        *free_bytes = *total_bytes - fake.devices[context->device].used;
    }
    return fake_unlock(code);
}

FAKE_API int cuMemAlloc_v2(uint64_t *out, size_t bytes)
{
    ENTER("cuMemAlloc_v2");
    fake_lock();
    return fake_unlock(allocate(RANGE_DEVICE, bytes, out));
}

FAKE_API int cuMemAllocManaged(uint64_t *out, size_t bytes, unsigned flags)
{
    ENTER("cuMemAllocManaged");
    struct fake_context *context = NULL;
    fake_lock();
    int code = fake_context_check(&context);
    if (code == 0 && flags != TB__MEM_ATTACH_GLOBAL) {
        code = TB__CUDA_INVALID_VALUE;
    }
    if (code == 0 && !fake.devices[context->device].managed) {
        code = TB__CUDA_NOT_SUPPORTED;
    }
    return fake_unlock(code != 0 ? code : allocate(RANGE_MANAGED, bytes, out));
}

FAKE_API int cuMemFree_v2(uint64_t address)
{
    int code = fake_enter_release("cuMemFree_v2");
    if (code == TB__CUDA_NOT_INITIALIZED || address == 0) {
        return code;
    }
    fake_lock();
    struct range *range = range_find(address);
    if (range == NULL || range->base != address ||
        (range->kind != RANGE_DEVICE && range->kind != RANGE_MANAGED && range->kind != RANGE_POOL &&
         range->kind != RANGE_EXTERNAL)) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    device_wait(range->device);
    if (range->kind == RANGE_MANAGED) {
        munmap(range->host, (range->bytes + PAGE - 1) / PAGE * PAGE);
    } else {
        unback(range);
    }
    if (range->kind != RANGE_EXTERNAL) {
        fake.devices[range->device].used -= range->bytes;
    }
    range_remove(range);
    return fake_unlock(code);
}

/* ------------------------------------------------------------------ from a stream's pool */

FAKE_API int cuMemAllocAsync(uint64_t *out, size_t bytes, tb__stream handle)
{
    ENTER("cuMemAllocAsync");
    int code = 0;
    fake_lock();
    struct CUstream_st *stream = stream_of(handle, &code);
    if (code == 0 && !fake.devices[stream->context->device].pools) {
        code = TB__CUDA_NOT_SUPPORTED;
    }
    return fake_unlock(code != 0 ? code : allocate(RANGE_POOL, bytes, out));
}

static int free_later(struct work *work)
{
    fake_lock();
    struct range *range = range_find(work->args[0]);
    if (range == NULL) {
        return fake_unlock(TB__CUDA_ILLEGAL_ADDRESS);
    }
    unback(range);
    fake.devices[range->device].used -= range->bytes;
    range_remove(range);
    return fake_unlock(0);
}

FAKE_API int cuMemFreeAsync(uint64_t address, tb__stream handle)
{
    int entered = fake_enter_release("cuMemFreeAsync");
    int code = 0;
    if (entered == TB__CUDA_NOT_INITIALIZED) {
        return entered;
    }
    fake_lock();
    struct CUstream_st *stream = stream_of(handle, &code);
    struct range *range = range_find(address);
    if (stream == NULL || range == NULL || range->base != address || range->kind != RANGE_POOL) {
        return fake_unlock(code != 0 ? code : TB__CUDA_INVALID_VALUE);
    }
    struct work *work = work_make("cuMemFreeAsync", free_later);
    work->args[0] = address;
    stream_enqueue(stream, work);
    return fake_unlock(entered);
}

/* ------------------------------------------------------------------ page-locked */

FAKE_API int cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    ENTER("cuMemHostAlloc");
    struct fake_context *context = NULL;
    fake_lock();
    int code = fake_context_check(&context);
    if (code != 0 || bytes == 0) {
        return fake_unlock(code != 0 ? code : TB__CUDA_INVALID_VALUE);
    }
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    void *host = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) {
        return fake_unlock(TB__CUDA_OUT_OF_MEMORY);
    }
    struct range *range =
        range_add(RANGE_HOST_ALLOC, context->device, (uint64_t)(uintptr_t)host, bytes);
    range->host = host;
    range->flags = flags;
    *out = host;
    return fake_unlock(0);
}

FAKE_API int cuMemFreeHost(void *host)
{
    int code = fake_enter_release("cuMemFreeHost");
    if (code == TB__CUDA_NOT_INITIALIZED) {
        return code;
    }
    fake_lock();
    struct range *range = range_find_host(host);
    if (range == NULL || range->host != host || range->kind != RANGE_HOST_ALLOC) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    munmap(host, (range->bytes + PAGE - 1) / PAGE * PAGE);
    range_remove(range);
    return fake_unlock(code);
}

/* Whether all pages of a range are mapped, and writable unless `read_only`. */
static int is_mapped(const void *host, size_t bytes, int read_only)
{
    uintptr_t from = (uintptr_t)host, to = from + bytes;
    char line[512], mode[8];
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && from < to && fgets(line, sizeof line, maps) != NULL) {
        unsigned long start = 0, end = 0;
        if (sscanf(line, "%lx-%lx %7s", &start, &end, mode) == 3 && start <= from && from < end &&
            mode[0] == 'r' && (read_only || mode[1] == 'w')) {
            from = end;
        }
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return from >= to;
}

FAKE_API int cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags)
{
    ENTER("cuMemHostRegister_v2");
    struct fake_context *context = NULL;
    int read_only = (flags & TB__MEMHOSTREGISTER_READ_ONLY) != 0;
    uintptr_t from = (uintptr_t)host / PAGE * PAGE;
    uintptr_t to = ((uintptr_t)host + bytes + PAGE - 1) / PAGE * PAGE;
    fake_lock();
    int code = fake_context_check(&context);
    if (code != 0 || bytes == 0) {
        return fake_unlock(code != 0 ? code : TB__CUDA_INVALID_VALUE);
    }
    const struct fake_device *device = &fake.devices[context->device];
    if (!device->host_register || (read_only && !device->read_only_register)) {
        return fake_unlock(TB__CUDA_NOT_SUPPORTED);
    }
    if (fake_host_locked((void *)from, to - from) != 0) {
        return fake_unlock(TB__CUDA_HOST_MEMORY_ALREADY_REGISTERED);
    }
    if (!is_mapped(host, bytes, read_only)) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    uint64_t base = (uint64_t)(uintptr_t)host;
    if (!device->same_pointer) {
        void *alias = mmap(NULL, to - from, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        base = (uint64_t)(uintptr_t)alias + ((uintptr_t)host - from);
    }
    struct range *range = range_add(RANGE_REGISTERED, context->device, base, bytes);
    range->host = host;
    range->flags = flags;
    return fake_unlock(0);
}

FAKE_API int cuMemHostUnregister(void *host)
{
    int code = fake_enter_release("cuMemHostUnregister");
    if (code == TB__CUDA_NOT_INITIALIZED) {
        return code;
    }
    fake_lock();
    struct range *range = range_find_host(host);
    if (range == NULL || range->host != host || range->kind != RANGE_REGISTERED) {
        return fake_unlock(TB__CUDA_HOST_MEMORY_NOT_REGISTERED);
    }
    if (range->base != (uint64_t)(uintptr_t)host) {
        uintptr_t page = range->base / PAGE * PAGE;
        munmap((void *)page, (range->base - page + range->bytes + PAGE - 1) / PAGE * PAGE);
    }
    range_remove(range);
    return fake_unlock(code);
}

FAKE_API int cuMemHostGetDevicePointer_v2(uint64_t *out, void *host, unsigned flags)
{
    ENTER("cuMemHostGetDevicePointer_v2");
    fake_lock();
    struct range *range = range_find_host(host);
    if (range == NULL || flags != 0) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    *out = range->base + (uint64_t)((char *)host - range->host);
    return fake_unlock(0);
}

/* ------------------------------------------------------------------ questions */

FAKE_API int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address)
{
    ENTER("cuMemGetAddressRange_v2");
    fake_lock();
    struct range *range = range_find(address);
    if (range == NULL || range->kind == RANGE_REGISTERED) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    *base = range->base;
    *bytes = range->bytes;
    return fake_unlock(0);
}

static int answer(const struct range *range, int attribute, uint64_t address, void *out)
{
    int is_host = range->kind == RANGE_REGISTERED || range->kind == RANGE_HOST_ALLOC;
    unsigned small = 0;
    uint64_t large = 0;
    switch (attribute) {
    case TB__POINTER_MEMORY_TYPE:
        small = is_host ? TB__MEMORYTYPE_HOST : TB__MEMORYTYPE_DEVICE;
        break;
    case TB__POINTER_IS_MANAGED:
        *(uint8_t *)out = range->kind == RANGE_MANAGED;
        return 0;
    case TB__POINTER_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(uint8_t *)out = range->kind == RANGE_DEVICE && fake.devices[range->device].ipc;
        return 0;
    case TB__POINTER_DEVICE_ORDINAL:
        small = (unsigned)range->device;
        break;
    case TB__POINTER_ALLOWED_HANDLE_TYPES:
        large = range->kind == RANGE_RESERVED && range->block != NULL && range->block->exportable;
        memcpy(out, &large, sizeof large);
        return 0;
    case TB__POINTER_DEVICE_POINTER:
        memcpy(out, &address, sizeof address);
        return 0;
    case TB__POINTER_MAPPING_BASE_ADDR:
    case TB__POINTER_RANGE_START_ADDR:
        memcpy(out, &range->base, sizeof range->base);
        return 0;
    case TB__POINTER_MAPPING_SIZE:
    case TB__POINTER_RANGE_SIZE:
        memcpy(out, &range->bytes, sizeof range->bytes);
        return 0;
    case TB__POINTER_MEMPOOL_HANDLE:
        large = range->kind == RANGE_POOL ? 0x900d : 0;
        memcpy(out, &large, sizeof large);
        return 0;
    default:
        return TB__CUDA_INVALID_VALUE;
    }
    memcpy(out, &small, sizeof small);
    return 0;
}

FAKE_API int cuPointerGetAttribute(void *out, int attribute, uint64_t address)
{
    ENTER("cuPointerGetAttribute");
    fake_lock();
    struct range *range = range_find(address);
    if (range == NULL) {
        range = range_find_host((void *)(uintptr_t)address);
        address = range == NULL ? 0 : range->base + (address - (uint64_t)(uintptr_t)range->host);
    }
    if (range == NULL || (range->kind == RANGE_RESERVED && range->host == NULL)) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    struct fake_context *context;
    if (attribute == TB__POINTER_DEVICE_POINTER && fake_context_check(&context) != 0) {
        return fake_unlock(TB__CUDA_INVALID_CONTEXT);
    }
    return fake_unlock(answer(range, attribute, address, out));
}

static int check_managed(uint64_t address, size_t bytes)
{
    struct range *range = range_find(address);
    return range != NULL && range->kind == RANGE_MANAGED &&
                   bytes <= range->bytes - (address - range->base)
               ? 0
               : TB__CUDA_INVALID_VALUE;
}

static unsigned last_advice;
static struct tb__mem_location last_where;

void managed_advice(unsigned *advice, unsigned *type, int *id)
{
    fake_lock();
    *advice = last_advice;
    *type = last_where.type;
    *id = last_where.id;
    fake_unlock(0);
}

FAKE_API int cuMemAdvise_v2(uint64_t address, size_t bytes, unsigned advice,
                            struct tb__mem_location where)
{
    ENTER("cuMemAdvise_v2");
    fake_lock();
    last_advice = advice;
    last_where = where;
    return fake_unlock(advice < 1 || advice > 6 ? TB__CUDA_INVALID_VALUE
                                                : check_managed(address, bytes));
}

FAKE_API int cuMemPrefetchAsync_v2(uint64_t address, size_t bytes, struct tb__mem_location where,
                                   unsigned flags, tb__stream handle)
{
    ENTER("cuMemPrefetchAsync_v2");
    (void)where;
    int code = 0;
    fake_lock();
    stream_of(handle, &code);
    if (code == 0 && flags != 0) {
        code = TB__CUDA_INVALID_VALUE;
    }
    return fake_unlock(code != 0 ? code : check_managed(address, bytes));
}

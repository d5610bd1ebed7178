/* Virtual memory with descriptors, legacy IPC handles, external memory. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cuda/fake/fake.h"

/* ------------------------------------------------------------------ physical memory */

static int prop_check(const struct tb__mem_prop *prop)
{
    if (prop->type != TB__MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != TB__MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
        prop->location.id >= fake.device_count) {
        return TB__CUDA_INVALID_VALUE;
    }
    const struct fake_device *device = &fake.devices[prop->location.id];
    return !device->vmm || (prop->requested_handle_types != 0 && !device->posix_fd)
               ? TB__CUDA_NOT_SUPPORTED
               : 0;
}

FAKE_API int cuMemGetAllocationGranularity(size_t *out, const struct tb__mem_prop *prop,
                                           unsigned option)
{
    ENTER("cuMemGetAllocationGranularity");
    (void)option;
    *out = GRANULARITY;
    return prop_check(prop);
}

FAKE_API int cuMemCreate(unsigned long long *out, size_t bytes, const struct tb__mem_prop *prop,
                         unsigned long long flags)
{
    ENTER("cuMemCreate");
    fake_lock();
    int code = prop_check(prop);
    if (code == 0 && (flags != 0 || bytes == 0 || bytes % GRANULARITY != 0)) {
        code = TB__CUDA_INVALID_VALUE;
    }
    if (code != 0) {
        return fake_unlock(code);
    }
    struct fake_device *device = &fake.devices[prop->location.id];
    int fd = -1;
    uint64_t key = 0;
    if (bytes > device->total - device->used ||
        tag_make(bytes, device->physical, RANGE_RESERVED, &fd, &key) != 0) {
        return fake_unlock(TB__CUDA_OUT_OF_MEMORY);
    }
    device->used += bytes;
    struct block *block = block_add(bytes, prop->location.id, fd);
    block->exportable = prop->requested_handle_types == TB__MEM_HANDLE_TYPE_POSIX_FD;
    *out = block->handle;
    return fake_unlock(0);
}

FAKE_API int cuMemRelease(unsigned long long handle)
{
    int code = fake_enter_release("cuMemRelease");
    if (code == TB__CUDA_NOT_INITIALIZED) {
        return code;
    }
    fake_lock();
    struct block *block = block_find(handle);
    if (block == NULL) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    block->handles--;
    block_drop(block);
    return fake_unlock(code);
}

FAKE_API int cuMemRetainAllocationHandle(unsigned long long *out, void *address)
{
    ENTER("cuMemRetainAllocationHandle");
    fake_lock();
    struct range *range = range_find((uint64_t)(uintptr_t)address);
    if (range == NULL || range->block == NULL) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    range->block->handles++;
    *out = range->block->handle;
    return fake_unlock(0);
}

FAKE_API int cuMemGetAllocationPropertiesFromHandle(struct tb__mem_prop *out,
                                                    unsigned long long handle)
{
    ENTER("cuMemGetAllocationPropertiesFromHandle");
    fake_lock();
    struct block *block = block_find(handle);
    if (block == NULL) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    memset(out, 0, sizeof *out);
    out->type = TB__MEM_ALLOCATION_TYPE_PINNED;
    out->requested_handle_types = block->exportable ? TB__MEM_HANDLE_TYPE_POSIX_FD : 0;
    out->location = (struct tb__mem_location){TB__MEM_LOCATION_TYPE_DEVICE, block->device};
    return fake_unlock(0);
}

FAKE_API int cuMemExportToShareableHandle(void *out, unsigned long long handle, unsigned type,
                                          unsigned long long flags)
{
    ENTER("cuMemExportToShareableHandle");
    fake_lock();
    struct block *block = block_find(handle);
    if (block == NULL || !block->exportable || type != TB__MEM_HANDLE_TYPE_POSIX_FD || flags != 0) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    int fd = dup(block->fd); /* nothing is promised about close-on-exec */
    memcpy(out, &fd, sizeof fd);
    return fake_unlock(fd >= 0 ? 0 : TB__CUDA_OPERATING_SYSTEM);
}

FAKE_API int cuMemImportFromShareableHandle(unsigned long long *out, void *os_handle, unsigned type)
{
    ENTER("cuMemImportFromShareableHandle");
    struct memory_tag tag;
    int fd = (int)(intptr_t)os_handle;
    fake_lock();
    if (type != TB__MEM_HANDLE_TYPE_POSIX_FD || tag_read(fd, &tag) != 0 ||
        tag.kind != RANGE_RESERVED) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    int device = -1;
    for (int i = 0; i < fake.device_count; i++) {
        device = fake.devices[i].physical == tag.physical ? i : device;
    }
    if (device < 0) {
        return fake_unlock(TB__CUDA_INVALID_DEVICE);
    }
    int mine = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (mine < 0) {
        return fake_unlock(TB__CUDA_OPERATING_SYSTEM);
    }
    struct block *block = block_add(tag.bytes, device, mine);
    block->imported = 1;
    block->exportable = 1;
    *out = block->handle;
    return fake_unlock(0);
}

/* ------------------------------------------------------------------ addresses */

FAKE_API int cuMemAddressReserve(uint64_t *out, size_t bytes, size_t alignment, uint64_t wanted,
                                 unsigned long long flags)
{
    ENTER("cuMemAddressReserve");
    if (bytes == 0 || bytes % GRANULARITY != 0 || alignment != 0 || wanted != 0 || flags != 0) {
        return TB__CUDA_INVALID_VALUE;
    }
    /* Whole granules, as the real one: what is over at the ends is given back. */
    char *at = mmap(NULL, bytes + GRANULARITY, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        return TB__CUDA_OUT_OF_MEMORY;
    }
    size_t skip = (GRANULARITY - (uintptr_t)at % GRANULARITY) % GRANULARITY;
    if (skip > 0) {
        munmap(at, skip);
    }
    munmap(at + skip + bytes, GRANULARITY - skip);
    fake_lock();
    range_add(RANGE_RESERVED, -1, (uint64_t)(uintptr_t)(at + skip), bytes);
    *out = (uint64_t)(uintptr_t)(at + skip);
    return fake_unlock(0);
}

/* A reservation as a whole: more is not needed by what is tested. */
static struct range *reservation(uint64_t address, size_t bytes)
{
    struct range *range = range_find(address);
    return range != NULL && range->kind == RANGE_RESERVED && range->base == address &&
                   range->bytes == bytes
               ? range
               : NULL;
}

FAKE_API int cuMemAddressFree(uint64_t address, size_t bytes)
{
    int code = fake_enter_release("cuMemAddressFree");
    if (code == TB__CUDA_NOT_INITIALIZED) {
        return code;
    }
    fake_lock();
    struct range *range = reservation(address, bytes);
    if (range == NULL || range->host != NULL) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    munmap((void *)(uintptr_t)address, bytes);
    range_remove(range);
    return fake_unlock(code);
}

FAKE_API int cuMemMap(uint64_t address, size_t bytes, size_t offset, unsigned long long handle,
                      unsigned long long flags)
{
    ENTER("cuMemMap");
    fake_lock();
    struct range *range = reservation(address, bytes);
    struct block *block = block_find(handle);
    if (range == NULL || block == NULL || range->host != NULL || offset != 0 || flags != 0 ||
        bytes % GRANULARITY != 0 || bytes > block->bytes) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, block->fd, 0);
    if (host == MAP_FAILED) {
        return fake_unlock(TB__CUDA_MAP_FAILED);
    }
    block->mappings++;
    range->host = host;
    range->block = block;
    range->device = block->device;
    range->readers = range->writers = 0;
    return fake_unlock(0);
}

FAKE_API int cuMemUnmap(uint64_t address, size_t bytes)
{
    int code = fake_enter_release("cuMemUnmap");
    if (code == TB__CUDA_NOT_INITIALIZED) {
        return code;
    }
    fake_lock();
    struct range *range = reservation(address, bytes);
    if (range == NULL || range->host == NULL) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    munmap(range->host, bytes);
    range->block->mappings--;
    block_drop(range->block);
    range->host = NULL;
    range->block = NULL;
    return fake_unlock(code);
}

FAKE_API int cuMemSetAccess(uint64_t address, size_t bytes, const struct tb__mem_access *access,
                            size_t count)
{
    ENTER("cuMemSetAccess");
    fake_lock();
    struct range *range = reservation(address, bytes);
    if (range == NULL || range->host == NULL) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    for (size_t i = 0; i < count; i++) {
        int device = access[i].location.id;
        if (access[i].location.type != TB__MEM_LOCATION_TYPE_DEVICE || device < 0 ||
            device >= fake.device_count) {
            return fake_unlock(TB__CUDA_INVALID_DEVICE);
        }
        if (!fake_peers(device, range->device)) {
            return fake_unlock(TB__CUDA_PEER_ACCESS_UNSUPPORTED);
        }
        unsigned bit = 1u << device;
        range->readers = access[i].flags != 0 ? range->readers | bit : range->readers & ~bit;
        range->writers = access[i].flags == TB__MEM_ACCESS_READWRITE ? range->writers | bit
                                                                     : range->writers & ~bit;
    }
    return fake_unlock(0);
}

/* ------------------------------------------------------------------ legacy IPC */

FAKE_API int cuIpcGetMemHandle(struct tb__ipc_handle *out, uint64_t address)
{
    ENTER("cuIpcGetMemHandle");
    fake_lock();
    struct range *range = range_find(address);
    if (range == NULL || range->kind != RANGE_DEVICE) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    if (!fake.devices[range->device].ipc) {
        return fake_unlock(TB__CUDA_NOT_SUPPORTED);
    }
    handle_make(out, range->fd);
    return fake_unlock(0);
}

static int open_memory(uint64_t *out, int fd, const struct memory_tag *tag, int current)
{
    int device = -1;
    for (int i = 0; i < fake.device_count; i++) {
        device = fake.devices[i].physical == tag->physical ? i : device;
    }
    if (device < 0) {
        return TB__CUDA_INVALID_DEVICE;
    }
    if (!fake_peers(current, device)) {
        return TB__CUDA_PEER_ACCESS_UNSUPPORTED;
    }
    void *host = mmap(NULL, tag->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void *address = mmap(NULL, tag->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED || address == MAP_FAILED) {
        return TB__CUDA_MAP_FAILED;
    }
    fake.primaries[current].peers |= 1u << device; /* LAZY_ENABLE_PEER_ACCESS */
    struct range *range =
        range_add(RANGE_IPC, device, (uint64_t)(uintptr_t)address, (size_t)tag->bytes);
    range->host = host;
    range->key = tag->key;
    range->opened = 1;
    *out = range->base;
    return 0;
}

FAKE_API int cuIpcOpenMemHandle_v2(uint64_t *out, struct tb__ipc_handle handle, unsigned flags)
{
    ENTER("cuIpcOpenMemHandle_v2");
    struct fake_context *context = NULL;
    struct memory_tag tag;
    int fd = -1;
    fake_lock();
    int code = fake_context_check(&context);
    if (code == 0 && flags != TB__IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
        code = TB__CUDA_INVALID_VALUE;
    }
    if (code == 0) {
        code = handle_open(&handle, &fd);
    }
    if (code == 0 && (tag_read(fd, &tag) != 0 || tag.kind != RANGE_DEVICE)) {
        code = TB__CUDA_INVALID_VALUE;
    }
    for (struct range *r = range_next(NULL); code == 0 && r != NULL; r = range_next(r)) {
        if (r->kind == RANGE_IPC && r->key == tag.key) { /* once more the same memory */
            r->opened++;
            *out = r->base;
            close(fd);
            return fake_unlock(0);
        }
    }
    if (code == 0) {
        code = open_memory(out, fd, &tag, context->device);
    }
    if (fd >= 0) {
        close(fd);
    }
    return fake_unlock(code);
}

FAKE_API int cuIpcCloseMemHandle(uint64_t address)
{
    int code = fake_enter_release("cuIpcCloseMemHandle");
    if (code == TB__CUDA_NOT_INITIALIZED) {
        return code;
    }
    fake_lock();
    struct range *range = range_find(address);
    if (range == NULL || range->kind != RANGE_IPC || range->base != address) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    if (--range->opened == 0) {
        munmap(range->host, range->bytes);
        munmap((void *)(uintptr_t)range->base, range->bytes);
        range_remove(range);
    }
    return fake_unlock(code);
}

/* ------------------------------------------------------------------ external memory */

struct CUextMemory_st {
    int fd;
    int device;
    size_t bytes;
    struct range *range; /* counts it among the leaks */
};

FAKE_API int cuImportExternalMemory(tb__external *out, const struct tb__external_handle *handle)
{
    ENTER("cuImportExternalMemory");
    struct fake_context *context = NULL;
    struct stat info;
    fake_lock();
    int code = fake_context_check(&context);
    if (code == 0 && (handle->type != TB__EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD ||
                      fstat(handle->handle.fd, &info) != 0 || !S_ISREG(info.st_mode) ||
                      (unsigned long long)info.st_size < handle->size)) {
        code = TB__CUDA_INVALID_VALUE;
    }
    if (code == 0 && !fake.devices[context->device].dma_buf) {
        code = TB__CUDA_NOT_SUPPORTED;
    }
    if (code != 0) {
        return fake_unlock(code);
    }
    struct CUextMemory_st *external = calloc(1, sizeof *external);
    external->fd = fake.dma_buf_borrows ? fcntl(handle->handle.fd, F_DUPFD_CLOEXEC, 3)
                                        : handle->handle.fd; /* taken */
    external->device = context->device;
    external->bytes = (size_t)handle->size;
    external->range = range_add(RANGE_EXTERNAL, context->device, 0, 0);
    *out = external;
    return fake_unlock(0);
}

FAKE_API int cuExternalMemoryGetMappedBuffer(uint64_t *out, tb__external external,
                                             const struct tb__external_buffer *buffer)
{
    ENTER("cuExternalMemoryGetMappedBuffer");
    fake_lock();
    size_t bytes = (size_t)buffer->size;
    if (buffer->offset != 0 || bytes == 0 || bytes > external->bytes) {
        return fake_unlock(TB__CUDA_INVALID_VALUE);
    }
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    void *host = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, external->fd, 0);
    void *address = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED || address == MAP_FAILED) {
        return fake_unlock(TB__CUDA_MAP_FAILED);
    }
    struct range *range =
        range_add(RANGE_EXTERNAL, external->device, (uint64_t)(uintptr_t)address, bytes);
    range->host = host;
    *out = range->base;
    return fake_unlock(0);
}

FAKE_API int cuDestroyExternalMemory(tb__external external)
{
    int code = fake_enter_release("cuDestroyExternalMemory");
    if (code == TB__CUDA_NOT_INITIALIZED) {
        return code;
    }
    fake_lock();
    range_remove(external->range);
    close(external->fd);
    free(external);
    return fake_unlock(code);
}

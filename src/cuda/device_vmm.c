/* Virtual memory of a device: a handle for the memory, an address for the handle, access for the
 * address. */
#include "cuda/device_vmm.h"

#include <pthread.h>
#include <stdlib.h>

/* All that is mapped in this process: a copy to another device opens what it meets. */
struct mapping {
    struct mapping *next;
    struct tb__device_memory memory;
};

static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings;

tb_status tb__vmm_allow(const struct tb__device_memory *memory, const struct tb__gpu *gpu)
{
    char text[TB__DEVICE_TEXT];
    struct tb__mem_access access = {
        .location = {TB__MEM_LOCATION_TYPE_DEVICE, gpu->device},
        .flags = memory->read_only ? TB__MEM_ACCESS_READ : TB__MEM_ACCESS_READWRITE,
    };
    int result = tb__cuda()->mem_set_access(memory->ptr, memory->mapped_bytes, &access, 1);
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuMemSetAccess", "%s, %s, for cuda:%d",
                               tb__device_what(memory, text),
                               memory->read_only ? "read only" : "read and write", gpu->ordinal);
}

/* The driver copies what lies on one device and is mapped for another by the context that is
 * current, which is often that of the device it lies on: it must be allowed there, too. */
static tb_status allow_home(const struct tb__device_memory *memory)
{
    const struct tb__gpu *home = NULL;
    TB__TRY(tb__gpu_get(memory->home, &home));
    return home == memory->gpu ? TB_OK : tb__vmm_allow(memory, home);
}

static tb_status note_mapping(const struct tb__device_memory *memory)
{
    struct mapping *mapping = calloc(1, sizeof *mapping);
    if (mapping == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory to note a mapping on cuda:%d", memory->gpu->ordinal);
    }
    mapping->memory = *memory;
    pthread_mutex_lock(&mappings_lock);
    mapping->next = mappings;
    mappings = mapping;
    pthread_mutex_unlock(&mappings_lock);
    return TB_OK;
}

/* Half-built ones were not noted. */
static void unnote_mapping(uint64_t ptr)
{
    pthread_mutex_lock(&mappings_lock);
    struct mapping **at = &mappings;
    while (*at != NULL && (*at)->memory.ptr != ptr) {
        at = &(*at)->next;
    }
    struct mapping *found = *at;
    if (found != NULL) {
        *at = found->next;
    }
    pthread_mutex_unlock(&mappings_lock);
    free(found);
}

tb_status tb__vmm_open_to(uint64_t address, const struct tb__gpu *gpu)
{
    /* Held during the driver's call, so that nobody unmaps it meanwhile. */
    pthread_mutex_lock(&mappings_lock);
    const struct mapping *at = mappings;
    while (at != NULL && address - at->memory.ptr >= at->memory.mapped_bytes) {
        at = at->next;
    }
    tb_status status = at != NULL ? tb__device_allow(&at->memory, gpu)
                                  : TB__FAIL(TB_E_NOT_FOUND, "0x%llx is in no memory mapped here",
                                             (unsigned long long)address);
    pthread_mutex_unlock(&mappings_lock);
    return status;
}

/* An address for the handle, readable (and writable) by the device. */
static tb_status vmm_map(struct tb__device_memory *memory)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    char text[TB__DEVICE_TEXT];
    int result = cuda->mem_address_reserve(&memory->ptr, memory->mapped_bytes, 0, 0, 0);
    if (result != TB__CUDA_SUCCESS) {
        memory->ptr = 0;
        return tb__cuda_fail(result, "cuMemAddressReserve", "%s", tb__device_what(memory, text));
    }
    result = cuda->mem_map(memory->ptr, memory->mapped_bytes, 0, memory->handle, 0);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuMemMap", "%s%s", tb__device_what(memory, text),
                             memory->imported ? ": is it less than the peer says?" : "");
    }
    memory->is_mapped = 1;
    TB__TRY(tb__vmm_allow(memory, memory->gpu));
    TB__TRY(allow_home(memory));
    return note_mapping(memory);
}

tb_status tb__vmm_alloc(struct tb__device_memory *memory)
{
    struct tb__mem_prop prop = {
        .type = TB__MEM_ALLOCATION_TYPE_PINNED,
        .requested_handle_types = TB__MEM_HANDLE_TYPE_POSIX_FD,
        .location = {TB__MEM_LOCATION_TYPE_DEVICE, memory->gpu->device},
    };
    int result = tb__cuda()->mem_create(&memory->handle, memory->mapped_bytes, &prop, 0);
    if (result != TB__CUDA_SUCCESS) {
        return tb__device_alloc_failed(result, "cuMemCreate", memory);
    }
    memory->has_handle = 1;
    return vmm_map(memory);
}

/* Which of our devices imported memory lies on; it must be reachable from the one that uses it. */
static tb_status vmm_find_home(struct tb__device_memory *memory)
{
    struct tb__mem_prop prop = {0};
    const struct tb__gpu *home = NULL;
    int count = 0;
    TB__TRY(tb__gpu_count(&count));
    if (count == 1) {
        return TB_OK; /* memory of a device that is not there cannot be imported */
    }
    int result = tb__cuda()->mem_get_prop(&prop, memory->handle);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuMemGetAllocationPropertiesFromHandle", "imported memory");
    }
    for (int i = 0; home == NULL && i < count; i++) {
        const struct tb__gpu *gpu = NULL;
        TB__TRY(tb__gpu_get(i, &gpu));
        home = prop.location.type == TB__MEM_LOCATION_TYPE_DEVICE && gpu->device == prop.location.id
                   ? gpu
                   : NULL;
    }
    if (home == NULL) {
        return TB__FAIL(TB_E_UNSUPPORTED, "a peer sent memory that lies on no GPU of this process");
    }
    return tb__device_lies_on(memory, home);
}

tb_status tb__vmm_import(struct tb__device_memory *memory, int borrow_fd)
{
    int result = tb__cuda()->mem_import(&memory->handle, (void *)(intptr_t)borrow_fd,
                                        TB__MEM_HANDLE_TYPE_POSIX_FD);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuMemImportFromShareableHandle",
                             "descriptor %d of a peer, for cuda:%d%s", borrow_fd,
                             memory->gpu->ordinal,
                             result == TB__CUDA_INVALID_DEVICE
                                 ? ": the memory is on a GPU that this process does not see"
                                 : "");
    }
    memory->has_handle = 1;
    TB__TRY(vmm_find_home(memory));
    return vmm_map(memory);
}

void tb__vmm_free(struct tb__device_memory *memory)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    unsigned long long bytes = memory->mapped_bytes;
    if (memory->is_mapped) {
        unnote_mapping(memory->ptr);
        tb__cuda_note(cuda->mem_unmap(memory->ptr, bytes), "cuMemUnmap", "%llu bytes", bytes);
    }
    if (memory->ptr != 0) {
        tb__cuda_note(cuda->mem_address_free(memory->ptr, bytes), "cuMemAddressFree", "%llu bytes",
                      bytes);
    }
    if (memory->has_handle) {
        tb__cuda_note(cuda->mem_release(memory->handle), "cuMemRelease", "%llu bytes", bytes);
    }
}

/* Registering host memory. */
#include "cuda/host_memory.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/size.h"

void tb__whole_pages(uint64_t ptr, uint64_t bytes, uint64_t *from, uint64_t *to)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t end = (ptr + bytes) / page * page;
    uint64_t begin = (ptr + page - 1) / page * page;
    *from = begin;
    *to = begin < end ? end : begin;
}

static int is_locked(uint64_t byte)
{
    uint32_t type = 0;
    return tb__cuda()->pointer_get_attribute(&type, TB__POINTER_MEMORY_TYPE, byte) ==
               TB__CUDA_SUCCESS &&
           type == TB__MEMORYTYPE_HOST;
}

/* Address for the device and start of its range, of a byte that is page-locked. */
static int address_of(uint64_t byte, uint64_t *address, uint64_t *start)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    return cuda->pointer_get_attribute(address, TB__POINTER_DEVICE_POINTER, byte) ==
               TB__CUDA_SUCCESS &&
           cuda->pointer_get_attribute(start, TB__POINTER_RANGE_START_ADDR, byte) ==
               TB__CUDA_SUCCESS;
}

/* A context is current. */
static uint64_t address_inside(uint64_t at, uint64_t bytes)
{
    uint64_t first = 0, last = 0, first_start = 0, last_start = 0;
    if (!address_of(at, &first, &first_start) || !address_of(at + bytes - 1, &last, &last_start)) {
        return 0;
    }
    return first_start == last_start && last - first == bytes - 1 ? first : 0;
}

uint64_t tb__host_device_address(const void *ptr, uint64_t bytes)
{
    uint64_t at = (uint64_t)(uintptr_t)ptr;
    if (bytes == 0 || !tb__cuda_is_open() || !is_locked(at) || !is_locked(at + bytes - 1)) {
        return 0;
    }
    /* Only within a context, any, does the driver say what a device's address is. */
    tb__context current = NULL;
    if (tb__cuda()->ctx_get_current(&current) == TB__CUDA_SUCCESS && current != NULL) {
        return address_inside(at, bytes);
    }
    /* The one of the device that it was registered with is there already. */
    const struct tb__gpu *gpu;
    struct tb__gpu_scope scope;
    tb_error kept;
    int ordinal = 0;
    tb_last_error(&kept);
    if (tb__cuda()->pointer_get_attribute(&ordinal, TB__POINTER_DEVICE_ORDINAL, at) !=
        TB__CUDA_SUCCESS) {
        ordinal = 0;
    }
    if (tb__gpu_get(ordinal, &gpu) != TB_OK || tb__gpu_enter(gpu, &scope) != TB_OK) {
        tb__error_restore(&kept);
        return 0;
    }
    uint64_t address = address_inside(at, bytes);
    tb__gpu_leave(&scope);
    return address;
}

/* What the limit on locked memory is, when it may be in the way. */
static const char *limit_note(uint64_t bytes, char text[TB__SIZE_TEXT + 48])
{
    struct rlimit limit;
    char most[TB__SIZE_TEXT];
    text[0] = '\0';
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes) {
        snprintf(text, TB__SIZE_TEXT + 48, "; locked memory is limited to %s (ulimit -l)",
                 tb__size_text(limit.rlim_cur, most));
    }
    return text;
}

/* Somebody else has registered the range, or a part of it. */
static tb_status take_as_it_is(const struct tb__gpu *gpu, void *ptr, uint64_t bytes,
                               struct tb__host_registration *out)
{
    uint64_t address = tb__host_device_address(ptr, bytes);
    if (address == 0) {
        char size[TB__SIZE_TEXT];
        return TB__FAIL(TB_E_EXISTS,
                        "page-locking %s at %p: a part of it is page-locked already, by somebody "
                        "else: lock all of it or nothing",
                        tb__size_text(bytes, size), ptr);
    }
    *out = (struct tb__host_registration){
        .gpu = gpu, .ptr = ptr, .bytes = bytes, .device_ptr = address};
    return TB_OK;
}

static tb_status register_here(const struct tb__gpu *gpu, void *ptr, uint64_t bytes, unsigned flags,
                               struct tb__host_registration *out)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    char size[TB__SIZE_TEXT], note[TB__SIZE_TEXT + 48];
    int result = cuda->mem_host_register(ptr, bytes, flags);
    if (result == TB__CUDA_HOST_MEMORY_ALREADY_REGISTERED) {
        return take_as_it_is(gpu, ptr, bytes, out);
    }
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuMemHostRegister", "%p, %s, flags %u, cuda:%d%s", ptr,
                             tb__size_text(bytes, size), flags, gpu->ordinal,
                             limit_note(bytes, note));
    }
    uint64_t address = 0;
    result = cuda->mem_host_get_device_pointer(&address, ptr, 0);
    if (result != TB__CUDA_SUCCESS) {
        tb_status status =
            tb__cuda_fail(result, "cuMemHostGetDevicePointer", "%p, cuda:%d", ptr, gpu->ordinal);
        tb__cuda_note(cuda->mem_host_unregister(ptr), "cuMemHostUnregister", "%p", ptr);
        return status;
    }
    *out = (struct tb__host_registration){
        .gpu = gpu, .ptr = ptr, .bytes = bytes, .device_ptr = address, .owned = 1};
    return TB_OK;
}

tb_status tb__host_register(const struct tb__gpu *gpu, void *ptr, uint64_t bytes, int read_only,
                            struct tb__host_registration *out)
{
    if (ptr == NULL || bytes == 0) {
        return TB__FAIL(TB_E_INVALID, "page-locking %llu bytes at %p", (unsigned long long)bytes,
                        ptr);
    }
    if (!gpu->host_register || !gpu->can_map_host || (read_only && !gpu->read_only_host_register)) {
        return TB__FAIL(TB_E_UNSUPPORTED, "cuda:%d (%s) cannot page-lock %smemory", gpu->ordinal,
                        gpu->name,
                        gpu->host_register && gpu->can_map_host ? "read-only " : "existing ");
    }
    struct tb__gpu_scope scope;
    TB__TRY(tb__gpu_enter(gpu, &scope));
    unsigned flags = TB__MEMHOSTREGISTER_PORTABLE | TB__MEMHOSTREGISTER_DEVICEMAP |
                     (read_only ? TB__MEMHOSTREGISTER_READ_ONLY : 0);
    tb_status status = register_here(gpu, ptr, bytes, flags, out);
    tb__gpu_leave(&scope);
    return status;
}

void tb__host_unregister(struct tb__host_registration *registration)
{
    struct tb__gpu_scope scope;
    if (registration->gpu != NULL && registration->owned &&
        tb__gpu_enter_to_free(registration->gpu, &scope)) {
        int result = tb__cuda()->mem_host_unregister(registration->ptr);
        if (result != TB__CUDA_HOST_MEMORY_NOT_REGISTERED) {
            tb__cuda_note(result, "cuMemHostUnregister", "%p", registration->ptr);
        }
        tb__gpu_leave(&scope);
    }
    *registration = (struct tb__host_registration){0};
}

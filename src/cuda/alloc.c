/* tb_alloc() and tb_memory_free(). Each kind is allocated into a zeroed object and freed from
 * however far it got. */
#include "cuda/memory_object.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define TB_LOG_TOPIC "cuda"
#include "base/checked.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/options.h"
#include "base/size.h"
#include "cuda/managed.h"

#define PAGE_BYTES ((uint64_t)4096)

/* ------------------------------------------------------------------ host kinds */

/* Why so much could not be locked. */
static tb_status lock_failed(uint64_t bytes)
{
    int reason = errno;
    struct rlimit limit;
    char size[TB__SIZE_TEXT], most[TB__SIZE_TEXT];
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        (reason == EPERM || reason == ENOMEM || reason == EAGAIN)) {
        return tb__error_set(TB_E_LIMIT, reason, __func__,
                             "locking %s: this process may lock %s in all: raise the limit (ulimit "
                             "-l; memlock in /etc/security/limits.conf; LimitMEMLOCK= of a systemd "
                             "unit; --ulimit memlock=-1 of a container)",
                             tb__size_text(bytes, size), tb__size_text(limit.rlim_cur, most));
    }
    return tb__error_set(TB_E_NOMEM, reason, __func__, "locking %s", tb__size_text(bytes, size));
}

static tb_status map_pages(struct tb_memory *memory, int fd)
{
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *base = mmap(NULL, memory->mapped_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (base == MAP_FAILED) {
        char size[TB__SIZE_TEXT];
        return TB__FAIL_ERRNO(TB_E_NOMEM, "mapping %s", tb__size_text(memory->mapped_bytes, size));
    }
    memory->base = base;
    return TB_OK;
}

static tb_status alloc_locked(struct tb_memory *memory)
{
    TB__TRY(map_pages(memory, -1));
    return mlock(memory->base, memory->mapped_bytes) == 0 ? TB_OK
                                                          : lock_failed(memory->mapped_bytes);
}

static tb_status alloc_shared(struct tb_memory *memory)
{
    TB__TRY(tb__memfd_create("tensorbus-memory", memory->mapped_bytes, &memory->fd));
    int reason = posix_fallocate(memory->fd, 0, (off_t)memory->mapped_bytes);
    if (reason != 0) {
        char size[TB__SIZE_TEXT];
        return tb__error_set(TB_E_NOMEM, reason, __func__, "allocating %s of shared memory",
                             tb__size_text(memory->mapped_bytes, size));
    }
    TB__TRY(map_pages(memory, memory->fd));
    TB__TRY(tb__host_register(memory->gpu, memory->base, memory->mapped_bytes, 0,
                              &memory->registration));
    memory->device_base = memory->registration.device_ptr;
    return TB_OK;
}

static tb_status alloc_pinned(struct tb_memory *memory)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    char size[TB__SIZE_TEXT];
    int result = cuda->mem_host_alloc(&memory->base, memory->mapped_bytes,
                                      TB__MEMHOSTALLOC_PORTABLE | TB__MEMHOSTALLOC_DEVICEMAP);
    if (result != TB__CUDA_SUCCESS) {
        memory->base = NULL;
        return tb__cuda_fail(result, "cuMemHostAlloc", "%s",
                             tb__size_text(memory->mapped_bytes, size));
    }
    result = cuda->mem_host_get_device_pointer(&memory->device_base, memory->base, 0);
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuMemHostGetDevicePointer", "%p", memory->base);
}

/* ------------------------------------------------------------------ device kinds */

static tb_status alloc_device(struct tb_memory *memory)
{
    TB__TRY(tb__device_alloc(memory->gpu, memory->mapped_bytes, &memory->device));
    memory->device_base = memory->device.ptr;
    memory->mapped_bytes = memory->device.mapped_bytes;
    return TB_OK;
}

static tb_status alloc_failed(const struct tb_memory *memory, int result, const char *call)
{
    const struct tb__device_memory as = {.gpu = memory->gpu, .mapped_bytes = memory->mapped_bytes};
    return tb__device_alloc_failed(result, call, &as);
}

static tb_status alloc_stream_ordered(struct tb_memory *memory)
{
    struct tb__gpu_scope scope;
    if (!memory->gpu->memory_pools) {
        return TB__FAIL(TB_E_UNSUPPORTED, "cuda:%d (%s) has no stream-ordered pool",
                        memory->gpu->ordinal, memory->gpu->name);
    }
    TB__TRY(tb__stream_device(memory->stream, memory->gpu, &memory->stream_gpu));
    if (memory->stream_gpu != memory->gpu) {
        return TB__FAIL(TB_E_INVALID,
                        "memory of cuda:%d in the order of a stream of cuda:%d: use a stream of "
                        "that device",
                        memory->gpu->ordinal, memory->stream_gpu->ordinal);
    }
    TB__TRY(tb__stream_enter(memory->stream, memory->gpu, &scope));
    int result =
        tb__cuda()->mem_alloc_async(&memory->device_base, memory->mapped_bytes, memory->stream);
    tb_status status = TB_OK;
    if (result != TB__CUDA_SUCCESS) {
        memory->device_base = 0;
        status = alloc_failed(memory, result, "cuMemAllocAsync");
    }
    tb__gpu_leave(&scope);
    return status;
}

static tb_status alloc_managed(struct tb_memory *memory, uint32_t advice)
{
    if (!memory->gpu->managed) {
        return TB__FAIL(TB_E_UNSUPPORTED, "cuda:%d (%s) has no managed memory",
                        memory->gpu->ordinal, memory->gpu->name);
    }
    if (advice != 0) {
        TB__TRY(tb__managed_check(memory->gpu, "advice"));
    }
    int result = tb__cuda()->mem_alloc_managed(&memory->device_base, memory->mapped_bytes,
                                               TB__MEM_ATTACH_GLOBAL);
    if (result != TB__CUDA_SUCCESS) {
        memory->device_base = 0;
        return alloc_failed(memory, result, "cuMemAllocManaged");
    }
    memory->base = (void *)(uintptr_t)memory->device_base;
    const struct tb__managed managed = {memory->device_base, memory->mapped_bytes};
    return tb__managed_advise(&managed, advice, memory->gpu);
}

/* ------------------------------------------------------------------ allocating */

static tb_status check(const tb_memory_options *options)
{
    uint64_t alignment = options->alignment;
    if (options->kind < TB_MEMORY_PINNED || options->kind > TB_MEMORY_LOCKED) {
        return TB__FAIL(TB_E_INVALID, "kind %d (%s) cannot be allocated", (int)options->kind,
                        tb_memory_kind_name(options->kind));
    }
    if (options->bytes == 0) {
        return TB__FAIL(TB_E_INVALID, "0 bytes of %s memory", tb_memory_kind_name(options->kind));
    }
    if ((alignment & (alignment - 1)) != 0 || alignment > TB_MEMORY_MAX_ALIGNMENT) {
        return TB__FAIL(TB_E_INVALID, "alignment to %llu bytes: it is a power of two up to %llu",
                        (unsigned long long)alignment, (unsigned long long)TB_MEMORY_MAX_ALIGNMENT);
    }
    if ((options->advice & ~(uint32_t)TB__ADVICE_ALL) != 0 ||
        (options->advice != 0 && options->kind != TB_MEMORY_MANAGED)) {
        return TB__FAIL(TB_E_INVALID,
                        "advice 0x%x for %s memory: there is advice about managed "
                        "memory alone",
                        options->advice, tb_memory_kind_name(options->kind));
    }
    return TB_OK;
}

static tb_status find_gpu(const tb_memory_options *options, const struct tb__gpu **out)
{
    if (options->kind == TB_MEMORY_LOCKED) {
        *out = NULL;
        return TB_OK;
    }
    return options->device == TB_CPU ? tb__gpu_current(out)
                                     : tb__gpu_of_device(options->device, out);
}

static tb_status alloc_kind(struct tb_memory *memory, const tb_memory_options *options)
{
    if (memory->kind == TB_MEMORY_LOCKED) {
        return alloc_locked(memory);
    }
    TB_ASSERT(memory->gpu != NULL);
    switch (memory->kind) {
    case TB_MEMORY_SHARED_PINNED:
        return alloc_shared(memory);
    case TB_MEMORY_PINNED:
        return alloc_pinned(memory);
    case TB_MEMORY_DEVICE:
        return alloc_device(memory);
    case TB_MEMORY_STREAM_ORDERED:
        return alloc_stream_ordered(memory);
    default:
        return alloc_managed(memory, options->advice);
    }
}

/* From the first multiple of the alignment on; both addresses lie equally to it, or the allocation
 * is of no use (no driver does so). */
static tb_status align(struct tb_memory *memory)
{
    uint64_t start = memory->base != NULL ? (uint64_t)(uintptr_t)memory->base : memory->device_base;
    uint64_t skip = (memory->alignment - start % memory->alignment) % memory->alignment;
    memory->data = memory->base != NULL ? (char *)memory->base + skip : NULL;
    memory->device_data = memory->device_base != 0 ? memory->device_base + skip : 0;
    if (memory->device_data % TB_MEMORY_ALIGNMENT != 0 ||
        (memory->base == NULL && memory->device_data % memory->alignment != 0)) {
        return TB__FAIL(TB_E_SYSTEM,
                        "the driver returned memory at 0x%llx, %llu-byte alignment "
                        "is not possible",
                        (unsigned long long)memory->device_base,
                        (unsigned long long)memory->alignment);
    }
    return TB_OK;
}

static tb_status build(struct tb_memory *memory, const tb_memory_options *options)
{
    struct tb__gpu_scope scope = {0};
    if (memory->gpu != NULL) {
        TB__TRY(tb__gpu_enter(memory->gpu, &scope));
    }
    tb_status status = alloc_kind(memory, options);
    tb__gpu_leave(&scope);
    TB__TRY(status);
    TB__TRY(align(memory));
    return tb__memory_note(memory);
}

/* What is half-built, too; not in the tree any more. */
static tb_status take_apart(struct tb_memory *memory)
{
    struct tb__gpu_scope scope;
    int result = TB__CUDA_SUCCESS;
    const char *call = "cuMemFreeHost";
    tb__host_unregister(&memory->registration);
    tb__device_free(&memory->device);
    if (memory->kind == TB_MEMORY_LOCKED || memory->kind == TB_MEMORY_SHARED_PINNED) {
        if (memory->base != NULL) {
            munmap(memory->base, memory->mapped_bytes);
        }
        tb__fd_close(&memory->fd);
    } else if (memory->kind != TB_MEMORY_DEVICE && tb__gpu_enter_to_free(memory->gpu, &scope)) {
        if (memory->kind == TB_MEMORY_PINNED && memory->base != NULL) {
            result = tb__cuda()->mem_free_host(memory->base);
        } else if (memory->kind == TB_MEMORY_MANAGED && memory->device_base != 0) {
            call = "cuMemFree";
            result = tb__cuda()->mem_free(memory->device_base);
        } else if (memory->kind == TB_MEMORY_STREAM_ORDERED && memory->device_base != 0) {
            call = "cuMemFreeAsync";
            result = tb__cuda()->mem_free_async(memory->device_base, memory->stream);
        }
        tb__gpu_leave(&scope);
    }
    tb_status status =
        result == TB__CUDA_SUCCESS
            ? TB_OK
            : tb__cuda_fail(result, call, "%s memory", tb_memory_kind_name(memory->kind));
    free(memory);
    return status;
}

tb_status tb_alloc(const tb_memory_options *given, tb_memory **out)
{
    tb_memory_options options;
    if (given == NULL || out == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_alloc() with NULL");
    }
    TB__OPTIONS(tb_memory_options, given, &options);
    TB__TRY(check(&options));
    const struct tb__gpu *gpu = NULL;
    TB__TRY(find_gpu(&options, &gpu));
    struct tb_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for an allocation's object");
    }
    memory->kind = options.kind;
    memory->gpu = gpu;
    memory->bytes = options.bytes;
    memory->stream = (tb__stream)options.stream;
    memory->fd = memory->device.fd = -1;
    memory->alignment =
        options.alignment > TB_MEMORY_ALIGNMENT ? options.alignment : TB_MEMORY_ALIGNMENT;
    /* Allocators align to pages; what is to be aligned to more needs room for it. */
    uint64_t room = memory->alignment > PAGE_BYTES ? memory->alignment : 0;
    tb_status status =
        tb__add(options.bytes, room, &memory->mapped_bytes) &&
                tb__round_up(memory->mapped_bytes, PAGE_BYTES, &memory->mapped_bytes)
            ? build(memory, &options)
            : TB__FAIL(TB_E_INVALID, "%llu bytes of memory", (unsigned long long)options.bytes);
    if (status != TB_OK) {
        tb_error kept;
        tb_last_error(&kept);
        (void)!take_apart(memory);
        tb__error_restore(&kept);
        return status;
    }
    *out = memory;
    return TB_OK;
}

void tb_memory_free(tb_memory *memory)
{
    if (memory == NULL) {
        return;
    }
    tb_error kept;
    tb_last_error(&kept);
    tb__memory_unnote(memory);
    if (take_apart(memory) != TB_OK) {
        tb_log_warn_limited("%s", tb_last_error_text());
    }
    tb__error_restore(&kept);
}

tb_status tb_memory_free_on(tb_memory *memory, void *stream)
{
    if (memory == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_memory_free_on() with NULL");
    }
    tb_memory_kind kind = memory->kind;
    tb__memory_unnote(memory);
    if (kind == TB_MEMORY_STREAM_ORDERED) {
        memory->stream = (tb__stream)stream;
    }
    TB__TRY(take_apart(memory));
    return kind == TB_MEMORY_STREAM_ORDERED
               ? TB_OK
               : TB__FAIL(TB_E_INVALID, "%s memory was freed, but not in the order of a stream",
                          tb_memory_kind_name(kind));
}

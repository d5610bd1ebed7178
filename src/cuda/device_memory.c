/* Allocating, exporting, importing. Each kind is built step by step in a struct that says how far
 * it is; tb__device_free() takes it apart from there. */
#include "cuda/device_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/fd.h"
#include "base/size.h"
#include "cuda/device_dmabuf.h"
#include "cuda/device_mapped.h"
#include "cuda/device_vmm.h"

/* The driver hands out plain memory in blocks of this size, and shares whole blocks. */
#define IPC_BLOCK_BYTES ((uint64_t)2 << 20)
#define HOST_PAGE_BYTES ((uint64_t)4096)

enum tb__device_kind tb__device_kind_of(const struct tb__gpu *gpu)
{
    if (gpu->vmm && gpu->posix_fd) {
        return TB__DEVICE_VMM;
    }
    if (!gpu->integrated) {
        return gpu->unified ? TB__DEVICE_IPC : TB__DEVICE_NONE;
    }
    return gpu->host_register && gpu->can_map_host ? TB__DEVICE_MAPPED : TB__DEVICE_NONE;
}

const char *tb__device_kind_name(enum tb__device_kind kind)
{
    static const char *const names[] = {"none", "virtual memory", "plain memory with an IPC handle",
                                        "mapped host memory", "a DMA-BUF"};
    return kind >= 0 && kind <= TB__DEVICE_DMABUF ? names[kind] : "?";
}

/* "64.0 MiB (67108864 bytes) on cuda:0" */
const char *tb__device_what(const struct tb__device_memory *memory, char text[TB__DEVICE_TEXT])
{
    char size[TB__SIZE_TEXT];
    snprintf(text, TB__DEVICE_TEXT, "%s on cuda:%d", tb__size_text(memory->mapped_bytes, size),
             memory->gpu->ordinal);
    return text;
}

/* The same with what is free, for allocations that fail. The context is current. */
tb_status tb__device_alloc_failed(int result, const char *call,
                                  const struct tb__device_memory *memory)
{
    char text[TB__DEVICE_TEXT], left[TB__SIZE_TEXT];
    size_t free_bytes = 0, total = 0;
    if (result == TB__CUDA_OUT_OF_MEMORY &&
        tb__cuda()->mem_get_info(&free_bytes, &total) == TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, call, "%s, of which %s are free",
                             tb__device_what(memory, text), tb__size_text(free_bytes, left));
    }
    return tb__cuda_fail(result, call, "%s", tb__device_what(memory, text));
}

static tb_status begin(const struct tb__gpu *gpu, enum tb__device_kind kind, uint64_t bytes,
                       struct tb__device_memory *out)
{
    uint64_t page = kind == TB__DEVICE_VMM   ? gpu->granularity
                    : kind == TB__DEVICE_IPC ? IPC_BLOCK_BYTES
                                             : HOST_PAGE_BYTES;
    *out = (struct tb__device_memory){
        .kind = kind, .gpu = gpu, .bytes = bytes, .home = gpu->ordinal, .fd = -1};
    if (bytes == 0 || page == 0 || !tb__round_up(bytes, page, &out->mapped_bytes)) {
        return TB__FAIL(TB_E_INVALID, "%llu bytes of memory on cuda:%d", (unsigned long long)bytes,
                        gpu->ordinal);
    }
    return TB_OK;
}

tb_status tb__device_lies_on(struct tb__device_memory *memory, const struct tb__gpu *home)
{
    int can = 0;
    memory->home = home->ordinal;
    TB__TRY(tb__gpu_peer(memory->gpu, home, &can));
    return can ? TB_OK
               : TB__FAIL(TB_E_UNSUPPORTED,
                          "a peer sent memory on cuda:%d, which cuda:%d cannot reach (nvidia-smi "
                          "topo -p2p r): read it through the CPU",
                          home->ordinal, memory->gpu->ordinal);
}

/* ------------------------------------------------------------------ plain memory, IPC handles */

static tb_status ipc_alloc(struct tb__device_memory *memory)
{
    int result = tb__cuda()->mem_alloc(&memory->ptr, memory->mapped_bytes);
    if (result != TB__CUDA_SUCCESS) {
        memory->ptr = 0;
        return tb__device_alloc_failed(result, "cuMemAlloc", memory);
    }
    memory->is_mapped = 1;
    return TB_OK;
}

/* The handle tells no size: how much was opened says the driver. */
static tb_status ipc_open(struct tb__device_memory *memory, const uint8_t handle[64])
{
    const struct tb__cuda_api *cuda = tb__cuda();
    struct tb__ipc_handle whole;
    memcpy(whole.bytes, handle, sizeof whole.bytes);
    int result =
        cuda->ipc_open_mem_handle(&memory->ptr, whole, TB__IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != TB__CUDA_SUCCESS) {
        memory->ptr = 0;
        return tb__cuda_fail(
            result, "cuIpcOpenMemHandle", "handle of a peer, for cuda:%d%s", memory->gpu->ordinal,
            result == TB__CUDA_INVALID_CONTEXT ? ": is it this process's own memory?" : "");
    }
    memory->is_mapped = 1;
    uint64_t base = 0;
    size_t found = 0;
    result = cuda->mem_get_address_range(&base, &found, memory->ptr);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuMemGetAddressRange", "an opened IPC handle");
    }
    uint64_t offset = memory->ptr - base;
    if (memory->ptr < base || !tb__range_fits(offset, memory->bytes, found)) {
        return TB__FAIL(TB_E_PROTOCOL, "a peer's IPC handle is for %llu bytes, %llu are needed",
                        (unsigned long long)(found - (offset < found ? offset : found)),
                        (unsigned long long)memory->bytes);
    }
    memory->mapped_bytes = found - offset;
    int home = memory->home;
    const struct tb__gpu *gpu = NULL;
    if (cuda->pointer_get_attribute(&home, TB__POINTER_DEVICE_ORDINAL, memory->ptr) !=
        TB__CUDA_SUCCESS) {
        return TB_OK;
    }
    TB__TRY(tb__gpu_get(home, &gpu));
    return tb__device_lies_on(memory, gpu);
}

static void ipc_free(struct tb__device_memory *memory)
{
    if (memory->is_mapped && memory->imported) {
        tb__cuda_note(tb__cuda()->ipc_close_mem_handle(memory->ptr), "cuIpcCloseMemHandle", "%s",
                      "");
    } else if (memory->is_mapped) {
        tb__cuda_note(tb__cuda()->mem_free(memory->ptr), "cuMemFree", "%llu bytes",
                      (unsigned long long)memory->mapped_bytes);
    }
}

/* ------------------------------------------------------------------ all kinds */

/* End a building step: what is half-built is taken apart, and *out stays untouched. */
static tb_status finish(tb_status status, struct tb__gpu_scope *scope,
                        struct tb__device_memory *memory, struct tb__device_memory *out)
{
    if (status == TB_OK) {
        *out = *memory;
    } else {
        tb__device_free(memory);
    }
    tb__gpu_leave(scope);
    return status;
}

static tb_status alloc_kind(const struct tb__gpu *gpu, enum tb__device_kind kind, uint64_t bytes,
                            struct tb__device_memory *out)
{
    struct tb__gpu_scope scope;
    struct tb__device_memory memory;
    TB__TRY(begin(gpu, kind, bytes, &memory));
    TB__TRY(tb__gpu_enter(gpu, &scope));
    tb_status status = kind == TB__DEVICE_VMM   ? tb__vmm_alloc(&memory)
                       : kind == TB__DEVICE_IPC ? ipc_alloc(&memory)
                                                : tb__mapped_alloc(&memory);
    return finish(status, &scope, &memory, out);
}

tb_status tb__device_alloc(const struct tb__gpu *gpu, uint64_t bytes, struct tb__device_memory *out)
{
    enum tb__device_kind kind = tb__device_kind_of(gpu);
    if (kind == TB__DEVICE_NONE) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "cuda:%d (%s) has no memory that other processes can import: use a pool on "
                        "the CPU",
                        gpu->ordinal, gpu->name);
    }
    return alloc_kind(gpu, kind, bytes, out);
}

tb_status tb__device_alloc_plain(const struct tb__gpu *gpu, uint64_t bytes,
                                 struct tb__device_memory *out)
{
    if (gpu->integrated || !gpu->unified) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "cuda:%d (%s) has no memory with a legacy IPC handle%s: use a pool on the "
                        "CPU",
                        gpu->ordinal, gpu->name,
                        gpu->integrated ? ": it shares the machine's memory" : "");
    }
    return alloc_kind(gpu, TB__DEVICE_IPC, bytes, out);
}

tb_status tb__device_allow(const struct tb__device_memory *memory, const struct tb__gpu *gpu)
{
    const struct tb__gpu *home = NULL;
    int can = 0;
    if (memory->kind == TB__DEVICE_MAPPED) {
        return TB_OK; /* host memory is registered for all devices */
    }
    TB__TRY(tb__gpu_get(memory->home, &home));
    TB__TRY(tb__gpu_peer(gpu, home, &can));
    if (!can) {
        return TB__FAIL(TB_E_UNSUPPORTED, "cuda:%d cannot reach the memory of cuda:%d",
                        gpu->ordinal, home->ordinal);
    }
    return memory->kind == TB__DEVICE_VMM && gpu != memory->gpu ? tb__vmm_allow(memory, gpu)
                                                                : TB_OK;
}

tb_status tb__device_export_fd(const struct tb__device_memory *memory, int *out_take_fd)
{
    if (memory->kind != TB__DEVICE_VMM && memory->fd >= 0) {
        int copy = fcntl(memory->fd, F_DUPFD_CLOEXEC, 3);
        if (copy < 0) {
            return TB__FAIL_ERRNO(tb__fd_failure(errno), "a descriptor of memory of cuda:%d",
                                  memory->gpu->ordinal);
        }
        *out_take_fd = copy;
        return TB_OK;
    }
    if (memory->kind != TB__DEVICE_VMM || memory->imported) {
        return TB__FAIL(TB_E_UNSUPPORTED, "%s%s has no descriptor for other processes",
                        memory->imported ? "imported " : "", tb__device_kind_name(memory->kind));
    }
    int fd = -1;
    TB__TRY(tb__cuda_need());
    int result = tb__cuda()->mem_export(&fd, memory->handle, TB__MEM_HANDLE_TYPE_POSIX_FD, 0);
    if (result != TB__CUDA_SUCCESS) {
        char text[TB__DEVICE_TEXT];
        return tb__cuda_fail(result, "cuMemExportToShareableHandle", "%s",
                             tb__device_what(memory, text));
    }
    /* The driver's descriptors may lack it, and every process that is started would inherit it. */
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        tb_status status =
            TB__FAIL_ERRNO(TB_E_SYSTEM, "close-on-exec of descriptor %d of the driver", fd);
        tb__fd_close(&fd);
        return status;
    }
    *out_take_fd = fd;
    return TB_OK;
}

tb_status tb__device_export_ipc(const struct tb__device_memory *memory, uint8_t handle[64])
{
    if (memory->kind != TB__DEVICE_IPC || memory->imported) {
        return TB__FAIL(TB_E_UNSUPPORTED, "%s%s has no IPC handle for other processes",
                        memory->imported ? "imported " : "", tb__device_kind_name(memory->kind));
    }
    struct tb__gpu_scope scope;
    struct tb__ipc_handle whole;
    TB__TRY(tb__gpu_enter(memory->gpu, &scope));
    int result = tb__cuda()->ipc_get_mem_handle(&whole, memory->ptr);
    tb__gpu_leave(&scope);
    if (result != TB__CUDA_SUCCESS) {
        char text[TB__DEVICE_TEXT];
        return tb__cuda_fail(result, "cuIpcGetMemHandle", "%s", tb__device_what(memory, text));
    }
    memcpy(handle, whole.bytes, sizeof whole.bytes);
    return TB_OK;
}

tb_status tb__device_import_fd(const struct tb__gpu *gpu, enum tb__device_kind kind, int borrow_fd,
                               uint64_t bytes, int read_only, struct tb__device_memory *out)
{
    struct tb__gpu_scope scope;
    struct tb__device_memory memory;
    if (kind != TB__DEVICE_VMM && kind != TB__DEVICE_MAPPED && kind != TB__DEVICE_DMABUF) {
        return TB__FAIL(TB_E_INVALID, "%s is not imported by descriptor",
                        tb__device_kind_name(kind));
    }
    if (kind == TB__DEVICE_VMM && !gpu->posix_fd) {
        return TB__FAIL(TB_E_UNSUPPORTED, "cuda:%d (%s) cannot import memory by descriptor",
                        gpu->ordinal, gpu->name);
    }
    TB__TRY(begin(gpu, kind, bytes, &memory));
    memory.imported = 1;
    memory.read_only = read_only && kind != TB__DEVICE_DMABUF;
    TB__TRY(tb__gpu_enter(gpu, &scope));
    tb_status status = kind == TB__DEVICE_VMM      ? tb__vmm_import(&memory, borrow_fd)
                       : kind == TB__DEVICE_MAPPED ? tb__mapped_import(&memory, borrow_fd)
                                                   : tb__dmabuf_import(&memory, borrow_fd);
    return finish(status, &scope, &memory, out);
}

tb_status tb__device_import_ipc(const struct tb__gpu *gpu, const uint8_t handle[64], uint64_t bytes,
                                struct tb__device_memory *out)
{
    struct tb__gpu_scope scope;
    struct tb__device_memory memory;
    TB__TRY(begin(gpu, TB__DEVICE_IPC, bytes, &memory));
    memory.imported = 1;
    TB__TRY(tb__gpu_enter(gpu, &scope));
    return finish(ipc_open(&memory, handle), &scope, &memory, out);
}

void tb__device_free(struct tb__device_memory *memory)
{
    struct tb__gpu_scope scope;
    if (memory->kind == TB__DEVICE_MAPPED) {
        tb__mapped_free(memory);
    } else if (memory->kind == TB__DEVICE_DMABUF) {
        tb__dmabuf_free(memory);
    } else if (memory->kind != TB__DEVICE_NONE && tb__gpu_enter_to_free(memory->gpu, &scope)) {
        if (memory->kind == TB__DEVICE_VMM) {
            tb__vmm_free(memory);
        } else {
            ipc_free(memory);
        }
        tb__gpu_leave(&scope);
    }
    *memory = (struct tb__device_memory){.fd = -1};
}

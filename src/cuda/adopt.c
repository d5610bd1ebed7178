/* Kinds of memory: what an address is, and whether and how it can be shared. */
#include "cuda/adopt.h"

#include <stdio.h>

#include "base/checked.h"
#include "base/size.h"
#include "cuda/memory_object.h"

static const struct {
    const char *name;
    int can_share;
    const char *why;
} kinds[] = {
    [TB_MEMORY_UNKNOWN] = {"unknown", 0, "nobody knows what it is"},
    [TB_MEMORY_PINNED] =
        {"pinned", 0,
         "page-locked memory of one process has no name by which another could map it: allocate "
         "shared-pinned memory"},
    [TB_MEMORY_DEVICE] = {"device", 1,
                          "other processes map it by a descriptor or an IPC handle of the driver"},
    [TB_MEMORY_STREAM_ORDERED] =
        {"stream-ordered", 0,
         "memory of a stream-ordered pool has no descriptor and no IPC handle: allocate device "
         "memory, or copy it into a pool"},
    [TB_MEMORY_MANAGED] =
        {"managed", 0,
         "managed memory moves between devices of one process, and the driver exports it to no "
         "other: allocate device memory or shared-pinned memory, or copy it into a pool"},
    [TB_MEMORY_SHARED_PINNED] = {"shared-pinned", 1,
                                 "it lies in shared memory, whose descriptor other processes map"},
    [TB_MEMORY_LOCKED] =
        {"locked", 0,
         "private memory of a process cannot be mapped by another: allocate shared-pinned memory, "
         "or use a pool's own"},
    [TB_MEMORY_PAGEABLE] =
        {"pageable", 0,
         "private memory of a process cannot be mapped by another: write into a pool's loan, copy "
         "it into a pool, or, if it is a memfd's, adopt it by its descriptor"},
    [TB_MEMORY_VIRTUAL] =
        {"virtual", 0,
         "this virtual memory was made without a descriptor for others (as PyTorch's expandable "
         "segments are): allocate device memory, or copy it into a pool"},
};

static int is_kind(tb_memory_kind kind)
{
    return kind >= 0 && kind <= TB_MEMORY_VIRTUAL;
}

const char *tb_memory_kind_name(tb_memory_kind kind)
{
    return is_kind(kind) ? kinds[kind].name : "?";
}

int tb_memory_can_share(tb_memory_kind kind, const char **why)
{
    int index = is_kind(kind) ? (int)kind : TB_MEMORY_UNKNOWN;
    if (why != NULL) {
        *why = kinds[index].why;
    }
    return kinds[index].can_share;
}

/* ------------------------------------------------------------------ others' memory */

/* What the driver says about an address. */
struct facts {
    tb_memory_kind kind;
    const struct tb__gpu *gpu;
    uint64_t base, bytes; /* of what is exported */
    int by_descriptor;    /* virtual memory with a descriptor; else an IPC handle */
};

static int ask(uint64_t address, int attribute, void *out)
{
    return tb__cuda()->pointer_get_attribute(out, attribute, address) == TB__CUDA_SUCCESS;
}

/* Device memory: by which way it can be exported. */
static void find_way(uint64_t address, struct facts *facts)
{
    uint64_t pool = 0, handles = 0;
    uint8_t managed = 0, ipc = 0;
    if (ask(address, TB__POINTER_IS_MANAGED, &managed) && managed) {
        facts->kind = TB_MEMORY_MANAGED;
        return;
    }
    if (ask(address, TB__POINTER_MEMPOOL_HANDLE, &pool) && pool != 0) {
        facts->kind = TB_MEMORY_STREAM_ORDERED;
        return;
    }
    if (ask(address, TB__POINTER_ALLOWED_HANDLE_TYPES, &handles) &&
        (handles & TB__MEM_HANDLE_TYPE_POSIX_FD) != 0 && tb__cuda()->mem_retain_handle != NULL &&
        ask(address, TB__POINTER_MAPPING_BASE_ADDR, &facts->base) &&
        ask(address, TB__POINTER_MAPPING_SIZE, &facts->bytes)) {
        facts->kind = TB_MEMORY_DEVICE;
        facts->by_descriptor = 1;
        return;
    }
    if (ask(address, TB__POINTER_IS_LEGACY_CUDA_IPC_CAPABLE, &ipc) && ipc &&
        ask(address, TB__POINTER_RANGE_START_ADDR, &facts->base) &&
        ask(address, TB__POINTER_RANGE_SIZE, &facts->bytes)) {
        facts->kind = TB_MEMORY_DEVICE;
        return;
    }
    facts->kind = TB_MEMORY_VIRTUAL;
}

static tb_status find_facts(uint64_t address, struct facts *out)
{
    uint32_t type = 0;
    int ordinal = -1, count = 0;
    *out = (struct facts){.kind = TB_MEMORY_PAGEABLE};
    if (!tb__cuda_is_open() || !ask(address, TB__POINTER_MEMORY_TYPE, &type)) {
        return TB_OK;
    }
    if (ask(address, TB__POINTER_DEVICE_ORDINAL, &ordinal)) {
        TB__TRY(tb__gpu_count(&count));
        if (ordinal >= 0 && ordinal < count) {
            TB__TRY(tb__gpu_get(ordinal, &out->gpu));
        }
    }
    if (type == TB__MEMORYTYPE_HOST) {
        out->kind = TB_MEMORY_PINNED;
    } else {
        find_way(address, out);
    }
    return TB_OK;
}

tb_status tb_memory_kind_of(const void *address, tb_memory_kind *out, tb_device *device)
{
    if (address == NULL || out == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_memory_kind_of() with NULL");
    }
    tb_error kept;
    tb_last_error(&kept);
    tb_memory *own = NULL;
    struct facts facts = {0};
    if (tb_memory_find(address, &own) == TB_OK) {
        facts.kind = own->kind;
        facts.gpu = own->gpu;
    } else {
        tb__error_restore(&kept);
        TB__TRY(find_facts((uint64_t)(uintptr_t)address, &facts));
    }
    *out = facts.kind;
    if (device != NULL) {
        *device = facts.gpu != NULL ? TB_CUDA(facts.gpu->ordinal) : TB_CPU;
    }
    return TB_OK;
}

/* ------------------------------------------------------------------ adopting */

static tb_status refuse(tb_memory_kind kind, const void *address)
{
    return TB__FAIL(TB_E_UNSUPPORTED, "a pool cannot adopt the %s memory at %p: %s",
                    tb_memory_kind_name(kind), address, kinds[kind].why);
}

static tb_status check_range(const struct tb__adopted *adopted, uint64_t base)
{
    if (adopted->address < base ||
        !tb__range_fits(adopted->address - base, adopted->bytes, adopted->export_bytes)) {
        char size[TB__SIZE_TEXT], all[TB__SIZE_TEXT];
        return TB__FAIL(TB_E_INVALID, "%s from byte %llu of an allocation of %s reach beyond it",
                        tb__size_text(adopted->bytes, size),
                        (unsigned long long)(adopted->address - base),
                        tb__size_text(adopted->export_bytes, all));
    }
    return TB_OK;
}

/* Memory of tb_alloc(). */
static tb_status adopt_own(const struct tb_memory *own, struct tb__adopted *adopted)
{
    uint64_t base = own->base != NULL ? (uint64_t)(uintptr_t)own->base : own->device_base;
    adopted->kind = own->kind;
    adopted->gpu = own->gpu;
    adopted->export_bytes = own->mapped_bytes;
    TB__TRY(check_range(adopted, base));
    adopted->offset = adopted->address - base;
    adopted->borrow_fd = own->fd;
    adopted->memory = own->device;
    return TB_OK;
}

/* A handle of our own to somebody else's virtual memory: it keeps the memory, whatever he does. */
static tb_status retain(struct tb__device_memory *memory)
{
    int result = tb__cuda()->mem_retain_handle(&memory->handle, (void *)(uintptr_t)memory->ptr);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuMemRetainAllocationHandle", "memory at 0x%llx",
                             (unsigned long long)memory->ptr);
    }
    memory->has_handle = 1;
    return TB_OK;
}

static tb_status adopt_other(const struct facts *facts, struct tb__adopted *adopted)
{
    adopted->kind = facts->kind;
    adopted->gpu = facts->gpu;
    adopted->export_bytes = facts->bytes;
    TB__TRY(check_range(adopted, facts->base));
    adopted->offset = adopted->address - facts->base;
    adopted->memory = (struct tb__device_memory){
        .kind = facts->by_descriptor ? TB__DEVICE_VMM : TB__DEVICE_IPC,
        .gpu = facts->gpu,
        .ptr = facts->base,
        .bytes = facts->bytes,
        .mapped_bytes = facts->bytes,
        .home = facts->gpu->ordinal,
        .fd = -1,
    };
    return facts->by_descriptor ? retain(&adopted->memory) : TB_OK;
}

tb_status tb__adopt(const void *address, uint64_t bytes, struct tb__adopted *out)
{
    struct tb__adopted adopted = {
        .address = (uint64_t)(uintptr_t)address, .bytes = bytes, .borrow_fd = -1};
    struct facts facts = {0};
    tb_memory *own = NULL;
    if (address == NULL || bytes == 0) {
        return TB__FAIL(TB_E_INVALID, "a pool cannot adopt %llu bytes at %p",
                        (unsigned long long)bytes, address);
    }
    adopted.memory.fd = -1;
    tb_error kept;
    tb_last_error(&kept);
    if (tb_memory_find(address, &own) == TB_OK) {
        if (!kinds[own->kind].can_share) {
            return refuse(own->kind, address);
        }
        TB__TRY(adopt_own(own, &adopted));
    } else {
        tb__error_restore(&kept);
        TB__TRY(find_facts(adopted.address, &facts));
        if (facts.kind != TB_MEMORY_DEVICE || facts.gpu == NULL) {
            return refuse(facts.kind == TB_MEMORY_DEVICE ? TB_MEMORY_UNKNOWN : facts.kind, address);
        }
        TB__TRY(adopt_other(&facts, &adopted));
    }
    *out = adopted;
    return TB_OK;
}

void tb__adopted_release(struct tb__adopted *adopted)
{
    /* What tb_alloc() made has a mapping, and stays its user's with its handle. */
    struct tb__device_memory *memory = &adopted->memory;
    if (memory->kind == TB__DEVICE_VMM && !memory->is_mapped && memory->has_handle &&
        tb__cuda_is_open()) {
        tb__cuda_note(tb__cuda()->mem_release(memory->handle), "cuMemRelease", "adopted memory");
    }
    *adopted = (struct tb__adopted){.borrow_fd = -1};
    adopted->memory.fd = -1;
}

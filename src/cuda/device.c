/* The table of devices: filled once, never changed; their primary contexts and peers: found when
 * they are needed, under one lock. */
#include "cuda/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TB_LOG_TOPIC "cuda"
#include "base/log.h"

enum { PEER_NOT_ASKED = 0, PEER_YES = 1, PEER_NO = 2 };

struct entry {
    struct tb__gpu gpu;
    _Atomic(tb__context) primary; /* retained; NULL until the first use */
    _Atomic int looked_for;       /* whether somebody else's use of it was asked for */
    unsigned char *can_peer;      /* [count]: PEER_ values */
};

static struct {
    pthread_mutex_t lock;
    struct entry *entries; /* NULL until filled */
    int count;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

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
        {TB__ATTRIBUTE_IPC_EVENT_SUPPORTED, &gpu->ipc_events},
        {TB__ATTRIBUTE_DMA_BUF_SUPPORTED, &gpu->dma_buf},
        {TB__ATTRIBUTE_MANAGED_MEMORY, &gpu->managed},
        {TB__ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, &gpu->concurrent_managed},
        {TB__ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, &gpu->pageable_access},
        {TB__ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &gpu->memory_pools},
        {TB__ATTRIBUTE_MAX_PITCH, &pitch},
    };
    const char *order = getenv("TENSORBUS_GPU_ORDER");
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
                             (order == NULL || strcmp(order, "cpu") != 0);
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

static void entries_free(struct entry *entries, int count)
{
    for (int i = 0; entries != NULL && i < count; i++) {
        free(entries[i].can_peer);
    }
    free(entries);
}

static tb_status entries_make(struct entry **out, int *out_count)
{
    int count = 0;
    int result = tb__cuda()->device_get_count(&count);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuDeviceGetCount", "%s", "");
    }
    struct entry *entries = calloc((size_t)count, sizeof *entries);
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
    if (table.entries != NULL) {
        return TB_OK;
    }
    return entries_make(&table.entries, &table.count);
}

static tb_status table_need(void)
{
    TB__TRY(tb__cuda_need());
    pthread_mutex_lock(&table.lock);
    tb_status status = table_fill();
    pthread_mutex_unlock(&table.lock);
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
    TB__TRY(table_need());
    *out = table.count;
    return TB_OK;
}

tb_status tb__gpu_get(int ordinal, const struct tb__gpu **out)
{
    TB__TRY(table_need());
    if (ordinal < 0 || ordinal >= table.count) {
        char note[128];
        return TB__FAIL(TB_E_NOT_FOUND, "there is no cuda:%d: this process sees %d device%s%s",
                        ordinal, table.count, table.count == 1 ? ", cuda:0" : "s, from cuda:0 on",
                        visible_note(note));
    }
    *out = &table.entries[ordinal].gpu;
    return TB_OK;
}

tb_status tb__gpu_by_uuid(const uint8_t uuid[16], const struct tb__gpu **out)
{
    TB__TRY(table_need());
    for (int i = 0; i < table.count; i++) {
        if (memcmp(table.entries[i].gpu.uuid, uuid, 16) == 0) {
            *out = &table.entries[i].gpu;
            return TB_OK;
        }
    }
    char text[TB__UUID_TEXT], note[128];
    return TB__FAIL(TB_E_NOT_FOUND,
                    "the device %s is not among the %d that this process sees%s: start it with "
                    "that device visible",
                    tb__gpu_uuid_text(uuid, 0, text), table.count, visible_note(note));
}

tb_status tb__gpu_current(const struct tb__gpu **out)
{
    TB__TRY(table_need());
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
    for (int i = 0; i < table.count; i++) {
        ordinal = table.entries[i].gpu.device == device ? i : ordinal;
    }
    tb_log_info("`cuda` without a number is cuda:%d here, %s", ordinal,
                context != NULL ? "the device of the current context"
                                : "the first: no context is current");
    *out = &table.entries[ordinal].gpu;
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

/* ------------------------------------------------------------------ contexts */

static struct entry *entry_of(const struct tb__gpu *gpu)
{
    return &table.entries[gpu->ordinal];
}

/* The primary context, retained. again: what was retained was destroyed by a reset of the device by
 * somebody else in this process; retaining makes it anew, empty. */
static tb_status primary_context(const struct tb__gpu *gpu, int again, tb__context *out)
{
    struct entry *entry = entry_of(gpu);
    int result = TB__CUDA_SUCCESS;
    pthread_mutex_lock(&table.lock);
    if (atomic_load(&entry->primary) == NULL || again) {
        tb__context context = NULL;
        result = tb__cuda()->primary_retain(&context, gpu->device);
        if (result == TB__CUDA_SUCCESS) {
            atomic_store(&entry->primary, context);
        }
    }
    *out = atomic_load(&entry->primary);
    pthread_mutex_unlock(&table.lock);
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuDevicePrimaryCtxRetain", "cuda:%d", gpu->ordinal);
}

/* Others have made the device's primary context, and may be using it just now: retain it, too, so
 * that it is known from now on. One that nobody uses is not made for that. */
static void look_for_primary(const struct tb__gpu *gpu)
{
    unsigned flags = 0;
    int active = 0;
    tb__context ignored = NULL;
    if (tb__cuda()->primary_get_state == NULL || atomic_exchange(&entry_of(gpu)->looked_for, 1)) {
        return;
    }
    tb_error kept;
    tb_last_error(&kept);
    if (tb__cuda()->primary_get_state(gpu->device, &flags, &active) == TB__CUDA_SUCCESS && active &&
        primary_context(gpu, 0, &ignored) != TB_OK) {
        tb_log_info("%s", tb_last_error_text());
        tb__error_restore(&kept);
    }
}

tb_status tb__gpu_of_context(tb__context current, const struct tb__gpu **out)
{
    int device = -1;
    TB__TRY(table_need());
    /* No other context has the address of one that we retain. */
    for (int i = 0; i < table.count; i++) {
        if (atomic_load_explicit(&table.entries[i].primary, memory_order_acquire) == current) {
            *out = &table.entries[i].gpu;
            return TB_OK;
        }
    }
    int result = tb__cuda()->ctx_get_device(&device);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuCtxGetDevice", "context of a stream");
    }
    for (int i = 0; i < table.count; i++) {
        if (table.entries[i].gpu.device == device) {
            *out = &table.entries[i].gpu;
            look_for_primary(*out);
            return TB_OK;
        }
    }
    return TB__FAIL(TB_E_INVALID, "the stream is of a device %d that is not in the table", device);
}

/* Whether the current context is one of the device. */
static int is_inside(const struct tb__gpu *gpu, tb__context *out)
{
    int device = -1;
    *out = NULL;
    return tb__cuda()->ctx_get_current(out) == TB__CUDA_SUCCESS && *out != NULL &&
           tb__cuda()->ctx_get_device(&device) == TB__CUDA_SUCCESS && device == gpu->device;
}

tb_status tb__gpu_enter(const struct tb__gpu *gpu, struct tb__gpu_scope *out)
{
    *out = (struct tb__gpu_scope){0};
    TB__TRY(tb__cuda_need()); /* after a fork nothing here may be touched */
    tb__context context = NULL;
    if (is_inside(gpu, &context)) {
        out->context = context;
        return TB_OK;
    }
    TB__TRY(primary_context(gpu, 0, &context));
    int result = tb__cuda()->ctx_push(context);
    if (result == TB__CUDA_CONTEXT_IS_DESTROYED || result == TB__CUDA_INVALID_CONTEXT) {
        TB__TRY(primary_context(gpu, 1, &context));
        result = tb__cuda()->ctx_push(context);
    }
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuCtxPushCurrent", "primary context of cuda:%d",
                             gpu->ordinal);
    }
    *out = (struct tb__gpu_scope){.pushed = 1, .context = context};
    return TB_OK;
}

int tb__gpu_enter_to_free(const struct tb__gpu *gpu, struct tb__gpu_scope *out)
{
    if (!tb__cuda_is_open()) {
        return 0;
    }
    tb_error kept;
    tb_last_error(&kept);
    /* Any call may report what went wrong in earlier work; then the second does what it should. */
    int inside = tb__gpu_enter(gpu, out) == TB_OK || tb__gpu_enter(gpu, out) == TB_OK;
    if (!inside) {
        tb_log_warn_limited("not given back: %s", tb_last_error_text());
    }
    tb__error_restore(&kept);
    return inside;
}

void tb__gpu_leave(struct tb__gpu_scope *scope)
{
    if (scope->pushed && tb__cuda_is_open()) {
        tb__context popped = NULL;
        tb__cuda_note(tb__cuda()->ctx_pop(&popped), "cuCtxPopCurrent", "%s", "");
    }
    scope->pushed = 0;
}

/* ------------------------------------------------------------------ peers, memory */

/* Let the primary context of `gpu` reach what is allocated in the one of `peer`. *can: 0 when the
 * driver has no room for one more peer. */
static tb_status enable_peer(const struct tb__gpu *gpu, const struct tb__gpu *peer, int *can)
{
    struct tb__gpu_scope scope;
    tb__context mine = NULL, other = NULL;
    TB__TRY(primary_context(peer, 0, &other));
    TB__TRY(primary_context(gpu, 0, &mine));
    int result = tb__cuda()->ctx_push(mine);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuCtxPushCurrent", "primary context of cuda:%d",
                             gpu->ordinal);
    }
    scope = (struct tb__gpu_scope){.pushed = 1, .context = mine};
    result = tb__cuda()->ctx_enable_peer_access(other, 0);
    tb__gpu_leave(&scope);
    if (result == TB__CUDA_SUCCESS || result == TB__CUDA_PEER_ACCESS_ALREADY_ENABLED) {
        return TB_OK;
    }
    if (result == TB__CUDA_TOO_MANY_PEERS || result == TB__CUDA_PEER_ACCESS_UNSUPPORTED) {
        *can = 0;
        return TB_OK;
    }
    return tb__cuda_fail(result, "cuCtxEnablePeerAccess", "cuda:%d to cuda:%d", gpu->ordinal,
                         peer->ordinal);
}

static tb_status can_reach(const struct tb__gpu *gpu, const struct tb__gpu *peer, int *can)
{
    int result = tb__cuda()->device_can_access_peer(can, gpu->device, peer->device);
    return result == TB__CUDA_SUCCESS
               ? TB_OK
               : tb__cuda_fail(result, "cuDeviceCanAccessPeer", "cuda:%d, cuda:%d", gpu->ordinal,
                               peer->ordinal);
}

/* TENSORBUS_GPU_PEERS=0: GPUs do as if they could not reach each other, for machines where that
 * does not work though the driver says so. Asked once for each pair. */
static int peers_wanted(void)
{
    const char *value = getenv("TENSORBUS_GPU_PEERS");
    return value == NULL || strcmp(value, "0") != 0;
}

tb_status tb__gpu_peer(const struct tb__gpu *a, const struct tb__gpu *b, int *can)
{
    TB__TRY(tb__cuda_need());
    if (a == b) {
        *can = 1;
        return TB_OK;
    }
    pthread_mutex_lock(&table.lock);
    unsigned char known = entry_of(a)->can_peer[b->ordinal];
    pthread_mutex_unlock(&table.lock);
    if (known == PEER_NOT_ASKED) {
        int there = 0, back = 0;
        TB__TRY(can_reach(a, b, &there));
        TB__TRY(can_reach(b, a, &back));
        int both = there && back && peers_wanted();
        if (both) {
            TB__TRY(enable_peer(a, b, &both));
            TB__TRY(enable_peer(b, a, &both));
        }
        known = both ? PEER_YES : PEER_NO;
        pthread_mutex_lock(&table.lock);
        entry_of(a)->can_peer[b->ordinal] = known;
        entry_of(b)->can_peer[a->ordinal] = known;
        pthread_mutex_unlock(&table.lock);
    }
    *can = known == PEER_YES;
    return TB_OK;
}

tb_status tb__gpu_memory(const struct tb__gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes)
{
    struct tb__gpu_scope scope;
    TB__TRY(tb__gpu_enter(gpu, &scope));
    size_t left = 0, all = 0;
    int result = tb__cuda()->mem_get_info(&left, &all);
    tb__gpu_leave(&scope);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuMemGetInfo", "cuda:%d", gpu->ordinal);
    }
    *free_bytes = left;
    *total_bytes = all;
    return TB_OK;
}

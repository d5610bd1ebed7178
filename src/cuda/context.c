/* Contexts of devices, and which devices reach each other: found when they are needed, under the
 * table's lock. */
#include "cuda/device_table.h"

#include <stdlib.h>
#include <string.h>

#define TB_LOG_TOPIC "cuda"
#include "base/log.h"

static struct tb__gpu_entry *entry_of(const struct tb__gpu *gpu)
{
    return &tb__gpus.entries[gpu->ordinal];
}

/* The primary context, retained. again: what was retained was destroyed by a reset of the device by
 * somebody else in this process; retaining makes it anew, empty. */
static tb_status primary_context(const struct tb__gpu *gpu, int again, tb__context *out)
{
    struct tb__gpu_entry *entry = entry_of(gpu);
    int result = TB__CUDA_SUCCESS;
    pthread_mutex_lock(&tb__gpus.lock);
    if (atomic_load(&entry->primary) == NULL || again) {
        tb__context context = NULL;
        result = tb__cuda()->primary_retain(&context, gpu->device);
        if (result == TB__CUDA_SUCCESS) {
            atomic_store(&entry->primary, context);
        }
    }
    *out = atomic_load(&entry->primary);
    pthread_mutex_unlock(&tb__gpus.lock);
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
    TB__TRY(tb__gpus_need());
    /* No other context has the address of one that we retain. */
    for (int i = 0; i < tb__gpus.count; i++) {
        if (atomic_load_explicit(&tb__gpus.entries[i].primary, memory_order_acquire) == current) {
            *out = &tb__gpus.entries[i].gpu;
            return TB_OK;
        }
    }
    int result = tb__cuda()->ctx_get_device(&device);
    if (result != TB__CUDA_SUCCESS) {
        return tb__cuda_fail(result, "cuCtxGetDevice", "context of a stream");
    }
    for (int i = 0; i < tb__gpus.count; i++) {
        if (tb__gpus.entries[i].gpu.device == device) {
            *out = &tb__gpus.entries[i].gpu;
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
    if (value == NULL || value[0] == '\0' || strcmp(value, "1") == 0) {
        return 1;
    }
    if (strcmp(value, "0") == 0) {
        return 0;
    }
    tb_log_warn("TENSORBUS_GPU_PEERS is `%.40s`, which is neither 0 nor 1: 1 is used", value);
    return 1;
}

tb_status tb__gpu_peer(const struct tb__gpu *a, const struct tb__gpu *b, int *can)
{
    TB__TRY(tb__cuda_need());
    if (a == b) {
        *can = 1;
        return TB_OK;
    }
    pthread_mutex_lock(&tb__gpus.lock);
    unsigned char known = entry_of(a)->can_peer[b->ordinal];
    pthread_mutex_unlock(&tb__gpus.lock);
    if (known == TB__PEER_NOT_ASKED) {
        int there = 0, back = 0;
        TB__TRY(can_reach(a, b, &there));
        TB__TRY(can_reach(b, a, &back));
        int both = there && back && peers_wanted();
        if (both) {
            TB__TRY(enable_peer(a, b, &both));
            TB__TRY(enable_peer(b, a, &both));
        }
        known = both ? TB__PEER_YES : TB__PEER_NO;
        pthread_mutex_lock(&tb__gpus.lock);
        entry_of(a)->can_peer[b->ordinal] = known;
        entry_of(b)->can_peer[a->ordinal] = known;
        pthread_mutex_unlock(&tb__gpus.lock);
    }
    *can = known == TB__PEER_YES;
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

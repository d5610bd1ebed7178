/* Memory objects: all live ones stand in one tree, by address, so that what an address belongs to
 * can be told; what users ask about them, and advise. */
#include "cuda/memory_object.h"

#include <pthread.h>
#include <search.h>

#include "base/options.h"
#include "cuda/host_cache.h"
#include "cuda/managed.h"

/* ------------------------------------------------------------------ which address is whose */

static pthread_mutex_t tree_lock = PTHREAD_MUTEX_INITIALIZER;
static void *tree;

static uint64_t first_byte(const struct tb_memory *memory)
{
    return memory->data != NULL ? (uint64_t)(uintptr_t)memory->data : memory->device_data;
}

/* Ranges do not overlap; one that holds the other's first byte is equal to it. */
static int compare(const void *a, const void *b)
{
    const struct tb_memory *one = a, *other = b;
    uint64_t first = first_byte(one), second = first_byte(other);
    if (first + one->bytes <= second) {
        return -1;
    }
    return second + other->bytes <= first ? 1 : 0;
}

tb_status tb__memory_note(struct tb_memory *memory)
{
    pthread_mutex_lock(&tree_lock);
    const void *node = tsearch(memory, &tree, compare);
    pthread_mutex_unlock(&tree_lock);
    return node != NULL ? TB_OK : TB__FAIL(TB_E_NOMEM, "no memory to note an allocation");
}

void tb__memory_unnote(const struct tb_memory *memory)
{
    pthread_mutex_lock(&tree_lock);
    tdelete(memory, &tree, compare);
    pthread_mutex_unlock(&tree_lock);
}

tb_status tb_memory_find(const void *address, tb_memory **out)
{
    struct tb_memory key = {.data = (void *)(uintptr_t)address, .bytes = 1};
    pthread_mutex_lock(&tree_lock);
    struct tb_memory **node = address != NULL ? tfind(&key, &tree, compare) : NULL;
    struct tb_memory *found = node != NULL ? *node : NULL;
    pthread_mutex_unlock(&tree_lock);
    if (found == NULL) {
        return TB__FAIL(TB_E_NOT_FOUND, "%p is in no memory of tb_alloc()", address);
    }
    *out = found;
    return TB_OK;
}

/* ------------------------------------------------------------------ asking, advising */

void *tb_memory_data(const tb_memory *memory)
{
    return memory == NULL ? NULL : (void *)(uintptr_t)first_byte(memory);
}

tb_status tb_memory_get_info(const tb_memory *memory, tb_memory_info *out)
{
    if (memory == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_memory_get_info() with NULL");
    }
    const tb_memory_info info = {
        .kind = memory->kind,
        .device = memory->gpu != NULL ? TB_CUDA(memory->gpu->ordinal) : TB_CPU,
        .data = memory->data,
        .device_data = memory->device_data,
        .bytes = memory->bytes,
        .alignment = memory->alignment,
        .can_share = tb_memory_can_share(memory->kind, NULL),
    };
    return TB__INFO(tb_memory_info, out, &info);
}

static tb_status managed_only(const tb_memory *memory, const char *what)
{
    if (memory == NULL) {
        return TB__FAIL(TB_E_INVALID, "%s of NULL", what);
    }
    if (memory->kind != TB_MEMORY_MANAGED) {
        return TB__FAIL(TB_E_UNSUPPORTED, "%s of %s memory: it works on managed memory alone", what,
                        tb_memory_kind_name(memory->kind));
    }
    return tb__managed_check(memory->gpu, what);
}

tb_status tb_memory_advise(tb_memory *memory, uint32_t advice, tb_device device)
{
    TB__TRY(managed_only(memory, "advice"));
    if (advice == 0 || (advice & ~(uint32_t)TB__ADVICE_ALL) != 0) {
        return TB__FAIL(TB_E_INVALID, "advice 0x%x is not made of TB_ADVICE_ bits", advice);
    }
    struct tb__gpu_scope scope;
    const struct tb__gpu *gpu = memory->gpu;
    const struct tb__managed managed = {memory->device_base, memory->mapped_bytes};
    if (device != TB_CPU) {
        TB__TRY(tb__gpu_of_device(device, &gpu));
    }
    TB__TRY(tb__gpu_enter(memory->gpu, &scope));
    tb_status status = tb__managed_advise(&managed, advice, gpu);
    tb__gpu_leave(&scope);
    return status;
}

tb_status tb_memory_prefetch(tb_memory *memory, tb_device device, void *stream)
{
    TB__TRY(managed_only(memory, "prefetching"));
    struct tb__gpu_scope scope;
    const struct tb__gpu *gpu = NULL, *stream_gpu = NULL;
    const struct tb__managed managed = {memory->device_base, memory->mapped_bytes};
    if (device != TB_CPU) {
        TB__TRY(tb__gpu_of_device(device, &gpu));
    }
    TB__TRY(tb__stream_device((tb__stream)stream, memory->gpu, &stream_gpu));
    TB__TRY(tb__stream_enter((tb__stream)stream, stream_gpu, &scope));
    tb_status status = tb__managed_prefetch(&managed, gpu, (tb__stream)stream);
    tb__gpu_leave(&scope);
    return status;
}

tb_status tb_memory_promise(void *data, uint64_t bytes)
{
    return tb__host_promise(data, bytes);
}

tb_status tb_memory_forget(void *data, uint64_t bytes)
{
    return tb__host_forget(data, bytes);
}

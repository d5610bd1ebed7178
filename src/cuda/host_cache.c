/* Promised ranges and their registrations: one list under one lock. Copies hold leases;
 * asynchronous ones leave an event behind that tells when they have ended. */
#include "cuda/host_cache.h"

#include <pthread.h>
#include <stdlib.h>

#include "cuda/copy.h"
#include "cuda/event.h"
#include "cuda/path.h"

#define EVENTS 4 /* streams that may use one range at the same time without waiting */

struct range {
    struct range *next;
    char *ptr;
    uint64_t bytes;
    uint64_t from, to; /* its whole pages */
    uint32_t promises;
    uint32_t leases;
    uint64_t seen;
    uint64_t last_use;
    struct tb__host_registration registration; /* empty: not registered */
    struct tb__gpu_event events[EVENTS];
    uint32_t next_event;
    int refused; /* registering failed: not tried again */
};

static struct {
    pthread_mutex_t lock;
    struct range *ranges;
    uint64_t now;
    uint64_t max_bytes;
    uint32_t max_count;
    struct tb__host_cache_stats stats;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER,
           .max_bytes = TB__HOST_CACHE_BYTES,
           .max_count = TB__HOST_CACHE_COUNT};

/* All functions without tb__ : the lock is held. */

static int is_registered(const struct range *range)
{
    return range->registration.gpu != NULL;
}

static void events_end(struct range *range)
{
    for (int i = 0; i < EVENTS; i++) {
        tb__gpu_event_destroy(&range->events[i]);
    }
}

/* Whether no copy uses the range any more. */
static int is_idle(const struct range *range)
{
    tb_error kept;
    int idle = range->leases == 0;
    tb_last_error(&kept);
    for (int i = 0; idle && i < EVENTS; i++) {
        idle = range->events[i].gpu == NULL || tb__gpu_event_query(&range->events[i]) != TB_AGAIN;
    }
    tb__error_restore(&kept);
    return idle;
}

static void unregister(struct range *range)
{
    if (is_registered(range)) {
        cache.stats.registered--;
        cache.stats.bytes -= range->to - range->from;
        events_end(range);
        tb__host_unregister(&range->registration);
    }
}

static struct range *find_exact(const void *ptr, uint64_t bytes)
{
    struct range *range = cache.ranges;
    while (range != NULL && (range->ptr != ptr || range->bytes != bytes)) {
        range = range->next;
    }
    return range;
}

/* The promised range around one; a registered one first. */
static struct range *find_around(const void *ptr, uint64_t bytes)
{
    struct range *found = NULL;
    for (struct range *range = cache.ranges; range != NULL; range = range->next) {
        uint64_t offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)range->ptr);
        if ((uintptr_t)ptr >= (uintptr_t)range->ptr && offset <= range->bytes &&
            bytes <= range->bytes - offset && (found == NULL || is_registered(range))) {
            found = range;
        }
    }
    return found;
}

static struct range *least_recent(void)
{
    struct range *found = NULL;
    for (struct range *range = cache.ranges; range != NULL; range = range->next) {
        if (is_registered(range) && (found == NULL || range->last_use < found->last_use) &&
            is_idle(range)) {
            found = range;
        }
    }
    return found;
}

/* Whether there is room for `bytes` more, after others have gone. */
static int make_room(uint64_t bytes)
{
    while (bytes > cache.max_bytes || cache.stats.bytes > cache.max_bytes - bytes ||
           cache.stats.registered >= cache.max_count) {
        struct range *range = bytes > cache.max_bytes ? NULL : least_recent();
        if (range == NULL) {
            return 0;
        }
        unregister(range);
        cache.stats.evicted++;
    }
    return 1;
}

/* Register a range that is worth it. A failure is only remembered. */
static void consider(const struct tb__gpu *gpu, struct range *range)
{
    uint64_t bytes = range->to - range->from;
    if (is_registered(range) || range->refused ||
        !tb__should_register(bytes, range->seen, tb__copy_register_min()) || !make_room(bytes)) {
        return;
    }
    tb_error kept;
    tb_last_error(&kept);
    if (tb__host_register(gpu, (void *)(uintptr_t)range->from, bytes, 0, &range->registration) ==
        TB_OK) {
        cache.stats.registered++;
        cache.stats.bytes += bytes;
    } else {
        range->refused = 1;
    }
    tb__error_restore(&kept);
}

/* A copy of more than what was promised: it would be locked in part. Its pages are let go, when the
 * copies that use them have ended. */
static void unlock_overlapping(uint64_t from, uint64_t to)
{
    for (struct range *range = cache.ranges; range != NULL; range = range->next) {
        if (!is_registered(range) || range->from >= to || range->to <= from || range->leases > 0) {
            continue;
        }
        for (int i = 0; i < EVENTS; i++) {
            if (range->events[i].gpu != NULL) {
                (void)!tb__gpu_event_synchronize(&range->events[i]);
            }
        }
        unregister(range);
    }
}

static tb_status promise(void *ptr, uint64_t bytes)
{
    struct range *range = find_exact(ptr, bytes);
    if (range == NULL) {
        range = calloc(1, sizeof *range);
        if (range == NULL) {
            return TB__FAIL(TB_E_NOMEM, "no memory to note a range of host memory");
        }
        range->ptr = ptr;
        range->bytes = bytes;
        tb__whole_pages((uint64_t)(uintptr_t)ptr, bytes, &range->from, &range->to);
        range->next = cache.ranges;
        cache.ranges = range;
        cache.stats.promised++;
    }
    range->promises++;
    return TB_OK;
}

static tb_status forget(void *ptr, uint64_t bytes)
{
    struct range *range = find_exact(ptr, bytes);
    if (range == NULL) {
        return TB__FAIL(TB_E_NOT_FOUND, "%llu bytes at %p were not promised to stay",
                        (unsigned long long)bytes, ptr);
    }
    if (range->leases > 0 && range->promises == 1) {
        return TB__FAIL(TB_E_BUSY, "%llu bytes at %p are being copied", (unsigned long long)bytes,
                        ptr);
    }
    if (--range->promises == 0) {
        struct range **at = &cache.ranges;
        while (*at != range) {
            at = &(*at)->next;
        }
        *at = range->next;
        unregister(range);
        cache.stats.promised--;
        free(range);
    }
    return TB_OK;
}

/* ------------------------------------------------------------------ from outside */

tb_status tb__host_promise(void *ptr, uint64_t bytes)
{
    if (ptr == NULL || bytes == 0 || bytes > UINT64_MAX - (uintptr_t)ptr) {
        return TB__FAIL(TB_E_INVALID, "%llu bytes at %p are no range of memory",
                        (unsigned long long)bytes, ptr);
    }
    pthread_mutex_lock(&cache.lock);
    tb_status status = promise(ptr, bytes);
    pthread_mutex_unlock(&cache.lock);
    return status;
}

tb_status tb__host_forget(void *ptr, uint64_t bytes)
{
    pthread_mutex_lock(&cache.lock);
    tb_status status = forget(ptr, bytes);
    pthread_mutex_unlock(&cache.lock);
    return status;
}

/* The lock is held. */
static void lease(const struct tb__gpu *gpu, struct range *range, uint64_t from, uint64_t to,
                  struct tb__host_lease *out)
{
    consider(gpu, range);
    range->seen++;
    range->last_use = ++cache.now;
    out->from = from > range->from ? from : range->from;
    out->to = to < range->to ? to : range->to;
    if (is_registered(range) && out->from < out->to) {
        range->leases++;
        cache.stats.hits++;
        out->range = range;
    } else {
        cache.stats.misses++;
    }
}

int tb__host_cache_get(const struct tb__gpu *gpu, const void *ptr, uint64_t bytes,
                       struct tb__host_lease *out)
{
    uint64_t from = (uint64_t)(uintptr_t)ptr;
    tb_error kept;
    *out = (struct tb__host_lease){0};
    tb_last_error(&kept);
    pthread_mutex_lock(&cache.lock);
    struct range *range = cache.ranges != NULL ? find_around(ptr, bytes) : NULL;
    if (range != NULL) {
        lease(gpu, range, from, from + bytes, out);
    } else {
        unlock_overlapping(from, from + bytes);
    }
    pthread_mutex_unlock(&cache.lock);
    tb__error_restore(&kept);
    return out->range != NULL;
}

/* Leave an event behind; when that is impossible, wait. */
static void mark_use(struct range *range, tb__stream stream, const struct tb__gpu *gpu)
{
    struct tb__gpu_event *event = &range->events[range->next_event++ % EVENTS];
    if (event->gpu != NULL) {
        (void)!tb__gpu_event_synchronize(event);
        tb__gpu_event_destroy(event);
    }
    if (tb__gpu_event_create(gpu, stream, event) != TB_OK ||
        tb__gpu_event_record(event, stream) != TB_OK) {
        tb__gpu_event_destroy(event);
        (void)!tb__stream_synchronize(stream, gpu);
    }
}

void tb__host_cache_put(struct tb__host_lease *lease, tb__stream stream, const struct tb__gpu *gpu,
                        int done)
{
    struct range *range = lease->range;
    if (range == NULL) {
        return;
    }
    tb_error kept;
    tb_last_error(&kept);
    pthread_mutex_lock(&cache.lock);
    if (!done) {
        mark_use(range, stream, gpu);
    }
    range->leases--;
    pthread_mutex_unlock(&cache.lock);
    tb__error_restore(&kept);
    lease->range = NULL;
}

void tb__host_cache_unlock(const void *ptr, uint64_t bytes)
{
    tb_error kept;
    tb_last_error(&kept);
    pthread_mutex_lock(&cache.lock);
    unlock_overlapping((uint64_t)(uintptr_t)ptr, (uint64_t)(uintptr_t)ptr + bytes);
    pthread_mutex_unlock(&cache.lock);
    tb__error_restore(&kept);
}

void tb__host_cache_limit(uint64_t bytes, uint32_t count)
{
    pthread_mutex_lock(&cache.lock);
    cache.max_bytes = bytes;
    cache.max_count = count;
    pthread_mutex_unlock(&cache.lock);
}

void tb__host_cache_trim(void)
{
    pthread_mutex_lock(&cache.lock);
    for (struct range *range = cache.ranges; range != NULL; range = range->next) {
        if (is_registered(range) && is_idle(range)) {
            unregister(range);
        }
    }
    pthread_mutex_unlock(&cache.lock);
}

void tb__host_cache_stats(struct tb__host_cache_stats *out)
{
    pthread_mutex_lock(&cache.lock);
    *out = cache.stats;
    pthread_mutex_unlock(&cache.lock);
}

/* Registering, freeing and closing pools. Users' threads. */
#define TB_LOG_TOPIC "pool"
#include "base/checked.h"
#include "base/clock.h"
#include "base/copy_team.h"
#include "base/fd.h"
#include "base/log.h"
#include "pool/adopt.h"
#include "pool/announce.h"
#include "pool/memory.h"
#include "pool/order.h"
#include "pool/pending.h"
#include "pool/write.h"
#include "segment/dora_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SLOTS 4
#define DEFAULT_LEASES 4

/* ---- options ---- */

static tb_status check_options(const tb_pool_options *options)
{
    if (options->name != NULL) {
        TB__TRY(tb__name_check("pool", options->name));
    }
    const char *name = options->name != NULL ? options->name : "(unnamed)";
    if (options->device != TB_CPU && !TB_IS_CUDA(options->device)) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool `%s`: device 0x%x: TB_CPU and TB_CUDA(n) are possible", name,
                        (unsigned)options->device);
    }
    if (options->device != TB_CPU &&
        (options->lock_memory || options->pinned || options->copy_threads > 1)) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool `%s`: lock_memory, pinned and copy_threads are for host memory",
                        name);
    }
    if (options->slots > TB_MAX_SLOTS) {
        return TB__FAIL(TB_E_LIMIT, "pool `%s`: %u slots, at most %d are possible", name,
                        options->slots, TB_MAX_SLOTS);
    }
    if (options->max_leases > TB_MAX_LEASES) {
        return TB__FAIL(TB_E_LIMIT, "pool `%s`: max_leases %u, at most %d are possible", name,
                        options->max_leases, TB_MAX_LEASES);
    }
    if (options->copy_threads > TB_MAX_COPY_THREADS) {
        return TB__FAIL(TB_E_LIMIT, "pool `%s`: copy_threads %u, at most %d are possible", name,
                        options->copy_threads, TB_MAX_COPY_THREADS);
    }
    if (options->policy != TB_LATEST && options->policy != TB_EVERY) {
        return TB__FAIL(TB_E_INVALID, "pool `%s`: unknown policy %d", name, (int)options->policy);
    }
    if (options->wait_readers != 0 && options->policy != TB_EVERY) {
        return TB__FAIL(TB_E_INVALID, "pool `%s`: wait_readers needs the policy TB_EVERY", name);
    }
    if (options->doradma_name != NULL && (options->slots > 1 || options->capacity_bytes > 0)) {
        return TB__FAIL(TB_E_INVALID,
                        "pool `%s`: an export for foreign readers has one slot and a fixed shape",
                        name);
    }
    if (options->live &&
        (options->slots > 1 || options->capacity_bytes > 0 || options->policy != TB_LATEST)) {
        return TB__FAIL(TB_E_INVALID,
                        "pool `%s`: a live pool has one slot, a fixed shape and the policy "
                        "TB_LATEST",
                        name);
    }
    return TB_OK;
}

static tb_status copy_ackers(tb_pool *pool, const tb_pool_options *options)
{
    uint32_t count = 0;
    while (options->ackers != NULL && options->ackers[count] != NULL) {
        TB__TRY(tb__name_check("acknowledging process", options->ackers[count]));
        count++;
    }
    if (count == 0) {
        return TB_OK;
    }
    pool->ackers = calloc(count, sizeof pool->ackers[0]);
    if (pool->ackers == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a pool");
    }
    for (uint32_t i = 0; i < count; i++) {
        tb__name_copy(pool->ackers[i], options->ackers[i]);
    }
    pool->acker_count = count;
    return TB_OK;
}

static tb_status fill_spec(tb_pool *pool, const tb_pool_options *options,
                           struct tb__doradma_spec *spec)
{
    pool->proto =
        (tb_tensor){.device = options->device, .dtype = options->dtype, .ndim = options->ndim};
    if (options->ndim >= 0 && options->ndim <= TB_MAX_NDIM) {
        memcpy(pool->proto.shape, options->shape, (size_t)options->ndim * sizeof(int64_t));
    }
    TB__TRY(tb_tensor_bytes(&pool->proto, &pool->proto_bytes));
    pool->varying = options->capacity_bytes > 0;
    if (pool->varying && options->capacity_bytes < pool->proto_bytes) {
        return TB__FAIL(TB_E_INVALID,
                        "pool `%s`: capacity_bytes %llu is below the first shape's %zu bytes",
                        pool->name, (unsigned long long)options->capacity_bytes, pool->proto_bytes);
    }
    pool->slots = options->slots != 0 ? options->slots : DEFAULT_SLOTS;
    if (options->doradma_name != NULL || options->live) {
        pool->slots = 1;
    }
    pool->live = options->live != 0;
    pool->max_leases = options->max_leases != 0 ? options->max_leases : DEFAULT_LEASES;
    pool->wait_readers = options->wait_readers;
    pool->require_zero_copy = options->require_zero_copy;
    pool->every = options->policy == TB_EVERY;
    uint64_t creator = tb_bus_id(pool->bus);
    uint64_t random = tb__random64();
    memcpy(pool->uid, &creator, 8);
    memcpy(pool->uid + 8, &random, 8);
    *spec = (struct tb__doradma_spec){
        .slots = pool->slots,
        .policy = (uint32_t)options->policy,
        .max_leases = pool->max_leases,
        .flags = (pool->varying ? TB__GEOMETRY_VARYING : 0) |
                 (options->device != TB_CPU ? TB__GEOMETRY_DEVICE : 0) |
                 (options->doradma_name != NULL ? TB__GEOMETRY_EXPORT : 0) |
                 (pool->live ? TB__GEOMETRY_LIVE : 0),
        .slot_bytes = pool->varying ? options->capacity_bytes : pool->proto_bytes,
        .dtype = pool->proto.dtype,
        .ndim = pool->proto.ndim,
        .creator = creator,
    };
    memcpy(spec->shape, pool->proto.shape, sizeof spec->shape);
    memcpy(spec->uid, pool->uid, sizeof spec->uid);
    return TB_OK;
}

static tb_status make_loans(tb_pool *pool)
{
    pool->loans = calloc(pool->slots, sizeof pool->loans[0]);
    if (pool->loans == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a pool");
    }
    for (uint32_t s = 0; s < pool->slots; s++) {
        tb_loan *loan = &pool->loans[s];
        loan->pool = pool;
        loan->slot = s;
        loan->tensor = pool->proto;
        loan->tensor.data = tb__slot_data(&pool->segment, pool->device, s);
    }
    return TB_OK;
}

/* ---- life ---- */

void tb__pool_destroy(tb_pool *pool)
{
    tb__copy_team_destroy(pool->copy_team);
    tb__mapped_end(&pool->mapped);
    tb__segment_destroy(pool);
    tb__adoption_fini(pool);
    if (!tb__bus_keeps_mapped(pool->bus)) {
        tb__device_share_close(pool->device);
    }
    tb__fd_close(&pool->device_fd);
    pthread_mutex_destroy(&pool->map_mutex);
    free(pool->loans);
    free(pool->ackers);
    free(pool);
}

/* Under the bus mutex: the name is free, or TB_E_EXISTS. A freed pool gives its name up. */
static tb_status link_pool(struct tb__pool_layer *layer, tb_pool *pool)
{
    for (const tb_pool *at = layer->pools; at != NULL; at = at->next) {
        if (strcmp(at->name, pool->name) == 0 && !atomic_load(&at->freed)) {
            return TB__FAIL(TB_E_EXISTS,
                            "process `%s` has a pool `%s` already: choose another name or free "
                            "that one first",
                            tb_bus_name(pool->bus), pool->name);
        }
    }
    pool->number = layer->pools != NULL ? layer->pools->number + 1 : 1;
    pool->next = layer->pools;
    layer->pools = pool;
    return TB_OK;
}

/* The slots in a GPU's memory, as far apart as they would be in the segment. */
static tb_status make_device(tb_pool *pool, const tb_pool_options *options,
                             struct tb__doradma_spec *spec)
{
    struct tb__doradma_layout layout;
    uint64_t bytes;
    spec->device_kind = TB__PLACE_VMM; /* any, for the size */
    TB__TRY(tb__doradma_layout(spec, &layout));
    if (!tb__mul(layout.slot_stride, spec->slots, &bytes)) {
        return TB__FAIL(TB_E_LIMIT, "pool `%s`: the size of its slots overflows", pool->name);
    }
    tb_status status =
        tb__device_share_create(options->device, bytes, spec, &pool->device, &pool->device_fd);
    if (status == TB_OK) {
        pool->proto.device = tb__device_id(pool->device);
    }
    return status;
}

static tb_status build(tb_pool *pool, const tb_pool_options *options)
{
    struct tb__doradma_spec spec;
    struct tb__doradma_layout layout;
    if (options->doradma_name != NULL) {
        TB__TRY(tb__dora_explicit_name_check(options->doradma_name));
    }
    TB__TRY(fill_spec(pool, options, &spec));
    TB__TRY(copy_ackers(pool, options));
    if (options->adopt != NULL) {
        TB__TRY(tb__pool_adopt(pool, options, &spec));
    } else if (options->device != TB_CPU) {
        TB__TRY(make_device(pool, options, &spec));
    }
    TB__TRY(tb__doradma_layout(&spec, &layout));
    TB__TRY(tb__segment_create(pool, options, &spec, &layout));
    if (pool->adoption.slots != NULL) {
        pool->segment.data = pool->adoption.slots;
    }
    TB__TRY(make_loans(pool));
    if (!options->require_zero_copy) {
        TB__TRY(tb__copy_team_create(options->copy_threads, &pool->copy_team));
    }
    if (options->pinned) {
        TB__TRY(tb__pool_pin(pool, NULL));
    }
    tb__a64_store_relaxed(&pool->segment.counters->registered_ns, (uint64_t)tb__now_ns());
    return TB_OK;
}

tb_status tb_pool_register(tb_bus *bus, const tb_pool_options *given, tb_pool **out)
{
    TB__TRY(tb__bus_check(bus));
    if (given == NULL) {
        return TB__FAIL(TB_E_INVALID, "pool options are NULL: at least dtype and shape are needed");
    }
    tb_pool_options options;
    TB__OPTIONS(tb_pool_options, given, &options);
    TB__TRY(check_options(&options));
    tb_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a pool");
    }
    pool->bus = bus;
    pool->layer = tb__pool_layer_of(bus);
    pool->segment_fd = -1;
    pool->device_fd = -1;
    pthread_mutex_init(&pool->map_mutex, NULL);
    if (options.name != NULL) {
        tb__name_copy(pool->name, options.name);
    } else {
        uint64_t number =
            1 + atomic_fetch_add_explicit(&pool->layer->next_pool_number, 1, memory_order_relaxed);
        snprintf(pool->name, sizeof pool->name, "pool-%llu", (unsigned long long)number);
    }
    tb_status status = build(pool, &options);
    if (status == TB_OK) {
        tb__bus_lock(bus);
        status = link_pool(pool->layer, pool);
        if (status == TB_OK) {
            tb__pending_serve(pool->layer, pool);
        }
        tb__bus_unlock(bus);
    }
    if (status != TB_OK) {
        tb__pool_destroy(pool);
        return status;
    }
    tb__pool_announce(pool, TB__MSG_POOL_ADDED);
    *out = pool;
    return TB_OK;
}

tb_status tb_pool_free(tb_pool *pool)
{
    if (pool == NULL) {
        return TB__FAIL(TB_E_INVALID, "pool is NULL");
    }
    TB__TRY(tb__bus_check(pool->bus));
    tb__bus_lock(pool->bus);
    int was_freed = atomic_exchange(&pool->freed, 1);
    tb__bus_unlock(pool->bus);
    if (was_freed) {
        tb_log_warn("pool `%s/%s` was freed before", tb_bus_name(pool->bus), pool->name);
        return TB__FAIL(TB_E_FREED, "pool `%s` was freed before", pool->name);
    }
    tb__a64_store_relaxed(&pool->segment.counters->freed, 1);
    tb__pages_tell(pool, TB__PAGE_FREED);
    tb__pool_announce(pool, TB__MSG_POOL_REMOVED);
    if (atomic_load(&pool->waiters) != 0) {
        tb__bus_ring_self(pool->bus);
    }
    return TB_OK;
}

void tb_pool_close(tb_pool *pool)
{
    if (pool == NULL || tb__bus_check(pool->bus) != TB_OK) {
        return;
    }
    if (!atomic_load(&pool->freed)) {
        tb_status ignored = tb_pool_free(pool);
        (void)ignored;
    }
    if (pool->adoption.on) {
        tb__adoption_close(pool);
        return;
    }
    tb__bus_lock(pool->bus);
    tb_pool **at = &pool->layer->pools;
    while (*at != pool) {
        at = &(*at)->next;
    }
    *at = pool->next;
    tb__bus_unlock(pool->bus);
    tb__copy_team_destroy(pool->copy_team);
    pool->copy_team = NULL;
    tb__watch_leave(pool->layer);
    int ended = tb__order_end(pool);
    tb__bus_lock(pool->bus);
    if (ended) {
        tb__detach_all(pool);
    }
    tb__bus_unlock(pool->bus);
    if (ended) {
        tb__pool_destroy(pool);
    }
}

const char *tb_pool_name(const tb_pool *pool)
{
    return pool != NULL ? pool->name : "";
}

/* Pools for large values. Sending threads; the mutex is held while a pool is made (large memory is
 * touched then), never while a value is copied. */
#define TB_LOG_TOPIC "node"
#include "node/carrier.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "pool/support.h"

#define CLASS_MIN_BYTES (UINT64_C(64) << 10)
#define POOL_BYTES (UINT64_C(64) << 20) /* a pool is not larger, unless by its only slot */
#define SLOTS_MAX 16u

void tb__carriers_init(struct tb__carriers *carriers, tb_bus *bus)
{
    *carriers = (struct tb__carriers){.bus = bus};
    pthread_mutex_init(&carriers->mutex, NULL);
}

static void remove_pool(struct tb__carriers *carriers, uint32_t index, int close)
{
    struct tb__carrier_pool *pool = carriers->pools[index];
    carriers->bytes -= pool->capacity_bytes * pool->slots;
    tb_reader_close(pool->reader);
    if (close) {
        tb_pool_close(pool->pool);
    }
    free(pool);
    carriers->pools[index] = carriers->pools[--carriers->count];
}

void tb__carriers_fini(struct tb__carriers *carriers)
{
    if (carriers->bus == NULL) {
        return;
    }
    while (carriers->count != 0) {
        TB_ASSERT(atomic_load(&carriers->pools[0]->users) == 0);
        remove_pool(carriers, 0, 0);
    }
    pthread_mutex_destroy(&carriers->mutex);
    *carriers = (struct tb__carriers){0};
}

/* Size classes are an eighth of a power of two apart, so that at most an eighth is wasted. */
static uint64_t class_bytes(uint64_t bytes)
{
    if (bytes <= CLASS_MIN_BYTES) {
        return CLASS_MIN_BYTES;
    }
    uint64_t power = UINT64_C(1) << (63 - __builtin_clzll(bytes));
    uint64_t rounded = bytes;
    int fits = tb__round_up(bytes, power / 8, &rounded);
    return fits ? rounded : bytes;
}

/* Free memory that nothing uses, of other classes first come. Returns 0 when there was none. */
static int free_idle(struct tb__carriers *carriers)
{
    for (uint32_t i = 0; i < carriers->count; i++) {
        if (atomic_load(&carriers->pools[i]->users) == 0) {
            remove_pool(carriers, i, 1);
            return 1;
        }
    }
    return 0;
}

static tb_status register_pool(struct tb__carriers *carriers, uint64_t capacity, uint32_t slots)
{
    struct tb__carrier_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a large value");
    }
    *pool = (struct tb__carrier_pool){.capacity_bytes = capacity, .slots = slots};
    char name[32];
    snprintf(name, sizeof name, "_values-%llu", (unsigned long long)++carriers->next_number);
    const tb_pool_options options = {
        .size = sizeof options,
        .name = name,
        .dtype = TB_U8,
        .ndim = 1,
        .shape = {(int64_t)capacity},
        .slots = slots,
        .max_leases = SLOTS_MAX,
        .capacity_bytes = capacity,
    };
    tb_status status = tb_pool_register(carriers->bus, &options, &pool->pool);
    if (status == TB_OK) {
        char path[160];
        snprintf(path, sizeof path, "%s/%s", tb_bus_name(carriers->bus), name);
        const tb_reader_options reading = {
            .size = sizeof reading, .start_next = 1, .no_prefault = 1};
        status = tb_reader_open(carriers->bus, path, &reading, &pool->reader);
    }
    if (status != TB_OK) {
        tb_pool_close(pool->pool);
        free(pool);
        return status;
    }
    carriers->pools[carriers->count++] = pool;
    carriers->bytes += capacity * slots;
    return TB_OK;
}

/* One more pool of a class, twice as large as what the class has. */
static tb_status grow(struct tb__carriers *carriers, uint64_t capacity)
{
    uint32_t slots = 0;
    for (uint32_t i = 0; i < carriers->count; i++) {
        slots += carriers->pools[i]->capacity_bytes == capacity ? carriers->pools[i]->slots : 0;
    }
    uint64_t most = POOL_BYTES / capacity;
    slots = slots < 2 ? 2 : slots > SLOTS_MAX ? SLOTS_MAX : slots;
    slots = most == 0 ? 1 : slots > most ? (uint32_t)most : slots;
    for (;;) {
        if (carriers->bytes + capacity <= TB__CARRIER_MAX_BYTES &&
            carriers->count < TB__CARRIER_POOLS) {
            uint64_t left = (TB__CARRIER_MAX_BYTES - carriers->bytes) / capacity;
            return register_pool(carriers, capacity, left < slots ? (uint32_t)left : slots);
        }
        if (!free_idle(carriers)) {
            return TB__FAIL(TB_AGAIN, "%llu MiB of large values are in flight, no more are allowed",
                            (unsigned long long)(carriers->bytes >> 20));
        }
    }
}

static tb_status loan_from_class(struct tb__carriers *carriers, uint64_t capacity,
                                 struct tb__carrier *out)
{
    for (uint32_t i = 0; i < carriers->count; i++) {
        struct tb__carrier_pool *pool = carriers->pools[i];
        if (pool->capacity_bytes != capacity) {
            continue;
        }
        tb_loan *loan;
        tb_status status = tb_pool_loan(pool->pool, 0, &loan);
        if (status == TB_OK) {
            atomic_fetch_add(&pool->users, 1);
            *out = (struct tb__carrier){pool, loan, tb_loan_tensor(loan)->data,
                                        pool->capacity_bytes * pool->slots};
            return TB_OK;
        }
        if (status != TB_AGAIN && status != TB_E_DEADLOCK) {
            return status;
        }
    }
    return TB_AGAIN;
}

tb_status tb__carriers_loan(struct tb__carriers *carriers, uint64_t bytes, struct tb__carrier *out)
{
    uint64_t capacity = class_bytes(bytes);
    if (bytes > TB__CARRIER_MAX_BYTES) {
        return TB__FAIL(TB_E_LIMIT,
                        "a value of %llu bytes: a node sends values of at most %llu bytes; send a "
                        "handle of a pool instead",
                        (unsigned long long)bytes, (unsigned long long)TB__CARRIER_MAX_BYTES);
    }
    capacity = capacity > TB__CARRIER_MAX_BYTES ? TB__CARRIER_MAX_BYTES : capacity;
    pthread_mutex_lock(&carriers->mutex);
    tb_status status = loan_from_class(carriers, capacity, out);
    if (status == TB_AGAIN) {
        status = grow(carriers, capacity);
        if (status == TB_OK) {
            status = loan_from_class(carriers, capacity, out);
        }
    }
    pthread_mutex_unlock(&carriers->mutex);
    return status;
}

tb_status tb__carriers_publish(struct tb__carriers *carriers, struct tb__carrier *carrier,
                               uint64_t bytes, tb_handle *handle, struct tb__hold **out)
{
    int64_t shape[] = {(int64_t)bytes};
    tb_frame *frame = NULL;
    /* Published and leased under the mutex that loans take too: nobody can claim the slot between.
     */
    pthread_mutex_lock(&carriers->mutex);
    tb_status status = tb_loan_reshape(carrier->loan, 1, shape, NULL);
    if (status == TB_OK) {
        tb__loan_count_copy(carrier->loan, bytes);
        status = tb_loan_publish(carrier->loan, handle);
        if (status == TB_OK) {
            status = tb_reader_frame(carrier->from->reader, handle, &frame);
        }
    } else {
        tb_loan_cancel(carrier->loan);
    }
    pthread_mutex_unlock(&carriers->mutex);
    if (status != TB_OK) {
        atomic_fetch_sub(&carrier->from->users, 1);
        return status;
    }
    tb__frame_disown(frame);
    return tb__hold_create(frame, &carrier->from->users, out);
}

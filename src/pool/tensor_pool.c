/* The four verbs of dora's tensor-pool on top of pools and readers.
 *
 * A bus keeps a table of the pools that its process has registered or read through these verbs, by
 * id. An entry is used outside the table's lock by any number of threads (`users`). When its pool
 * is freed it is retired: no longer found, and closed when its last user has returned and no frame
 * of it is held. Nothing tells when the last frame is released, so every verb sweeps the retired
 * ones.
 *
 * Any thread; calls that wait do so without the lock. */
#define TB_LOG_TOPIC "pool"

#include <tensorbus/tensor_pool.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "endpoint/bus.h"
#include "segment/dora_name.h"

/* Pools of other processes that stay attached; beyond, the least recently used is given up. */
#define MAX_ATTACHED 64

/* How often a frame may be overwritten under our eyes before there is none for now. */
#define RETRIES 100

/* Two, so that a frame is written while the one before it is read. */
#define SLOTS 2

struct entry {
    struct entry *next;
    char id[TB_POOL_ID_SIZE];
    tb_pool *pool;         /* NULL when another process owns it */
    tb_reader *reader;     /* NULL until it is read or freed */
    uint32_t users;        /* calls that use it outside the lock */
    uint64_t used;         /* table's clock at the last use */
    pthread_mutex_t mutex; /* of what follows; taken inside no other */
    int has_last;
    tb_handle last; /* frame that was returned last */
};

struct table {
    tb_bus *bus;
    pthread_mutex_t mutex;
    struct entry *live;
    struct entry *retired;
    uint64_t clock;
};

/* ------------------------------------------------------------------ the table */

static void entry_destroy(struct entry *entry)
{
    pthread_mutex_destroy(&entry->mutex);
    free(entry);
}

/* The bus closes pools and readers itself; only our memory is left. */
static void free_entries(struct entry *entry)
{
    while (entry != NULL) {
        struct entry *next = entry->next;
        entry_destroy(entry);
        entry = next;
    }
}

static void table_destroy(void *state)
{
    struct table *table = state;
    free_entries(table->live);
    free_entries(table->retired);
    pthread_mutex_destroy(&table->mutex);
    free(table);
}

static tb_status opening(tb_bus *bus)
{
    static const struct tb__bus_layer layer = {.destroy = table_destroy};
    struct table *table = calloc(1, sizeof *table);
    if (table == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for the table of tensor pools");
    }
    table->bus = bus;
    pthread_mutex_init(&table->mutex, NULL);
    tb__bus_set_layer(bus, TB__LAYER_TENSOR_POOL, &layer, table);
    return TB_OK;
}

__attribute__((constructor)) static void register_layer(void)
{
    tb__bus_on_open(opening);
}

static tb_status table_of(tb_bus *bus, struct table **out)
{
    TB__TRY(tb__bus_check(bus));
    *out = tb__bus_layer(bus, TB__LAYER_TENSOR_POOL);
    return TB_OK;
}

static int holds_frames(const struct entry *entry)
{
    tb_reader_stats stats = {.size = sizeof stats};
    return entry->reader != NULL && tb_reader_get_stats(entry->reader, &stats) == TB_OK &&
           stats.held != 0;
}

static void unlink_entry(struct entry **list, struct entry *entry)
{
    while (*list != NULL && *list != entry) {
        list = &(*list)->next;
    }
    if (*list == entry) {
        *list = entry->next;
    }
}

/* Move an entry out of sight; a second retiring does nothing. Under the lock. */
static void retire_locked(struct table *table, struct entry *entry)
{
    for (struct entry *at = table->retired; at != NULL; at = at->next) {
        if (at == entry) {
            return;
        }
    }
    unlink_entry(&table->live, entry);
    entry->next = table->retired;
    table->retired = entry;
}

static void retire(struct table *table, struct entry *entry)
{
    pthread_mutex_lock(&table->mutex);
    retire_locked(table, entry);
    pthread_mutex_unlock(&table->mutex);
}

/* Retire what others have freed, and what is too much. Under the lock. */
static void retire_useless(struct table *table)
{
    uint32_t attached = 0;
    struct entry *oldest = NULL;
    for (struct entry *entry = table->live, *next; entry != NULL; entry = next) {
        tb_pool_stats stats = {.size = sizeof stats};
        next = entry->next;
        if (entry->pool != NULL) {
            if (tb_pool_get_stats(entry->pool, &stats) == TB_OK && stats.freed) {
                retire_locked(table, entry);
            }
            continue;
        }
        attached++;
        if (entry->users == 0 && (oldest == NULL || entry->used < oldest->used)) {
            oldest = entry;
        }
    }
    if (attached > MAX_ATTACHED && oldest != NULL) {
        retire_locked(table, oldest);
    }
}

/* Close the retired entries that nobody uses any more. */
static void sweep(struct table *table)
{
    struct entry *closing = NULL;
    pthread_mutex_lock(&table->mutex);
    for (struct entry **link = &table->retired; *link != NULL;) {
        struct entry *entry = *link;
        if (entry->users != 0 || holds_frames(entry)) {
            link = &entry->next;
            continue;
        }
        *link = entry->next;
        entry->next = closing;
        closing = entry;
    }
    pthread_mutex_unlock(&table->mutex);
    while (closing != NULL) {
        struct entry *next = closing->next;
        tb_reader_close(closing->reader);
        tb_pool_close(closing->pool);
        entry_destroy(closing);
        closing = next;
    }
}

static struct entry *find_locked(struct table *table, const char *id)
{
    for (struct entry *entry = table->live; entry != NULL; entry = entry->next) {
        if (strcmp(entry->id, id) == 0) {
            entry->users++;
            entry->used = ++table->clock;
            return entry;
        }
    }
    return NULL;
}

/* Find a pool and use it; NULL when the table does not have it. */
static struct entry *use(struct table *table, const char *id, int *has_reader)
{
    pthread_mutex_lock(&table->mutex);
    struct entry *entry = find_locked(table, id);
    *has_reader = entry != NULL && entry->reader != NULL; /* for good, once it has one */
    pthread_mutex_unlock(&table->mutex);
    return entry;
}

static void end_use(struct table *table, struct entry *entry)
{
    pthread_mutex_lock(&table->mutex);
    entry->users--;
    pthread_mutex_unlock(&table->mutex);
    sweep(table);
}

/* Add a pool or a reader under an id. An entry that has come meanwhile takes it, or, when it has a
 * reader already, keeps its own; *spare is then for the caller to close. Used by the caller. */
static struct entry *add(struct table *table, const char *id, tb_pool *pool, tb_reader *reader,
                         tb_reader **spare)
{
    struct entry *fresh = calloc(1, sizeof *fresh);
    *spare = NULL;
    pthread_mutex_lock(&table->mutex);
    struct entry *entry = find_locked(table, id);
    if (entry != NULL) {
        if (entry->reader == NULL) {
            entry->reader = reader;
        } else {
            *spare = reader;
        }
    } else if (fresh != NULL) {
        entry = fresh;
        fresh = NULL;
        snprintf(entry->id, sizeof entry->id, "%s", id);
        entry->pool = pool;
        entry->reader = reader;
        entry->users = 1;
        entry->used = ++table->clock;
        pthread_mutex_init(&entry->mutex, NULL);
        entry->next = table->live;
        table->live = entry;
        retire_useless(table);
    }
    pthread_mutex_unlock(&table->mutex);
    free(fresh);
    return entry;
}

/* ------------------------------------------------------------------ ids and their pools */

static tb_status no_such_pool(const char *verb, const char *id)
{
    static const char format[] = "Attempt to %s memory pool [%s] failed - reason: pool does not "
                                 "exist. Operation aborted.";
    tb_log_warn(format, verb, id);
    return TB__FAIL(TB_E_FREED, format, verb, id);
}

static int means_gone(tb_status status)
{
    return status == TB_E_FREED || status == TB_E_NOT_FOUND || status == TB_E_OWNER_DIED ||
           status == TB_CLOSED;
}

static void pool_name(uint64_t counter, char out[TB__NAME_SIZE])
{
    snprintf(out, TB__NAME_SIZE, "pool_%" PRIu64, counter);
}

/* Find the pool of an id with a reader on it, attaching when that has not happened yet. The caller
 * ends the use. */
static tb_status use_reader(struct table *table, const char *verb, const char *id,
                            struct entry **out)
{
    char node[TB__NAME_SIZE];
    char name[TB__NAME_SIZE];
    char path[2 * TB__NAME_SIZE];
    uint64_t counter;
    tb_reader *reader;
    tb_reader *spare;
    TB__TRY(tb__dora_pool_id_parse(id, node, &counter));
    int has_reader;
    struct entry *entry = use(table, id, &has_reader);
    if (has_reader) {
        *out = entry;
        return TB_OK;
    }
    if (entry == NULL && strcmp(node, tb_bus_name(table->bus)) == 0) {
        return no_such_pool(verb, id);
    }
    pool_name(counter, name);
    snprintf(path, sizeof path, "%s/%s", node, name);
    tb_status status = tb_reader_open(table->bus, path, NULL, &reader);
    if (entry != NULL) {
        end_use(table, entry);
    }
    if (status != TB_OK) {
        return means_gone(status) ? no_such_pool(verb, id) : status;
    }
    entry = add(table, id, NULL, reader, &spare);
    tb_reader_close(entry != NULL ? spare : reader);
    if (entry == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for an entry of pool `%s`", id);
    }
    *out = entry;
    return TB_OK;
}

/* ------------------------------------------------------------------ the verbs */

tb_status tb_register(tb_bus *bus, const tb_tensor *tensor, char id[TB_POOL_ID_SIZE])
{
    struct table *table;
    char name[TB__NAME_SIZE];
    char made_id[TB_POOL_ID_SIZE];
    tb_pool *pool;
    tb_reader *spare;
    tb_handle handle;
    TB__TRY(table_of(bus, &table));
    if (tensor == NULL || id == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_register needs a tensor and room for the id");
    }
    if (tb_bus_name(bus)[0] == '\0') {
        return TB__FAIL(TB_E_INVALID, "tb_register needs a bus with a name: others find the pool "
                                      "by it");
    }
    uint64_t counter = tb__dora_counter_process();
    TB__TRY(tb__dora_pool_id(tb_bus_name(bus), counter, made_id));
    pool_name(counter, name);
    tb_pool_options options = {.size = sizeof options,
                               .name = name,
                               .dtype = tensor->dtype,
                               .ndim = tensor->ndim,
                               .device = tensor->device,
                               .slots = SLOTS,
                               .policy = TB_LATEST};
    memcpy(options.shape, tensor->shape, sizeof options.shape);
    TB__TRY(tb_pool_register(bus, &options, &pool));
    tb_status status = tb_pool_write(pool, tensor, TB_POLL, &handle);
    struct entry *entry = status == TB_OK ? add(table, made_id, pool, NULL, &spare) : NULL;
    if (entry == NULL) {
        tb_pool_close(pool);
        return status != TB_OK
                   ? status
                   : TB__FAIL(TB_E_NOMEM, "no memory for an entry of pool `%s`", made_id);
    }
    end_use(table, entry);
    memcpy(id, made_id, sizeof made_id);
    return TB_OK;
}

tb_status tb_write(tb_bus *bus, const char *id, const tb_tensor *tensor, int64_t timeout_ns)
{
    struct table *table;
    tb_handle handle;
    int has_reader;
    TB__TRY(table_of(bus, &table));
    if (id == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_write needs a pool id");
    }
    struct entry *entry = use(table, id, &has_reader);
    if (entry == NULL) {
        return no_such_pool("write", id);
    }
    tb_status status =
        entry->pool != NULL ? tb_pool_write(entry->pool, tensor, timeout_ns, &handle) : TB_E_FREED;
    if (status == TB_E_FREED) {
        /* Only the owner writes: another process's pool is none of this bus. */
        if (entry->pool != NULL) {
            retire(table, entry);
        }
        status = no_such_pool("write", id);
    }
    end_use(table, entry);
    return status;
}

/* Remember the frame that was returned last, for when nothing is newer. */
static tb_status remember(struct entry *entry, tb_frame *frame)
{
    tb_frame_info info = {.size = sizeof info};
    TB__TRY(tb_frame_get_info(frame, &info));
    entry->last = info.handle;
    entry->has_last = 1;
    return TB_OK;
}

/* The newest frame without waiting; the one that was returned last if nothing is newer. One thread
 * at a time per pool, so that each knows what the others were given. */
static tb_status lease_now(struct entry *entry, tb_frame **out)
{
    tb_status status = TB_E_STALE; /* overwritten: there is a newer one, or will be */
    pthread_mutex_lock(&entry->mutex);
    for (int i = 0; i < RETRIES && status == TB_E_STALE; i++) {
        status = tb_reader_newest(entry->reader, TB_POLL, out);
        if (status == TB_OK) {
            status = remember(entry, *out);
        } else if (status == TB_AGAIN && entry->has_last) {
            tb_error kept;
            tb_last_error(&kept);
            status = tb_reader_frame(entry->reader, &entry->last, out);
            if (status == TB_E_STALE) {
                tb__error_restore(&kept);
            }
        }
    }
    pthread_mutex_unlock(&entry->mutex);
    /* The pool's only slot is being written. */
    return status == TB_E_STALE ? TB_AGAIN : status;
}

/* As lease_now(), but waits for a pool's first frame. */
static tb_status lease_newest(struct entry *entry, int64_t deadline_ns, tb_frame **out)
{
    tb_status status = lease_now(entry, out);
    if (status != TB_AGAIN) {
        return status;
    }
    int64_t left_ns = tb__left_ns(deadline_ns);
    status = tb_reader_newest(entry->reader, left_ns == INT64_MAX ? TB_FOREVER : left_ns, out);
    if (status == TB_AGAIN) {
        return lease_now(entry, out); /* another thread may have got the first one */
    }
    if (status == TB_OK) {
        pthread_mutex_lock(&entry->mutex);
        status = remember(entry, *out);
        pthread_mutex_unlock(&entry->mutex);
    }
    return status;
}

tb_status tb_read(tb_bus *bus, const char *id, int64_t timeout_ns, tb_frame **out)
{
    struct table *table;
    struct entry *entry;
    TB__TRY(table_of(bus, &table));
    if (id == NULL || out == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_read needs a pool id and room for a frame");
    }
    int64_t deadline_ns = tb__deadline_ns(timeout_ns);
    TB__TRY(use_reader(table, "read", id, &entry));
    tb_status status = lease_newest(entry, deadline_ns, out);
    if (means_gone(status)) {
        retire(table, entry);
        status = no_such_pool("read", id);
    }
    end_use(table, entry);
    return status;
}

/* Free a pool of this bus. Another process may have freed it before. */
static tb_status free_own(struct entry *entry)
{
    tb_pool_stats stats = {.size = sizeof stats};
    TB__TRY(tb_pool_get_stats(entry->pool, &stats));
    return stats.freed ? TB_E_FREED : tb_pool_free(entry->pool);
}

tb_status tb_free(tb_bus *bus, const char *id)
{
    struct table *table;
    int has_reader;
    TB__TRY(table_of(bus, &table));
    if (id == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_free needs a pool id");
    }
    struct entry *entry = use(table, id, &has_reader);
    if (entry == NULL || entry->pool == NULL) {
        if (entry != NULL) {
            end_use(table, entry);
        }
        TB__TRY(use_reader(table, "release", id, &entry));
    }
    tb_status status = entry->pool != NULL ? free_own(entry) : tb_reader_free_pool(entry->reader);
    if (status == TB_OK || means_gone(status)) {
        retire(table, entry);
    }
    if (means_gone(status)) {
        status = no_such_pool("release", id);
    }
    end_use(table, entry);
    return status;
}

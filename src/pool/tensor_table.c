/* The table of the four verbs. Calls that wait are made without its lock. */
#define TB_LOG_TOPIC "pool"
#include "pool/tensor_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "endpoint/bus.h"

/* Pools of other processes that stay attached; beyond, the least recently used is given up. */
#define MAX_ATTACHED 64

static void entry_init(struct tb__tensor_entry *entry)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&entry->mutex, NULL);
    pthread_mutex_init(&entry->write_mutex, NULL);
    pthread_cond_init(&entry->write_idle, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void entry_destroy(struct tb__tensor_entry *entry)
{
    pthread_mutex_destroy(&entry->mutex);
    pthread_mutex_destroy(&entry->write_mutex);
    pthread_cond_destroy(&entry->write_idle);
    free(entry);
}

/* The bus closes pools and readers itself; only our memory is left. */
static void free_entries(struct tb__tensor_entry *entry)
{
    while (entry != NULL) {
        struct tb__tensor_entry *next = entry->next;
        entry_destroy(entry);
        entry = next;
    }
}

static void table_destroy(void *state)
{
    struct tb__tensor_table *table = state;
    free_entries(table->live);
    free_entries(table->retired);
    pthread_mutex_destroy(&table->mutex);
    free(table);
}

static tb_status opening(tb_bus *bus)
{
    static const struct tb__bus_layer layer = {.destroy = table_destroy};
    struct tb__tensor_table *table = calloc(1, sizeof *table);
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

tb_status tb__tensor_table_of(tb_bus *bus, struct tb__tensor_table **out)
{
    TB__TRY(tb__bus_check(bus));
    *out = tb__bus_layer(bus, TB__LAYER_TENSOR_POOL);
    return TB_OK;
}

static int holds_frames(const struct tb__tensor_entry *entry)
{
    tb_reader_stats stats = {.size = sizeof stats};
    return entry->reader != NULL && tb_reader_get_stats(entry->reader, &stats) == TB_OK &&
           stats.held != 0;
}

static void unlink_entry(struct tb__tensor_entry **list, struct tb__tensor_entry *entry)
{
    while (*list != NULL && *list != entry) {
        list = &(*list)->next;
    }
    if (*list == entry) {
        *list = entry->next;
    }
}

/* Move an entry out of sight; a second retiring does nothing. Under the lock. */
static void retire_locked(struct tb__tensor_table *table, struct tb__tensor_entry *entry)
{
    for (struct tb__tensor_entry *at = table->retired; at != NULL; at = at->next) {
        if (at == entry) {
            return;
        }
    }
    unlink_entry(&table->live, entry);
    entry->next = table->retired;
    table->retired = entry;
}

int tb__tensor_write_begin(struct tb__tensor_entry *entry, int64_t deadline_ns)
{
    struct timespec until = tb__timespec(deadline_ns);
    int expired = 0;
    pthread_mutex_lock(&entry->write_mutex);
    while (entry->writing && !expired) {
        expired = pthread_cond_timedwait(&entry->write_idle, &entry->write_mutex, &until) != 0;
    }
    int mine = !entry->writing;
    entry->writing = 1;
    pthread_mutex_unlock(&entry->write_mutex);
    return mine;
}

void tb__tensor_write_end(struct tb__tensor_entry *entry)
{
    pthread_mutex_lock(&entry->write_mutex);
    entry->writing = 0;
    pthread_cond_broadcast(&entry->write_idle);
    pthread_mutex_unlock(&entry->write_mutex);
}

void tb__tensor_retire(struct tb__tensor_table *table, struct tb__tensor_entry *entry)
{
    pthread_mutex_lock(&table->mutex);
    retire_locked(table, entry);
    pthread_mutex_unlock(&table->mutex);
    /* Whoever writes it comes back soon: it was freed. */
    (void)tb__tensor_write_begin(entry, TB__NO_DEADLINE);
    tb_pool_close(entry->export_pool);
    entry->export_pool = NULL;
    tb__tensor_write_end(entry);
}

/* Retire what others have freed, and what is too much. Under the lock. */
static void retire_useless(struct tb__tensor_table *table)
{
    uint32_t attached = 0;
    struct tb__tensor_entry *oldest = NULL;
    for (struct tb__tensor_entry *entry = table->live, *next; entry != NULL; entry = next) {
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
static void sweep(struct tb__tensor_table *table)
{
    struct tb__tensor_entry *closing = NULL;
    pthread_mutex_lock(&table->mutex);
    for (struct tb__tensor_entry **link = &table->retired; *link != NULL;) {
        struct tb__tensor_entry *entry = *link;
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
        struct tb__tensor_entry *next = closing->next;
        tb_reader_close(closing->reader);
        tb_pool_close(closing->pool);
        tb_pool_close(closing->export_pool);
        entry_destroy(closing);
        closing = next;
    }
}

static struct tb__tensor_entry *find_locked(struct tb__tensor_table *table, const char *id)
{
    for (struct tb__tensor_entry *entry = table->live; entry != NULL; entry = entry->next) {
        if (strcmp(entry->id, id) == 0) {
            entry->users++;
            entry->used = ++table->clock;
            return entry;
        }
    }
    return NULL;
}

struct tb__tensor_entry *tb__tensor_use(struct tb__tensor_table *table, const char *id,
                                        int *has_reader)
{
    pthread_mutex_lock(&table->mutex);
    struct tb__tensor_entry *entry = find_locked(table, id);
    *has_reader = entry != NULL && entry->reader != NULL; /* for good, once it has one */
    pthread_mutex_unlock(&table->mutex);
    return entry;
}

void tb__tensor_end_use(struct tb__tensor_table *table, struct tb__tensor_entry *entry)
{
    pthread_mutex_lock(&table->mutex);
    entry->users--;
    pthread_mutex_unlock(&table->mutex);
    sweep(table);
}

struct tb__tensor_entry *tb__tensor_add(struct tb__tensor_table *table, const char *id,
                                        tb_pool *pool, tb_reader *reader, tb_reader **spare)
{
    struct tb__tensor_entry *fresh = calloc(1, sizeof *fresh);
    *spare = NULL;
    pthread_mutex_lock(&table->mutex);
    struct tb__tensor_entry *entry = find_locked(table, id);
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
        entry_init(entry);
        entry->next = table->live;
        table->live = entry;
        retire_useless(table);
    }
    pthread_mutex_unlock(&table->mutex);
    free(fresh);
    return entry;
}

/* The pools that a process has registered or read through dora's four verbs, by id; one table per
 * bus.
 *
 * An entry is used outside the table's lock by any number of threads (`users`). When its pool is
 * freed it is retired: no longer found, and closed when its last user has returned and no frame of
 * it is held. Nothing tells when the last frame is released, so the end of every use sweeps the
 * retired ones. Any thread. */
#ifndef TB_POOL_TENSOR_TABLE_H
#define TB_POOL_TENSOR_TABLE_H

#include <pthread.h>
#include <tensorbus/tensor_pool.h>

#include "base/error.h"

struct tb__tensor_entry {
    struct tb__tensor_entry *next;
    char id[TB_POOL_ID_SIZE];
    tb_pool *pool;         /* NULL when another process owns it */
    tb_reader *reader;     /* NULL until it is read or freed */
    uint32_t users;        /* calls that use it outside the lock */
    uint64_t used;         /* table's clock at the last use */
    pthread_mutex_t mutex; /* of the next two; taken inside no other */
    int has_last;
    tb_handle last; /* frame that was returned last */
    /* Of a pool with an export: one writer at a time, between tb__tensor_write_begin() and _end().
     */
    int writes_twice; /* has an export, or had one */
    int writing;      /* under write_mutex */
    pthread_mutex_t write_mutex;
    pthread_cond_t write_idle;
    tb_pool *export_pool; /* for foreign readers, written beside `pool`; the writer's */
};

struct tb__tensor_table {
    tb_bus *bus;
    pthread_mutex_t mutex;
    struct tb__tensor_entry *live;
    struct tb__tensor_entry *retired;
    uint64_t clock;
};

/* The table of a bus. TB_E_INVALID, TB_E_FORKED: as every public call on a bus. */
tb_status tb__tensor_table_of(tb_bus *bus, struct tb__tensor_table **out);

/* Find a pool and use it; NULL when the table does not have it. */
struct tb__tensor_entry *tb__tensor_use(struct tb__tensor_table *table, const char *id,
                                        int *has_reader);
void tb__tensor_end_use(struct tb__tensor_table *table, struct tb__tensor_entry *entry);

/* Add a pool or a reader under an id. An entry that has come meanwhile takes it, or, when it has a
 * reader already, keeps its own; *spare is then for the caller to close. Used by the caller; NULL:
 * no memory. */
struct tb__tensor_entry *tb__tensor_add(struct tb__tensor_table *table, const char *id,
                                        tb_pool *pool, tb_reader *reader, tb_reader **spare);

/* Become the one writer; 0: not until the deadline. */
int tb__tensor_write_begin(struct tb__tensor_entry *entry, int64_t deadline_ns);
void tb__tensor_write_end(struct tb__tensor_entry *entry);

/* Move an entry out of sight, and end its export. A second time does nothing. */
void tb__tensor_retire(struct tb__tensor_table *table, struct tb__tensor_entry *entry);

#endif

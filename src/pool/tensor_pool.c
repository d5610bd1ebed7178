/* The four verbs of dora's tensor-pool on top of pools and readers. Any thread; the table of pools
 * by id is in tensor_table.c. */
#define TB_LOG_TOPIC "pool"

#include <tensorbus/tensor_pool.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/options.h"
#include "endpoint/bus.h"
#include "pool/tensor_table.h"
#include "segment/dora_name.h"

/* How often a frame may be overwritten under our eyes before there is none for now. */
#define RETRIES 100

/* Two, so that a frame is written while the one before it is read. */
#define SLOTS 2

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
static tb_status use_reader(struct tb__tensor_table *table, const char *verb, const char *id,
                            struct tb__tensor_entry **out)
{
    char node[TB__NAME_SIZE];
    char name[TB__NAME_SIZE];
    char path[2 * TB__NAME_SIZE];
    uint64_t counter;
    tb_reader *reader;
    tb_reader *spare;
    TB__TRY(tb__dora_pool_id_parse(id, node, &counter));
    int has_reader;
    struct tb__tensor_entry *entry = tb__tensor_use(table, id, &has_reader);
    if (has_reader) {
        *out = entry;
        return TB_OK;
    }
    if (entry == NULL && strcmp(node, tb_bus_name(table->bus)) == 0) {
        return no_such_pool(verb, id);
    }
    pool_name(counter, name);
    snprintf(path, sizeof path, "%s/%s", node, name);
    /* On the first frame's way: what of it is read faults its pages in. */
    const tb_reader_options options = {.size = sizeof options, .no_prefault = 1};
    tb_status status = tb_reader_open(table->bus, path, &options, &reader);
    if (entry != NULL) {
        tb__tensor_end_use(table, entry);
    }
    if (status != TB_OK) {
        return means_gone(status) ? no_such_pool(verb, id) : status;
    }
    entry = tb__tensor_add(table, id, NULL, reader, &spare);
    tb_reader_close(entry != NULL ? spare : reader);
    if (entry == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for an entry of pool `%s`", id);
    }
    *out = entry;
    return TB_OK;
}

/* ------------------------------------------------------------------ the verbs */

/* What a registration is made of, once its options are checked. */
struct registration {
    tb_bus *bus;
    const tb_tensor *tensor;
    tb_register_options options;
    uint64_t counter;
    char id[TB_POOL_ID_SIZE];
    char segment[TB__DORA_NAME_SIZE]; /* name for foreign readers, "" when there are none */
    tb_pool *pool;
    tb_pool *export_pool; /* what foreign readers see, when that is not `pool` itself */
};

static tb_status check_tensor(const tb_tensor *tensor, uint64_t max_bytes)
{
    size_t bytes;
    TB__TRY(tb_tensor_bytes(tensor, &bytes));
    if (max_bytes != 0 && (bytes == 0 || bytes > max_bytes)) {
        return TB__FAIL(TB_E_LIMIT, "Invalid size: %zu bytes (1 to %llu are possible)", bytes,
                        (unsigned long long)max_bytes);
    }
    if (tensor->data == NULL && bytes != 0) {
        return TB__FAIL(TB_E_INVALID, "Invalid source pointer (NULL)");
    }
    return TB_OK;
}

static tb_status check_name(const char *name)
{
    if (name == NULL || tb__dora_explicit_name_check(name) == TB_OK) {
        return TB_OK;
    }
    return TB__FAIL(TB_E_INVALID,
                    "invalid tensor pool name `%.130s`: must be non-empty, start with `dora_pool_` "
                    "(the dora-owned /dev/shm namespace), without '/' or '..', and at most 128 "
                    "chars",
                    name);
}

static tb_status check_options(const tb_register_options *options)
{
    if (options->machine != NULL && options->machine[0] != '\0') {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool for machine `%.64s`: pools on other machines are not built yet; "
                        "without one every process of this machine can read the pool",
                        options->machine);
    }
    if (options->receiver != TB_CPU && !TB_IS_CUDA(options->receiver)) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool for a receiver on device 0x%x: use TB_CUDA(n), or 0 and `host`",
                        (unsigned)options->receiver);
    }
    if (options->receiver != TB_CPU && options->host) {
        return TB__FAIL(TB_E_INVALID, "a pool in host memory (`host`) for a receiver on a GPU: "
                                      "choose one");
    }
    if (options->live ? options->slots > 1 : options->slots == 1) {
        return TB__FAIL(TB_E_INVALID,
                        "%u slots: a live pool has one, every other two at least, so that a write "
                        "does not wait for who holds the frame before",
                        options->slots);
    }
    return check_name(options->doradma_name);
}

/* The name of the file for foreign readers: what the user chose, or what dora would. */
static tb_status name_segment(struct registration *it)
{
    if (it->options.doradma_name != NULL) {
        snprintf(it->segment, sizeof it->segment, "%s", it->options.doradma_name);
        return TB_OK;
    }
    if (!it->options.exported) {
        return TB_OK;
    }
    const char *path = tb__bus_flow_path(it->bus);
    const char *slash = strrchr(path, '/');
    return tb__dora_segment_name(getenv("DORA_MACHINE_ID"), slash != NULL ? slash + 1 : path,
                                 tb_bus_name(it->bus), it->counter, it->segment);
}

static tb_device pool_device(const struct registration *it)
{
    if (it->options.host) {
        return TB_CPU;
    }
    return it->options.receiver != TB_CPU ? it->options.receiver : it->tensor->device;
}

static tb_status open_pool(const struct registration *it, const char *name, const char *segment,
                           tb_pool **out)
{
    uint32_t slots = it->options.slots != 0 ? it->options.slots : SLOTS;
    uint32_t live = segment != NULL || it->options.live != 0;
    tb_pool_options options = {.size = sizeof options,
                               .name = name,
                               .dtype = it->tensor->dtype,
                               .ndim = it->tensor->ndim,
                               .device = pool_device(it),
                               .slots = live ? 1 : slots,
                               .policy = TB_LATEST,
                               .max_leases = it->options.max_leases,
                               .doradma_name = segment,
                               .live = live};
    memcpy(options.shape, it->tensor->shape, sizeof options.shape);
    tb_status status = tb_pool_register(it->bus, &options, out);
    if (status == TB_E_EXISTS && segment != NULL) {
        return TB__FAIL(TB_E_EXISTS,
                        "failed to create pool shared memory `%s` (name collision with another "
                        "node or leftover segment): choose another name, or remove /dev/shm/%s",
                        segment, segment);
    }
    return status;
}

/* A live pool is itself what foreign readers see: both have one slot that is overwritten in place.
 * Other pools are written twice: frames that our readers hold must not change. */
static tb_status open_pools(struct registration *it)
{
    char name[TB__NAME_SIZE];
    char export_name[TB__NAME_SIZE];
    const char *segment = it->segment[0] != '\0' ? it->segment : NULL;
    pool_name(it->counter, name);
    snprintf(export_name, sizeof export_name, "_export_%" PRIu64, it->counter);
    if (segment != NULL && !it->options.live) {
        TB__TRY(open_pool(it, export_name, segment, &it->export_pool));
        segment = NULL;
    }
    return open_pool(it, name, segment, &it->pool);
}

static tb_status write_first(const struct registration *it)
{
    tb_handle handle;
    TB__TRY(tb_pool_write(it->pool, it->tensor, TB_POLL, &handle));
    return it->export_pool != NULL ? tb_pool_write(it->export_pool, it->tensor, TB_POLL, &handle)
                                   : TB_OK;
}

static tb_status register_it(struct registration *it, struct tb__tensor_table *table)
{
    tb_reader *spare;
    it->counter = tb__dora_counter_process();
    TB__TRY(tb__dora_pool_id(tb_bus_name(it->bus), it->counter, it->id));
    TB__TRY(name_segment(it));
    TB__TRY(open_pools(it));
    TB__TRY(write_first(it));
    struct tb__tensor_entry *entry = tb__tensor_add(table, it->id, it->pool, NULL, &spare);
    if (entry == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for an entry of pool `%s`", it->id);
    }
    entry->export_pool = it->export_pool; /* nobody else knows the id yet */
    entry->writes_twice = it->export_pool != NULL;
    tb__tensor_end_use(table, entry);
    return TB_OK;
}

tb_status tb_register_with(tb_bus *bus, const tb_tensor *tensor, const tb_register_options *given,
                           char id[TB_POOL_ID_SIZE])
{
    struct tb__tensor_table *table;
    struct registration it = {.bus = bus, .tensor = tensor};
    TB__TRY(tb__tensor_table_of(bus, &table));
    if (tensor == NULL || id == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_register needs a tensor and room for the id");
    }
    if (tb_bus_name(bus)[0] == '\0') {
        return TB__FAIL(TB_E_INVALID, "tb_register needs a bus with a name: others find the pool "
                                      "by it");
    }
    TB__OPTIONS(tb_register_options, given, &it.options);
    TB__TRY(check_tensor(tensor, it.options.max_bytes));
    TB__TRY(check_options(&it.options));
    tb_status status = register_it(&it, table);
    if (status != TB_OK) {
        tb_pool_close(it.pool);
        tb_pool_close(it.export_pool);
        return status;
    }
    memcpy(id, it.id, sizeof it.id);
    return TB_OK;
}

tb_status tb_register(tb_bus *bus, const tb_tensor *tensor, char id[TB_POOL_ID_SIZE])
{
    return tb_register_with(bus, tensor, NULL, id);
}

/* For our readers, and for foreign ones: both see the frames in the same order. */
static tb_status write_both(struct tb__tensor_entry *entry, const tb_tensor *tensor,
                            int64_t timeout_ns)
{
    tb_handle handle;
    int64_t deadline_ns = tb__deadline_ns(timeout_ns);
    if (!tb__tensor_write_begin(entry, deadline_ns)) {
        return TB__FAIL(TB_AGAIN, "pool `%s` is being written by another thread", entry->id);
    }
    int64_t left_ns = tb__left_ns(deadline_ns);
    tb_status status =
        tb_pool_write(entry->pool, tensor, left_ns == INT64_MAX ? TB_FOREVER : left_ns, &handle);
    if (status == TB_OK && entry->export_pool != NULL) {
        status = tb_pool_write(entry->export_pool, tensor, TB_POLL, &handle);
    }
    tb__tensor_write_end(entry);
    return status;
}

static tb_status write_entry(struct tb__tensor_entry *entry, const tb_tensor *tensor,
                             int64_t timeout_ns)
{
    tb_handle handle;
    if (entry->pool == NULL) {
        return TB_E_FREED; /* only the owner writes: another process's pool is none of this bus */
    }
    return entry->writes_twice ? write_both(entry, tensor, timeout_ns)
                               : tb_pool_write(entry->pool, tensor, timeout_ns, &handle);
}

tb_status tb_write(tb_bus *bus, const char *id, const tb_tensor *tensor, int64_t timeout_ns)
{
    struct tb__tensor_table *table;
    int has_reader;
    TB__TRY(tb__tensor_table_of(bus, &table));
    if (id == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_write needs a pool id");
    }
    struct tb__tensor_entry *entry = tb__tensor_use(table, id, &has_reader);
    if (entry == NULL) {
        return no_such_pool("write", id);
    }
    tb_status status = write_entry(entry, tensor, timeout_ns);
    if (status == TB_E_FREED) {
        if (entry->pool != NULL) {
            tb__tensor_retire(table, entry);
        }
        status = no_such_pool("write", id);
    }
    tb__tensor_end_use(table, entry);
    return status;
}

/* Remember the frame that was returned last, for when nothing is newer. */
static tb_status remember(struct tb__tensor_entry *entry, tb_frame *frame)
{
    tb_frame_info info = {.size = sizeof info};
    TB__TRY(tb_frame_get_info(frame, &info));
    entry->last = info.handle;
    entry->has_last = 1;
    return TB_OK;
}

/* The newest frame without waiting; the one that was returned last if nothing is newer. One thread
 * at a time per pool, so that each knows what the others were given. */
static tb_status lease_now(struct tb__tensor_entry *entry, tb_frame **out)
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
static tb_status lease_newest(struct tb__tensor_entry *entry, int64_t deadline_ns, tb_frame **out)
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
    struct tb__tensor_table *table;
    struct tb__tensor_entry *entry;
    TB__TRY(tb__tensor_table_of(bus, &table));
    if (id == NULL || out == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_read needs a pool id and room for a frame");
    }
    int64_t deadline_ns = tb__deadline_ns(timeout_ns);
    TB__TRY(use_reader(table, "read", id, &entry));
    tb_status status = lease_newest(entry, deadline_ns, out);
    if (means_gone(status)) {
        tb__tensor_retire(table, entry);
        status = no_such_pool("read", id);
    }
    tb__tensor_end_use(table, entry);
    return status;
}

/* Free a pool of this bus. Another process may have freed it before. */
static tb_status free_own(struct tb__tensor_entry *entry)
{
    tb_pool_stats stats = {.size = sizeof stats};
    TB__TRY(tb_pool_get_stats(entry->pool, &stats));
    return stats.freed ? TB_E_FREED : tb_pool_free(entry->pool);
}

tb_status tb_free(tb_bus *bus, const char *id)
{
    struct tb__tensor_table *table;
    int has_reader;
    TB__TRY(tb__tensor_table_of(bus, &table));
    if (id == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_free needs a pool id");
    }
    struct tb__tensor_entry *entry = tb__tensor_use(table, id, &has_reader);
    if (entry == NULL || entry->pool == NULL) {
        if (entry != NULL) {
            tb__tensor_end_use(table, entry);
        }
        TB__TRY(use_reader(table, "release", id, &entry));
    }
    tb_status status = entry->pool != NULL ? free_own(entry) : tb_reader_free_pool(entry->reader);
    if (status == TB_OK || means_gone(status)) {
        tb__tensor_retire(table, entry);
    }
    if (means_gone(status)) {
        status = no_such_pool("release", id);
    }
    tb__tensor_end_use(table, entry);
    return status;
}

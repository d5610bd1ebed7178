/* The table: a hash map of entries, and one queue of dropped keys per node.
 *
 * A key's text is shared by its entry and by the queues of all who must be told: dropping allocates
 * nothing but room in a queue. */
#define TB_LOG_TOPIC "flow"
#include "flow/extension.h"

#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/name.h"
#include "base/utf8.h"

#define BUCKETS 4096
#define WORDS (TB__FLOW_NODES_MAX / 64)
#define SHOWN 150 /* bytes of a space or key in a message */

/* A key, counted by its entry and by queues. */
struct text {
    uint32_t references;
    struct tb__ext_key name; /* points to bytes[] */
    char bytes[];
};

struct entry {
    struct entry *next; /* of its bucket */
    uint64_t hash;
    struct text *text;
    struct tb__ext_value *value;
    uint32_t owner;
    uint64_t touched[WORDS]; /* a bit for each node that stored or read it */
};

/* The keys that a node is to be told of: a ring, oldest first. */
struct queue {
    struct text **ring;
    uint32_t room;
    uint32_t first;
    uint32_t count;
    uint64_t lost;   /* since the last message */
    int outstanding; /* a message was sent and not taken yet */
};

struct owner {
    uint32_t entries;
    uint32_t files;
    uint64_t bytes;
    struct queue queue;
};

struct tb__ext_table {
    const struct tb__flow *flow;
    uint64_t seed;
    uint32_t count;
    uint32_t files_each; /* carried values of a node */
    struct entry *buckets[BUCKETS];
    struct owner owners[TB__FLOW_NODES_MAX];
};

/* ---- values ---- */

tb_status tb__ext_value_create(const struct tb__ext_request *request, int *fd,
                               struct tb__ext_value **out)
{
    int carried = (request->flags & TB__EXT_CARRIED) != 0;
    size_t inside = carried ? 0 : request->value_bytes;
    struct tb__ext_value *value = calloc(1, sizeof *value + inside);
    if (value == NULL) {
        return TB__FAIL(TB_E_NOMEM, "the runner has no memory for a value of %llu bytes",
                        (unsigned long long)request->value_bytes);
    }
    value->references = 1;
    value->fd = -1;
    value->size = request->value_bytes;
    if (carried) {
        value->fd = *fd;
        *fd = -1;
    } else if (inside != 0) {
        memcpy(value->bytes, request->value, inside);
    }
    *out = value;
    return TB_OK;
}

void tb__ext_value_unref(struct tb__ext_value *value)
{
    if (value != NULL && --value->references == 0) {
        tb__fd_close(&value->fd);
        free(value);
    }
}

/* ---- keys ---- */

static struct text *text_create(const struct tb__ext_key *name)
{
    struct text *text = malloc(sizeof *text + name->space_bytes + name->key_bytes);
    if (text == NULL) {
        return NULL;
    }
    memcpy(text->bytes, name->space, name->space_bytes);
    memcpy(text->bytes + name->space_bytes, name->key, name->key_bytes);
    text->references = 1;
    text->name = *name;
    text->name.space = text->bytes;
    text->name.key = text->bytes + name->space_bytes;
    return text;
}

static void text_unref(struct text *text)
{
    if (--text->references == 0) {
        free(text);
    }
}

static int same(const struct tb__ext_key *a, const struct tb__ext_key *b)
{
    return a->space_bytes == b->space_bytes && a->key_bytes == b->key_bytes &&
           memcmp(a->space, b->space, a->space_bytes) == 0 &&
           memcmp(a->key, b->key, a->key_bytes) == 0;
}

static uint64_t mix(uint64_t hash, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
    }
    return hash ^ bytes;
}

/* FNV-1a with a seed: who makes keys collide all the same slows a look-up by 0.1 ms. */
static uint64_t hash_of(const struct tb__ext_table *table, const struct tb__ext_key *name)
{
    uint64_t hash = mix(table->seed, name->space, name->space_bytes);
    hash = mix(hash, name->key, name->key_bytes);
    return hash ^ hash >> 32;
}

/* How many bytes of a space or key a message shows: whole characters. */
static int shown(const char *text, size_t bytes)
{
    size_t at = 0;
    for (size_t step = 1; at < bytes && step != 0; at += step) {
        step = tb__utf8_step(text + at, bytes - at);
        if (at + step > SHOWN) {
            break;
        }
    }
    return (int)at;
}

#define NAME(name)                                                                                 \
    shown((name)->space, (name)->space_bytes), (name)->space,                                      \
        shown((name)->key, (name)->key_bytes), (name)->key

/* ---- life ---- */

tb_status tb__ext_table_create(const struct tb__flow *flow, uint64_t files,
                               struct tb__ext_table **out)
{
    struct tb__ext_table *table = calloc(1, sizeof *table);
    if (table == NULL) {
        return TB__FAIL(TB_E_NOMEM, "memory for the extension channel");
    }
    table->flow = flow;
    table->seed = tb__random64();
    /* Each node has a share of its own: nobody can use up another one's. */
    uint64_t each = files / flow->nodes_count;
    table->files_each = each < TB__EXT_NODE_FILES ? (uint32_t)each : TB__EXT_NODE_FILES;
    *out = table;
    return TB_OK;
}

static void entry_destroy(struct entry *entry)
{
    text_unref(entry->text);
    tb__ext_value_unref(entry->value);
    free(entry);
}

static void queue_clear(struct queue *queue)
{
    for (uint32_t i = 0; i < queue->count; i++) {
        text_unref(queue->ring[(queue->first + i) % queue->room]);
    }
    free(queue->ring);
    *queue = (struct queue){0};
}

void tb__ext_table_destroy(struct tb__ext_table *table)
{
    if (table == NULL) {
        return;
    }
    for (size_t i = 0; i < BUCKETS; i++) {
        while (table->buckets[i] != NULL) {
            struct entry *entry = table->buckets[i];
            table->buckets[i] = entry->next;
            entry_destroy(entry);
        }
    }
    for (size_t i = 0; i < TB__FLOW_NODES_MAX; i++) {
        queue_clear(&table->owners[i].queue);
    }
    free(table);
}

/* ---- what nodes are to be told ---- */

static void queue_drop_oldest(struct queue *queue)
{
    text_unref(queue->ring[queue->first]);
    queue->first = (queue->first + 1) % queue->room;
    queue->count--;
}

/* Twice the room, the keys in order from the beginning. */
static int queue_grow(struct queue *queue)
{
    uint32_t room = queue->room == 0 ? 64 : queue->room * 2;
    struct text **ring = malloc(room * sizeof(struct text *));
    if (ring == NULL) {
        return 0;
    }
    for (uint32_t i = 0; i < queue->count; i++) {
        ring[i] = queue->ring[(queue->first + i) % queue->room];
    }
    free(queue->ring);
    queue->ring = ring;
    queue->room = room;
    queue->first = 0;
    return 1;
}

static void queue_add(struct queue *queue, struct text *text)
{
    if (queue->count == TB__EXT_DROPPED_MAX) {
        queue_drop_oldest(queue);
        queue->lost++;
    }
    if (queue->count == queue->room && !queue_grow(queue)) {
        queue->lost++;
        return;
    }
    text->references++;
    queue->ring[(queue->first + queue->count++) % queue->room] = text;
}

int tb__ext_batch(struct tb__ext_table *table, uint32_t node, struct tb__ext_batch *out)
{
    const struct queue *queue = &table->owners[node].queue;
    if (queue->outstanding || (queue->count == 0 && queue->lost == 0)) {
        return 0;
    }
    tb__ext_batch_begin(out, queue->lost);
    for (uint32_t i = 0; i < queue->count; i++) {
        if (!tb__ext_batch_add(out, &queue->ring[(queue->first + i) % queue->room]->name)) {
            break;
        }
    }
    return 1;
}

void tb__ext_sent(struct tb__ext_table *table, uint32_t node, const struct tb__ext_batch *batch)
{
    struct queue *queue = &table->owners[node].queue;
    for (uint32_t i = 0; i < batch->count; i++) {
        queue_drop_oldest(queue);
    }
    queue->lost = 0;
    queue->outstanding = 1;
}

void tb__ext_taken(struct tb__ext_table *table, uint32_t node)
{
    table->owners[node].queue.outstanding = 0;
}

/* ---- entries ---- */

static struct entry **find(struct tb__ext_table *table, const struct tb__ext_key *name,
                           uint64_t hash)
{
    struct entry **at = &table->buckets[hash % BUCKETS];
    while (*at != NULL && !((*at)->hash == hash && same(&(*at)->text->name, name))) {
        at = &(*at)->next;
    }
    return at;
}

static uint64_t bytes_of(const struct tb__ext_key *name, const struct tb__ext_value *value)
{
    return (uint64_t)name->space_bytes + name->key_bytes + value->size;
}

static void count_in(struct owner *owner, const struct tb__ext_key *name,
                     const struct tb__ext_value *value)
{
    owner->bytes += bytes_of(name, value);
    owner->files += value->fd >= 0;
}

static void count_out(struct owner *owner, const struct tb__ext_key *name,
                      const struct tb__ext_value *value)
{
    owner->bytes -= bytes_of(name, value);
    owner->files -= value->fd >= 0;
}

/* Take an entry out, and note who must be told. */
static void remove_at(struct tb__ext_table *table, struct entry **at)
{
    struct entry *entry = *at;
    struct owner *owner = &table->owners[entry->owner];
    *at = entry->next;
    for (uint32_t node = 0; node < table->flow->nodes_count; node++) {
        if ((entry->touched[node / 64] >> (node % 64) & 1) != 0) {
            queue_add(&table->owners[node].queue, entry->text);
        }
    }
    count_out(owner, &entry->text->name, entry->value);
    owner->entries--;
    table->count--;
    entry_destroy(entry);
}

static const char *id_of(const struct tb__ext_table *table, uint32_t node)
{
    return table->flow->nodes[node].id;
}

/* Whether a node may have `value` under this key in place of `former` (NULL: nothing). */
static tb_status check_room(const struct tb__ext_table *table, uint32_t node,
                            const struct tb__ext_key *name, const struct tb__ext_value *value,
                            const struct tb__ext_value *former)
{
    const struct owner *owner = &table->owners[node];
    if (former == NULL && table->count >= TB__EXT_ENTRIES_MAX &&
        owner->entries >= TB__EXT_ENTRIES_OWN) {
        return TB__FAIL(TB_E_LIMIT,
                        "extension table full for this dataflow (%d entries); node `%s` cannot "
                        "store `%.*s/%.*s`: drop keys that are not needed any more",
                        TB__EXT_ENTRIES_MAX, id_of(table, node), NAME(name));
    }
    uint64_t bytes = owner->bytes - (former != NULL ? bytes_of(name, former) : 0);
    if (bytes + bytes_of(name, value) > TB__EXT_NODE_BYTES) {
        return TB__FAIL(TB_E_LIMIT,
                        "extension values of node `%s` have %llu MiB, and with `%.*s/%.*s` of %llu "
                        "bytes more than the %llu MiB that it may: put data into a pool and its "
                        "descriptor here",
                        id_of(table, node), (unsigned long long)(bytes >> 20), NAME(name),
                        (unsigned long long)value->size,
                        (unsigned long long)(TB__EXT_NODE_BYTES >> 20));
    }
    uint32_t files = owner->files - (former != NULL && former->fd >= 0);
    if (value->fd >= 0 && files >= table->files_each) {
        return TB__FAIL(TB_E_LIMIT,
                        "node `%s` has %u extension values above %u bytes, all that it may, and "
                        "cannot store `%.*s/%.*s`: drop some, or put data into a pool",
                        id_of(table, node), files, TB__EXT_INLINE_MAX, NAME(name));
    }
    return TB_OK;
}

static void replace(struct tb__ext_table *table, struct entry *entry, struct tb__ext_value *value)
{
    struct owner *owner = &table->owners[entry->owner];
    count_out(owner, &entry->text->name, entry->value);
    tb__ext_value_unref(entry->value);
    value->references++;
    entry->value = value;
    count_in(owner, &entry->text->name, value);
}

static tb_status insert(struct tb__ext_table *table, struct entry **at, uint32_t node,
                        const struct tb__ext_key *name, struct tb__ext_value *value)
{
    struct entry *entry = calloc(1, sizeof *entry);
    struct text *text = entry != NULL ? text_create(name) : NULL;
    if (text == NULL) {
        free(entry);
        return TB__FAIL(TB_E_NOMEM, "the runner has no memory for another extension value");
    }
    value->references++;
    entry->hash = hash_of(table, name);
    entry->text = text;
    entry->value = value;
    entry->owner = node;
    entry->touched[node / 64] |= UINT64_C(1) << (node % 64);
    *at = entry;
    table->count++;
    table->owners[node].entries++;
    count_in(&table->owners[node], name, value);
    return TB_OK;
}

tb_status tb__ext_store(struct tb__ext_table *table, uint32_t node, const struct tb__ext_key *name,
                        struct tb__ext_value *value)
{
    struct entry **at = find(table, name, hash_of(table, name));
    if (*at != NULL && (*at)->owner != node) {
        return TB__FAIL(TB_E_DENIED,
                        "extension key `%.*s/%.*s` is owned by node `%s`; node `%s` may not "
                        "overwrite it",
                        NAME(name), id_of(table, (*at)->owner), id_of(table, node));
    }
    TB__TRY(check_room(table, node, name, value, *at != NULL ? (*at)->value : NULL));
    if (*at != NULL) {
        replace(table, *at, value);
        return TB_OK;
    }
    return insert(table, at, node, name, value);
}

struct tb__ext_value *tb__ext_load(struct tb__ext_table *table, uint32_t node,
                                   const struct tb__ext_key *name, int remove)
{
    struct entry **at = find(table, name, hash_of(table, name));
    if (*at == NULL) {
        return NULL;
    }
    struct tb__ext_value *value = (*at)->value;
    value->references++;
    (*at)->touched[node / 64] |= UINT64_C(1) << (node % 64);
    if (remove) {
        remove_at(table, at);
    }
    return value;
}

int tb__ext_drop(struct tb__ext_table *table, const struct tb__ext_key *name)
{
    struct entry **at = find(table, name, hash_of(table, name));
    if (*at == NULL) {
        return 0;
    }
    remove_at(table, at);
    return 1;
}

void tb__ext_end(struct tb__ext_table *table, uint32_t node)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        struct entry **at = &table->buckets[i];
        while (*at != NULL) {
            (*at)->touched[node / 64] &= ~(UINT64_C(1) << (node % 64));
            if ((*at)->owner == node) {
                remove_at(table, at);
            } else {
                at = &(*at)->next;
            }
        }
    }
    queue_clear(&table->owners[node].queue);
}

uint32_t tb__ext_count(const struct tb__ext_table *table)
{
    return table->count;
}

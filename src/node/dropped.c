/* Dropped extension keys: from the runner's line into a list, from the list to the user.
 *
 * The service thread takes them from the line and says so to the runner, which then sends the next;
 * it wakes nobody who does not wait for a key. The list is bounded: the oldest go, and are counted.
 * Users' threads drain it. */
#define TB_LOG_TOPIC "node"
#include "node/dropped.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

struct dropped {
    struct dropped *next;
    uint16_t space_bytes;
    uint16_t key_bytes;
    char text[]; /* space, key, a terminator */
};

/* Of one bus. */
struct layer {
    tb_bus *bus;
    _Atomic(struct tb__lifeline *) runner; /* only compared with: whose word counts */
    _Atomic uint32_t waiters;              /* threads that wait for a key */
    _Atomic int owes_taken;                /* the word that keys were taken met a full socket */
    pthread_mutex_t mutex;
    struct dropped *first;
    struct dropped **last; /* end of the list */
    uint32_t count;
    uint64_t lost;
};

struct tb_extension_keys {
    size_t count;
    uint64_t lost;
    struct dropped *keys[];
};

/* ---- in: service thread ---- */

static void lose_oldest(struct layer *layer)
{
    struct dropped *oldest = layer->first;
    layer->first = oldest->next;
    if (layer->first == NULL) {
        layer->last = &layer->first;
    }
    free(oldest);
    layer->count--;
    layer->lost++;
}

static void append(struct layer *layer, const struct tb__ext_key *name)
{
    size_t bytes = (size_t)name->space_bytes + name->key_bytes;
    struct dropped *one = malloc(sizeof *one + bytes + 1);
    if (one == NULL) {
        layer->lost++;
        return;
    }
    one->next = NULL;
    one->space_bytes = name->space_bytes;
    one->key_bytes = name->key_bytes;
    memcpy(one->text, name->space, name->space_bytes);
    memcpy(one->text + name->space_bytes, name->key, name->key_bytes);
    one->text[bytes] = '\0';
    if (layer->count == TB_EXTENSION_DROPPED_MAX) {
        lose_oldest(layer);
    }
    *layer->last = one;
    layer->last = &one->next;
    layer->count++;
}

static void say_taken(struct layer *layer, struct tb__lifeline *runner)
{
    tb_status status = tb__lifeline_send(runner, TB__MSG_EXT_TAKEN, NULL, 0);
    /* Full, of a runner that stands still: said again when the user asks for keys. */
    atomic_store(&layer->owes_taken, status == TB_AGAIN);
}

static void on_dropped(void *context, struct tb__lifeline *line, struct tb__msg *msg)
{
    struct layer *layer = context;
    struct tb__ext_key name;
    uint64_t lost;
    uint32_t count;
    size_t at = 0;
    if (line != atomic_load(&layer->runner)) {
        tb_log_warn_limited("process `%s`, which is not the runner, speaks of dropped keys",
                            tb__lifeline_peer_name(line));
        return;
    }
    if (tb__ext_batch_check(msg->body, msg->body_bytes, &lost, &count) != TB_OK) {
        tb_log_warn_limited("the runner's word of dropped keys: %s", tb_last_error_text());
        return;
    }
    pthread_mutex_lock(&layer->mutex);
    layer->lost += lost;
    for (uint32_t i = 0; i < count; i++) {
        tb__ext_batch_next(msg->body, &at, &name);
        append(layer, &name);
    }
    pthread_mutex_unlock(&layer->mutex);
    say_taken(layer, line);
    /* seq_cst: after the keys were added; pairs with the count before a look at the list. */
    if (atomic_load(&layer->waiters) != 0) {
        tb__bus_ring_self(layer->bus);
    }
}

static void destroy(void *state)
{
    struct layer *layer = state;
    while (layer->first != NULL) {
        lose_oldest(layer);
    }
    pthread_mutex_destroy(&layer->mutex);
    free(layer);
}

static tb_status opening(tb_bus *bus)
{
    static const struct tb__bus_layer hooks = {.destroy = destroy};
    struct layer *layer = calloc(1, sizeof *layer);
    if (layer == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a bus");
    }
    layer->bus = bus;
    layer->last = &layer->first;
    pthread_mutex_init(&layer->mutex, NULL);
    tb__bus_set_layer(bus, TB__LAYER_EXTENSION, &hooks, layer);
    tb__bus_handle(bus, TB__MSG_EXT_DROPPED, TB__MSG_EXT_DROPPED, on_dropped, layer);
    return TB_OK;
}

__attribute__((constructor)) static void register_layer(void)
{
    tb__bus_on_open(opening);
}

void tb__dropped_expect(tb_bus *bus, struct tb__lifeline *runner)
{
    struct layer *layer = tb__bus_layer(bus, TB__LAYER_EXTENSION);
    atomic_store(&layer->runner, runner);
}

/* ---- out ---- */

static int is_of(const struct dropped *one, const struct tb__ext_key *name)
{
    return one->space_bytes == name->space_bytes &&
           memcmp(one->text, name->space, name->space_bytes) == 0;
}

static size_t count_of(const struct layer *layer, const struct tb__ext_key *name)
{
    size_t count = 0;
    for (const struct dropped *one = layer->first; one != NULL; one = one->next) {
        count += (size_t)is_of(one, name);
    }
    return count;
}

static void take_keys(struct layer *layer, const struct tb__ext_key *name, tb_extension_keys *keys)
{
    struct dropped **at = &layer->first;
    while (*at != NULL) {
        struct dropped *one = *at;
        if (is_of(one, name)) {
            *at = one->next;
            layer->count--;
            keys->keys[keys->count++] = one;
        } else {
            at = &one->next;
        }
    }
    layer->last = at;
    keys->lost = layer->lost;
    layer->lost = 0;
}

/* TB_AGAIN: there is nothing to tell. Mutex held. */
static tb_status drain_locked(struct layer *layer, const struct tb__ext_key *name,
                              tb_extension_keys **out)
{
    size_t count = count_of(layer, name);
    if (count == 0 && layer->lost == 0) {
        return TB_AGAIN;
    }
    tb_extension_keys *keys = calloc(1, sizeof *keys + count * sizeof(struct dropped *));
    if (keys == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for %zu dropped extension keys", count);
    }
    take_keys(layer, name, keys);
    *out = keys;
    return TB_OK;
}

static tb_status fail_gone(const struct tb__lifeline *runner)
{
    unsigned pid = tb__lifeline_peer_pid(runner);
    return tb__lifeline_said_goodbye(runner)
               ? TB__FAIL(TB_CLOSED,
                          "the runner (process %u) has ended, and extension values with it", pid)
               : TB__FAIL(TB_E_OWNER_DIED,
                          "the runner (process %u) is gone, and extension values with it", pid);
}

static tb_status drain_until(struct layer *layer, const struct tb__lifeline *runner,
                             const struct tb__ext_key *name, int64_t deadline_ns,
                             tb_extension_keys **out)
{
    for (;;) {
        uint32_t seen = tb__bus_bell(layer->bus);
        int gone = tb__lifeline_is_dead(runner); /* first: what it said before comes first */
        pthread_mutex_lock(&layer->mutex);
        tb_status status = drain_locked(layer, name, out);
        pthread_mutex_unlock(&layer->mutex);
        if (status != TB_AGAIN) {
            return status;
        }
        if (gone) {
            return fail_gone(runner);
        }
        if (tb__left_ns(deadline_ns) == 0) {
            return TB_AGAIN;
        }
        tb__bus_sleep(layer->bus, seen, NULL, 0, deadline_ns);
    }
}

tb_status tb__dropped_drain(tb_bus *bus, struct tb__lifeline *runner,
                            const struct tb__ext_key *name, int64_t timeout_ns,
                            tb_extension_keys **out)
{
    struct layer *layer = tb__bus_layer(bus, TB__LAYER_EXTENSION);
    if (atomic_load(&layer->owes_taken)) {
        say_taken(layer, runner);
    }
    if (timeout_ns == 0) {
        return drain_until(layer, runner, name, 0, out);
    }
    /* seq_cst: before the look at the list; pairs with the look at the count in on_dropped(). */
    atomic_fetch_add(&layer->waiters, 1);
    tb_status status = drain_until(layer, runner, name, tb__deadline_ns(timeout_ns), out);
    atomic_fetch_sub(&layer->waiters, 1);
    return status;
}

size_t tb_extension_keys_count(const tb_extension_keys *keys)
{
    return keys != NULL ? keys->count : 0;
}

const char *tb_extension_keys_at(const tb_extension_keys *keys, size_t index)
{
    return keys != NULL && index < keys->count
               ? keys->keys[index]->text + keys->keys[index]->space_bytes
               : "";
}

uint64_t tb_extension_keys_lost(const tb_extension_keys *keys)
{
    return keys != NULL ? keys->lost : 0;
}

void tb_extension_keys_destroy(tb_extension_keys *keys)
{
    for (size_t i = 0; keys != NULL && i < keys->count; i++) {
        free(keys->keys[i]);
    }
    free(keys);
}

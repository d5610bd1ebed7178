/* The pool layer of a bus: made and ended with it. The hang-up hook runs on the service thread, the
 * others on the thread that opens, closes or forks. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/copy_team.h"
#include "base/fd.h"
#include "base/near.h"
#include "pool/adopt.h"
#include "pool/order.h"
#include "pool/pending.h"
#include "pool/serve.h"

struct tb__pool_layer *tb__pool_layer_of(const tb_bus *bus)
{
    return tb__bus_layer(bus, TB__LAYER_POOL);
}

uint32_t tb__thread_id(void)
{
    static _Thread_local uint32_t id;
    if (id == 0) {
        id = (uint32_t)syscall(SYS_gettid);
    }
    return id;
}

/* ---- its pools; bus mutex held ---- */

tb_pool *tb__pool_find(struct tb__pool_layer *layer, const struct tb__pool_open_wire *wire)
{
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        int same = wire->flags & TB__OPEN_BY_UID
                       ? memcmp(pool->uid, wire->uid, sizeof pool->uid) == 0
                       : strcmp(pool->name, wire->name) == 0;
        if (same) {
            return pool;
        }
    }
    return NULL;
}

void tb__pool_fail_missing(const struct tb__pool_layer *layer,
                           const struct tb__pool_open_wire *wire)
{
    if (wire->flags & TB__OPEN_BY_UID) {
        TB__FAIL(TB_E_STALE,
                 "process `%s` (pid %d) has closed the pool that this handle names: open handles "
                 "of the pool that replaces it",
                 tb_bus_name(layer->bus), (int)getpid());
    } else {
        struct tb__near near;
        char text[TB__NEAR_TEXT];
        tb__near_begin(&near, wire->name);
        for (const tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
            if (!atomic_load(&pool->freed)) {
                tb__near_offer(&near, pool->name);
            }
        }
        tb__near_text(&near, text);
        TB__FAIL(TB_E_NOT_FOUND, "process `%s` has no pool `%s`; it has %s",
                 tb_bus_name(layer->bus), wire->name, text[0] != '\0' ? text : "none");
    }
}

/* ---- life ---- */

static void hangup(void *state, struct tb__lifeline *line)
{
    struct tb__pool_layer *layer = state;
    tb__bus_lock(layer->bus);
    tb__pending_cancel(layer, line, 0);
    for (tb_reader *reader = layer->readers; reader != NULL; reader = reader->next) {
        /* An event loop hears of its owner's end, whoever else may have the other end open. Pairs
         * with the release store in make_poke(). */
        int fd = atomic_load_explicit(&reader->poke_fd, memory_order_acquire);
        if (reader->line == line && fd >= 0) {
            shutdown(fd, SHUT_RDWR);
        }
        if (reader->line == line && reader->gates != NULL) {
            tb__watch_changed(layer);
        }
    }
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        struct tb__attached *who = pool->attached;
        while (who != NULL) {
            int theirs = who->line == line && !tb__a32_load_relaxed(&who->gone);
            if (theirs) {
                tb__detach(pool, who);
            }
            /* Detaching may take others out that are gone: from the beginning, then. */
            who = theirs ? pool->attached : who->next;
        }
    }
    tb__bus_unlock(layer->bus);
}

/* A child must not keep the memory of pools alive, nor hold the ends of wake-up descriptors. */
static void forked(void *state)
{
    struct tb__pool_layer *layer = state;
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        tb__fd_close(&pool->segment_fd);
        tb__fd_close(&pool->device_fd);
        for (struct tb__attached *who = pool->attached; who != NULL; who = who->next) {
            tb__fd_close(&who->page_fd);
            tb__fd_close(&who->gates_fd);
            tb__poke_close(&who->poke_fd);
        }
    }
    for (tb_reader *reader = layer->readers; reader != NULL; reader = reader->next) {
        tb__poke_close(&reader->poke_fd);
    }
}

/* What tb_loan_write_ahead() began may read from a frame: before its reader is closed. */
static void end_copies(struct tb__pool_layer *layer)
{
    tb__bus_lock(layer->bus); /* the watching thread may end pools */
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        tb__copy_team_destroy(pool->copy_team);
        pool->copy_team = NULL;
    }
    tb__bus_unlock(layer->bus);
}

/* The bus says goodbye: readers elsewhere learn it through their pages, at once. */
static void closing(void *state)
{
    struct tb__pool_layer *layer = state;
    layer->readers_end = 1;
    end_copies(layer);
    while (layer->readers != NULL) {
        tb_reader_close(layer->readers);
    }
    tb__watch_stop(layer); /* it may end pools */
    /* What GPUs work on comes to its end while readers see that this process lives. */
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        tb__order_drain(pool);
    }
    /* Whoever attached before this is told below; nobody attaches after it. */
    tb__bus_lock(layer->bus);
    layer->closing = 1;
    tb__bus_unlock(layer->bus);
    for (tb_pool *pool = layer->pools; pool != NULL; pool = pool->next) {
        int ends = atomic_load(&pool->freed) || pool->adoption.on;
        tb__pages_tell(pool, ends ? TB__PAGE_FREED : TB__PAGE_GOODBYE);
    }
    tb__adoption_close_all(layer);
    tb__lifeline_unref(atomic_exchange(&layer->runner, NULL));
}

static void destroy(void *state)
{
    struct tb__pool_layer *layer = state;
    while (layer->pools != NULL) {
        tb_pool_close(layer->pools);
    }
    tb__pending_fini(layer);
    pthread_mutex_destroy(&layer->cache_mutex);
    pthread_mutex_destroy(&layer->runner_mutex);
    tb__watch_fini(&layer->watch);
    free(layer);
}

static tb_status opening(tb_bus *bus)
{
    static const struct tb__bus_layer hooks = {closing, destroy, hangup, forked};
    struct tb__pool_layer *layer = calloc(1, sizeof *layer);
    if (layer == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a bus");
    }
    layer->bus = bus;
    pthread_mutex_init(&layer->cache_mutex, NULL);
    pthread_mutex_init(&layer->runner_mutex, NULL);
    tb__watch_init(&layer->watch);
    tb__bus_set_layer(bus, TB__LAYER_POOL, &hooks, layer);
    tb__bus_on_landed(bus, tb__pending_landed, layer);
    tb__bus_handle(bus, TB__MSG_POOL_OPEN, TB__MSG_POOL_READERS, tb__pool_serve, layer);
    tb__bus_handle(bus, TB__MSG_CANCEL, TB__MSG_CANCEL, tb__pool_serve, layer);
    return TB_OK;
}

__attribute__((constructor)) static void register_layer(void)
{
    tb__bus_on_open(opening);
}

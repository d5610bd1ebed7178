/* See watch.h. */
#define TB_LOG_TOPIC "pool"
#include "pool/watch.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "pool/adopt.h"
#include "pool/gate.h"
#include "pool/order.h"

#define LOOK_NS INT64_C(1000000) /* while a GPU works on frames of ours */
#define POOLS_AT_ONCE 64

void tb__watch_init(struct tb__watch *watch)
{
    pthread_mutex_init(&watch->start_mutex, NULL);
    pthread_mutex_init(&watch->pools_mutex, NULL);
}

void tb__watch_fini(struct tb__watch *watch)
{
    pthread_mutex_destroy(&watch->start_mutex);
    pthread_mutex_destroy(&watch->pools_mutex);
}

/* ---- owners ---- */

static void owner_died(tb_reader *reader, int poke_fd)
{
    if (poke_fd >= 0) {
        shutdown(poke_fd, SHUT_RDWR);
    }
    uint32_t given_up = reader->gates != NULL ? tb__gates_give_up(reader) : 0;
    if (given_up > 0) {
        tb_log_warn("pool `%s/%s`: its owner died: %u frames that a GPU worked on are incomplete",
                    tb__lifeline_peer_name(reader->line), reader->name, given_up);
    }
}

/* Bus mutex held. Returns until when to sleep. */
static int64_t look_at_owners(struct tb__pool_layer *layer, struct tb__life_watch *lives,
                              uint32_t *count)
{
    int64_t until_ns = TB__NO_DEADLINE;
    *count = 0;
    for (tb_reader *reader = layer->readers; reader != NULL; reader = reader->next) {
        /* Pairs with the release store in make_poke(). */
        int fd = atomic_load_explicit(&reader->poke_fd, memory_order_acquire);
        struct tb__a32 *word = &reader->page.shm->owner_life;
        /* Pairs with the kernel's mark. */
        uint32_t life = tb__a32_load_acquire(word);
        /* Before what follows: its other threads may announce frames until it is gone. */
        int gone = tb__lifeline_is_dead(reader->line);
        if (fd < 0 && reader->gates == NULL) {
            continue;
        }
        if (tb__life_died(life) || gone) {
            owner_died(reader, fd);
            if (reader->gates != NULL && !gone) {
                until_ns = tb__deadline_ns(LOOK_NS);
            }
        } else if (life == 0) {
            continue;
        } else if (*count < TB__MAX_LIVES) {
            lives[(*count)++] = (struct tb__life_watch){word, life};
        } else {
            until_ns = tb__deadline_ns(TB__UNWATCHED_NS);
        }
    }
    return until_ns;
}

/* ---- own pools ---- */

/* Bus mutex held. */
static uint32_t list_pools(struct tb__pool_layer *layer, tb_pool *pools[POOLS_AT_ONCE])
{
    uint32_t count = 0;
    for (tb_pool *pool = layer->pools; pool != NULL && count < POOLS_AT_ONCE; pool = pool->next) {
        if (atomic_load(&pool->order) != NULL && !pool->adoption.ending) {
            pools[count++] = pool;
        }
    }
    return count;
}

/* Returns whether a GPU still works on a frame. Known limit: of the first 64 pools that GPUs write
 * only; the others are completed by whoever writes or closes them. */
static int look_at_pools(struct tb__pool_layer *layer)
{
    tb_pool *pools[POOLS_AT_ONCE];
    uint32_t pending = 0;
    pthread_mutex_lock(&layer->watch.pools_mutex);
    tb__bus_lock(layer->bus);
    uint32_t count = list_pools(layer, pools);
    tb__bus_unlock(layer->bus);
    for (uint32_t i = 0; i < count; i++) {
        pending += tb__order_settle(pools[i]);
        tb__attached_reclaim_gated(pools[i]);
    }
    pthread_mutex_unlock(&layer->watch.pools_mutex);
    return pending != 0;
}

/* ---- the thread ---- */

static void *watch_main(void *argument)
{
    struct tb__pool_layer *layer = argument;
    struct tb__watch *watch = &layer->watch;
    struct tb__life_watch lives[TB__MAX_LIVES];
    while (!atomic_load(&watch->quit)) {
        uint32_t count;
        uint32_t seen = tb__a32_load_acquire(&watch->changes);
        tb__bus_lock(layer->bus);
        int64_t until_ns = look_at_owners(layer, lives, &count);
        tb__bus_unlock(layer->bus);
        int64_t ending_ns = tb__adoption_look(layer);
        until_ns = ending_ns < until_ns ? ending_ns : until_ns;
        /* seq_cst: idle before the look; pairs with tb__watch_kick() behind a publisher's count. */
        atomic_store(&watch->idle, 1);
        if (look_at_pools(layer)) {
            int64_t soon_ns = tb__deadline_ns(LOOK_NS);
            until_ns = soon_ns < until_ns ? soon_ns : until_ns;
            atomic_store(&watch->idle, 0);
        }
        /* Only the kernel looks at the words from here on: one that was unmapped meanwhile makes it
         * return, and no more; and who unmaps one rings before. */
        tb__word_sleep(&watch->changes, seen, lives, count, until_ns);
        atomic_store(&watch->idle, 0);
    }
    return NULL;
}

tb_status tb__watch_start(struct tb__pool_layer *layer)
{
    struct tb__watch *watch = &layer->watch;
    sigset_t all;
    sigset_t before;
    int failed = 0;
    pthread_mutex_lock(&watch->start_mutex);
    if (!watch->started) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        failed = pthread_create(&watch->thread, NULL, watch_main, layer);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        watch->started = !failed;
        if (!failed) {
            pthread_setname_np(watch->thread, "tensorbus-watch");
        }
    }
    pthread_mutex_unlock(&watch->start_mutex);
    if (failed) {
        errno = failed;
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "starting the thread that watches the owners of pools");
    }
    return TB_OK;
}

void tb__watch_changed(struct tb__pool_layer *layer)
{
    tb__word_ring(&layer->watch.changes);
}

void tb__watch_kick(struct tb__pool_layer *layer)
{
    if (atomic_exchange(&layer->watch.idle, 0) != 0) {
        tb__watch_changed(layer);
    }
}

void tb__watch_leave(struct tb__pool_layer *layer)
{
    pthread_mutex_lock(&layer->watch.pools_mutex);
    pthread_mutex_unlock(&layer->watch.pools_mutex);
}

void tb__watch_stop(struct tb__pool_layer *layer)
{
    struct tb__watch *watch = &layer->watch;
    if (watch->started) {
        atomic_store(&watch->quit, 1);
        tb__watch_changed(layer);
        pthread_join(watch->thread, NULL);
        watch->started = 0;
    }
}

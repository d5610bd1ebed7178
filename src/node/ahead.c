/* See ahead.h. */
#define TB_LOG_TOPIC "node"
#include "node/ahead.h"

#include <signal.h>
#include <string.h>

#include "base/log.h"
#include "pool/support.h"

void tb__ahead_attach(tb_bus *bus, const struct tb__stream_pool_wire *pool)
{
    tb_error kept;
    tb_last_error(&kept);
    if (tb__pool_expect(bus, pool->uid) != TB_OK) {
        tb_log_debug("a pool behind a stream was not opened ahead: %s", tb_last_error_text());
        tb__error_restore(&kept);
    }
}

static void *attach_all(void *argument)
{
    struct tb__ahead *ahead = argument;
    pthread_mutex_lock(&ahead->mutex);
    while (ahead->count > 0 && !ahead->quit) {
        struct tb__stream_pool_wire pool = ahead->pools[0];
        memmove(&ahead->pools[0], &ahead->pools[1], --ahead->count * sizeof pool);
        pthread_mutex_unlock(&ahead->mutex);
        tb__ahead_attach(ahead->bus, &pool);
        pthread_mutex_lock(&ahead->mutex);
    }
    ahead->running = 0;
    pthread_mutex_unlock(&ahead->mutex);
    return NULL;
}

/* Mutex held. */
static void start(struct tb__ahead *ahead)
{
    sigset_t all;
    sigset_t before;
    if (ahead->started) {
        pthread_join(ahead->thread, NULL); /* it has let go of the mutex for good */
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ahead->started = pthread_create(&ahead->thread, NULL, attach_all, ahead) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    ahead->running = ahead->started;
}

void tb__ahead_add(struct tb__ahead *ahead, const struct tb__stream_pool_wire *pool)
{
    pthread_mutex_lock(&ahead->mutex);
    if (ahead->count < TB__STREAM_POOLS && !ahead->quit) {
        ahead->pools[ahead->count++] = *pool;
        if (!ahead->running) {
            start(ahead);
        }
        ahead->count = ahead->running ? ahead->count : 0; /* no thread: its handles must do */
    }
    pthread_mutex_unlock(&ahead->mutex);
}

void tb__ahead_init(struct tb__ahead *ahead, tb_bus *bus)
{
    *ahead = (struct tb__ahead){.bus = bus};
    pthread_mutex_init(&ahead->mutex, NULL);
}

void tb__ahead_stop(struct tb__ahead *ahead)
{
    pthread_mutex_lock(&ahead->mutex);
    ahead->quit = 1;
    int started = ahead->started;
    ahead->started = 0;
    pthread_mutex_unlock(&ahead->mutex);
    if (started) {
        pthread_join(ahead->thread, NULL);
    }
}

void tb__ahead_fini(struct tb__ahead *ahead)
{
    pthread_mutex_destroy(&ahead->mutex);
}

/* Event loops: a reader's wake-up descriptor, and the thread that watches its owner.
 *
 * The descriptor is one end of a socket pair whose other end the owner has: the owner sends a byte
 * when it publishes, and the kernel hangs up when the owner's descriptors are gone. For a large
 * owner that is late (about 70 ms per GiB), so one thread per bus, started with the first such
 * reader, sleeps on the life words of their owners, which the kernel marks at the very start of a
 * process's end, and hangs up then. */
#define TB_LOG_TOPIC "pool"
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "pool/state.h"

/* ---- the thread ---- */

/* Bus mutex held: hang up where the owner is dead; collect the others. Returns until when to sleep.
 */
static int64_t survey(struct tb__pool_layer *layer, struct tb__life_watch *lives, uint32_t *count)
{
    int64_t until_ns = TB__NO_DEADLINE;
    *count = 0;
    for (tb_reader *reader = layer->readers; reader != NULL; reader = reader->next) {
        /* Pairs with the release store in make_poke(). */
        int fd = atomic_load_explicit(&reader->poke_fd, memory_order_acquire);
        struct tb__a32 *word = &reader->page.shm->owner_life;
        /* Pairs with the kernel's mark. */
        uint32_t life = tb__a32_load_acquire(word);
        if (fd < 0 || life == 0) {
            continue;
        }
        if (tb__life_died(life)) {
            shutdown(fd, SHUT_RDWR);
        } else if (*count < TB__MAX_LIVES) {
            lives[(*count)++] = (struct tb__life_watch){word, life};
        } else {
            until_ns = tb__deadline_ns(TB__UNWATCHED_NS);
        }
    }
    return until_ns;
}

static void *watch_main(void *argument)
{
    struct tb__pool_layer *layer = argument;
    struct tb__life_watch lives[TB__MAX_LIVES];
    while (!atomic_load(&layer->watch_quit)) {
        uint32_t count;
        uint32_t seen = tb__a32_load_acquire(&layer->watch_changes);
        tb__bus_lock(layer->bus);
        int64_t until_ns = survey(layer, lives, &count);
        tb__bus_unlock(layer->bus);
        /* Only the kernel looks at the words from here on: one that was unmapped meanwhile makes it
         * return, and no more; and who unmaps one rings before. */
        tb__word_sleep(&layer->watch_changes, seen, lives, count, until_ns);
    }
    return NULL;
}

static tb_status start(struct tb__pool_layer *layer)
{
    sigset_t all;
    sigset_t before;
    int failed = 0;
    pthread_mutex_lock(&layer->watch_mutex);
    if (!layer->watch_started) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        failed = pthread_create(&layer->watch_thread, NULL, watch_main, layer);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        layer->watch_started = !failed;
        if (!failed) {
            pthread_setname_np(layer->watch_thread, "tensorbus-watch");
        }
    }
    pthread_mutex_unlock(&layer->watch_mutex);
    if (failed) {
        errno = failed;
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "starting the thread that watches the owners of pools");
    }
    return TB_OK;
}

void tb__watch_changed(struct tb__pool_layer *layer)
{
    tb__word_ring(&layer->watch_changes);
}

void tb__watch_stop(struct tb__pool_layer *layer)
{
    if (layer->watch_started) {
        atomic_store(&layer->watch_quit, 1);
        tb__watch_changed(layer);
        pthread_join(layer->watch_thread, NULL);
        layer->watch_started = 0;
    }
}

/* ---- the descriptor ---- */

/* Make a socket pair and give one end to the owner. */
static tb_status make_poke(tb_reader *reader)
{
    int pair[2];
    /* With connections, so that the kernel makes our end readable when the owner's is gone. */
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        return TB__FAIL_ERRNO(TB_E_LIMIT, "making a wake-up descriptor");
    }
    struct tb__reader_wire wire = {.reader_id = reader->reader_id};
    struct tb__packet question = {.type = TB__MSG_READER_FD,
                                  .body = &wire,
                                  .body_bytes = sizeof wire,
                                  .borrow_fds = &pair[1],
                                  .fd_count = 1};
    struct tb__reply reply;
    tb_status status =
        tb__lifeline_call(reader->line, &question, tb__deadline_ns(TB__ANSWER_PATIENCE_NS), &reply);
    tb__reply_fini(&reply);
    tb__fd_close(&pair[1]);
    if (status != TB_OK) {
        tb__fd_close(&pair[0]);
        return status == TB_AGAIN ? tb__reader_fail_silent(reader) : status;
    }
    /* Pairs with the acquire loads of the threads that drain it, and of those that hang up. */
    atomic_store_explicit(&reader->poke_fd, pair[0], memory_order_release);
    atomic_fetch_or(&reader->page.shm->armed.value, TB__ARMED_POKE);
    tb__watch_changed(reader->layer);
    return TB_OK;
}

tb_status tb_reader_fd(tb_reader *reader, int *out_borrow_fd)
{
    TB__TRY(tb__reader_check(reader));
    tb__lifeline_open_lock(reader->line); /* one thread makes it */
    tb_status status = start(reader->layer);
    if (status == TB_OK && atomic_load_explicit(&reader->poke_fd, memory_order_relaxed) < 0) {
        status = make_poke(reader);
    }
    tb__lifeline_open_unlock(reader->line);
    if (status == TB_OK) {
        *out_borrow_fd = atomic_load_explicit(&reader->poke_fd, memory_order_relaxed);
    }
    return status;
}

void tb__poke_close(_Atomic int *fd)
{
    int last = atomic_exchange_explicit(fd, -1, memory_order_relaxed);
    tb__fd_close(&last);
}

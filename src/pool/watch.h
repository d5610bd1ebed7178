/* A thread of the pool layer, started when it is first needed, for what can wait for nobody else:
 *
 * - owners of readers with a wake-up descriptor, and of readers that order themselves on a GPU: it
 *   sleeps on their life words, which the kernel marks at the very start of a process's end, and
 *   hangs the descriptor up, or opens the gates of frames that will never be finished;
 * - pools that were closed while their adopted memory was in use (adopt_end.c);
 * - pools of this process with frames that a GPU works on: it completes those for whose completion
 *   nobody else may come by, finds streams that have failed, and lets go of readers' gates. */
#ifndef TB_POOL_WATCH_H
#define TB_POOL_WATCH_H

#include <pthread.h>
#include <stdatomic.h>

#include "endpoint/bus.h"

struct tb__pool_layer;

struct tb__watch {
    pthread_mutex_t start_mutex;
    /* Held while it looks at pools: who has unlinked one waits for it. Never taken by the service
     * thread. */
    pthread_mutex_t pools_mutex;
    pthread_t thread;
    int started;
    _Atomic int quit;
    _Atomic int idle;       /* it sleeps, or is about to, until something changes */
    struct tb__a32 changes; /* it sleeps on this word */
};

void tb__watch_init(struct tb__watch *watch);
/* After tb__watch_stop(). */
void tb__watch_fini(struct tb__watch *watch);
/* Any thread but the service thread; starts it once. */
tb_status tb__watch_start(struct tb__pool_layer *layer);
/* What it looks at has changed. */
void tb__watch_changed(struct tb__pool_layer *layer);
/* A GPU works on a frame of a pool. */
void tb__watch_kick(struct tb__pool_layer *layer);
/* A pool was unlinked: afterwards the thread does not look at it any more. */
void tb__watch_leave(struct tb__pool_layer *layer);
/* End and join it. */
void tb__watch_stop(struct tb__pool_layer *layer);

#endif

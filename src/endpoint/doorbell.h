/* The doorbell: one memfd per process with a counter that others ring to wake it; and the life
 * words that the kernel marks when the service thread ends. */
#ifndef TB_ENDPOINT_DOORBELL_H
#define TB_ENDPOINT_DOORBELL_H

#include <pthread.h>
#include <stdatomic.h>

#include "endpoint/bus.h"
#include "segment/atomics.h"

#define TB__BELL_BYTES 4096

struct tb__bell_shm {
    struct tb__a32 count; /* written by every peer; a wrong value costs one slice at most */
};

struct tb__bell {
    struct tb__bell_shm *shm; /* NULL when not mapped */
    int fd;                   /* own bell only: handed to peers; else -1 */
};

tb_status tb__bell_create(struct tb__bell *bell);
/* Map a peer's bell, after checking the descriptor. */
tb_status tb__bell_map(struct tb__bell *bell, int borrow_fd);
void tb__bell_fini(struct tb__bell *bell);
/* Count up and wake everybody who sleeps on it. */
void tb__bell_ring(struct tb__bell *bell);
/* Sleep until the count differs from `seen`, a watched life ends, or the deadline. */
void tb__bell_sleep(struct tb__bell *bell, uint32_t seen, const struct tb__life_watch *lives,
                    uint32_t count, int64_t deadline_ns);

/* A robust list as the kernel reads it (struct robust_list_head in <linux/futex.h>). */
struct tb__life_link {
    _Atomic(struct tb__life_link *) next;
};
struct tb__life_list {
    struct tb__life_link first; /* of a ring; itself when there is none */
    long futex_offset;
    struct tb__life_link *pending; /* NULL */
};

/* The robust list of one service thread. */
struct tb__lives {
    struct tb__life_list list;
    pthread_mutex_t mutex;
    uint32_t tid;
};
/* On the service thread, first thing. */
tb_status tb__lives_begin(struct tb__lives *lives);
void tb__lives_attach(struct tb__lives *lives, struct tb__page_map *map, struct tb__a32 *word);
void tb__lives_detach(struct tb__lives *lives, struct tb__page_map *map, struct tb__a32 *word);

#endif

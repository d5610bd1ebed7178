/* One output of a node: its subscribers, each with a ring, a page and the frames kept for it.
 *
 * Subscribers come and go on the service thread (requests, hang-ups); sending threads write to
 * them. The output's mutex guards the list; it is never held while waiting or while a large value
 * is copied. A subscriber that dies is skipped at once (its life word) and removed at its hang-up.
 */
#ifndef TB_NODE_OUTPUT_H
#define TB_NODE_OUTPUT_H

#include <pthread.h>

#include "endpoint/bus.h"
#include "node/env.h"
#include "node/hold.h"
#include "segment/stream_ring.h"
#include "wire/stream.h"

/* A subscriber that the flow names, over all its lives: it may be restarted. */
struct tb__expected {
    int seen;       /* it was here */
    uint64_t taken; /* message of the output that it took last; those after it were not its yet */
};

struct tb__subscriber {
    struct tb__subscriber *next;
    uint32_t references; /* the list's and those of sleeping senders */
    uint64_t id;
    struct tb__lifeline *line;
    struct tb__page_map page;
    int page_fd; /* until the subscriber has mapped it */
    int mapped;
    struct tb__ring ring;
    struct tb__expected *expected; /* NULL: the flow does not name it */
    uint64_t before; /* newest message of the output when it came: its ring's n is before + n */
    enum tb__queue_policy policy;
    char input[TB__NAME_SIZE];
    struct tb__hold_queue holds;
    uint64_t last_frame; /* newest message that needs this process to open a frame */
};

struct tb__output {
    tb_bus *bus;
    const struct tb__output_config *config;
    struct tb__expected *expected; /* config->subscriber_count */
    pthread_mutex_t mutex;
    struct tb__subscriber *subscribers;
    uint64_t sequence;   /* of the newest message, also when nobody got it */
    uint32_t sleepers;   /* senders that wait for room */
    int32_t takers_ring; /* somebody waits until all was taken */
    int closed;
    struct tb__stream_pools_wire pools; /* behind the output: those that came last */
    uint32_t next_pool;                 /* place of the next one when there is no more room */
};

tb_status tb__output_init(struct tb__output *output, tb_bus *bus,
                          const struct tb__output_config *config);
/* After the service thread has ended. */
void tb__output_fini(struct tb__output *output);

/* Service thread. attach answers the request; the others return 1 when the stream is this output's.
 */
void tb__output_attach(struct tb__output *output, struct tb__lifeline *line, uint32_t request,
                       const struct tb__stream_open_wire *open, uint64_t id);
int tb__output_mapped(struct tb__output *output, struct tb__lifeline *line, uint64_t id);
int tb__output_detach(struct tb__output *output, struct tb__lifeline *line, uint64_t id);
int tb__output_taken(struct tb__output *output, struct tb__lifeline *line, uint64_t id);
int tb__output_list_pools(struct tb__output *output, const struct tb__lifeline *line, uint64_t id,
                          struct tb__stream_pools_wire *out);
void tb__output_hangup(struct tb__output *output, struct tb__lifeline *line);

/* Any thread. */
/* Index of the first expected subscriber that has not been here and is not gone; -1: none. */
int tb__output_missing(struct tb__output *output, int (*gone)(void *context, const char *node),
                       void *context);
/* Let go of frames whose messages were taken. Returns how many. */
uint32_t tb__output_reap(struct tb__output *output);
/* Give up the oldest frame that is kept for a drop_oldest subscriber. Returns 0: there is none. */
uint32_t tb__output_give_up_oldest(struct tb__output *output);
/* No more messages: subscribers get what was sent, then the end. */
void tb__output_close(struct tb__output *output);
/* Whether every living subscriber has taken all messages that need this process. */
int tb__output_drained(struct tb__output *output);
/* Whether subscribers shall ring when they take a message. */
void tb__output_wait_for_takers(struct tb__output *output, int wait);
/* Let go of all frames. */
void tb__output_release(struct tb__output *output);

/* Mutex held. */
/* A frame of this pool is about to be sent: subscribers are told of a pool that is new. */
void tb__output_note_pool(struct tb__output *output, const uint8_t uid[16]);
int tb__subscriber_is_dead(const struct tb__subscriber *subscriber);
int tb__subscriber_has_room(const struct tb__subscriber *subscriber);
/* Wake it if it sleeps; after a full fence behind the message. */
void tb__subscriber_wake(struct tb__subscriber *subscriber);
/* Write the waiting word anew from what is kept and who sleeps. */
void tb__subscriber_set_waiting(struct tb__output *output, struct tb__subscriber *subscriber);
void tb__subscriber_unref(struct tb__output *output, struct tb__subscriber *subscriber);

#endif

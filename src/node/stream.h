/* A stream, for its subscriber: the ring and the page of one output of another process. */
#ifndef TB_NODE_STREAM_H
#define TB_NODE_STREAM_H

#include "endpoint/bus.h"
#include "node/env.h"
#include "segment/stream_ring.h"
#include "wire/stream.h"

struct tb__stream {
    tb_bus *bus;
    struct tb__lifeline *line;
    struct tb__page_map page;
    struct tb__ring ring;
    uint64_t id;
    uint64_t missed; /* messages before the stream's first that a former life did not take */
    uint64_t cursor; /* number of the message that was taken last */
    int64_t died_ns; /* when its sender was first seen dead; 0: alive */
};

struct tb__stream_options {
    const char *node; /* the sender */
    const char *output;
    const char *input; /* "" when the subscriber is no node */
    uint32_t queue_size;
    enum tb__queue_policy policy;
};

/* Subscribe. Waits for the sender's endpoint until the deadline (TB_E_NOT_FOUND); TB_CLOSED when
 * the sender is just closing. The caller ends it with tb__stream_close(). */
tb_status tb__stream_open(tb_bus *bus, const struct tb__stream_options *options,
                          int64_t deadline_ns, struct tb__stream **out);
void tb__stream_close(struct tb__stream *stream); /* NULL is allowed */
/* Attach to the pools whose frames have travelled in the stream. What fails is left to the frames'
 * handles. Waits for their owners, a second for one that does not answer. */
void tb__stream_open_pools(struct tb__stream *stream);

/* Whether no message can follow those that are in the ring. Ask before looking at the ring. A death
 * is acted upon a moment later; *out_wake_ns (if not NULL) is then set to that moment. */
int tb__stream_ended(struct tb__stream *stream, int64_t now_ns, int64_t *out_wake_ns);

/* Say that this thread will sleep, and take that back. After arming look at the ring once more. */
void tb__stream_arm(struct tb__stream *stream);
void tb__stream_disarm(struct tb__stream *stream);

/* Move the cursor to this message; wakes a sender that waits for that. */
void tb__stream_advance(struct tb__stream *stream, const struct tb__ring_item *item);

#endif

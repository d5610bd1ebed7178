/* One input of a node: a timer, or the stream of another node's output.
 *
 * An input is open, away (its sender ended but may come back: a thread looks for it), or closed. It
 * belongs to the thread of tb_node_next(); the looking thread only hands a new stream over. */
#ifndef TB_NODE_INPUT_H
#define TB_NODE_INPUT_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/env.h"
#include "node/event.h"
#include "node/stream.h"
#include "node/timer.h"

struct tb_node;

enum tb__input_state {
    TB__INPUT_OPEN = 0,
    TB__INPUT_AWAY = 1,
    TB__INPUT_CLOSED = 2,
};

struct tb__input {
    struct tb_node *node;
    const struct tb__input_config *config;
    enum tb__input_state state;
    int told_closed;           /* INPUT_CLOSED was delivered */
    struct tb__timer timer;    /* of a timer */
    struct tb__stream *stream; /* while open; NULL for a timer */
    uint64_t dropped;          /* since the last event */
    uint32_t passed_over;      /* times in a row that another input's message was older */
    int64_t heard_ns;          /* when the newest message was sent, or the input opened */
    int told_silent;           /* the timeout was reported for this silence */
    /* While away. */
    pthread_t looking;
    int looking_started;
    _Atomic int quit;         /* the looking thread shall end */
    _Atomic int looked;       /* it has ended: with a stream, or for good */
    struct tb__stream *found; /* written before `looked` */
};

/* Subscribe, or start the timer. Waits until the sender is there, is known to be gone (the input is
 * closed then), or the node is asked to stop. */
tb_status tb__input_open(struct tb__input *input);
/* Unsubscribe. */
void tb__input_close(struct tb__input *input);

/* What an input has for tb_node_next(). */
enum tb__input_news {
    TB__NEWS_NONE = 0,
    TB__NEWS_MESSAGE = 1, /* or a tick; its stamp is set */
    TB__NEWS_CLOSED = 2,  /* the end, to be told */
    TB__NEWS_SILENT = 3,  /* input_timeout has passed */
    TB__NEWS_CORRUPT = 4, /* the sender's words make no sense: the last error says what */
};

struct tb__input_look {
    int64_t stamp_ns; /* of a message */
    struct tb__ring_item item;
};

/* Look without waiting. *wake_ns is lowered to when the next look is due without a ring. */
enum tb__input_news tb__input_look(struct tb__input *input, int64_t now_ns, int64_t *wake_ns,
                                   struct tb__input_look *out);

/* Take the message or tick that was found. TB_OK with an event; TB_AGAIN when there was none after
 * all (overwritten meanwhile, or a handle whose frame is gone: counted); TB_E_BUSY or TB_E_NOMEM:
 * it stays; TB_E_PROTOCOL: the sender is not to be trusted. */
tb_status tb__input_take(struct tb__input *input, const struct tb__input_look *look,
                         tb_event **out);

#endif

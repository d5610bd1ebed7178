/* Room for a message: in the queues of an output's subscribers, and in the pools and leases that
 * its frames need. Sending threads. */
#ifndef TB_NODE_ROOM_H
#define TB_NODE_ROOM_H

#include "node/node.h"

/* What an output's subscribers need, as far as known under its mutex. */
struct tb__survey {
    uint32_t subscribers; /* living */
    uint32_t backpressure;
    uint32_t room_bytes; /* of the smallest ring */
    int has_room;
};

/* Mutex held, but not while asleep. TB_OK with a survey that has room, TB_AGAIN at the deadline,
 * TB_CLOSED. */
tb_status tb__room_wait(struct tb__output *output, int64_t deadline_ns, struct tb__survey *out);

/* A frame could not be had: let go of what was taken, else (if `may_drop`: for a carrier) of what a
 * drop_oldest queue may lose, else wait for a subscriber of any output. TB_AGAIN at the deadline.
 */
tb_status tb__room_make(tb_node *node, struct tb__output *output, int may_drop,
                        int64_t deadline_ns);

#endif

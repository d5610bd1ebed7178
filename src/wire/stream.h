/* Bodies of the messages about streams, on a lifeline from a subscriber to a sender. */
#ifndef TB_WIRE_STREAM_H
#define TB_WIRE_STREAM_H

#include "wire/wire.h"

enum tb__stream_msg {
    /* Request, tb__stream_open_wire. Reply STREAM, or an error: TB_E_NOT_FOUND (no such output),
     * TB_E_LIMIT (quota). The stream of a closed output is at its end from the beginning. */
    TB__MSG_STREAM_OPEN = TB__MSG_STREAM_FIRST,
    TB__MSG_STREAM = TB__MSG_STREAM_FIRST + 1, /* tb__stream_opened_wire, the ring, the page */
    TB__MSG_STREAM_MAPPED = TB__MSG_STREAM_FIRST + 2, /* request, tb__stream_wire; reply OK */
    TB__MSG_STREAM_CLOSE = TB__MSG_STREAM_FIRST + 3,  /* tb__stream_wire */
    /* tb__stream_wire: a message whose frame the sender keeps was taken. Sent only while the page's
     * waiting word has TB__WAITS_FOR_HOLDS. */
    TB__MSG_STREAM_TAKEN = TB__MSG_STREAM_FIRST + 4,
    /* Request, tb__stream_wire: the pools behind a stream. Reply STREAM_POOL_LIST. */
    TB__MSG_STREAM_POOLS = TB__MSG_STREAM_FIRST + 5,
    TB__MSG_STREAM_POOL_LIST = TB__MSG_STREAM_FIRST + 6, /* tb__stream_pools_wire */
    /* Sender to subscriber, tb__stream_pool_wire: frames of one more pool travel in a stream. */
    TB__MSG_STREAM_POOL = TB__MSG_STREAM_FIRST + 7,
};

/* Bits of a stream page's waiting word. */
#define TB__WAITS_FOR_ROOM 1u  /* a thread sleeps until there is room: ring */
#define TB__WAITS_FOR_HOLDS 2u /* frames are kept for this subscriber: send STREAM_TAKEN */

struct tb__stream_open_wire {
    uint32_t queue_size;
    uint32_t policy; /* 0 drop_oldest, 1 backpressure */
    char output[TB__NAME_SIZE + 7];
    char input[TB__NAME_SIZE + 7]; /* of the subscriber; "" when it is no node */
};
_Static_assert(sizeof(struct tb__stream_open_wire) == 152, "stream open");

struct tb__stream_wire {
    uint64_t stream_id; /* unique in the sender's process */
};

struct tb__stream_opened_wire {
    uint64_t stream_id;
    uint64_t missed; /* messages between the last that a former life of the subscriber took, and the
                      * first of this stream; 0 for a subscriber that the flow does not name */
};
_Static_assert(sizeof(struct tb__stream_opened_wire) == 16, "stream opened");

struct tb__stream_pool_wire {
    uint8_t uid[16];
};

#define TB__STREAM_POOLS 16 /* that an output remembers: those that came to it last */
struct tb__stream_pools_wire {
    uint32_t count;    /* 0 to TB__STREAM_POOLS */
    uint32_t reserved; /* 0 */
    struct tb__stream_pool_wire pools[TB__STREAM_POOLS];
};
_Static_assert(sizeof(struct tb__stream_pools_wire) == 264, "stream pools");

#endif

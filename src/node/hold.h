/* A hold: a frame that a sender keeps leased for messages in flight. One hold is shared by the
 * queues of all subscribers that still may want the frame; the last one to let go releases it. */
#ifndef TB_NODE_HOLD_H
#define TB_NODE_HOLD_H

#include <stdatomic.h>
#include <stdint.h>

#include <tensorbus/reader.h>

struct tb__hold {
    _Atomic uint32_t references;
    _Atomic uint32_t *users; /* of what the frame came from: counted down at the end */
    tb_frame *frame;
};

/* Takes the frame over, on failure too. *users has been counted up by the caller. */
tb_status tb__hold_create(tb_frame *take_frame, _Atomic uint32_t *users, struct tb__hold **out);
void tb__hold_unref(struct tb__hold *hold); /* NULL is allowed */

/* The holds of one subscriber in the order of its messages. Guarded by the output's mutex. */
struct tb__hold_queue {
    struct tb__hold_entry {
        uint64_t sequence;
        struct tb__hold *hold;
    } * entries;
    uint32_t capacity; /* 0 or a power of two */
    uint32_t first;
    uint32_t count;
};

/* Make room for `more` entries, so that pushing cannot fail. */
tb_status tb__hold_queue_reserve(struct tb__hold_queue *queue, uint32_t more);
/* Add a reference to a hold for the message of this number. */
void tb__hold_queue_push(struct tb__hold_queue *queue, uint64_t sequence, struct tb__hold *hold);
/* Let go of everything up to this message. Returns how many. */
uint32_t tb__hold_queue_release(struct tb__hold_queue *queue, uint64_t up_to_sequence);
/* Let go of the oldest. Returns 0 when there is none. */
uint32_t tb__hold_queue_release_oldest(struct tb__hold_queue *queue);
void tb__hold_queue_fini(struct tb__hold_queue *queue);

#endif

/* The ring of a stream: the newest messages of one output for one subscriber.
 *
 * A memfd of the sender that the subscriber maps read-only: one page of header, then queue_size + 2
 * slots of equal size. The sender writes message n (from 1) into slot n mod slots: it claims n,
 * writes, then moves the head to n. It never waits here; whether there is room in a backpressure
 * queue is the caller's question. The subscriber copies a message out and then looks at the claim
 * (a seqlock): the two spare slots let the sender go on while a copy is being made. What was
 * published stays readable for as long as the subscriber maps it, whatever becomes of the sender.
 *
 * Threads: one writer at a time (the output's mutex), one subscriber thread at a time. */
#ifndef TB_SEGMENT_STREAM_RING_H
#define TB_SEGMENT_STREAM_RING_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "segment/atomics.h"

#define TB__QUEUE_MAX 65536
#define TB__INLINE_MAX 32768 /* larger values travel as frames */

#define TB__RING_MAGIC UINT64_C(0x31474e5252534254) /* "TBSRRNG1" */
#define TB__RING_HEADER_BYTES 4096

struct tb__ring_shm {
    /* Line 0: written once by the sender, before the subscriber maps it. */
    uint64_t magic;
    uint32_t queue_size;
    uint32_t slot_count;
    uint32_t slot_bytes;
    uint32_t pad0[11]; /* written 0 */
    /* Line 1: written by the sender, read by the subscriber. */
    struct tb__a64 claim; /* number of the message that is being written, or the newest */
    struct tb__a64 head;  /* number of the newest complete message; 0: none */
    uint8_t pad1[48];     /* written 0 */
};
_Static_assert(offsetof(struct tb__ring_shm, slot_bytes) == 16, "ring: slot_bytes");
_Static_assert(offsetof(struct tb__ring_shm, claim) == 64, "ring: claim");
_Static_assert(offsetof(struct tb__ring_shm, head) == 72, "ring: head");
_Static_assert(sizeof(struct tb__ring_shm) == 128, "ring: header");

/* In front of each slot's message. */
struct tb__ring_slot_shm {
    struct tb__a64 sequence;
    struct tb__a64 stamp_ns;
    struct tb__a64 bytes;
    struct tb__a64 pad; /* written 0 */
    struct tb__a64 words[];
};
_Static_assert(sizeof(struct tb__ring_slot_shm) == 32, "ring: slot");

/* Sizes that follow from the queue size; both sides compute them. */
struct tb__ring_geometry {
    uint32_t queue_size;
    uint32_t slot_count;
    uint32_t slot_bytes;
    uint32_t room_bytes; /* largest message */
    uint64_t bytes;      /* of the memfd */
};

struct tb__ring {
    uint8_t *base; /* NULL when not mapped; read-only at the subscriber */
    struct tb__ring_geometry geometry;
};

/* TB_E_INVALID for a queue size of 0 or above TB__QUEUE_MAX. */
tb_status tb__ring_measure(uint32_t queue_size, struct tb__ring_geometry *out);

/* Sender: create the memfd, map it and seal it against everybody else's writing. */
tb_status tb__ring_create(struct tb__ring *ring, uint32_t queue_size, int *out_take_fd);
/* Subscriber: check and map what a sender sent. */
tb_status tb__ring_map(struct tb__ring *ring, uint32_t queue_size, int borrow_fd);
void tb__ring_unmap(struct tb__ring *ring);

/* Part of a message; offsets are multiples of 8 and rise. */
struct tb__ring_part {
    size_t offset;
    const void *data;
    size_t bytes;
};

/* Sender: publish message head + 1 of `bytes` <= room_bytes, made of parts. Returns its number. */
uint64_t tb__ring_write(struct tb__ring *ring, int64_t stamp_ns, size_t bytes,
                        const struct tb__ring_part *parts, size_t part_count);

/* Number of the newest complete message. */
uint64_t tb__ring_head(const struct tb__ring *ring);

/* The next message that a subscriber with this cursor should take. */
struct tb__ring_item {
    uint64_t sequence;
    uint64_t skipped; /* messages between cursor and this one, gone for good */
    int64_t stamp_ns;
    size_t bytes;
};

/* Subscriber: TB_OK; TB_AGAIN when there is none; TB_E_CORRUPT when the sender's words make no
 * sense. */
tb_status tb__ring_peek(const struct tb__ring *ring, uint64_t cursor, struct tb__ring_item *out);

/* Subscriber: copy a message out; `out` has room for item->bytes rounded up to 8. TB_AGAIN when it
 * was overwritten meanwhile: peek again. */
tb_status tb__ring_copy(const struct tb__ring *ring, const struct tb__ring_item *item, void *out);

#endif

/* Readers that order themselves on a GPU. */
#ifndef TB_POOL_GATE_H
#define TB_POOL_GATE_H

#include "pool/state.h"

/* The slot's word as this reader may see it: a pending frame is one to who orders itself on a GPU.
 */
static inline uint64_t tb__reader_word(const tb_reader *reader, uint32_t slot)
{
    if (__builtin_expect(reader->gates != NULL, 0)) {
        /* Pairs with the owner's release store in issue(). */
        uint64_t pending = tb__a64_load_acquire(&reader->segment.records[slot].pending);
        if (pending != 0) {
            return pending;
        }
    }
    return tb__a64_load_relaxed(&reader->segment.gens[slot]);
}

/* The newest frame that this reader may see. */
static inline uint64_t tb__reader_newest(const tb_reader *reader)
{
    /* Pairs with the publisher's release store of the head. */
    uint64_t head = tb__a64_load_acquire(reader->segment.head);
    if (__builtin_expect(reader->gates != NULL, 0)) {
        /* Pairs with tb__order_issued(). */
        uint64_t issued = tb__a64_load_acquire(&reader->segment.counters->issued);
        if (issued != 0 && (head == 0 || tb__gen_distance(head, issued) > 0)) {
            return issued;
        }
    }
    return head;
}

/* The owner is dying or dead: open the gates of what it left unfinished. Any thread. Returns how
 * many frames were given up by this call. */
uint32_t tb__gates_give_up(tb_reader *reader);

/* A stream has given a frame back: count it if it was incomplete. The frame is the caller's. */
void tb__frame_passed(tb_frame *frame);

/* Before the reader is unmapped: wait, for 10 s at most, until no stream of this process uses its
 * words any more. Returns 0 when one still may. */
int tb__reader_streams_end(tb_reader *reader);

#endif

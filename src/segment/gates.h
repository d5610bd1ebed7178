/* Gates: a memfd of 4096 bytes shared by one reader that orders itself on a GPU and the owner
 * alone; the page's second leaf, apart from it because both sides register it with their GPU.
 *
 * The owner's stream writes the generation of a frame into its slot's gate when the frame is done;
 * the reader's stream waits until the gate has reached it. When the owner dies, the reader's own
 * process opens the gates of unfinished frames, poisoned, and notes the generation in `poisoned`,
 * where it stays even if the dying GPU work still writes the gate. */
#ifndef TB_SEGMENT_GATES_H
#define TB_SEGMENT_GATES_H

#include <tensorbus/pool.h>

#include "base/error.h"
#include "segment/atomics.h"

#define TB__GATES_BYTES 4096
/* A gate that was opened for g although g is incomplete holds g + 1: g is reached (the comparison
 * is cyclic), the slot's next frame is not, and the value tells itself apart because it is odd. */
#define TB__GATE_POISON 1

struct tb__gates_shm {
    /* Written by the owner's streams and its process, and by the reader's process at the owner's
     * end; read by the reader's streams. */
    struct tb__a64 gate[TB_MAX_SLOTS];
    /* Written and read by the reader's process, and by kernels of its that want to know. */
    struct tb__a64 poisoned[TB_MAX_SLOTS];
};
_Static_assert(sizeof(struct tb__gates_shm) == TB__GATES_BYTES, "gates: one page");

/* As a stream compares: whether the gate's value has reached g. */
static inline int tb__gate_reached(uint64_t value, uint64_t g)
{
    return (int64_t)(value - g) >= 0;
}

/* Whether the value was written for g by who gave the frame up. */
static inline int tb__gate_is_poison(uint64_t value, uint64_t g)
{
    return value == g + TB__GATE_POISON;
}

/* Raise a gate to `value` unless it has reached g. Returns 1 when this call did. */
static inline int tb__gate_raise(struct tb__a64 *gate, uint64_t g, uint64_t value)
{
    uint64_t seen = tb__a64_load_acquire(gate);
    while (!tb__gate_reached(seen, g)) {
        if (tb__a64_cas(gate, &seen, value)) {
            return 1;
        }
    }
    return 0;
}

/* Create the memfd, sealed against growing and shrinking, and map it. */
tb_status tb__gates_create(struct tb__gates_shm **out, int *out_take_fd);
/* Map what an owner sent, after checking the descriptor. */
tb_status tb__gates_map(int borrow_fd, struct tb__gates_shm **out);
/* Forbid any further writable mapping, change of seals, or hole. */
tb_status tb__gates_seal(int borrow_fd);
void tb__gates_unmap(struct tb__gates_shm **gates);

#endif

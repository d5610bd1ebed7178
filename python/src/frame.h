/* tensorbus.Frame: a tensor in its owner's memory, read-only.
 *
 * A Frame has one use of its lease; each exported view (NumPy array, memoryview, DLPack capsule)
 * has another, so a view outlives the Frame it was taken from. release() gives the Frame's use
 * back; an iteration does that to the frame of its former turn, unless hold() was called on it. */
#ifndef PY_FRAME_H
#define PY_FRAME_H

#include "lease.h"

int py_frame_add(PyObject *module);

/* A Frame of a tb_frame, which it takes, also on failure; `keep` and `gone` as in py_lease_new().
 */
PyObject *py_frame_new(struct py_bus *bus, PyObject *keep, void (*gone)(PyObject *keep),
                       tb_frame *take_frame);

/* The lease of a Frame that was not released, borrowed; NULL with InvalidError set, also for what
 * is no Frame (TypeError). */
struct py_lease *py_frame_lease(struct py_state *state, PyObject *object);

/* Who gives out one frame per turn keeps its last one here. */
struct py_turn {
    struct py_frame *frame; /* not owned; NULL: gone */
};
void py_turn_begin(struct py_turn *turn, PyObject *frame);
void py_turn_end(struct py_turn *turn); /* the frame ends, unless held; may release the GIL */

/* The turn is over without a next one: its frame lives on. */
void py_turn_forget(struct py_turn *turn);

#endif

/* The one line before the end: what writes into a frame's memory dies by SIGSEGV, and code that
 * cannot be told that memory is read-only (PyTorch in place, ctypes) leaves nobody a hint why.
 * While memory of frames is exported, a handler recognises such a fault by its address, writes one
 * line that names the pool and the way out, and passes on to whoever handled SIGSEGV before
 * (faulthandler, the default).
 *
 * Threads: add and remove with the GIL; the handler runs anywhere. */
#ifndef PY_GUARD_H
#define PY_GUARD_H

#include <stddef.h>

enum py_guard_kind {
    PY_GUARD_FRAME,     /* of a reader: read-only for good */
    PY_GUARD_VALUE,     /* of an event; the pool is an input */
    PY_GUARD_PUBLISHED, /* of a loan that was published while views of it are left */
};

/* Speak for an address range. Returns a number for py_guard_remove(); -1 when there are too many
 * ranges: nothing is lost but the line. */
int py_guard_add(enum py_guard_kind kind, const void *data, size_t bytes, const char *owner,
                 const char *pool);
void py_guard_remove(int number);

/* Others install handlers too, faulthandler.enable() say, in front of ours: called for each view,
 * this looks now and then and comes first again. Until then the line comes after what theirs says,
 * if theirs passes on to ours. */
void py_guard_look(void);

#endif

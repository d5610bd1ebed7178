/* A lease: one tb_frame, shared by the Frame objects and the exported views that look at it, and
 * given back when the last of them has gone. */
#ifndef PY_LEASE_H
#define PY_LEASE_H

#include "bus.h"

struct py_lease {
    tb_frame *frame;  /* NULL: its bus was closed */
    tb_tensor tensor; /* what the frame has, kept for after its end */
    tb_frame_info info;
    struct py_bus *bus; /* owned */
    PyObject *keep;     /* owned: what must outlive the frame (a reader, an event); or NULL */
    void (*gone)(PyObject *keep);
    size_t users; /* frames and views */
    size_t views;
    tb_cuda_stream stream; /* that works on the frame: it is given back in its order */
    int on_stream;
    struct py_lease *parent; /* owned: whose frame this holds once more; or NULL */
    int guard;               /* number of its range, -1: none */
    int64_t strides[TB_MAX_NDIM];
};

/* Takes the frame, also on failure. `keep` may be NULL; gone(keep), which may be NULL, is called
 * when the frame was given back. One user. NULL with an exception set. */
struct py_lease *py_lease_new(struct py_bus *bus, PyObject *keep, void (*gone)(PyObject *keep),
                              tb_frame *take_frame);

void py_lease_ref(struct py_lease *lease);

/* The last user's end gives the frame back. Returns what tb_frame_release_on() has said. The GIL
 * may be released meanwhile: whoever has the lease from somewhere forgets it there before. */
tb_status py_lease_unref(struct py_lease *lease);

/* A use of the frame on a stream: the stream waits for it, and it is given back in the stream's
 * order. That is this lease, or another of the same frame when a view of this one is in the order
 * of another stream. A new user of the lease; NULL with an exception set. The GIL may be released
 * meanwhile. */
struct py_lease *py_lease_on(struct py_lease *lease, tb_cuda_stream stream);

/* A view of the memory comes, and goes: counted for the bus, and guarded. A view is a user too. */
void py_lease_add_view(struct py_lease *lease);
void py_lease_drop_view(void *lease);

#endif

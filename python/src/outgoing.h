/* What Python sends: any object that a node can send, as a tb_value over its own memory. */
#ifndef PY_OUTGOING_H
#define PY_OUTGOING_H

#include "arrow.h"
#include "arrow_pack.h"
#include "module.h"
#include "tensor_in.h"

#define PY_MARK_SIZE 80

struct py_lease;
struct py_value;

struct py_outgoing {
    tb_value value;
    char mark[PY_MARK_SIZE]; /* "": none; see metadata.h */

    /* What the value points into; each may be empty. */
    Py_buffer buffer;
    struct py_source source;
    int has_source;
    struct py_lease *lease;
    struct py_value *received;
    struct py_arrow_in arrow;
    struct py_arrow_plan plan;
    tb_tensor tensor;
    tb_handle handle;
    PyObject *keep;
};

/* Look at an object; nothing is copied. The object must live until py_outgoing_end(), which is
 * called also after a failure. Returns -1 with an exception set. */
int py_outgoing_begin(struct py_state *state, PyObject *object, struct py_outgoing *out);
void py_outgoing_end(struct py_outgoing *out);

#endif

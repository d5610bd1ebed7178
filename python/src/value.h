/* tensorbus.Value: what an event brought, in the memory where it is.
 *
 * Bytes, a tensor, or an Arrow array. A Value belongs to its event and is valid as long; what is
 * exported from it (arrays, memoryviews, DLPack and Arrow capsules) is a view of the event and
 * keeps its memory. */
#ifndef PY_VALUE_H
#define PY_VALUE_H

#include "arrow_tree.h"
#include "event.h"

enum py_value_kind {
    PY_VALUE_BYTES,
    PY_VALUE_TENSOR,
    PY_VALUE_COLUMN, /* an Arrow array that is a tensor of one dimension */
    PY_VALUE_ARROW,  /* an Arrow array in a message of its own, see arrow_wire.h */
};

#define PY_FORMAT_SIZE 72

struct py_value {
    PyObject_HEAD struct py_event *event; /* NULL only for a value over a user's bytes, in tests */
    enum py_value_kind kind;
    tb_tensor tensor;            /* row-major; of bytes for BYTES and ARROW */
    char format[PY_FORMAT_SIZE]; /* COLUMN: Arrow's, which says more than the dtype */
    int raw;                     /* see view.h */
    Py_buffer source;            /* without an event */
};

int py_value_add(PyObject *module);

/* The value of an INPUT: None, a str, a Frame or a Value. A new reference. */
PyObject *py_value_of_event(struct py_event *event);

int py_value_check(struct py_state *state, PyObject *object);

/* Its memory is there: 0; else -1 with an exception set. */
int py_value_alive(struct py_value *value);

/* Something looks at its memory, and no longer. With the GIL. */
void py_value_view_begin(struct py_value *value);
void py_value_view_end(void *value);

/* What its message says it is; "" for bytes and tensors. */
void py_value_mark(const struct py_value *value, char *out, size_t size);

/* arrow.c: the value as an Arrow array, with a view of its own; NULL with an exception set. */
struct py_arrow_tree *py_value_tree(struct py_value *value);
PyObject *py_value_arrow_schema(PyObject *self, PyObject *unused);
PyObject *py_value_arrow_array(PyObject *self, PyObject *args, PyObject *kwargs);

#endif

/* Arrow's PyCapsule interface: arrays in and out of Python objects. */
#ifndef PY_ARROW_H
#define PY_ARROW_H

#include "arrow_abi.h"
#include "arrow_fail.h"
#include "arrow_tree.h"
#include "module.h"

/* An array that an object has given: in capsules, or the only one of a stream. */
struct py_arrow_in {
    const struct ArrowSchema *schema;
    const struct ArrowArray *array;
    PyObject *schema_capsule;
    PyObject *array_capsule;
    struct ArrowSchema own_schema;
    struct ArrowArray own_array;
};

/* Whether an object has __arrow_c_array__ or __arrow_c_stream__. */
int py_arrow_like(PyObject *object);

/* Ask an object for its array. Returns -1 with an exception set; to be closed either way. */
int py_arrow_in_open(PyObject *object, struct py_arrow_in *out);
void py_arrow_in_close(struct py_arrow_in *in);

/* What __arrow_c_schema__() and __arrow_c_array__() return for a tree, whose reference is taken;
 * NULL with an exception set, also for NULL. */
PyObject *py_arrow_schema_capsule(struct py_arrow_tree *take_tree);
PyObject *py_arrow_capsules(struct py_arrow_tree *take_tree);

/* The arguments of __arrow_c_array__(). Returns -1 with an exception set. */
int py_arrow_parse(PyObject *args, PyObject *kwargs);

/* pyarrow.array(object). */
PyObject *py_arrow_pyarrow(PyObject *object);

/* For a tree's release(): call release(keep) with the GIL. Consumers let go on any thread, with the
 * GIL or without, now and then when Python has ended. */
void py_arrow_let_go(void (*release)(void *keep), void *keep);

/* Raise an error of the arrow_*.c files. */
void py_arrow_raise(struct py_state *state, const struct py_arrow_error *error);

#endif

/* Arrow's PyCapsule interface: arrays in and out of Python objects. */
#ifndef PY_ARROW_H
#define PY_ARROW_H

#include "arrow_abi.h"
#include "arrow_fail.h"
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

/* Raise an error of the arrow_*.c files. */
void py_arrow_raise(struct py_state *state, const struct py_arrow_error *error);

#endif

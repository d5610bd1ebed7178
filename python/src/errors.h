/* Exceptions: tensorbus.Error, and one class per tb_status that a call can fail with. Each has
 * .status (the number), .text (the sentence), .errno (None unless a system call failed) and .where
 * (the C function that recognised it). */
#ifndef PY_ERRORS_H
#define PY_ERRORS_H

#include "module.h"

int py_errors_add(PyObject *module);

/* Raise what the thread's last failing call has left in tb_last_error(). Call it before any other
 * call of the library; the GIL may have been released and taken meanwhile. Returns NULL. */
PyObject *py_raise(struct py_state *state, tb_status status);

/* Raise a failure that was recognised here: `format` is PyUnicode_FromFormat's. Returns NULL. */
PyObject *py_fail(struct py_state *state, tb_status status, const char *format, ...);

/* The class of a status, borrowed; tensorbus.Error for one that has none. */
PyObject *py_error_class(const struct py_state *state, tb_status status);

/* Whether the exception that is set is of a status' class; then it is cleared. */
int py_error_is(struct py_state *state, tb_status status);

#endif

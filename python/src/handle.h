/* tensorbus.Handle: the 48 bytes that name a frame. An immutable value: compared, hashed, pickled
 * and sent as its bytes. */
#ifndef PY_HANDLE_H
#define PY_HANDLE_H

#include "module.h"

int py_handle_add(PyObject *module);

PyObject *py_handle_new(struct py_state *state, const tb_handle *handle);

/* A Handle, or 48 bytes of anything with the buffer protocol. Returns -1 with an exception set. */
int py_handle_from(struct py_state *state, PyObject *object, tb_handle *out);

/* Whether an object is a Handle. */
int py_handle_check(struct py_state *state, PyObject *object);

#endif

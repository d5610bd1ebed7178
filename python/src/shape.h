/* Shapes, dtypes and devices of "something like this": an array, a tensor, a Spec. */
#ifndef PY_SHAPE_H
#define PY_SHAPE_H

#include "module.h"

/* A shape out of a sequence of integers, or of one integer. Returns -1 with an exception set. */
int py_shape_from(struct py_state *state, PyObject *object, tb_tensor *out);

/* dtype, shape and device of whatever has .shape and .dtype, or is a tensor (tensor_in.h). */
int py_like(struct py_state *state, PyObject *object, tb_tensor *out);

/* "cpu", "cuda:1", torch.device("cuda", 1); None leaves *out alone. */
int py_device_from(struct py_state *state, PyObject *object, tb_device *out);

#endif

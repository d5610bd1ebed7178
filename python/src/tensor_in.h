/* Any Python object that is a tensor, seen as a tb_tensor without a copy: NumPy arrays and scalars,
 * bytes, memoryviews, everything with the buffer protocol, with DLPack (PyTorch, JAX, CuPy) or with
 * __array_interface__. */
#ifndef PY_TENSOR_IN_H
#define PY_TENSOR_IN_H

#include "stream.h"

struct py_source {
    tb_tensor tensor; /* any strides; data of what keeps it alive below */
    int64_t strides[TB_MAX_NDIM];
    Py_buffer view; /* view.obj NULL: none */
    PyObject *keep; /* or NULL */
};

/* Look at an object's elements until py_source_close(). A source whose elements do not lie at
 * multiples of their size is copied. Returns -1 with an exception set: TypeError when the object is
 * no tensor, InvalidError for elements that cannot be shared. */
int py_source_open(struct py_state *state, PyObject *object, struct py_source *out);

/* The same for a use on a stream: what a GPU is still writing there is ordered before it. The other
 * is for the legacy default stream. */
int py_source_open_on(struct py_state *state, PyObject *object, tb_cuda_stream stream,
                      struct py_source *out);
void py_source_close(struct py_source *source); /* keeps an exception that is set */

/* Whether an object can be a tensor at all: cheap, for who has to choose among kinds of values. */
int py_source_like(PyObject *object);

#endif

/* Buffers over tensors: the part of the buffer protocol that frames and loans share. */
#ifndef PY_VIEW_H
#define PY_VIEW_H

#include "module.h"

/* Shape and strides of one exported buffer, in bytes, and what it belongs to. */
struct py_view {
    Py_ssize_t shape[TB_MAX_NDIM];
    Py_ssize_t strides[TB_MAX_NDIM];
    void *context;
};

/* Fill a buffer for `flags`; its internal is a new struct py_view with `context`. `raw`: elements
 * that have no format of their own are exported as unsigned integers of their size. Returns -1 with
 * BufferError set. */
int py_view_fill(Py_buffer *view, PyObject *exporter, const tb_tensor *tensor, int read_only,
                 int raw, int flags, void *context);

/* In bf_releasebuffer: frees the view and returns its context. */
void *py_view_release(Py_buffer *view);

/* A NumPy array over `exporter`, whose bf_getbuffer must honour *raw (set meanwhile). The array
 * keeps the buffer exported. */
PyObject *py_view_numpy(struct py_state *state, PyObject *exporter, tb_dtype dtype, int *raw);

/* A copy of an array; takes the reference, which may be NULL with an exception set. */
PyObject *py_view_copy(PyObject *array);

/* __array__(dtype=None, copy=None) of an object whose elements numpy(self, NULL) shows: a copy
 * where one is asked for or needed; ValueError where one is needed and copy=False forbids it. */
PyObject *py_view_array(PyObject *self, PyCFunction numpy, PyObject *args, PyObject *kwargs);

/* (1080, 1920, 3) */
PyObject *py_shape_tuple(const tb_tensor *tensor);

#endif

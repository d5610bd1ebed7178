/* A Frame as an Arrow array: the methods of frame.c for it. */
#ifndef PY_FRAME_ARROW_H
#define PY_FRAME_ARROW_H

#include "module.h"

PyObject *py_frame_arrow(PyObject *self, PyObject *unused);
PyObject *py_frame_arrow_schema(PyObject *self, PyObject *unused);
PyObject *py_frame_arrow_array(PyObject *self, PyObject *args, PyObject *kwargs);

#endif

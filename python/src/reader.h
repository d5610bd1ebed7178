/* tensorbus.Reader: an attachment to a pool, and the loops over its frames. */
#ifndef PY_READER_H
#define PY_READER_H

#include "frame.h"

struct py_reader {
    PyObject_HEAD struct py_bus *bus; /* owned; NULL: not opened */
    tb_reader *reader;                /* NULL: closed */
    PyObject *path;                   /* str or Handle */
    size_t users;                     /* calls without the GIL, and leases */
    int closed;                       /* by close(); atomic: looked at by waiting threads */
};

int py_reader_add(PyObject *module);
int py_frames_add(PyObject *module);

/* The next frame in order, or the newest. NULL with an exception set; with `quiet`, NULL without
 * one when there is nothing within the timeout. */
PyObject *py_reader_take(struct py_reader *reader, int newest, int64_t timeout_ns, int quiet);

/* A loop over a reader: an iterator whose frames end with their turn. */
PyObject *py_frames_new(struct py_reader *reader);

#endif

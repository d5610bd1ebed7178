/* The extension module `tensorbus._core`: what its files share.
 *
 * Each file of this folder owns one noun and has one function `py_<noun>_add()` that puts its types
 * and functions into the module; module.c calls them in order. A file that adds a type adds one
 * name to `enum py_slot` and one line to the table in module.c. Types are final heap types, made
 * once per interpreter, so that Py_TYPE(self) leads to the module's state.
 *
 * Threads: everything runs with the GIL held, unless a comment says otherwise. */
#ifndef PY_MODULE_H
#define PY_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <tensorbus/tensorbus.h>

/* What the state keeps a reference to. */
enum py_slot {
    PY_BUS_TYPE,
    PY_HANDLE_TYPE,
    PY_FRAME_TYPE,
    PY_POOL_TYPE,
    PY_LOAN_TYPE,
    PY_READER_TYPE,
    PY_FRAMES_TYPE,
    PY_FRAME_INFO_TYPE,
    PY_POOL_STATS_TYPE,
    PY_READER_STATS_TYPE,
    PY_VALUE_TYPE,
    PY_EVENT_TYPE,
    PY_NODE_TYPE,
    PY_NUMPY_ASARRAY, /* numpy.asarray; NULL: NumPy was not needed yet */
    PY_DEFAULT_BUS,   /* NULL: none is open */
    PY_SLOT_COUNT,
};

#define PY_ERROR_COUNT 24

struct py_bus;

struct py_state {
    PyObject *slots[PY_SLOT_COUNT];
    PyObject *error;                  /* tensorbus.Error */
    PyObject *errors[PY_ERROR_COUNT]; /* one class per status: errors.c */
    struct py_bus *buses;             /* all that exist, for the interpreter's end; not owned */
    int forked;                       /* this process is a child of the one that imported us */
    int worker;       /* multiprocessing will close the buses at this worker's end */
    PyObject *module; /* not owned */
};

/* State of the module that made self's type. */
struct py_state *py_state_of(PyObject *self);
struct py_state *py_state_of_module(PyObject *module);

/* Make a heap type and add it to the module under the last part of its name. Returns -1 with an
 * exception set. */
int py_type_add(PyObject *module, enum py_slot slot, PyType_Spec *spec);

/* Free a heap type's instance: after the fields were given back. */
void py_object_free(PyObject *self);

#endif

/* Pool.register(). */
#ifndef PY_POOL_REGISTER_H
#define PY_POOL_REGISTER_H

#include "module.h"

PyObject *py_pool_register(PyObject *type, PyObject *args, PyObject *kwargs);
extern const char py_pool_register_doc[];

#endif

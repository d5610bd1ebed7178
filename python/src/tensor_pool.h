/* The four verbs of dora's tensor-pool: register(), write(), read(), free(). */
#ifndef PY_TENSOR_POOL_H
#define PY_TENSOR_POOL_H

#include "module.h"

int py_tensor_pool_add(PyObject *module);

#endif

/* The extension channel (tensorbus/extension.h): functions that take a tensorbus.Node first. */
#ifndef PY_EXTENSION_H
#define PY_EXTENSION_H

#include "module.h"

int py_extension_add(PyObject *module);

#endif

/* Whether anything but the user's own variable can still reach a loan's array. */
#ifndef PY_ALONE_H
#define PY_ALONE_H

#include "module.h"

/* `array` is a NumPy array over another one (its base) that nobody was given. 1 when a variable of
 * the calling Python function (or module) is all that refers to it, and nothing was made from it:
 * no slice, no tensor, no memoryview. 0 when something was, or when it cannot be told. The caller
 * has one reference of its own. Never sets an exception. */
int py_alone(PyObject *array);

#endif

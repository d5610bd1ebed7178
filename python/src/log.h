/* The library's log lines, handed to Python's `logging` as records of "tensorbus.<topic>". */
#ifndef PY_LOG_H
#define PY_LOG_H

#include "module.h"

int py_log_add(PyObject *module);

/* Pass on what has been logged since. Called after calls that may have logged, in waits, and by the
 * main thread soon after any line; keeps an exception that is set. */
void py_log_drain(void);

/* A line of our own, at once: `level` is logging's number. Keeps an exception that is set. */
void py_log(int level, const char *topic, PyObject *text);

#endif

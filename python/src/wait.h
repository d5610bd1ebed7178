/* Calls that may wait: without the GIL, and ended by a signal whose Python handler raises (Ctrl-C),
 * or by the bus being closed.
 *
 *     struct py_wait wait;
 *     py_wait_begin(&wait, bus);
 *     tb_status status = tb_reader_next(reader, timeout_ns, &frame);
 *     if (py_wait_end(&wait) != 0) {
 *         ... give back what the call has returned, unless bus->bus is NULL: an exception is set
 *     }
 *
 * What the call has returned belongs to its bus. Between py_wait_end() and its first use nothing
 * may run that is written in Python (handing on log lines included): it may close the bus. */
#ifndef PY_WAIT_H
#define PY_WAIT_H

#include "module.h"

struct py_wait {
    struct py_bus *bus;
    const int *closed;     /* non-zero: the object that the call is for was closed; or NULL */
    PyThreadState *thread; /* while the GIL is released */
    struct py_wait *outer; /* a signal handler that waits came while this thread waited */
    int raised;
};

/* Between the two no Python object may be touched. The bus counts the call: it is not closed
 * meanwhile. `bus` may be NULL for a call that needs none. */
void py_wait_begin(struct py_wait *wait, struct py_bus *bus);

/* The same for a call on an object: setting *closed ends it with ClosedError. */
void py_wait_begin_on(struct py_wait *wait, struct py_bus *bus, const int *closed);

/* Returns -1 with an exception set when the wait was interrupted, or the bus or the object is
 * closed by now, be it by a signal's handler that runs here. tb_last_error() is untouched. */
int py_wait_end(struct py_wait *wait);

/* A Python timeout in seconds: None is for ever, 0 polls. Returns -1 with an exception set for what
 * is no number, negative or not a number. */
int py_timeout(PyObject *seconds, int64_t *out_ns);

/* For PyArg_ParseTupleAndKeywords "O&": as py_timeout(); 1 on success. */
int py_timeout_converter(PyObject *seconds, void *out_ns);

#endif

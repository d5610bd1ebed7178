/* Waiting without the GIL. Every thread that waits is asked now and then whether it shall go on:
 * that is where Python's signal handlers run. */
#include "wait.h"

#include <tensorbus/embed.h>

#include "bus.h"
#include "errors.h"
#include "log.h"

/* Without the GIL. */
static int is_closed(const struct py_wait *wait)
{
    return (wait->bus != NULL && py_bus_is_closing(wait->bus)) ||
           (wait->closed != NULL && __atomic_load_n(wait->closed, __ATOMIC_RELAXED));
}

/* This thread's innermost wait. */
static _Thread_local struct py_wait *innermost;

/* Runs without the GIL, on the waiting thread. */
static int shall_end(void *context)
{
    struct py_wait *wait = context;
    if (is_closed(wait)) {
        return 1;
    }
    PyEval_RestoreThread(wait->thread);
    if (PyErr_CheckSignals() != 0) {
        wait->raised = 1;
    } else {
        py_log_drain();
    }
    wait->thread = PyEval_SaveThread();
    return wait->raised;
}

void py_wait_begin(struct py_wait *wait, struct py_bus *bus)
{
    py_wait_begin_on(wait, bus, NULL);
}

void py_wait_begin_on(struct py_wait *wait, struct py_bus *bus, const int *closed)
{
    *wait = (struct py_wait){.bus = bus, .closed = closed};
    if (bus != NULL) {
        py_bus_enter(bus);
    }
    wait->outer = innermost;
    innermost = wait;
    wait->thread = PyEval_SaveThread();
    tb_set_interrupt(shall_end, wait);
}

int py_wait_end(struct py_wait *wait)
{
    innermost = wait->outer;
    tb_set_interrupt(innermost != NULL ? shall_end : NULL, innermost);
    PyEval_RestoreThread(wait->thread);
    Py_XINCREF((PyObject *)wait->bus);
    if (wait->bus != NULL) {
        py_bus_leave(wait->bus);
    }
    /* A signal that came when nothing slept any more. Its handler may close the bus, too. */
    int failed = wait->raised || PyErr_CheckSignals() != 0;
    if (!failed && is_closed(wait)) {
        py_fail(wait->bus != NULL ? wait->bus->state : NULL, TB_CLOSED,
                "it was closed while a call waited on it");
        failed = 1;
    }
    Py_XDECREF((PyObject *)wait->bus);
    return failed ? -1 : 0;
}

int py_timeout(PyObject *seconds, int64_t *out_ns)
{
    if (seconds == NULL || seconds == Py_None) {
        *out_ns = TB_FOREVER;
        return 0;
    }
    double value = PyFloat_AsDouble(seconds);
    if (value == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "timeout must be seconds or None, not %R", seconds);
        }
        return -1;
    }
    if (!(value >= 0)) {
        PyErr_Format(PyExc_ValueError, "timeout must be 0 or more seconds, or None: not %R",
                     seconds);
        return -1;
    }
    /* Beyond 292 years is for ever. */
    *out_ns = value < 9.2e9 ? (int64_t)(value * 1e9) : TB_FOREVER;
    if (*out_ns == 0 && value > 0) {
        *out_ns = 1;
    }
    return 0;
}

int py_timeout_converter(PyObject *seconds, void *out_ns)
{
    return py_timeout(seconds, out_ns) == 0;
}

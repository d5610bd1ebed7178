/* Asking a node for its events; see node.h. */
#include "node.h"

#include <time.h>

#include <tensorbus/embed.h>

#include "errors.h"
#include "log.h"
#include "wait.h"

static void nap(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    PyThreadState *thread = PyEval_SaveThread();
    nanosleep(&pause, NULL);
    PyEval_RestoreThread(thread);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Wait until no other thread is in tb_node_next(). 1: it is free; 0: not in time; -1: an exception.
 */
static int await_turn(struct py_node *node, int64_t deadline_ns)
{
    while (node->in_next) {
        if (!node->in_fetch) {
            py_fail(py_state_of((PyObject *)node), TB_E_INVALID,
                    "another thread waits for the node's next event: one at a time may");
            return -1;
        }
        if (node->pending != NULL || now_ns() >= deadline_ns) {
            return node->pending != NULL;
        }
        nap(); /* a cancelled task's thread comes back within 50 ms */
        if (PyErr_CheckSignals() != 0 || py_node_check(node) != 0) {
            return -1;
        }
    }
    return 1;
}

/* Wait for an event: it is left in `pending`, an end or a failure in `pending_status`. Returns -1
 * with an exception set. */
static int take_next(struct py_node *node, int64_t timeout_ns)
{
    tb_event *event = NULL;
    struct py_wait wait;
    node->in_next = 1;
    py_wait_begin(&wait, node->bus);
    tb_status status = tb_node_next(node->node, timeout_ns, &event);
    int interrupted = py_wait_end(&wait) != 0;
    node->in_next = 0;
    if (status == TB_OK && py_bus_is_closing(node->bus)) {
        if (node->bus->bus != NULL) { /* else it is gone with its node */
            tb_event_release(event);
        }
    } else if (status == TB_OK) {
        node->pending = event;
    } else if (!interrupted && status != TB_AGAIN) {
        py_raise(py_state_of((PyObject *)node), status);
        return -1;
    }
    return interrupted ? -1 : 0;
}

/* The pending event as an object, whose turn begins. */
static PyObject *deliver(struct py_node *node)
{
    tb_event *event = node->pending;
    node->pending = NULL;
    return py_event_new(py_state_of((PyObject *)node), node->bus, event, &node->turn);
}

/* An event, or NULL: with an exception, or without one when nothing came in time. */
static PyObject *next_event(struct py_node *node, int64_t timeout_ns)
{
    py_event_turn_end(&node->turn);
    if (py_node_check(node) != 0) {
        return NULL;
    }
    if (node->in_next) {
        int64_t deadline_ns = timeout_ns == TB_FOREVER ? INT64_MAX : now_ns() + timeout_ns;
        if (await_turn(node, deadline_ns) <= 0) {
            return NULL;
        }
        int64_t left_ns = deadline_ns - now_ns();
        timeout_ns = timeout_ns == TB_FOREVER || left_ns < 0 ? timeout_ns : left_ns;
    }
    if (node->pending == NULL && take_next(node, timeout_ns) != 0) {
        return NULL;
    }
    return node->pending != NULL ? deliver(node) : NULL;
}

PyObject *py_node_next(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", NULL};
    int64_t timeout_ns = TB_FOREVER;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&:next", names, py_timeout_converter,
                                     &timeout_ns)) {
        return NULL;
    }
    PyObject *event = next_event((struct py_node *)self, timeout_ns);
    if (event == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return event;
}

PyObject *py_node_iterate(PyObject *self)
{
    PyObject *event = next_event((struct py_node *)self, TB_FOREVER);
    if (event == NULL && PyErr_Occurred()) {
        /* The end is no failure here. */
        (void)py_error_is(py_state_of(self), TB_CLOSED);
    }
    return event;
}

/* ------------------------------------------------------------------ events of asyncio */

/* The helper in _node.py has a thread that calls _fetch(), which leaves an event in `pending`; the
 * task then takes it from there. A cancelled task leaves it there, for whoever asks next. */

static int fetch_shall_end(void *context)
{
    struct py_node *node = context;
    return __atomic_load_n(&node->cancel_fetch, __ATOMIC_RELAXED) || py_bus_is_closing(node->bus);
}

PyObject *py_node_fetch(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_node *node = (struct py_node *)self;
    tb_event *event = NULL;
    if (!py_node_is_open(node) || node->in_next || node->pending != NULL) {
        Py_RETURN_NONE; /* there is something to deliver, or to fail with */
    }
    node->in_next = 1;
    node->in_fetch = 1;
    py_bus_enter(node->bus);
    PyThreadState *thread = PyEval_SaveThread();
    tb_set_interrupt(fetch_shall_end, node);
    tb_status status = tb_node_next(node->node, TB_FOREVER, &event);
    tb_set_interrupt(NULL, NULL);
    PyEval_RestoreThread(thread);
    node->in_next = 0;
    node->in_fetch = 0;
    if (status == TB_OK && py_bus_is_closing(node->bus)) {
        tb_event_release(event);
    } else if (status == TB_OK) {
        node->pending = event;
    }
    py_bus_leave(node->bus);
    py_log_drain();
    Py_RETURN_NONE;
}

PyObject *py_node_set_cancel(PyObject *self, PyObject *flag)
{
    int cancel = PyObject_IsTrue(flag);
    if (cancel < 0) {
        return NULL;
    }
    __atomic_store_n(&((struct py_node *)self)->cancel_fetch, cancel, __ATOMIC_RELAXED);
    Py_RETURN_NONE;
}

/* One turn without waiting: an Event, None when a thread has to wait for it, or StopAsyncIteration.
 */
PyObject *py_node_try_next(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_node *node = (struct py_node *)self;
    PyObject *event = next_event(node, TB_POLL);
    if (event != NULL) {
        return event;
    }
    if (!PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    if (py_error_is(py_state_of(self), TB_CLOSED)) {
        PyErr_SetNone(PyExc_StopAsyncIteration);
    }
    return NULL;
}

PyObject *py_node_async_next(PyObject *self)
{
    struct py_node *node = (struct py_node *)self;
    if (node->helper == NULL) {
        PyObject *module = PyImport_ImportModule("tensorbus._node_async");
        node->helper = module != NULL ? PyObject_CallMethod(module, "Helper", NULL) : NULL;
        Py_XDECREF(module);
        if (node->helper == NULL) {
            return NULL;
        }
    }
    return PyObject_CallMethod(node->helper, "next", "O", self);
}

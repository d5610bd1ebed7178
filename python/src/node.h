/* tensorbus.Node: a process of a flow. */
#ifndef PY_NODE_H
#define PY_NODE_H

#include "bus.h"
#include "event.h"

struct py_node {
    PyObject_HEAD struct py_bus *bus; /* NULL only while it is made; its close() closes the node */
    tb_node *node;                    /* valid while bus->bus is */
    struct py_event_turn turn;
    tb_event *pending; /* taken, but not delivered: a signal or a cancelled task came between */
    int in_next;       /* a thread is in tb_node_next() */
    int in_fetch;      /* and it is the one of `async for` */
    int cancel_fetch;  /* atomic: it shall come back */
    PyObject *helper;  /* of `async for`, or NULL */
};

int py_node_add(PyObject *module);

int py_node_is_open(const struct py_node *node);

/* 0; else -1 with ClosedError set. */
int py_node_check(struct py_node *node);

/* node_next.c: methods. */
PyObject *py_node_next(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *py_node_iterate(PyObject *self);
PyObject *py_node_async_next(PyObject *self);
PyObject *py_node_fetch(PyObject *self, PyObject *unused);
PyObject *py_node_set_cancel(PyObject *self, PyObject *flag);
PyObject *py_node_try_next(PyObject *self, PyObject *unused);

#endif

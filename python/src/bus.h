/* tensorbus.Bus: this process's membership in a flow, and the process's default one.
 *
 * Everything that is opened on a bus holds a reference to its Bus object, so a bus that was not
 * closed lives as long as what uses it; the interpreter's end closes those that are left. A closed
 * bus has bus == NULL: whatever was opened on it must not be touched any more. */
#ifndef PY_BUS_H
#define PY_BUS_H

#include "module.h"

struct py_bus {
    PyObject_HEAD tb_bus *bus; /* NULL: closed */
    struct py_bus *next;       /* of the state's list */
    struct py_state *state;
    void (*close)(void *context); /* closes what the bus belongs to; NULL: tb_bus_close() */
    void *context;
    size_t calls;       /* under way without the GIL */
    size_t views;       /* exported memory of its pools and frames */
    int closing;        /* atomic: read by waiting threads without the GIL */
    int stream_ordered; /* frames of handles come before a GPU has finished them */
    int forked;         /* this process is a child of the one that opened it */
};

int py_bus_add(PyObject *module);

/* The bus that a call means: `given`, or for NULL and None the process's default bus, opened when
 * nobody has yet. Returns a new reference, NULL with an exception set. */
struct py_bus *py_bus_from(struct py_state *state, PyObject *given);

/* Wrap a bus that something else owns, such as a node: `close(context)` is called without the GIL
 * instead of tb_bus_close(), once. On failure the bus is not taken. */
struct py_bus *py_bus_adopt(struct py_state *state, tb_bus *bus, void (*close)(void *context),
                            void *context);

/* Make it the default bus, in the place of one that there may be. */
void py_bus_set_default(struct py_state *state, struct py_bus *bus);

/* 0 when it can be used; else -1 with ClosedError or ForkedError set. */
int py_bus_check(struct py_bus *bus);

/* Close: waits for the calls that are under way, which end at once. Memory that is still looked at
 * stays mapped until the process ends. Returns -1 with an exception set when a signal's handler
 * raised meanwhile; the bus is closed all the same. */
int py_bus_close(struct py_bus *bus);

/* A call without the GIL begins and ends; exported memory comes and goes. With the GIL. */
void py_bus_enter(struct py_bus *bus);
void py_bus_leave(struct py_bus *bus);

/* Without the GIL. */
int py_bus_is_closing(const struct py_bus *bus);

#endif

/* tensorbus.Event: one event of a node, and how long its value is there.
 *
 * An event's turn ends when the node's next event is asked for; then its value's memory goes back,
 * unless the event is held or something looks at the memory: the last such view gives it back. What
 * is small (type, id, metadata, times) stays with the object. */
#ifndef PY_EVENT_H
#define PY_EVENT_H

#include "bus.h"
#include "frame.h"

struct py_event;

/* The node's: whose turn it is. Nothing is owned; the event may go before its frame. */
struct py_event_turn {
    struct py_event *event;
    struct py_turn frame;
};

struct py_event {
    PyObject_HEAD struct py_bus *bus;
    struct py_event_turn *turn; /* NULL: over */
    tb_event *event;            /* NULL: given back */
    PyObject *frame;            /* the Frame of a handle, once it was asked for */
    size_t views;               /* exported looks at its memory; those of a frame are its own */
    int guard;                  /* number of its range while it is looked at, -1: none */
    int is_handle;
    int held;
    int released; /* by the user: its value is not to be had any more */
    PyObject *id;
    PyObject *text;     /* NULL: none */
    PyObject *metadata; /* NULL: not asked for yet */
    tb_event_type type;
    int64_t stamp_ns;
    uint64_t dropped;
};

int py_event_add(PyObject *module);

/* Takes the event, also on failure; its turn begins. */
PyObject *py_event_new(struct py_state *state, struct py_bus *bus, tb_event *take_event,
                       struct py_event_turn *turn);

/* The node asks for the next event, or is closed. The GIL may be released meanwhile. */
void py_event_turn_end(struct py_event_turn *turn);

/* 0 when its value is there; else -1 with an exception set. */
int py_event_check(struct py_event *event);

/* Memory of the event is exported, and no longer looked at. With the GIL. */
void py_event_view_begin(struct py_event *event);
void py_event_view_end(struct py_event *event);

#endif

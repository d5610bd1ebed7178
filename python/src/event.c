/* tensorbus.Event; see event.h. */
#include "event.h"

#include <string.h>

#include "errors.h"
#include "guard.h"
#include "metadata.h"
#include "value.h"

#define INLINE_BYTES 32768 /* a larger value is not in the message itself */

/* ------------------------------------------------------------------ its life */

/* The metadata is small: it outlives the event's memory. (It lies in the heap, and what a closed
 * bus has left is not freed.) */
static int load_metadata(struct py_event *event)
{
    if (event->metadata == NULL && event->event != NULL) {
        event->views++; /* new dicts may start the collector, which runs anything */
        PyObject *metadata = py_metadata_dict(tb_event_metadata(event->event));
        event->views--;
        if (event->metadata != NULL) { /* by what it has run */
            Py_XDECREF(metadata);
        } else {
            event->metadata = metadata;
        }
    }
    return event->metadata != NULL || event->event == NULL ? 0 : -1;
}

static void give_back(struct py_event *event)
{
    tb_event *given = event->event;
    event->event = NULL;
    py_guard_remove(event->guard);
    event->guard = -1;
    /* What a closed bus has left is the process's end's. */
    if (given != NULL && event->bus->bus != NULL) {
        tb_event_release(given);
    }
}

/* Keeps an exception that is set. */
static void give_back_unused(struct py_event *event)
{
    int is_over = event->released || (event->turn == NULL && !event->held);
    if (event->event == NULL || event->views != 0 || !is_over) {
        return;
    }
    if (tb_metadata_count(tb_event_metadata(event->event)) != 0) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (load_metadata(event) != 0) {
            PyErr_Clear(); /* without memory it is lost; the node goes on */
        }
        PyErr_Restore(type, value, trace);
    }
    give_back(event);
}

void py_event_turn_end(struct py_event_turn *turn)
{
    struct py_event *event = (struct py_event *)Py_XNewRef((PyObject *)turn->event);
    py_turn_end(&turn->frame); /* other threads may run: the turn may be another event's then */
    if (event != NULL && turn->event == event) {
        turn->event = NULL;
        event->turn = NULL;
        give_back_unused(event);
    }
    Py_XDECREF((PyObject *)event);
}

int py_event_check(struct py_event *event)
{
    if (event->event != NULL && !event->released) {
        return py_bus_check(event->bus);
    }
    py_fail(event->bus->state, TB_E_INVALID,
            event->released ? "the event was released: look at its value before"
                            : "the event's turn is over: look at its value before the next event "
                              "is asked for, or hold() it");
    return -1;
}

/* What is written into memory that a sender shares ends the process; small values are copies. */
static void guard(struct py_event *event)
{
    size_t bytes;
    const void *data = tb_event_bytes(event->event, &bytes);
    if (bytes > INLINE_BYTES && event->guard < 0) {
        event->guard = py_guard_add(PY_GUARD_VALUE, data, bytes, "", tb_event_id(event->event));
    }
    py_guard_look();
}

void py_event_view_begin(struct py_event *event)
{
    Py_INCREF((PyObject *)event);
    event->views++;
    guard(event);
    event->bus->views++;
}

void py_event_view_end(struct py_event *event)
{
    event->bus->views--;
    event->views--;
    give_back_unused(event);
    Py_DECREF((PyObject *)event);
}

PyObject *py_event_new(struct py_state *state, struct py_bus *bus, tb_event *take_event,
                       struct py_event_turn *turn)
{
    PyTypeObject *type = (PyTypeObject *)state->slots[PY_EVENT_TYPE];
    struct py_event *self = (struct py_event *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        tb_event_release(take_event);
        return NULL;
    }
    self->bus = (struct py_bus *)Py_NewRef((PyObject *)bus);
    self->event = take_event;
    self->guard = -1;
    self->is_handle = tb_event_kind(take_event) == TB_VALUE_HANDLE;
    self->type = tb_event_get_type(take_event);
    self->stamp_ns = tb_event_stamp_ns(take_event);
    self->dropped = tb_event_dropped(take_event);
    const char *text = tb_event_text(take_event);
    self->id = PyUnicode_DecodeUTF8(tb_event_id(take_event),
                                    (Py_ssize_t)strlen(tb_event_id(take_event)), "replace");
    self->text = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (self->id == NULL || self->text == NULL) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    if (turn->event != NULL) {
        turn->event->turn = NULL; /* of a thread that has asked at the same time */
    }
    self->turn = turn;
    turn->event = self;
    return (PyObject *)self;
}

static void destroy(PyObject *self)
{
    struct py_event *event = (struct py_event *)self;
    if (event->turn != NULL) {
        event->turn->event = NULL;
    }
    Py_XDECREF(event->frame);
    if (event->bus != NULL) {
        give_back(event);
    }
    Py_XDECREF(event->id);
    Py_XDECREF(event->text);
    Py_XDECREF(event->metadata);
    Py_XDECREF((PyObject *)event->bus);
    py_object_free(self);
}

/* ------------------------------------------------------------------ what it tells */

static const char *type_name(tb_event_type type)
{
    switch (type) {
    case TB_EVENT_INPUT:
        return "INPUT";
    case TB_EVENT_INPUT_CLOSED:
        return "INPUT_CLOSED";
    case TB_EVENT_STOP:
        return "STOP";
    default:
        return "ERROR";
    }
}

static PyObject *get_type(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_InternFromString(type_name(((struct py_event *)self)->type));
}

static PyObject *get_id(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(((struct py_event *)self)->id);
}

static PyObject *get_text(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(((struct py_event *)self)->text);
}

static PyObject *get_stamp(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLongLong(((struct py_event *)self)->stamp_ns);
}

static PyObject *get_dropped(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct py_event *)self)->dropped);
}

static PyObject *get_metadata(PyObject *self, void *unused)
{
    (void)unused;
    struct py_event *event = (struct py_event *)self;
    int failed = load_metadata(event) != 0;
    give_back_unused(event); /* which may have become so meanwhile */
    if (failed) {
        return NULL;
    }
    if (event->metadata == NULL) {
        event->metadata = PyDict_New();
    }
    return Py_XNewRef(event->metadata);
}

/* The Frame of a handle: made when it is asked for; borrowed. */
static PyObject *load_frame(struct py_event *event)
{
    if (event->frame != NULL) {
        return event->frame;
    }
    if (py_event_check(event) != 0) {
        return NULL;
    }
    event->frame = py_frame_new(event->bus, NULL, NULL, tb_event_take_frame(event->event));
    if (event->frame == NULL) {
        return NULL;
    }
    if (event->held) {
        PyObject *another = PyObject_CallMethod(event->frame, "hold", NULL);
        Py_XDECREF(another);
    } else if (event->turn != NULL) {
        py_turn_begin(&event->turn->frame, event->frame);
    }
    return event->frame;
}

static PyObject *get_frame(PyObject *self, void *unused)
{
    (void)unused;
    struct py_event *event = (struct py_event *)self;
    if (event->is_handle) {
        return Py_XNewRef(load_frame(event));
    }
    Py_RETURN_NONE;
}

static PyObject *get_value(PyObject *self, void *unused)
{
    struct py_event *event = (struct py_event *)self;
    if (event->type != TB_EVENT_INPUT) {
        Py_RETURN_NONE;
    }
    if (event->is_handle) {
        return get_frame(self, unused);
    }
    return py_event_check(event) == 0 ? py_value_of_event(event) : NULL;
}

static PyObject *get_held(PyObject *self, void *unused)
{
    (void)unused;
    struct py_event *event = (struct py_event *)self;
    return PyBool_FromLong(event->held && !event->released);
}

static PyGetSetDef attributes[] = {
    {"type", get_type, NULL, "\"INPUT\", \"INPUT_CLOSED\", \"STOP\" or \"ERROR\".", NULL},
    {"id", get_id, NULL, "Name of the input; \"\" for STOP.", NULL},
    {"value", get_value, NULL,
     "What was sent: None (nothing, or a timer's tick), a str, a Frame (a handle was sent), or a\n"
     "Value: bytes, an array or an Arrow array, in the memory where it is. InvalidError when the\n"
     "event's turn is over.",
     NULL},
    {"metadata", get_metadata, NULL,
     "What travelled with the value: a dict of bool, int, float, str and lists of them. It stays\n"
     "when the event's turn is over.",
     NULL},
    {"frame", get_frame, NULL,
     "The Frame of a handle that was sent, None for other values. It belongs to the event; hold()\n"
     "it to keep it longer.",
     NULL},
    {"stamp_ns", get_stamp, NULL,
     "When it was sent or due: ns on CLOCK_MONOTONIC (time.monotonic_ns()).", NULL},
    {"dropped", get_dropped, NULL, "Messages of this input that were lost since the one before.",
     NULL},
    {"text", get_text, NULL, "Explanation of an ERROR, else \"\".", NULL},
    {"held", get_held, NULL, "Whether hold() keeps it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* ------------------------------------------------------------------ methods */

static PyObject *hold(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_event *event = (struct py_event *)self;
    if (event->type == TB_EVENT_INPUT && py_event_check(event) != 0) {
        return NULL;
    }
    event->held = 1;
    if (event->frame != NULL) {
        PyObject *another = PyObject_CallMethod(event->frame, "hold", NULL);
        if (another == NULL) {
            return NULL;
        }
        Py_DECREF(another);
    }
    return Py_NewRef(self);
}

static PyObject *release(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_event *event = (struct py_event *)self;
    event->released = 1;
    if (event->frame != NULL) {
        PyObject *done = PyObject_CallMethod(event->frame, "release", NULL);
        if (done == NULL) {
            return NULL;
        }
        Py_DECREF(done);
    }
    give_back_unused(event);
    Py_RETURN_NONE;
}

static PyObject *enter(PyObject *self, PyObject *unused)
{
    return hold(self, unused);
}

/* value's own: event.numpy() is event.value.numpy(). */
static PyObject *of_value(PyObject *self, const char *name)
{
    PyObject *value = get_value(self, NULL);
    if (value == NULL) {
        return NULL;
    }
    PyObject *result = NULL;
    if (value == Py_None || PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s(): the event's value is %R, not an array", name, value);
    } else {
        result = PyObject_CallMethod(value, name, NULL);
    }
    Py_DECREF(value);
    return result;
}

static PyObject *numpy(PyObject *self, PyObject *unused)
{
    (void)unused;
    return of_value(self, "numpy");
}

static PyObject *arrow(PyObject *self, PyObject *unused)
{
    (void)unused;
    return of_value(self, "arrow");
}

static const char *const keys_of[] = {"type",  "id",       "value",   "metadata",
                                      "frame", "stamp_ns", "dropped", "text"};

static PyObject *keys(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    Py_ssize_t count = sizeof keys_of / sizeof keys_of[0];
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *key = PyUnicode_InternFromString(keys_of[i]);
        if (key == NULL || PyList_SetItem(list, i, key) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *get_item(PyObject *self, PyObject *key)
{
    for (size_t i = 0; PyUnicode_Check(key) && i < sizeof keys_of / sizeof keys_of[0]; i++) {
        if (PyUnicode_CompareWithASCIIString(key, keys_of[i]) == 0) {
            return PyObject_GetAttr(self, key);
        }
    }
    PyErr_SetObject(PyExc_KeyError, key);
    return NULL;
}

static PyObject *repr(PyObject *self)
{
    struct py_event *event = (struct py_event *)self;
    if (event->type == TB_EVENT_ERROR) {
        return PyUnicode_FromFormat("<tensorbus.Event: ERROR %R: %U>", event->id, event->text);
    }
    if (event->type == TB_EVENT_STOP) {
        return PyUnicode_FromString("<tensorbus.Event: STOP>");
    }
    return PyUnicode_FromFormat("<tensorbus.Event: %s %R%s>", type_name(event->type), event->id,
                                event->type == TB_EVENT_INPUT && event->event == NULL ? ", over"
                                                                                      : "");
}

static PyMethodDef methods[] = {
    {"hold", hold, METH_NOARGS,
     "hold($self, /)\n--\n\n"
     "Keep the value beyond the event's turn, until release() or until nothing refers to the\n"
     "event. Returns the event. A held event of a handle or of a large value takes one of the\n"
     "leases of its pool, 64 at most, and a slot that its sender cannot write: hold few."},
    {"release", release, METH_NOARGS,
     "release($self, /)\n--\n\n"
     "Give the value's memory back now, or when the last array that looks at it goes. Releasing\n"
     "twice does nothing."},
    {"numpy", numpy, METH_NOARGS,
     "numpy($self, /)\n--\n\nThe value as a NumPy array: value.numpy()."},
    {"arrow", arrow, METH_NOARGS,
     "arrow($self, /)\n--\n\nThe value as a pyarrow.Array: value.arrow()."},
    {"keys", keys, METH_NOARGS, "keys($self, /)\n--\n\nThe names that event[...] takes."},
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", release, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(
    doc, "An event of a Node. event[\"value\"] is event.value, and so on.\n\n"
         "Its value is valid until the node's next event is asked for, unless the event is held\n"
         "(hold(), or a `with` block) or something looks at the value's memory: an array made by\n"
         "numpy(), a memoryview, a DLPack or Arrow export. An event belongs to one thread at a\n"
         "time.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_dealloc, destroy},
    {Py_mp_subscript, get_item},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tensorbus.Event",
    .basicsize = sizeof(struct py_event),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int py_event_add(PyObject *module)
{
    return py_type_add(module, PY_EVENT_TYPE, &spec);
}

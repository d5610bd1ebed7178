/* Loops over a reader: each has a turn of its own, so threads may loop over one reader at once. */
#include "errors.h"
#include "reader.h"

struct py_frames {
    PyObject_HEAD struct py_reader *reader; /* owned */
    struct py_turn turn;
};

static struct py_frames *frames_of(PyObject *self)
{
    return (struct py_frames *)self;
}

PyObject *py_frames_new(struct py_reader *reader)
{
    PyTypeObject *type = (PyTypeObject *)reader->bus->state->slots[PY_FRAMES_TYPE];
    struct py_frames *self = PyObject_New(struct py_frames, type);
    if (self != NULL) {
        self->reader = (struct py_reader *)Py_NewRef((PyObject *)reader);
        self->turn.frame = NULL;
    }
    return (PyObject *)self;
}

static void destroy(PyObject *self)
{
    struct py_frames *frames = frames_of(self);
    py_turn_forget(&frames->turn); /* after a `break` the last frame lives on */
    Py_DECREF((PyObject *)frames->reader);
    py_object_free(self);
}

/* An owner's goodbye ends a loop; what this process has closed itself is an error. */
static int closed_here(const struct py_reader *reader)
{
    return reader->closed || reader->bus->bus == NULL || py_bus_is_closing(reader->bus);
}

/* The next turn: the former one's frame ends before anything waits. */
static PyObject *take_turn(PyObject *self, int64_t timeout_ns, PyObject *at_end)
{
    struct py_frames *frames = frames_of(self);
    py_turn_end(&frames->turn);
    PyObject *frame = py_reader_take(frames->reader, 0, timeout_ns, timeout_ns == TB_POLL);
    if (frame != NULL) {
        py_turn_begin(&frames->turn, frame);
    } else if (PyErr_Occurred() && !closed_here(frames->reader) &&
               py_error_is(frames->reader->bus->state, TB_CLOSED)) {
        PyErr_SetNone(at_end);
    }
    return frame;
}

static PyObject *next(PyObject *self)
{
    return take_turn(self, TB_FOREVER, PyExc_StopIteration);
}

static PyObject *poll_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *frame = take_turn(self, TB_POLL, PyExc_StopAsyncIteration);
    return frame != NULL || PyErr_Occurred() ? frame : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"poll", poll_method, METH_NOARGS,
     "poll($self, /)\n--\n\n"
     "End the former turn's frame and take the next one, or None when there is none yet. Raises\n"
     "StopAsyncIteration at the end."},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(doc, "A loop over a Reader: iter(reader). Each frame ends when the next one is asked\n"
                  "for, unless frame.hold() was called or a view of it is left.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc}, {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, next},
    {Py_tp_methods, methods}, {Py_tp_dealloc, destroy},        {0, NULL},
};

static PyType_Spec spec = {
    .name = "tensorbus.Frames",
    .basicsize = sizeof(struct py_frames),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int py_frames_add(PyObject *module)
{
    return py_type_add(module, PY_FRAMES_TYPE, &spec);
}

/* tensorbus.Bus, the default bus, and what the interpreter's end and a fork do to them. */
#include "bus.h"

#include <stdlib.h>
#include <time.h>

#include <tensorbus/embed.h>

#include "errors.h"
#include "log.h"
#include "wait.h"

/* How long a closing thread waits for calls that are under way: they end within a slice. */
#define CLOSE_PATIENCE_MS 2000

/* ---- counting what is under way ---- */

void py_bus_enter(struct py_bus *bus)
{
    Py_INCREF((PyObject *)bus);
    bus->calls++;
}

void py_bus_leave(struct py_bus *bus)
{
    bus->calls--;
    Py_DECREF((PyObject *)bus);
}

int py_bus_is_closing(const struct py_bus *bus)
{
    return __atomic_load_n(&bus->closing, __ATOMIC_RELAXED);
}

int py_bus_check(struct py_bus *bus)
{
    if (bus->forked) {
        py_fail(bus->state, TB_E_FORKED,
                "this object belongs to the parent process: open another one in the child");
        return -1;
    }
    if (bus->bus == NULL || py_bus_is_closing(bus)) {
        py_fail(bus->state, TB_CLOSED,
                "the bus was closed: open another one and what is needed on it");
        return -1;
    }
    return 0;
}

/* ---- making ---- */

static struct py_bus *wrap(struct py_state *state, tb_bus *take_bus, void (*close)(void *context),
                           void *context)
{
    PyTypeObject *type = (PyTypeObject *)state->slots[PY_BUS_TYPE];
    struct py_bus *self = (struct py_bus *)PyType_GenericAlloc(type, 0);
    if (self != NULL) {
        self->bus = take_bus;
        self->state = state;
        self->close = close;
        self->context = context;
        self->next = state->buses;
        state->buses = self;
    }
    return self;
}

struct py_bus *py_bus_adopt(struct py_state *state, tb_bus *bus, void (*close)(void *context),
                            void *context)
{
    return wrap(state, bus, close, context);
}

void py_bus_set_default(struct py_state *state, struct py_bus *bus)
{
    PyObject *former = state->slots[PY_DEFAULT_BUS];
    state->slots[PY_DEFAULT_BUS] = Py_NewRef((PyObject *)bus);
    Py_XDECREF(former);
}

/* ---- workers of multiprocessing ---- */

/* multiprocessing's `name` module when this process is a worker that it has started, borrowed; else
 * NULL, without an exception. */
static PyObject *worker_module(const char *name)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *process = PyDict_GetItemString(modules, "multiprocessing.process");
    PyObject *parent =
        process != NULL ? PyObject_CallMethod(process, "parent_process", NULL) : NULL;
    PyObject *found =
        parent != NULL && parent != Py_None ? PyDict_GetItemString(modules, name) : NULL;
    Py_XDECREF(parent);
    PyErr_Clear();
    return found;
}

/* Workers that were forked end without what the interpreter does at its end, and others would take
 * their end for a death: say goodbye among multiprocessing's own finalizers. */
static void close_at_workers_end(struct py_state *state)
{
    PyObject *util = worker_module("multiprocessing.util");
    PyObject *call =
        util != NULL && !state->worker ? PyObject_GetAttrString(state->module, "_close_all") : NULL;
    if (call != NULL) {
        const int last = -1;
        PyObject *made =
            PyObject_CallMethod(util, "Finalize", "OO()Oi", Py_None, call, Py_None, last);
        state->worker = made != NULL;
        Py_XDECREF(made);
        Py_DECREF(call);
    }
    PyErr_Clear();
}

static struct py_bus *open_bus(struct py_state *state, const tb_bus_options *options)
{
    tb_bus *bus;
    struct py_wait wait;
    py_wait_begin(&wait, NULL);
    tb_status status = tb_bus_open(options, &bus);
    int interrupted = py_wait_end(&wait) != 0;
    py_log_drain();
    if (interrupted || status != TB_OK) {
        if (status == TB_OK) {
            tb_bus_close(bus);
        } else if (!interrupted) {
            py_raise(state, status);
        }
        return NULL;
    }
    struct py_bus *self = wrap(state, bus, NULL, NULL);
    if (self == NULL) {
        tb_bus_close(bus);
    } else {
        close_at_workers_end(state);
    }
    return self;
}

/* ---- the default bus ---- */

struct py_bus *py_bus_from(struct py_state *state, PyObject *given)
{
    if (given != NULL && given != Py_None) {
        if ((PyObject *)Py_TYPE(given) != state->slots[PY_BUS_TYPE]) {
            PyErr_Format(PyExc_TypeError, "bus must be a tensorbus.Bus or None, not %R",
                         (PyObject *)Py_TYPE(given));
            return NULL;
        }
        struct py_bus *bus = (struct py_bus *)given;
        return py_bus_check(bus) == 0 ? (struct py_bus *)Py_NewRef(given) : NULL;
    }
    struct py_bus *bus = (struct py_bus *)state->slots[PY_DEFAULT_BUS];
    if (bus != NULL && bus->bus != NULL && !py_bus_is_closing(bus)) {
        return (struct py_bus *)Py_NewRef((PyObject *)bus);
    }
    const char *node = getenv("TENSORBUS_NODE");
    tb_bus_options options = {.size = sizeof options};
    /* A worker inherits the environment of its parent, whose name is the parent's. */
    if (node != NULL && node[0] != '\0' && !state->forked &&
        worker_module("multiprocessing.util") == NULL) {
        options.name = node;
    }
    bus = open_bus(state, &options);
    if (bus != NULL) {
        py_bus_set_default(state, bus);
    }
    if (bus != NULL && py_bus_check(bus) != 0) { /* at once, by another thread */
        Py_CLEAR(bus);
    }
    return bus;
}

/* ---- closing ---- */

static void nap(void)
{
    struct timespec pause = {.tv_nsec = 1000000};
    PyThreadState *thread = PyEval_SaveThread();
    nanosleep(&pause, NULL);
    PyEval_RestoreThread(thread);
}

static void close_now(struct py_bus *bus, tb_bus *closed)
{
    if (bus->close != NULL) {
        bus->close(bus->context);
    } else {
        tb_bus_close(closed);
    }
}

int py_bus_close(struct py_bus *bus)
{
    if (bus->bus == NULL || py_bus_is_closing(bus)) {
        return 0;
    }
    struct py_state *state = bus->state;
    __atomic_store_n(&bus->closing, 1, __ATOMIC_RELAXED);
    for (int i = 0; bus->calls > 0 && i < CLOSE_PATIENCE_MS; i++) {
        nap();
    }
    tb_bus *closed = bus->bus;
    bus->bus = NULL;
    if ((PyObject *)bus == state->slots[PY_DEFAULT_BUS]) {
        Py_CLEAR(state->slots[PY_DEFAULT_BUS]);
    }
    if (bus->calls > 0) {
        return 0; /* a call that does not end: what it uses is left to the process's end */
    }
    if (bus->views > 0) {
        tb_status ignored = tb_bus_keep_mapped(closed);
        (void)ignored; /* a child of a fork, whose memory is its own */
    }
    /* A node waits for its receivers: a signal ends that wait, and the node is closed. */
    struct py_wait wait;
    py_wait_begin(&wait, NULL);
    close_now(bus, closed);
    int result = py_wait_end(&wait);
    py_log_drain();
    return result;
}

static void destroy(PyObject *self)
{
    struct py_bus *bus = (struct py_bus *)self;
    struct py_bus **at = &bus->state->buses;
    while (*at != bus) {
        at = &(*at)->next;
    }
    *at = bus->next;
    if (bus->bus != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        close_now(bus, bus->bus); /* whatever is under way or looked at holds a reference */
        PyEval_RestoreThread(thread);
    }
    py_object_free(self);
}

/* ---- the type ---- */

static PyObject *close_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (py_bus_close((struct py_bus *)self) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *enter_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    return py_bus_check((struct py_bus *)self) == 0 ? Py_NewRef(self) : NULL;
}

static PyObject *exit_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    return close_method(self, NULL);
}

static PyObject *get_name(PyObject *self, void *unused)
{
    (void)unused;
    struct py_bus *bus = (struct py_bus *)self;
    return py_bus_check(bus) == 0 ? PyUnicode_FromString(tb_bus_name(bus->bus)) : NULL;
}

static PyObject *get_id(PyObject *self, void *unused)
{
    (void)unused;
    struct py_bus *bus = (struct py_bus *)self;
    return py_bus_check(bus) == 0 ? PyLong_FromUnsignedLongLong(tb_bus_id(bus->bus)) : NULL;
}

static PyObject *get_ordered(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct py_bus *)self)->stream_ordered);
}

static int set_ordered(PyObject *self, PyObject *value, void *unused)
{
    (void)unused;
    struct py_bus *bus = (struct py_bus *)self;
    int on = value != NULL ? PyObject_IsTrue(value) : 0;
    if (on < 0 || py_bus_check(bus) != 0) {
        return -1;
    }
    tb_status status = tb_bus_set_stream_ordered(bus->bus, on);
    if (status != TB_OK) {
        py_raise(bus->state, status);
        return -1;
    }
    bus->stream_ordered = on;
    return 0;
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct py_bus *)self)->bus == NULL);
}

static PyObject *repr(PyObject *self)
{
    struct py_bus *bus = (struct py_bus *)self;
    if (bus->bus == NULL) {
        return PyUnicode_FromString("<tensorbus.Bus: closed>");
    }
    char id[17];
    PyOS_snprintf(id, sizeof id, "%016llx", (unsigned long long)tb_bus_id(bus->bus));
    return PyUnicode_FromFormat("<tensorbus.Bus: `%s`, id %s>", tb_bus_name(bus->bus), id);
}

static PyMethodDef methods[] = {
    {"close", close_method, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Say goodbye and close everything that was opened on the bus. Others keep the frames that\n"
     "they hold; their readers then end. Calls of other threads that wait on it raise\n"
     "ClosedError. Arrays that still look at frames stay readable until the process ends.\n"
     "Closing twice does nothing. Waits: milliseconds."},
    {"__enter__", enter_method, METH_NOARGS, NULL},
    {"__exit__", exit_method, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"name", get_name, NULL, "Name of this process on the bus, \"\" when it has none.", NULL},
    {"id", get_id, NULL, "The 64-bit endpoint id: first half of the uid of its pools.", NULL},
    {"closed", get_closed, NULL, "Whether it was closed.", NULL},
    {"stream_ordered", get_ordered, set_ordered,
     "Whether open_frame() and a node's events give frames that a GPU is still working on, as\n"
     "Reader(stream_ordered=True) does; set it before the first of them.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(doc, "This process's membership in a flow; made by open_bus().\n\n"
                  "A context manager: closed at the end of the block. Thread-safe.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},   {Py_tp_repr, repr},       {Py_tp_methods, methods},
    {Py_tp_getset, attributes}, {Py_tp_dealloc, destroy}, {0, NULL},
};

static PyType_Spec spec = {
    .name = "tensorbus.Bus",
    .basicsize = sizeof(struct py_bus),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

/* ---- functions ---- */

PyDoc_STRVAR(
    open_doc,
    "open_bus(name=None, *, directory=None, flow=None, hardened=False, default=None)\n"
    "--\n\n"
    "Open a bus: what gives this process a name that others find its pools by.\n\n"
    "name: letters, digits, `_`, `.`, `-`, at most 64; None: it is found by handles only.\n"
    "directory, flow: None: from the environment (TENSORBUS_DIR, TENSORBUS_FLOW).\n"
    "hardened: make the process undumpable.\n"
    "default: whether pools and readers that are given no bus use it; None: if there is\n"
    "no default bus yet. Programs that never call this get a default bus named after\n"
    "TENSORBUS_NODE when they first need it.\n\n"
    "Returns a Bus, which lives until close() or the interpreter's end.\n"
    "Raises ExistsError (a live process has the name), InvalidError, DeniedError,\n"
    "LimitError. Thread-safe. Waits: milliseconds.");

static PyObject *open_function(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "directory", "flow", "hardened", "default", NULL};
    struct py_state *state = py_state_of_module(module);
    tb_bus_options options = {.size = sizeof options};
    int hardened = 0;
    PyObject *is_default = Py_None;
    PyObject *directory = NULL;
    PyObject *given_directory = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|z$OzpO:open_bus", names, &options.name,
                                     &given_directory, &options.flow, &hardened, &is_default)) {
        return NULL;
    }
    if (given_directory != Py_None) {
        if (!PyUnicode_FSConverter(given_directory, &directory)) {
            return NULL;
        }
        options.directory = PyBytes_AsString(directory);
    }
    options.hardened = (uint32_t)hardened;
    int wanted = is_default == Py_None ? -1 : PyObject_IsTrue(is_default);
    struct py_bus *bus = wanted == -1 && PyErr_Occurred() ? NULL : open_bus(state, &options);
    Py_XDECREF(directory);
    if (bus != NULL && (wanted == 1 || (wanted == -1 && state->slots[PY_DEFAULT_BUS] == NULL))) {
        py_bus_set_default(state, bus);
    }
    return (PyObject *)bus;
}

/* At exit: goodbye to all, whatever still exists. An exception of a signal handler waits until all
 * are closed. */
static PyObject *close_all(PyObject *module, PyObject *unused)
{
    (void)unused;
    struct py_state *state = py_state_of_module(module);
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    for (int more = 1; more;) {
        more = 0;
        for (struct py_bus *bus = state->buses; bus != NULL && !more; bus = bus->next) {
            if (bus->bus != NULL && !py_bus_is_closing(bus)) {
                Py_INCREF((PyObject *)bus);
                /* Lets other threads run: the list is begun anew. */
                if (py_bus_close(bus) != 0 && type == NULL) {
                    PyErr_Fetch(&type, &value, &trace);
                }
                PyErr_Clear();
                Py_DECREF((PyObject *)bus);
                more = 1;
            }
        }
    }
    if (type != NULL) {
        PyErr_Restore(type, value, trace);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* In the child of a fork: the parent's buses are unusable, and a new default one may be opened. */
static PyObject *after_fork(PyObject *module, PyObject *unused)
{
    (void)unused;
    struct py_state *state = py_state_of_module(module);
    state->forked = 1;
    state->worker = 0;
    for (struct py_bus *bus = state->buses; bus != NULL; bus = bus->next) {
        bus->calls = 0; /* of threads that are not here */
        bus->forked = 1;
    }
    Py_CLEAR(state->slots[PY_DEFAULT_BUS]);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"open_bus", (PyCFunction)(void (*)(void))open_function, METH_VARARGS | METH_KEYWORDS,
     open_doc},
    {"_close_all", close_all, METH_NOARGS, "Close every bus: the interpreter is about to end."},
    {"_after_fork", after_fork, METH_NOARGS, "Forget the parent's buses."},
    {NULL, NULL, 0, NULL},
};

int py_bus_add(PyObject *module)
{
    return py_type_add(module, PY_BUS_TYPE, &spec) != 0 ? -1
                                                        : PyModule_AddFunctions(module, functions);
}

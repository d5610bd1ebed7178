/* tensorbus.Reader. */
#include "reader.h"

#include <string.h>

#include "errors.h"
#include "frame_info.h"
#include "handle.h"
#include "log.h"
#include "shape.h"
#include "wait.h"

/* How long a reader waits for a pool that does not exist yet, unless it is told. */
#define OPEN_TIMEOUT_NS TB_SECONDS(10)

static struct py_reader *reader_of(PyObject *self)
{
    return (struct py_reader *)self;
}

/* ---- life ---- */

/* Waits for streams that have not given their frames back yet: without the GIL. */
static void close_when_idle(struct py_reader *reader)
{
    tb_reader *closed = reader->reader;
    if (!reader->closed || reader->users > 0 || closed == NULL) {
        return;
    }
    reader->reader = NULL;
    if (reader->bus->bus != NULL) {
        py_bus_enter(reader->bus);
        PyThreadState *thread = PyEval_SaveThread();
        tb_reader_close(closed);
        PyEval_RestoreThread(thread);
        py_bus_leave(reader->bus);
    }
}

static void begin_use(struct py_reader *reader)
{
    reader->users++;
}

static void end_use(struct py_reader *reader)
{
    reader->users--;
    close_when_idle(reader);
}

static void lease_gone(PyObject *keep)
{
    end_use(reader_of(keep));
}

static void destroy(PyObject *self)
{
    struct py_reader *reader = reader_of(self);
    reader->closed = 1;
    close_when_idle(reader);
    Py_XDECREF(reader->path);
    Py_XDECREF((PyObject *)reader->bus);
    py_object_free(self);
}

static PyObject *close_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_reader *reader = reader_of(self);
    __atomic_store_n(&reader->closed, 1, __ATOMIC_RELAXED);
    close_when_idle(reader);
    Py_RETURN_NONE;
}

static int check(struct py_reader *reader)
{
    if (reader->closed) {
        py_fail(reader->bus->state, TB_CLOSED, "the reader of `%S` was closed", reader->path);
        return -1;
    }
    return py_bus_check(reader->bus);
}

/* ---- opening ---- */

PyDoc_STRVAR(
    doc, "Reader(pool, timeout=10.0, *, every=False, ack=False, max_leases=None,\n"
         "       start=\"newest\", spin_us=0, stream_ordered=False, device=None, bus=None)\n"
         "--\n\n"
         "Attach to a pool: \"process/pool\", or the Handle of one of its frames.\n\n"
         "timeout: seconds to wait for a pool that does not exist yet; None: for ever.\n"
         "every: this reader wants every frame (pools with policy \"every\" wait for it).\n"
         "ack: it acknowledges frames with ack().\n"
         "max_leases: frames that it may hold at once, views included; None: the pool's default.\n"
         "start: \"newest\": begin with the newest frame; \"next\": skip what was published\n"
         "before.\n"
         "spin_us: spin so long before sleeping.\n"
         "stream_ordered: frames come before a GPU has finished them: from_dlpack(frame) and\n"
         "frame.wait(stream) make a stream wait, so that no CPU does.\n"
         "device: where to map a GPU's pool; None: on the GPU that has it.\n\n"
         "Frames come with `for frame in reader`, `async for`, next() or newest(). The loop ends\n"
         "when the owner says goodbye; OwnerDiedError and FreedError leave it.\n"
         "Raises NotFoundError, FreedError, DeniedError, LimitError, CorruptError.\n"
         "A context manager. Thread-safe: each frame goes to one of the threads.");

static int take_options(struct py_state *state, PyObject *max_leases, const char *start,
                        int spin_us, tb_reader_options *options)
{
    if (max_leases != NULL && max_leases != Py_None) {
        long value = PyLong_AsLong(max_leases);
        if (value == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (value < 1 || value > TB_MAX_LEASES) {
            py_fail(state, TB_E_INVALID, "max_leases is %ld: 1 to %d are possible", value,
                    TB_MAX_LEASES);
            return -1;
        }
        options->max_leases = (uint32_t)value;
    }
    if (start != NULL && strcmp(start, "newest") != 0 && strcmp(start, "next") != 0) {
        py_fail(state, TB_E_INVALID, "no start `%s`: \"newest\" or \"next\" are possible", start);
        return -1;
    }
    if (spin_us < 0) {
        py_fail(state, TB_E_INVALID, "spin_us is %d: 0 or more are possible", spin_us);
        return -1;
    }
    options->start_next = start != NULL && strcmp(start, "next") == 0;
    options->spin_us = (uint32_t)spin_us;
    return 0;
}

/* What a reader is opened with: a name, or a handle. */
struct target {
    const char *name; /* NULL: none */
    tb_handle handle;
};

static int take_target(struct py_state *state, PyObject *path, struct target *out)
{
    Py_ssize_t length;
    *out = (struct target){.name = NULL};
    if (!PyUnicode_Check(path)) {
        return py_handle_from(state, path, &out->handle);
    }
    out->name = PyUnicode_AsUTF8AndSize(path, &length);
    if (out->name != NULL && (size_t)length != strlen(out->name)) {
        PyErr_SetString(PyExc_ValueError, "the name of a pool has an embedded null character");
        return -1;
    }
    return out->name != NULL ? 0 : -1;
}

static tb_reader *open_reader(struct py_bus *bus, const struct target *target,
                              const tb_reader_options *options)
{
    struct py_state *state = bus->state;
    tb_reader *reader = NULL;
    struct py_wait wait;
    py_wait_begin(&wait, bus);
    tb_status status = target->name != NULL
                           ? tb_reader_open(bus->bus, target->name, options, &reader)
                           : tb_reader_open_handle(bus->bus, &target->handle, options, &reader);
    int interrupted = py_wait_end(&wait) != 0;
    py_log_drain();
    if (status == TB_OK && interrupted) {
        if (bus->bus != NULL) {
            tb_reader_close(reader);
        }
        reader = NULL;
    } else if (status != TB_OK && !interrupted) {
        py_raise(state, status);
    }
    return status == TB_OK ? reader : NULL;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"pool",    "timeout",        "every",  "ack", "max_leases", "start",
                            "spin_us", "stream_ordered", "device", "bus", NULL};
    struct py_state *state = PyType_GetModuleState(type);
    PyObject *path, *max_leases = NULL, *device = NULL, *given_bus = NULL;
    const char *start = NULL;
    int every = 0, ack = 0, spin_us = 0, ordered = 0;
    struct target target;
    tb_reader_options options = {.size = sizeof options, .wait_ns = OPEN_TIMEOUT_NS};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O&$ppOsipOO:Reader", names, &path,
                                     py_timeout_converter, &options.wait_ns, &every, &ack,
                                     &max_leases, &start, &spin_us, &ordered, &device,
                                     &given_bus) ||
        py_device_from(state, device, &options.device) != 0 ||
        take_options(state, max_leases, start, spin_us, &options) != 0 ||
        take_target(state, path, &target) != 0) {
        return NULL;
    }
    options.every = (uint32_t)every;
    options.ack = (uint32_t)ack;
    options.stream_ordered = (uint32_t)ordered;
    struct py_bus *bus = py_bus_from(state, given_bus);
    if (bus == NULL) {
        return NULL;
    }
    tb_reader *reader = open_reader(bus, &target, &options);
    struct py_reader *self =
        reader != NULL ? (struct py_reader *)PyType_GenericAlloc(type, 0) : NULL;
    if (self == NULL) {
        if (reader != NULL && bus->bus != NULL) {
            tb_reader_close(reader);
        }
        Py_DECREF((PyObject *)bus);
        return NULL;
    }
    self->bus = bus;
    self->reader = reader;
    self->path = Py_NewRef(path);
    return (PyObject *)self;
}

/* ---- frames ---- */

static tb_status take(tb_reader *reader, int newest, int64_t timeout_ns, tb_frame **out)
{
    return newest ? tb_reader_newest(reader, timeout_ns, out)
                  : tb_reader_next(reader, timeout_ns, out);
}

PyObject *py_reader_take(struct py_reader *reader, int newest, int64_t timeout_ns, int quiet)
{
    tb_frame *frame = NULL;
    int interrupted = 0;
    if (check(reader) != 0) {
        return NULL;
    }
    begin_use(reader);
    /* What is there already is taken without letting go of the GIL. */
    tb_status status = take(reader->reader, newest, TB_POLL, &frame);
    if (status == TB_AGAIN && timeout_ns != TB_POLL) {
        struct py_wait wait;
        py_wait_begin_on(&wait, reader->bus, &reader->closed);
        status = take(reader->reader, newest, timeout_ns, &frame);
        interrupted = py_wait_end(&wait) != 0;
        if (interrupted && status == TB_OK && reader->bus->bus != NULL) {
            tb_frame_release(frame);
        }
    }
    PyObject *result = NULL;
    if (!interrupted && status == TB_OK) {
        begin_use(reader);
        result = py_frame_new(reader->bus, (PyObject *)reader, lease_gone, frame);
        if (result == NULL) {
            end_use(reader);
        }
    } else if (!interrupted && status == TB_AGAIN) {
        if (!quiet) {
            py_fail(reader->bus->state, TB_AGAIN, "pool `%S`: no new frame within the timeout",
                    reader->path);
        }
    } else if (!interrupted) {
        py_raise(reader->bus->state, status);
    }
    end_use(reader);
    return result;
}

static PyObject *take_method(PyObject *self, PyObject *args, PyObject *kwargs, int newest)
{
    static char *names[] = {"timeout", NULL};
    int64_t timeout_ns = TB_FOREVER;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&", names, py_timeout_converter,
                                     &timeout_ns)) {
        return NULL;
    }
    return py_reader_take(reader_of(self), newest, timeout_ns, 0);
}

static PyObject *next_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return take_method(self, args, kwargs, 0);
}

static PyObject *newest_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return take_method(self, args, kwargs, 1);
}

static PyObject *frame_method(PyObject *self, PyObject *given)
{
    struct py_reader *reader = reader_of(self);
    tb_handle handle;
    if (py_handle_from(reader->bus->state, given, &handle) != 0 || check(reader) != 0) {
        return NULL;
    }
    tb_frame *frame = NULL;
    struct py_wait wait;
    begin_use(reader);
    py_wait_begin_on(&wait, reader->bus, &reader->closed);
    tb_status status = tb_reader_frame(reader->reader, &handle, &frame);
    int interrupted = py_wait_end(&wait) != 0;
    PyObject *result = NULL;
    if (!interrupted && status == TB_OK) {
        begin_use(reader);
        result = py_frame_new(reader->bus, self, lease_gone, frame);
        if (result == NULL) {
            end_use(reader);
        }
    } else if (!interrupted) {
        py_raise(reader->bus->state, status);
    } else if (status == TB_OK && reader->bus->bus != NULL) {
        tb_frame_release(frame);
    }
    end_use(reader);
    return result;
}

static PyObject *iterate(PyObject *self)
{
    return check(reader_of(self)) == 0 ? py_frames_new(reader_of(self)) : NULL;
}

/* Asynchronous loops are in Python: they are about asyncio. */
static PyObject *iterate_async(PyObject *self)
{
    PyObject *frames = iterate(self);
    PyObject *module = frames != NULL ? PyImport_ImportModule("tensorbus._aio") : NULL;
    PyObject *loop =
        module != NULL ? PyObject_CallMethod(module, "AsyncFrames", "OO", self, frames) : NULL;
    Py_XDECREF(frames);
    Py_XDECREF(module);
    return loop;
}

/* ---- beside the frames ---- */

static PyObject *ack_method(PyObject *self, PyObject *given)
{
    struct py_reader *reader = reader_of(self);
    struct py_lease *lease = check(reader) == 0 ? py_frame_lease(reader->bus->state, given) : NULL;
    if (lease == NULL) {
        return NULL;
    }
    tb_status status = tb_reader_ack(reader->reader, lease->frame);
    return status == TB_OK ? Py_NewRef(Py_None) : py_raise(reader->bus->state, status);
}

/* A call that may wait for the owner, on an open reader. */
static PyObject *call_owner(PyObject *self, tb_status (*call)(tb_reader *reader, int *out),
                            int *out)
{
    struct py_reader *reader = reader_of(self);
    if (check(reader) != 0) {
        return NULL;
    }
    struct py_wait wait;
    begin_use(reader);
    py_wait_begin_on(&wait, reader->bus, &reader->closed);
    tb_status status = call(reader->reader, out);
    int interrupted = py_wait_end(&wait) != 0;
    if (!interrupted && status != TB_OK) {
        py_raise(reader->bus->state, status);
    }
    end_use(reader);
    py_log_drain();
    return !interrupted && status == TB_OK ? Py_NewRef(Py_None) : NULL;
}

static tb_status free_pool(tb_reader *reader, int *unused)
{
    (void)unused;
    return tb_reader_free_pool(reader);
}

static PyObject *free_pool_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    return call_owner(self, free_pool, NULL);
}

static PyObject *fileno_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    int fd = -1;
    PyObject *done = call_owner(self, tb_reader_fd, &fd);
    Py_XDECREF(done);
    return done != NULL ? PyLong_FromLong(fd) : NULL;
}

static PyObject *stats_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_reader *reader = reader_of(self);
    tb_reader_stats stats = {.size = sizeof stats};
    if (check(reader) != 0) {
        return NULL;
    }
    tb_status status = tb_reader_get_stats(reader->reader, &stats);
    return status == TB_OK ? py_reader_stats_new(reader->bus->state, &stats)
                           : py_raise(reader->bus->state, status);
}

static PyObject *enter_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    return check(reader_of(self)) == 0 ? Py_NewRef(self) : NULL;
}

static PyObject *exit_method(PyObject *self, PyObject *unused)
{
    return close_method(self, unused);
}

static PyObject *get_path(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(reader_of(self)->path);
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(reader_of(self)->closed);
}

static PyObject *repr(PyObject *self)
{
    struct py_reader *reader = reader_of(self);
    return PyUnicode_FromFormat("<tensorbus.Reader: of `%S`%s>", reader->path,
                                reader->closed ? ", closed" : "");
}

/* ---- the type ---- */

#define WITH_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"next", WITH_KEYWORDS(next_method), METH_VARARGS | METH_KEYWORDS,
     "next($self, timeout=None)\n--\n\n"
     "The oldest frame after the last one that this reader returned. It lives until release(),\n"
     "or its last reference or view is gone.\n\n"
     "timeout: seconds; None for ever, 0 not at all.\n"
     "Raises AgainError (a TimeoutError), ClosedError (the owner said goodbye), OwnerDiedError,\n"
     "FreedError, BusyError (max_leases frames are held)."},
    {"newest", WITH_KEYWORDS(newest_method), METH_VARARGS | METH_KEYWORDS,
     "newest($self, timeout=None)\n--\n\nThe newest frame, skipping older ones; else as next()."},
    {"frame", frame_method, METH_O,
     "frame($self, handle, /)\n--\n\n"
     "The frame that a Handle of this pool names. Raises StaleError when it was overwritten."},
    {"ack", ack_method, METH_O,
     "ack($self, frame, /)\n--\n\n"
     "Acknowledge a frame and all before it, for the owner's wait_acked(). The reader must have\n"
     "been opened with ack=True."},
    {"free_pool", free_pool_method, METH_NOARGS,
     "free_pool($self, /)\n--\n\n"
     "Ask the owner to free the pool, as its free() would. Raises FreedError when it was freed\n"
     "before."},
    {"fileno", fileno_method, METH_NOARGS,
     "fileno($self, /)\n--\n\n"
     "A descriptor that becomes readable when there may be a frame or the owner is gone, for\n"
     "select and event loops: then call next(0) until it raises AgainError. Belongs to the\n"
     "reader."},
    {"stats", stats_method, METH_NOARGS,
     "stats($self, /)\n--\n\nCounters since it attached: a ReaderStats."},
    {"close", close_method, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Detach. Frames that are still looked at stay valid until they are let go; calls of other\n"
     "threads that wait end with ClosedError."},
    {"__aiter__", (PyCFunction)(void (*)(void))iterate_async, METH_NOARGS, NULL},
    {"__enter__", enter_method, METH_NOARGS, NULL},
    {"__exit__", exit_method, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"pool", get_path, NULL, "What it was opened with: \"process/pool\" or a Handle.", NULL},
    {"closed", get_closed, NULL, "Whether it was closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_new, make},
    {Py_tp_repr, repr},
    {Py_tp_iter, iterate},
    {Py_am_aiter, iterate_async},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_dealloc, destroy},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tensorbus.Reader",
    .basicsize = sizeof(struct py_reader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

/* ---- frames by their handles ---- */

PyDoc_STRVAR(
    open_frame_doc,
    "open_frame(handle, bus=None)\n--\n\n"
    "The Frame that a Handle (or its 48 bytes) names, wherever its owner is in the flow.\n\n"
    "The bus keeps the attachment for later handles of the same pool.\n"
    "Raises StaleError (overwritten), NotFoundError (the owner is gone), FreedError,\n"
    "BusyError. Thread-safe. Waits: a few round trips for the first handle of a pool.");

static PyObject *open_frame(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"handle", "bus", NULL};
    struct py_state *state = py_state_of_module(module);
    PyObject *given, *given_bus = NULL;
    tb_handle handle;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:open_frame", names, &given, &given_bus) ||
        py_handle_from(state, given, &handle) != 0) {
        return NULL;
    }
    struct py_bus *bus = py_bus_from(state, given_bus);
    if (bus == NULL) {
        return NULL;
    }
    tb_frame *frame = NULL;
    struct py_wait wait;
    py_wait_begin(&wait, bus);
    tb_status status = tb_frame_open(bus->bus, &handle, TB_POLL, &frame);
    int interrupted = py_wait_end(&wait) != 0;
    PyObject *result = NULL;
    if (!interrupted && status == TB_OK) {
        result = py_frame_new(bus, NULL, NULL, frame);
    } else if (!interrupted) {
        py_raise(state, status);
    } else if (status == TB_OK && bus->bus != NULL) {
        tb_frame_release(frame);
    }
    Py_DECREF((PyObject *)bus);
    return result;
}

static PyMethodDef functions[] = {
    {"open_frame", WITH_KEYWORDS(open_frame), METH_VARARGS | METH_KEYWORDS, open_frame_doc},
    {NULL, NULL, 0, NULL},
};

int py_reader_add(PyObject *module)
{
    return py_type_add(module, PY_READER_TYPE, &spec) != 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}

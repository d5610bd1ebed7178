/* The four verbs; see tensor_pool.h and <tensorbus/tensor_pool.h>. Misuse is a warning through
 * `logging` and an answer, as in the nodes that are written with them; only read(), which has
 * nothing to answer with, raises. */
#include "tensor_pool.h"

#include "bus.h"
#include "errors.h"
#include "frame.h"
#include "log.h"
#include "shape.h"
#include "tensor_in.h"
#include "wait.h"

/* What a verb works with, until it has ended. */
struct verb {
    struct py_state *state;
    struct py_bus *bus;
    struct py_wait wait;
};

static int verb_begin(struct verb *verb, PyObject *module, PyObject *bus)
{
    verb->state = py_state_of_module(module);
    verb->bus = py_bus_from(verb->state, bus);
    if (verb->bus == NULL) {
        return -1;
    }
    py_wait_begin(&verb->wait, verb->bus);
    return 0;
}

/* The bus goes, and the library's warning is handed on. */
static PyObject *verb_end(struct verb *verb, PyObject *result)
{
    py_log_drain();
    Py_DECREF((PyObject *)verb->bus);
    return result;
}

/* True; False for a pool that was freed or never was: a warning has been logged. */
static PyObject *answer(struct verb *verb, tb_status status)
{
    if (status != TB_OK && status != TB_E_FREED) {
        return py_raise(verb->state, status);
    }
    return PyBool_FromLong(status == TB_OK);
}

PyDoc_STRVAR(
    register_doc,
    "register(tensor, *, slots=2, max_leases=4, live=False, device=None, bus=None)\n--\n\n"
    "Register a pool shaped like a tensor and write the tensor as its first frame.\n\n"
    "tensor: an array, bytes, or what has the buffer protocol or DLPack; every write has\n"
    "its dtype and shape.\n"
    "slots: a frame that a reader holds is never overwritten, so there are 2 or more.\n"
    "max_leases: frames that one reader may hold at once.\n"
    "live: one slot, which changes under its holders: only for those who take turns.\n"
    "device: where the receiver works: the pool is there; None: on the tensor's.\n"
    "bus: it must have a name; None: the process's default one.\n\n"
    "Returns the pool's id, such as \"pool_camera_17\": text that travels in any message.\n"
    "Raises NoMemoryError, InvalidError (a bus without a name), LimitError, UnsupportedError (no\n"
    "driver) and NotFoundError (no such GPU). Thread-safe.");

static int take_device(struct py_state *state, PyObject *device, tb_register_options *options)
{
    if (device == NULL || device == Py_None) {
        return 0;
    }
    if (py_device_from(state, device, &options->receiver) != 0) {
        return -1;
    }
    options->host = options->receiver == TB_CPU;
    return 0;
}

static PyObject *register_function(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tensor", "slots", "max_leases", "live", "device", "bus", NULL};
    tb_register_options options = {.size = sizeof options};
    PyObject *tensor;
    PyObject *device = NULL;
    PyObject *bus = NULL;
    unsigned slots = 0;
    unsigned leases = 0;
    int live = 0;
    char id[TB_POOL_ID_SIZE];
    struct py_source source;
    struct verb verb;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$IIpOO:register", names, &tensor, &slots,
                                     &leases, &live, &device, &bus) ||
        take_device(py_state_of_module(module), device, &options) != 0 ||
        py_source_open(py_state_of_module(module), tensor, &source) != 0) {
        return NULL;
    }
    options.slots = slots;
    options.max_leases = leases;
    options.live = (uint32_t)live;
    PyObject *result = NULL;
    if (verb_begin(&verb, module, bus) == 0) {
        tb_status status = tb_register_with(verb.bus->bus, &source.tensor, &options, id);
        if (py_wait_end(&verb.wait) == 0) {
            result = status == TB_OK ? PyUnicode_FromString(id) : py_raise(verb.state, status);
        }
        result = verb_end(&verb, result);
    }
    py_source_close(&source);
    return result;
}

PyDoc_STRVAR(
    write_doc,
    "write(id, tensor, timeout=None, *, bus=None)\n--\n\n"
    "Write a tensor into a pool of this process.\n\n"
    "tensor: of the registered dtype and shape; any strides. Copied once, without the GIL.\n"
    "timeout: seconds that it may wait for a slot that nobody holds; None: for ever.\n\n"
    "Returns True; False, with a warning in the log, when the pool was freed or never was.\n"
    "Raises MismatchError (nothing is written), AgainError, DeadlockError. Thread-safe.");

static PyObject *write_function(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"id", "tensor", "timeout", "bus", NULL};
    const char *id;
    PyObject *tensor;
    PyObject *bus = NULL;
    int64_t timeout_ns = TB_FOREVER;
    struct py_source source;
    struct verb verb;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO|O&$O:write", names, &id, &tensor,
                                     py_timeout_converter, &timeout_ns, &bus) ||
        py_source_open(py_state_of_module(module), tensor, &source) != 0) {
        return NULL;
    }
    PyObject *result = NULL;
    if (verb_begin(&verb, module, bus) == 0) {
        tb_status status = tb_write(verb.bus->bus, id, &source.tensor, timeout_ns);
        if (py_wait_end(&verb.wait) == 0) {
            result = answer(&verb, status);
        }
        result = verb_end(&verb, result);
    }
    py_source_close(&source);
    return result;
}

PyDoc_STRVAR(
    read_doc,
    "read(id, timeout=None, *, bus=None)\n--\n\n"
    "The newest frame of a pool, of this or another process; the same one again when there\n"
    "is nothing newer.\n\n"
    "timeout: seconds that it may wait for a pool's first frame; None: for ever.\n\n"
    "Returns a Frame: read-only, without a copy, unchanged while it or a view of it is\n"
    "there.\n"
    "Raises FreedError (a RuntimeError), with a warning in the log and at once, when the\n"
    "pool was freed, its owner is gone or it never was; AgainError, BusyError, InvalidError\n"
    "(no id). Thread-safe.");

static PyObject *read_function(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"id", "timeout", "bus", NULL};
    const char *id;
    PyObject *bus = NULL;
    int64_t timeout_ns = TB_FOREVER;
    tb_frame *frame = NULL;
    struct verb verb;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|O&$O:read", names, &id, py_timeout_converter,
                                     &timeout_ns, &bus) ||
        verb_begin(&verb, module, bus) != 0) {
        return NULL;
    }
    tb_status status = tb_read(verb.bus->bus, id, timeout_ns, &frame);
    PyObject *result = NULL;
    if (py_wait_end(&verb.wait) != 0) {
        if (status == TB_OK && verb.bus->bus != NULL) {
            tb_frame_release(frame);
        }
    } else if (status == TB_OK) {
        result = py_frame_new(verb.bus, NULL, NULL, frame);
    } else {
        py_raise(verb.state, status);
    }
    return verb_end(&verb, result);
}

PyDoc_STRVAR(
    free_doc,
    "free(id, *, bus=None)\n--\n\n"
    "Free a pool, of this or another process. Frames that are held stay valid.\n\n"
    "Returns True; False, with a warning in the log, when it was freed before or never was.\n"
    "Thread-safe. Waits: one round trip.");

static PyObject *free_function(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"id", "bus", NULL};
    const char *id;
    PyObject *bus = NULL;
    struct verb verb;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|$O:free", names, &id, &bus) ||
        verb_begin(&verb, module, bus) != 0) {
        return NULL;
    }
    tb_status status = tb_free(verb.bus->bus, id);
    PyObject *result = py_wait_end(&verb.wait) == 0 ? answer(&verb, status) : NULL;
    return verb_end(&verb, result);
}

#define WITH_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef functions[] = {
    {"register", WITH_KEYWORDS(register_function), METH_VARARGS | METH_KEYWORDS, register_doc},
    {"write", WITH_KEYWORDS(write_function), METH_VARARGS | METH_KEYWORDS, write_doc},
    {"read", WITH_KEYWORDS(read_function), METH_VARARGS | METH_KEYWORDS, read_doc},
    {"free", WITH_KEYWORDS(free_function), METH_VARARGS | METH_KEYWORDS, free_doc},
    {NULL, NULL, 0, NULL},
};

int py_tensor_pool_add(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

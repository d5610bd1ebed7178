/* tensorbus.Pool. */
#include "pool.h"

#include <string.h>

#include "cuda_door.h"
#include "dtype.h"
#include "errors.h"
#include "frame.h"
#include "frame_gpu.h"
#include "frame_info.h"
#include "handle.h"
#include "kept.h"
#include "loan.h"
#include "log.h"
#include "pool_register.h"
#include "shape.h"
#include "tensor_in.h"
#include "view.h"
#include "wait.h"

/* How often read() looks again when the newest frame is overwritten under its hand. */
#define READ_TRIES 1000

static struct py_pool *pool_of(PyObject *self)
{
    return (struct py_pool *)self;
}

/* ---- use after free ---- */

static void warn(const struct py_pool *pool, const char *verb)
{
    PyObject *text = PyUnicode_FromFormat("Attempt to %s memory pool [%s] failed - reason: pool "
                                          "does not exist. Operation aborted.",
                                          verb, pool->name);
    py_log(30, "pool", text);
    Py_XDECREF(text);
}

PyObject *py_pool_raise(struct py_pool *pool, tb_status status, const char *verb)
{
    py_raise(pool->bus->state, status);
    if (status == TB_E_FREED) {
        warn(pool, verb);
    }
    return NULL;
}

int py_pool_check(struct py_pool *pool, const char *verb)
{
    if (py_bus_check(pool->bus) != 0) {
        return -1;
    }
    if (pool->freed) {
        py_fail(pool->bus->state, TB_E_FREED,
                "pool `%s` was freed: it cannot be used any more; register another one",
                pool->name);
        warn(pool, verb);
        return -1;
    }
    return 0;
}

/* ---- life ---- */

/* Give the memory back once the pool was freed and nothing uses it. Waits for streams that still
 * work on its frames: without the GIL. */
static void close_when_idle(struct py_pool *pool)
{
    tb_pool *closed = pool->pool;
    if (!pool->freed || pool->users > 0 || closed == NULL || pool->bus->bus == NULL ||
        pool->bus->forked) {
        return;
    }
    pool->stats.size = sizeof pool->stats;
    tb_status ignored = tb_pool_get_stats(closed, &pool->stats);
    (void)ignored;
    pool->pool = NULL;
    py_bus_enter(pool->bus);
    PyThreadState *thread = PyEval_SaveThread();
    tb_pool_close(closed);
    PyEval_RestoreThread(thread);
    py_bus_leave(pool->bus);
}

void py_pool_use(struct py_pool *pool)
{
    pool->users++;
}

void py_pool_unuse(struct py_pool *pool)
{
    pool->users--;
    close_when_idle(pool);
}

void py_pool_published(struct py_pool *pool, const tb_handle *handle)
{
    /* Threads come here in another order than they have published in. */
    if (!pool->has_last || (int64_t)(handle->generation - pool->last.generation) > 0) {
        pool->last = *handle;
        pool->has_last = 1;
    }
}

static void destroy(PyObject *self)
{
    struct py_pool *pool = pool_of(self);
    if (pool->bus != NULL) {
        py_kept_end(&pool->kept);
        close_when_idle(pool);
        for (int i = 0; i < pool->slot_count; i++) {
            py_pool_slot_forget(&pool->slots[i]);
        }
        Py_DECREF((PyObject *)pool->bus);
    }
    py_object_free(self);
}

static PyObject *free_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_pool *pool = pool_of(self);
    if (py_bus_check(pool->bus) != 0) {
        return NULL;
    }
    tb_status status = pool->freed ? TB_E_FREED : TB_OK;
    if (!pool->freed) {
        tb_pool_stats stats = {.size = sizeof stats};
        status = tb_pool_get_stats(pool->pool, &stats);
        if (status == TB_OK) {
            /* Another process may have asked for it: that is said once, by us. */
            status = stats.freed ? TB_E_FREED : tb_pool_free(pool->pool);
        }
        if (status != TB_OK && status != TB_E_FREED) {
            return py_raise(pool->bus->state, status);
        }
        pool->freed = 1;
        close_when_idle(pool);
    }
    if (status == TB_E_FREED) {
        warn(pool, "release");
    }
    return PyBool_FromLong(status == TB_OK);
}

/* ---- writing ---- */

PyDoc_STRVAR(loan_doc,
             "loan($self, timeout=None, *, shape=None, stream=None)\n--\n\n"
             "Borrow a free slot to write into: a Loan, whose `with` block gets a NumPy array.\n\n"
             "timeout: seconds to wait for a slot that nobody holds; None for ever, 0 not at all.\n"
             "shape: of this frame, for a pool with `capacity_bytes`; else the registered one.\n"
             "stream: of a GPU, that fills the slot and that it is published on: see publish().\n"
             "On a GPU the block gets the Loan, for torch.from_dlpack(loan).\n"
             "Raises AgainError (no slot in time: names who holds them; counted as a drop),\n"
             "DeadlockError (this thread itself holds all of them), FreedError. Thread-safe.");

static PyObject *loan_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", "shape", "stream", NULL};
    int64_t timeout_ns = TB_FOREVER;
    PyObject *shape = NULL;
    struct py_stream stream = {.stream = NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&$OO&:loan", names, py_timeout_converter,
                                     &timeout_ns, &shape, py_stream_converter, &stream)) {
        return NULL;
    }
    struct py_pool *pool = pool_of(self);
    tb_tensor wanted = {.ndim = 0};
    int given = shape != NULL && shape != Py_None;
    if (given && py_shape_from(pool->bus->state, shape, &wanted) != 0) {
        return NULL;
    }
    return py_loan_new(pool, timeout_ns, given ? &wanted : NULL, &stream);
}

/* ---- reading ---- */

static tb_status open_newest(struct py_pool *pool, tb_frame **out)
{
    tb_status status = TB_E_STALE;
    for (int i = 0; i < READ_TRIES && status == TB_E_STALE; i++) {
        tb_handle handle = pool->last; /* another thread may publish meanwhile */
        struct py_wait wait;
        py_wait_begin(&wait, pool->bus);
        status = tb_frame_open(pool->bus->bus, &handle, TB_POLL, out);
        if (py_wait_end(&wait) != 0) {
            if (status == TB_OK && pool->bus->bus != NULL) {
                tb_frame_release(*out);
            }
            return TB_AGAIN; /* with an exception set */
        }
    }
    return status;
}

static PyObject *read_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_pool *pool = pool_of(self);
    if (py_pool_check(pool, "read") != 0) {
        return NULL;
    }
    if (!pool->has_last) {
        return py_fail(pool->bus->state, TB_AGAIN, "pool `%s`: nothing was written yet",
                       pool->name);
    }
    tb_frame *frame = NULL;
    py_pool_use(pool);
    tb_status status = open_newest(pool, &frame);
    PyObject *result = NULL;
    if (status == TB_OK) {
        result = py_frame_new(pool->bus, self, NULL, frame);
    } else if (!PyErr_Occurred()) {
        py_pool_raise(pool, status, "read");
    }
    py_pool_unuse(pool);
    return result;
}

static PyObject *wait_acked_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"handle", "timeout", NULL};
    struct py_pool *pool = pool_of(self);
    PyObject *given = Py_None;
    int64_t timeout_ns = TB_FOREVER;
    tb_handle handle = {.slot = 0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO&:wait_acked", names, &given,
                                     py_timeout_converter, &timeout_ns) ||
        (given != Py_None && py_handle_from(pool->bus->state, given, &handle) != 0) ||
        py_pool_check(pool, "write") != 0) {
        return NULL;
    }
    if (given == Py_None && !pool->has_last) {
        return py_fail(pool->bus->state, TB_E_INVALID, "pool `%s`: nothing was written yet",
                       pool->name);
    }
    handle = given == Py_None ? pool->last : handle;
    struct py_wait wait;
    py_pool_use(pool);
    py_wait_begin(&wait, pool->bus);
    tb_status status = tb_pool_wait_acked(pool->pool, &handle, timeout_ns);
    int interrupted = py_wait_end(&wait) != 0;
    if (!interrupted && status != TB_OK) {
        py_pool_raise(pool, status, "write");
    }
    py_pool_unuse(pool);
    return !interrupted && status == TB_OK ? Py_NewRef(Py_None) : NULL;
}

/* ---- what is known ---- */

static PyObject *get_last(PyObject *self, void *unused)
{
    (void)unused;
    struct py_pool *pool = pool_of(self);
    return pool->has_last ? py_handle_new(pool->bus->state, &pool->last) : Py_NewRef(Py_None);
}

static PyObject *get_name(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(pool_of(self)->name);
}

static PyObject *get_shape(PyObject *self, void *unused)
{
    (void)unused;
    return py_shape_tuple(&pool_of(self)->proto);
}

static PyObject *get_dtype(PyObject *self, void *unused)
{
    (void)unused;
    return py_dtype_name(pool_of(self)->proto.dtype);
}

static PyObject *get_device(PyObject *self, void *unused)
{
    (void)unused;
    return py_device_name(pool_of(self)->proto.device);
}

static PyObject *get_policy(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(pool_of(self)->policy);
}

static PyObject *get_slots(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(pool_of(self)->stats.slots);
}

static PyObject *get_bus(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef((PyObject *)pool_of(self)->bus);
}

static PyObject *get_freed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(pool_of(self)->freed);
}

static PyObject *repr(PyObject *self)
{
    struct py_pool *pool = pool_of(self);
    char text[200];
    tb_tensor_describe(&pool->proto, text, sizeof text);
    return PyUnicode_FromFormat("<tensorbus.Pool: `%s`, %u slots of %s, %s%s>", pool->name,
                                (unsigned)pool->stats.slots, text, pool->policy,
                                pool->freed ? ", freed" : "");
}

static PyObject *enter_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *exit_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_pool *pool = pool_of(self);
    if (pool->freed || pool->bus->bus == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *result = free_method(self, NULL);
    Py_XDECREF(result);
    return result != NULL ? Py_NewRef(Py_None) : NULL;
}

/* ---- the type ---- */

#define WITH_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"register", WITH_KEYWORDS(py_pool_register), METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     py_pool_register_doc},
    {"loan", WITH_KEYWORDS(loan_method), METH_VARARGS | METH_KEYWORDS, loan_doc},
    {"write", WITH_KEYWORDS(py_pool_write), METH_VARARGS | METH_KEYWORDS, py_pool_write_doc},
    {"read", read_method, METH_NOARGS,
     "read($self, /)\n--\n\n"
     "The newest frame of this, one's own, pool: a Frame. Others open a Reader.\n\n"
     "Raises AgainError when nothing was written yet, FreedError. Thread-safe."},
    {"wait_acked", WITH_KEYWORDS(wait_acked_method), METH_VARARGS | METH_KEYWORDS,
     "wait_acked($self, handle=None, timeout=None)\n--\n\n"
     "Wait until every reader opened with ack=True, and everyone named in `ackers`, has\n"
     "acknowledged a frame (None: the last one) and those before it.\n\n"
     "Raises NotAckedError, which names who has not: in time, or at once when one who was named\n"
     "is missing or dead. Thread-safe."},
    {"free", free_method, METH_NOARGS,
     "free($self, /)\n--\n\n"
     "End the pool for everybody. Frames that readers hold stay valid; new reads raise\n"
     "FreedError. Returns True; when it was freed before, logs a warning and returns False."},
    {"stats", py_pool_stats, METH_NOARGS,
     "stats($self, /)\n--\n\nCounters since registration: a PoolStats. After free() the last "
     "ones."},
    {"readers", py_pool_readers, METH_NOARGS,
     "readers($self, /)\n--\n\n"
     "Who reads the pool now: a list of the names of processes, one for each attached reader; \"\" "
     "is\n"
     "one without a name. Empty once the pool was freed. Thread-safe."},
    {"__enter__", enter_method, METH_NOARGS, NULL},
    {"__exit__", exit_method, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"last", get_last, NULL, "Handle of the newest frame that was published; None: none yet.",
     NULL},
    {"name", get_name, NULL, "Name of the pool; others read it as \"process/name\".", NULL},
    {"shape", get_shape, NULL, "The registered shape.", NULL},
    {"dtype", get_dtype, NULL, "Name of the dtype.", NULL},
    {"device", get_device, NULL, "\"cpu\" or \"cuda:0\": where its slots are.", NULL},
    {"policy", get_policy, NULL, "\"latest\" or \"every\".", NULL},
    {"slots", get_slots, NULL, "Number of slots.", NULL},
    {"bus", get_bus, NULL, "The Bus that it was registered on.", NULL},
    {"freed", get_freed, NULL, "Whether it was freed by this object.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(doc,
             "Equal slots for tensors, written by this process, read by any number of others.\n\n"
             "Pool.register() makes one. To write without a copy, fill a loan(); write()\n"
             "copies. The pool lives until free(), the end of a `with` block, or the end of\n"
             "the process; dropping the object ends nothing, since readers may have frames\n"
             "left to take. Thread-safe.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},   {Py_tp_repr, repr},       {Py_tp_methods, methods},
    {Py_tp_getset, attributes}, {Py_tp_dealloc, destroy}, {0, NULL},
};

static PyType_Spec spec = {
    .name = "tensorbus.Pool",
    .basicsize = sizeof(struct py_pool),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int py_pool_add(PyObject *module)
{
    return py_type_add(module, PY_POOL_TYPE, &spec);
}

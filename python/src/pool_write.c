/* tensorbus.Pool.write(): copies, made here and waited for, or by a GPU. */
#include <string.h>

#include "cuda_door.h"
#include "errors.h"
#include "frame_gpu.h"
#include "handle.h"
#include "kept.h"
#include "pool.h"
#include "tensor_in.h"
#include "wait.h"

/* A copy into a pool, in two steps between which Python may look. */
struct copy {
    struct py_pool *pool;
    const tb_tensor *tensor;
    int64_t timeout_ns;
    tb_loan *loan;
    tb_status status;
    int sealing; /* errno of a slot that could not be made writable or read-only */
    int published;
    tb_handle handle;
};

static int went_well(const struct copy *copy)
{
    return copy->status == TB_OK && copy->sealing == 0;
}

static void give_up(struct copy *copy)
{
    if (copy->loan != NULL) {
        tb_loan_cancel(copy->loan);
        copy->loan = NULL;
    }
}

/* Without the GIL: borrow a slot. */
static void begin(struct copy *copy, int promised)
{
    copy->status = tb_pool_loan(copy->pool->pool, copy->timeout_ns, &copy->loan);
    if (copy->status != TB_OK) {
        copy->loan = NULL;
        return;
    }
    copy->sealing = py_pool_slot_open(copy->pool, copy->loan);
    if (went_well(copy) && promised && copy->pool->varying) {
        copy->status = tb_loan_reshape(copy->loan, copy->tensor->ndim, copy->tensor->shape, NULL);
    }
    if (went_well(copy) && promised) {
        copy->status = tb_loan_promise(copy->loan, &copy->handle);
    }
    if (went_well(copy) && promised) {
        copy->status = tb_loan_write_ahead(copy->loan, copy->tensor);
    }
    if (!went_well(copy)) {
        give_up(copy);
    }
}

/* Without the GIL: copy, publish. */
static void finish(struct copy *copy)
{
    copy->status = tb_loan_write(copy->loan, copy->tensor);
    if (went_well(copy)) {
        copy->sealing = py_pool_slot_seal(copy->pool, copy->loan);
    }
    if (went_well(copy)) {
        copy->status = tb_loan_publish(copy->loan, &copy->handle);
        copy->loan = NULL;
        copy->published = copy->status == TB_OK;
    } else {
        give_up(copy);
    }
}

/* With the GIL: tell the handle of a frame that is to be written. Returns -1 with an exception set;
 * the frame is given up then. */
static int tell(struct copy *copy, PyObject *promised)
{
    struct py_pool *pool = copy->pool;
    PyObject *handle = py_handle_new(pool->bus->state, &copy->handle);
    PyObject *done = handle != NULL ? PyObject_CallFunctionObjArgs(promised, handle, NULL) : NULL;
    int failed = done == NULL;
    Py_XDECREF(handle);
    Py_XDECREF(done);
    /* It may have run anything, and so may the end of what it has returned. */
    int open = pool->bus->bus != NULL && !pool->bus->forked;
    if (failed && open) {
        give_up(copy);
    } else if (!failed) {
        failed = !open && py_bus_check(pool->bus) != 0;
    }
    return failed ? -1 : 0;
}

/* Returns -1 with an exception set. `promised` may be NULL. */
static int copy_in(struct copy *copy, PyObject *promised)
{
    struct py_wait wait;
    py_wait_begin(&wait, copy->pool->bus);
    begin(copy, promised != NULL);
    if (went_well(copy) && promised == NULL) {
        finish(copy);
    }
    int interrupted = py_wait_end(&wait) != 0;
    if (promised == NULL || interrupted || !went_well(copy)) {
        if (interrupted && promised != NULL && copy->pool->bus->bus != NULL) { /* else it is gone */
            give_up(copy);
        }
        return interrupted ? -1 : 0;
    }
    if (tell(copy, promised) != 0) {
        return -1;
    }
    py_wait_begin(&wait, copy->pool->bus);
    finish(copy);
    return py_wait_end(&wait) != 0 ? -1 : 0;
}

static PyObject *write_source(struct py_pool *pool, const struct py_source *source,
                              int64_t timeout_ns, PyObject *promised)
{
    struct copy copy = {.pool = pool,
                        .tensor = &source->tensor,
                        .timeout_ns = timeout_ns,
                        .status = tb_pool_check(pool->pool, &source->tensor)};
    if (copy.status != TB_OK) {
        return py_raise(pool->bus->state, copy.status);
    }
    py_pool_use(pool);
    int raised = copy_in(&copy, promised) != 0;
    if (copy.published) {
        py_pool_published(pool, &copy.handle);
        py_pool_guard(pool);
    } else if (!raised && copy.status != TB_OK) {
        py_pool_raise(pool, copy.status, "write");
    } else if (!raised) {
        py_fail(pool->bus->state, TB_E_NOMEM, "pool `%s`: changing a slot's protection: %s",
                pool->name, strerror(copy.sealing));
    }
    py_pool_unuse(pool);
    return copy.published && !raised ? py_handle_new(pool->bus->state, &copy.handle) : NULL;
}

/* Enqueue the copy; what is copied from is kept until the stream has passed it. */
static PyObject *write_on(struct py_pool *pool, struct py_source *source, tb_cuda_stream stream,
                          int64_t timeout_ns)
{
    struct py_state *state = pool->bus->state;
    tb_status status = tb_pool_check(pool->pool, &source->tensor);
    if (status != TB_OK) {
        return py_raise(state, status);
    }
    tb_handle handle;
    struct py_wait wait;
    py_pool_use(pool);
    pool->streamed = 1;
    py_wait_begin(&wait, pool->bus);
    status = tb_pool_write_on(pool->pool, &source->tensor, stream, timeout_ns, &handle);
    int interrupted = py_wait_end(&wait) != 0;
    if (status == TB_OK) {
        py_pool_published(pool, &handle);
        tb_device device =
            pool->proto.device != TB_CPU ? pool->proto.device : source->tensor.device;
        py_kept_add(&pool->kept, source, stream, device);
    } else if (!interrupted) {
        py_pool_raise(pool, status, "write");
    }
    py_pool_unuse(pool);
    return status == TB_OK && !interrupted ? py_handle_new(state, &handle) : NULL;
}

const char py_pool_write_doc[] =
    "write($self, tensor, timeout=None, *, stream=None, promised=None)\n--\n\n"
    "Copy a tensor into a free slot and publish it; returns its Handle.\n\n"
    "tensor: a NumPy array of any strides, bytes, or what has the buffer protocol, DLPack or\n"
    "__cuda_array_interface__, on any device, with the registered dtype and shape (with\n"
    "`capacity_bytes`: any shape that fits).\n"
    "stream: of a GPU: the copy is made there, behind what the tensor's own stream has; the call\n"
    "returns at once, the tensor is kept until then, and its elements must stay as they are.\n"
    "None: the call returns when the copy is made.\n"
    "promised: called with the Handle before the copy is made, to send it: whoever opens it waits\n"
    "until the copy is done. With copy_threads the copy begins meanwhile. What it raises, this\n"
    "raises, and the frame is given up.\n"
    "timeout: as in loan(). The copy is made without the GIL.\n"
    "Raises MismatchError (nothing is written), and what loan() raises. Thread-safe.";

/* What calls may be made before the copy is decided by who makes it. */
static int check_promised(struct py_pool *pool, PyObject *promised, int streamed)
{
    if (promised == NULL || (PyCallable_Check(promised) && !streamed)) {
        return 0;
    }
    if (streamed) {
        py_fail(pool->bus->state, TB_E_UNSUPPORTED,
                "pool `%s`: a copy on a stream needs no promise: its handle comes at once",
                pool->name);
    } else {
        PyErr_Format(PyExc_TypeError, "promised must be callable, or None: not %R",
                     (PyObject *)Py_TYPE(promised));
    }
    return -1;
}

PyObject *py_pool_write(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tensor", "timeout", "stream", "promised", NULL};
    struct py_pool *pool = (struct py_pool *)self;
    PyObject *promised = Py_None;
    PyObject *object;
    PyObject *result = NULL;
    int64_t timeout_ns = TB_FOREVER;
    struct py_stream stream = {.stream = NULL};
    struct py_source source;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O&$O&O:write", names, &object,
                                     py_timeout_converter, &timeout_ns, py_stream_converter,
                                     &stream, &promised) ||
        py_pool_check(pool, "write") != 0) {
        return NULL;
    }
    promised = promised != Py_None ? promised : NULL;
    if (check_promised(pool, promised, stream.given) != 0) {
        return NULL;
    }
    if (py_source_open_on(pool->bus->state, object, stream.stream, &source) != 0) {
        return NULL;
    }
    py_kept_sweep(&pool->kept);
    /* Slots of this process' main memory that Python looks at may have to be made writable, which
     * goes with copies that are waited for: in the order of the default stream. */
    int at_once = !stream.given || (pool->proto.device == TB_CPU && pool->slot_count > 0);
    int follows =
        !at_once || !stream.given || py_cuda_follow(pool->bus->state, NULL, stream.stream) == 0;
    /* Opening the source and letting go of others may have run anything. */
    if (follows && py_pool_check(pool, "write") == 0) {
        result = at_once ? write_source(pool, &source, timeout_ns, promised)
                         : write_on(pool, &source, stream.stream, timeout_ns);
    }
    py_source_close(&source);
    return result;
}

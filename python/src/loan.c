/* tensorbus.Loan. */
#include "loan.h"

#include <string.h>

#include "adopt.h"
#include "alone.h"
#include "cuda_door.h"
#include "dlpack.h"
#include "dtype.h"
#include "errors.h"
#include "frame_gpu.h"
#include "handle.h"
#include "log.h"
#include "shape.h"
#include "view.h"
#include "wait.h"

struct py_loan {
    PyObject_HEAD struct py_pool *pool; /* owned */
    tb_loan *loan;                      /* NULL: published or given back */
    struct py_pool_slot *slot;
    tb_tensor tensor;
    PyObject *array; /* weak reference to what the `with` block has; or NULL */
    tb_handle handle;
    size_t views; /* of this loan, as far as the slot counts them */
    int harmless; /* they are read-only: the slot counts them no more */
    int published;
    int raw;                 /* see view.h */
    int lent;                /* its address was given to work on a GPU */
    struct py_stream stream; /* that fills it */
};

static struct py_loan *loan_of(PyObject *self)
{
    return (struct py_loan *)self;
}

static int check_open(struct py_loan *loan)
{
    if (py_bus_check(loan->pool->bus) != 0) {
        return -1;
    }
    if (loan->loan == NULL) {
        py_fail(loan->pool->bus->state, TB_E_INVALID,
                loan->published ? "pool `%s`: this loan was published: borrow another slot"
                                : "pool `%s`: this loan was given back: borrow another slot",
                loan->pool->name);
        return -1;
    }
    return 0;
}

/* ---- borrowing ---- */

static int set_shape(struct py_state *state, tb_loan *loan, const tb_tensor *shape)
{
    tb_status status =
        shape != NULL ? tb_loan_reshape(loan, shape->ndim, shape->shape, NULL) : TB_OK;
    if (status != TB_OK) {
        py_raise(state, status);
        return -1;
    }
    return 0;
}

static PyObject *wrap(struct py_pool *pool, tb_loan *loan)
{
    PyTypeObject *type = (PyTypeObject *)pool->bus->state->slots[PY_LOAN_TYPE];
    struct py_loan *self = PyObject_New(struct py_loan, type);
    if (self == NULL) {
        return NULL;
    }
    self->pool = (struct py_pool *)Py_NewRef((PyObject *)pool);
    self->loan = loan;
    self->slot = py_pool_slot_of(pool, loan);
    self->tensor = *tb_loan_tensor(loan);
    self->array = NULL;
    self->views = 0;
    self->harmless = 0;
    self->published = 0;
    self->raw = 0;
    self->lent = 0;
    self->stream = (struct py_stream){.stream = NULL};
    py_pool_use(pool);
    return (PyObject *)self;
}

/* A loan as an object: makes its slot writable and gives it its shape. The loan stays the caller's
 * on failure. */
static PyObject *open_loan(struct py_pool *pool, tb_loan *loan, const tb_tensor *shape,
                           const struct py_stream *stream)
{
    int failed = py_pool_slot_open(pool, loan);
    if (failed != 0) {
        return py_fail(pool->bus->state, TB_E_NOMEM, "pool `%s`: making a slot writable again: %s",
                       pool->name, strerror(failed));
    }
    PyObject *self = set_shape(pool->bus->state, loan, shape) == 0 ? wrap(pool, loan) : NULL;
    if (self != NULL) {
        loan_of(self)->stream = *stream;
    }
    return self;
}

PyObject *py_loan_new(struct py_pool *pool, int64_t timeout_ns, const tb_tensor *shape,
                      const struct py_stream *stream)
{
    tb_loan *loan = NULL;
    tb_status status;
    int interrupted = 0;
    if (py_pool_check(pool, "write") != 0) {
        return NULL;
    }
    py_pool_use(pool); /* who frees it meanwhile leaves the loan's slot there */
    if (timeout_ns == TB_POLL) {
        status = tb_pool_loan(pool->pool, TB_POLL, &loan);
    } else {
        struct py_wait wait;
        py_wait_begin(&wait, pool->bus);
        status = tb_pool_loan(pool->pool, timeout_ns, &loan);
        interrupted = py_wait_end(&wait) != 0;
    }
    PyObject *self = NULL;
    if (status == TB_OK && !interrupted) {
        self = open_loan(pool, loan, shape, stream);
    } else if (!interrupted) {
        py_pool_raise(pool, status, "write");
    }
    if (self == NULL && status == TB_OK && pool->bus->bus != NULL) {
        tb_loan_cancel(loan);
    }
    py_pool_unuse(pool);
    return self;
}

/* ---- the end of a loan ---- */

/* The block's array, borrowed; NULL when there is none any more. Not owned: its buffer owns us. */
static PyObject *array_of(const struct py_loan *loan)
{
    PyObject *array = loan->array != NULL ? PyWeakref_GetObject(loan->array) : NULL;
    return array != Py_None ? array : NULL;
}

/* Returns 0 when it could not be done. */
static int make_read_only(PyObject *array)
{
    PyObject *flags = PyObject_GetAttrString(array, "flags");
    int failed = flags == NULL || PyObject_SetAttrString(flags, "writeable", Py_False) != 0;
    Py_XDECREF(flags);
    PyErr_Clear();
    return !failed;
}

/* The array of the block becomes read-only; what was made from it cannot be told. */
static void disarm(struct py_loan *loan)
{
    PyObject *array = Py_XNewRef(array_of(loan));
    Py_CLEAR(loan->array);
    if (array != NULL) {
        /* One view, the array's, and nobody who would write through another: the slot is safe. */
        if (make_read_only(array) && loan->views == 1 && py_alone(array)) {
            loan->harmless = 1;
            __atomic_store_n(&loan->slot->views, loan->slot->views - 1, __ATOMIC_RELAXED);
        }
        Py_DECREF(array);
    }
}

/* What a GPU may still write there must not meet the slot's next frame. */
static void await_stream(const struct py_loan *loan)
{
    if ((!loan->stream.given && !loan->lent) || loan->pool->bus->forked) {
        return;
    }
    struct py_cuda_mark *mark = py_cuda_mark(loan->stream.stream, loan->tensor.device);
    if (mark != NULL) {
        py_cuda_await(mark);
        py_cuda_unmark(mark);
    }
}

static void cancel(struct py_loan *loan)
{
    tb_loan *given = loan->loan;
    loan->loan = NULL;
    if (given != NULL) {
        disarm(loan);
        await_stream(loan);
        if (loan->pool->bus->bus != NULL) {
            tb_loan_cancel(given);
        }
        py_pool_unuse(loan->pool);
    }
}

/* What a GPU fills is published when it has done so, in the order of the stream. */
static tb_status publish_now(struct py_loan *loan, tb_loan *given)
{
    struct py_pool *pool = loan->pool;
    int on_gpu = loan->tensor.device != TB_CPU;
    int complete = loan->stream.complete || (!loan->stream.given && !on_gpu);
    /* Read with the GIL, as whatever other threads might change. */
    tb_cuda_stream stream = loan->stream.stream;
    pool->streamed |= on_gpu || !complete;
    if (!pool->streamed) {
        return tb_loan_publish(given, &loan->handle);
    }
    /* Publishing on a stream waits while its queue is full. Publishing what is complete then waits
     * behind that in the same pool: neither may keep the GIL from who empties the queue. */
    py_bus_enter(pool->bus);
    PyThreadState *thread = PyEval_SaveThread();
    tb_status status = complete ? tb_loan_publish(given, &loan->handle)
                                : tb_loan_publish_on(given, stream, &loan->handle);
    PyEval_RestoreThread(thread);
    py_bus_leave(pool->bus);
    return status;
}

/* Returns -1 with an exception set; the loan is over in any case. */
static int publish(struct py_loan *loan)
{
    struct py_pool *pool = loan->pool;
    struct py_state *state = pool->bus->state;
    if (check_open(loan) != 0) {
        return -1;
    }
    disarm(loan);
    if (check_open(loan) != 0) { /* whose variables it looked at may be an object of Python */
        return -1;
    }
    int failed = py_pool_slot_seal(pool, loan->loan);
    if (failed != 0) {
        cancel(loan);
        py_fail(state, TB_E_UNSUPPORTED,
                "pool `%s`: arrays that were made from the loan are still there, and their memory "
                "cannot be made read-only (%s): drop them before the block ends. Nothing was "
                "published",
                pool->name, strerror(failed));
        return -1;
    }
    py_pool_guard(pool);
    tb_loan *given = loan->loan;
    loan->loan = NULL;
    tb_status status = publish_now(loan, given);
    loan->published = status == TB_OK;
    if (status == TB_OK) {
        py_pool_published(pool, &loan->handle);
    } else {
        py_pool_raise(pool, status, "write");
    }
    py_pool_unuse(pool);
    return status == TB_OK ? 0 : -1;
}

static void destroy(PyObject *self)
{
    struct py_loan *loan = loan_of(self);
    cancel(loan);
    Py_XDECREF(loan->array);
    Py_DECREF((PyObject *)loan->pool);
    py_object_free(self);
}

/* ---- views ---- */

/* Each view keeps the pool's memory, and is counted for the slot. */
static void add_view(struct py_loan *loan)
{
    Py_INCREF((PyObject *)loan);
    py_pool_use(loan->pool);
    py_adopt_keep(loan->pool->adopted);
    loan->pool->bus->views++;
    loan->views++;
    __atomic_store_n(&loan->slot->views, loan->slot->views + 1, __ATOMIC_RELAXED);
}

static void drop_view(void *context)
{
    struct py_loan *loan = context;
    struct py_adopted *adopted = loan->pool->adopted;
    loan->views--;
    if (!loan->harmless) {
        __atomic_store_n(&loan->slot->views, loan->slot->views - 1, __ATOMIC_RELAXED);
    }
    loan->pool->bus->views--;
    py_pool_unuse(loan->pool);
    Py_DECREF((PyObject *)loan);
    py_adopt_let_go(adopted);
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    struct py_loan *loan = loan_of(self);
    view->obj = NULL;
    if (check_open(loan) != 0 ||
        py_view_fill(view, self, &loan->tensor, 0, loan->raw, flags, loan) != 0) {
        return -1;
    }
    add_view(loan);
    return 0;
}

static void release_buffer(PyObject *self, Py_buffer *view)
{
    (void)self;
    drop_view(py_view_release(view));
}

static PyObject *numpy_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_loan *loan = loan_of(self);
    if (check_open(loan) != 0) {
        return NULL;
    }
    if (loan->tensor.device != TB_CPU) {
        return py_fail(loan->pool->bus->state, TB_E_UNSUPPORTED,
                       "pool `%s` is on cuda:%d, where NumPy cannot write: fill the loan with "
                       "torch.from_dlpack(loan) or cupy.from_dlpack(loan), or copy into the pool "
                       "with pool.write(array)",
                       loan->pool->name, (int)(loan->tensor.device & 0xffff));
    }
    PyObject *array = Py_XNewRef(array_of(loan));
    if (array == NULL) {
        /* A view of an array that nobody else gets: whatever is made from it refers to that one. */
        PyObject *base =
            py_view_numpy(loan->pool->bus->state, self, loan->tensor.dtype, &loan->raw);
        array = base != NULL ? PyObject_CallMethod(base, "view", NULL) : NULL;
        Py_XDECREF(base);
        PyObject *weak = array != NULL ? PyWeakref_NewRef(array, NULL) : NULL;
        if (weak == NULL) {
            Py_CLEAR(array);
        }
        Py_XDECREF(loan->array);
        loan->array = weak;
    }
    return array;
}

static PyObject *dlpack_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    struct py_loan *loan = loan_of(self);
    struct py_dlpack_request request;
    if (py_dlpack_parse(args, kwargs, loan->tensor.device, &request) != 0 ||
        check_open(loan) != 0) {
        return NULL;
    }
    if (request.copy == 1 || request.to_cpu) {
        PyErr_Format(PyExc_BufferError,
                     "a loan is there to be written into: a copy of pool `%s`'s "
                     "slot would be lost",
                     loan->pool->name);
        return NULL;
    }
    /* The slot is free on the GPU, too: there is nothing to wait for. Who fills it is known. */
    if (request.ordered && !loan->stream.given) {
        loan->stream = (struct py_stream){.stream = request.stream, .given = 1};
    }
    loan->lent |= loan->tensor.device != TB_CPU;
    add_view(loan);
    return py_dlpack_capsule(&loan->tensor, 0, request.versioned, drop_view, loan);
}

static PyObject *dlpack_device_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    return py_dlpack_device(loan_of(self)->tensor.device);
}

/* ---- methods ---- */

static PyObject *publish_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", NULL};
    struct py_loan *loan = loan_of(self);
    struct py_stream stream = {.stream = NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&:publish", names,
                                     py_publish_stream_converter, &stream)) {
        return NULL;
    }
    if (check_open(loan) != 0) { /* before its stream is another: who publishes it has no GIL */
        return NULL;
    }
    if (stream.given) {
        loan->stream = stream;
    }
    return publish(loan) == 0 ? py_handle_new(loan->pool->bus->state, &loan->handle) : NULL;
}

/* What a `with` block gets: an array, or this loan where NumPy has none. */
static PyObject *enter_method(PyObject *self, PyObject *unused)
{
    struct py_loan *loan = loan_of(self);
    if (loan->tensor.device == TB_CPU) {
        return numpy_method(self, unused);
    }
    return check_open(loan) == 0 ? Py_NewRef(self) : NULL;
}

static PyObject *promise_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_loan *loan = loan_of(self);
    struct py_state *state = loan->pool->bus->state;
    tb_handle handle;
    if (check_open(loan) != 0) {
        return NULL;
    }
    tb_status status = tb_loan_promise(loan->loan, &handle);
    return status == TB_OK ? py_handle_new(state, &handle) : py_raise(state, status);
}

static PyObject *cancel_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    cancel(loan_of(self));
    Py_RETURN_NONE;
}

static PyObject *exit_method(PyObject *self, PyObject *args)
{
    struct py_loan *loan = loan_of(self);
    PyObject *type = PyTuple_GetItem(args, 0);
    if (type == NULL) {
        return NULL;
    }
    if (type != Py_None) {
        cancel(loan);
    } else if (loan->loan != NULL && publish(loan) != 0) {
        return NULL;
    }
    Py_RETURN_FALSE;
}

static PyObject *get_handle(PyObject *self, void *unused)
{
    (void)unused;
    struct py_loan *loan = loan_of(self);
    return loan->published ? py_handle_new(loan->pool->bus->state, &loan->handle)
                           : Py_NewRef(Py_None);
}

static PyObject *get_shape(PyObject *self, void *unused)
{
    (void)unused;
    return py_shape_tuple(&loan_of(self)->tensor);
}

static PyObject *get_dtype(PyObject *self, void *unused)
{
    (void)unused;
    return py_dtype_name(loan_of(self)->tensor.dtype);
}

static PyObject *get_device(PyObject *self, void *unused)
{
    (void)unused;
    return py_device_name(loan_of(self)->tensor.device);
}

/* The address lives as long as the loan. */
static PyObject *get_cuda_interface(PyObject *self, void *unused)
{
    (void)unused;
    struct py_loan *loan = loan_of(self);
    if (check_open(loan) != 0) {
        return NULL;
    }
    if (loan->tensor.device == TB_CPU) {
        PyErr_SetString(PyExc_AttributeError,
                        "a loan in main memory has no __cuda_array_interface__: use .numpy()");
        return NULL;
    }
    loan->lent = 1;
    PyObject *interface =
        py_gpu_interface(loan->pool->bus->state, &loan->tensor, 0, loan->stream.stream);
    if (interface != NULL && check_open(loan) != 0) { /* NumPy was asked, perhaps imported */
        Py_CLEAR(interface);
    }
    return interface;
}

static PyObject *repr(PyObject *self)
{
    struct py_loan *loan = loan_of(self);
    char text[200];
    tb_tensor_describe(&loan->tensor, text, sizeof text);
    return PyUnicode_FromFormat("<tensorbus.Loan: of pool `%s`, %s%s>", loan->pool->name, text,
                                loan->loan != NULL ? ""
                                : loan->published  ? ", published"
                                                   : ", given back");
}

#define WITH_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"numpy", numpy_method, METH_NOARGS,
     "numpy($self, /)\n--\n\n"
     "The slot as a writable NumPy array, with whatever it held before: what a `with` block gets.\n"
     "Read-only once the loan is over; it does not keep the frame."},
    {"publish", WITH_KEYWORDS(publish_method), METH_VARARGS | METH_KEYWORDS,
     "publish($self, stream=None)\n--\n\n"
     "Make the slot a frame: readers see it, and sleeping ones are woken. Returns its Handle.\n\n"
     "stream: of the GPU that fills it: the call returns at once, and the frame is complete when\n"
     "the stream has done what it was given before. None: the stream of loan(), else the one that\n"
     "from_dlpack(loan) was called on; on a GPU else the legacy default stream. -1, as in DLPack:\n"
     "the slot is complete, as after torch.cuda.synchronize(). Readers have it at once then, and\n"
     "the driver is not called.\n"
     "The block's array becomes read-only. Other arrays and tensors that were made from it cannot\n"
     "be told: a write through one of them ends the process with a line that names the pool,\n"
     "rather than change the frame under its readers.\n"
     "Raises FreedError when the pool was freed meanwhile: the frame is discarded."},
    {"promise", promise_method, METH_NOARGS,
     "promise($self, /)\n--\n\n"
     "Number the frame before it is written, and return its Handle, which can travel meanwhile:\n"
     "whoever opens it waits until the loan is published, and is told when it is given up. Frames\n"
     "that are published later come to readers in order only behind it.\n"
     "Raises UnsupportedError on a GPU, where publishing on a stream does the same; FreedError."},
    {"cancel", cancel_method, METH_NOARGS,
     "cancel($self, /)\n--\n\nGive the slot back unpublished. After the end of a loan this does "
     "nothing.\nWaits for the stream that fills the slot, if there is one."},
    {"__dlpack__", WITH_KEYWORDS(dlpack_method), METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "A DLPack capsule over the slot, writable: torch.from_dlpack(loan)."},
    {"__dlpack_device__", dlpack_device_method, METH_NOARGS, NULL},
    {"__enter__", enter_method, METH_NOARGS, NULL},
    {"__exit__", exit_method, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"handle", get_handle, NULL, "The frame's Handle once it is published, else None.", NULL},
    {"shape", get_shape, NULL, "Shape of the slot's tensor.", NULL},
    {"dtype", get_dtype, NULL, "Name of its dtype.", NULL},
    {"device", get_device, NULL, "\"cpu\" or \"cuda:0\".", NULL},
    {"__cuda_array_interface__", get_cuda_interface, NULL,
     "Version 3 of it, writable, for a loan in a GPU's memory.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(doc, "A borrowed slot of a pool, made by pool.loan(), to be filled in place.\n\n"
                  "    with pool.loan() as image:\n"
                  "        image[:] = 7\n\n"
                  "The block gets a writable NumPy array; at its end the slot is published, or\n"
                  "given back when an exception leaves the block. For PyTorch: keep the loan,\n"
                  "`loan = pool.loan()`, and use torch.from_dlpack(loan) inside `with loan:`.\n"
                  "In a GPU's memory the block gets the loan itself, for torch.from_dlpack(loan);\n"
                  "tensors made from it must not be written to after the block: on a GPU nothing\n"
                  "stops that.\n"
                  "A loan that is dropped is given back. One thread at a time.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_dealloc, destroy},
    {Py_bf_getbuffer, get_buffer},
    {Py_bf_releasebuffer, release_buffer},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tensorbus.Loan",
    .basicsize = sizeof(struct py_loan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int py_loan_add(PyObject *module)
{
    return py_type_add(module, PY_LOAN_TYPE, &spec);
}

/* tensorbus.Frame. */
#include "frame.h"

#include "dlpack.h"
#include "dtype.h"
#include "errors.h"
#include "frame_arrow.h"
#include "frame_gpu.h"
#include "frame_info.h"
#include "handle.h"
#include "view.h"

struct py_frame {
    PyObject_HEAD struct py_lease *lease; /* NULL: released */
    struct py_turn *turn;                 /* of the iteration that gave it out; or NULL */
    PyObject *info;                       /* made when asked for */
    int held;
    int raw;  /* see view.h */
    int lent; /* its address was given to one who keeps this object for the memory */
};

static struct py_frame *frame_of(PyObject *self)
{
    return (struct py_frame *)self;
}

/* ---- life ---- */

static PyObject *wrap(struct py_state *state, struct py_lease *take_lease)
{
    PyTypeObject *type = (PyTypeObject *)state->slots[PY_FRAME_TYPE];
    struct py_frame *self = PyObject_New(struct py_frame, type);
    if (self == NULL) {
        py_lease_unref(take_lease);
        return NULL;
    }
    self->lease = take_lease;
    self->turn = NULL;
    self->info = NULL;
    self->held = 0;
    self->raw = 0;
    self->lent = 0;
    return (PyObject *)self;
}

PyObject *py_frame_new(struct py_bus *bus, PyObject *keep, void (*gone)(PyObject *keep),
                       tb_frame *take_frame)
{
    struct py_lease *lease = py_lease_new(bus, keep, gone, take_frame);
    return lease != NULL ? wrap(bus->state, lease) : NULL;
}

static tb_status end(struct py_frame *frame)
{
    struct py_lease *lease = frame->lease;
    frame->lease = NULL;
    return lease != NULL ? py_lease_unref(lease) : TB_OK;
}

static void leave_turn(struct py_frame *frame)
{
    if (frame->turn != NULL) {
        frame->turn->frame = NULL;
        frame->turn = NULL;
    }
}

static void destroy(PyObject *self)
{
    struct py_frame *frame = frame_of(self);
    leave_turn(frame);
    end(frame);
    Py_XDECREF(frame->info);
    py_object_free(self);
}

void py_turn_forget(struct py_turn *turn)
{
    if (turn->frame != NULL) {
        leave_turn(turn->frame);
    }
}

void py_turn_begin(struct py_turn *turn, PyObject *frame)
{
    py_turn_forget(turn); /* of another thread's, in the same loop */
    turn->frame = frame_of(frame);
    turn->frame->turn = turn;
}

void py_turn_end(struct py_turn *turn)
{
    struct py_frame *frame = turn->frame;
    if (frame != NULL) {
        leave_turn(frame);
        if (!frame->held && !frame->lent) {
            end(frame);
        }
    }
}

static struct py_lease *lease_of(PyObject *self)
{
    struct py_lease *lease = frame_of(self)->lease;
    if (lease == NULL) {
        py_fail(py_state_of(self), TB_E_INVALID,
                "this frame was released, or its turn of the loop is over: use frame.hold() to "
                "keep it, or frame.copy()");
        return NULL;
    }
    return py_bus_check(lease->bus) == 0 ? lease : NULL;
}

struct py_lease *py_frame_lease(struct py_state *state, PyObject *object)
{
    if ((PyObject *)Py_TYPE(object) != state->slots[PY_FRAME_TYPE]) {
        PyErr_Format(PyExc_TypeError, "a tensorbus.Frame is needed, not %R",
                     (PyObject *)Py_TYPE(object));
        return NULL;
    }
    return lease_of(object);
}

/* ---- views ---- */

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    struct py_lease *lease = lease_of(self);
    view->obj = NULL;
    if (lease == NULL ||
        py_view_fill(view, self, &lease->tensor, 1, frame_of(self)->raw, flags, lease) != 0) {
        return -1;
    }
    py_lease_add_view(lease);
    return 0;
}

static void release_buffer(PyObject *self, Py_buffer *view)
{
    (void)self;
    py_lease_drop_view(py_view_release(view));
}

static PyObject *numpy_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    return lease != NULL && py_gpu_refuse_numpy(lease) == 0
               ? py_view_numpy(py_state_of(self), self, lease->tensor.dtype, &frame_of(self)->raw)
               : NULL;
}

static PyObject *copy_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", NULL};
    PyObject *device = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:copy", names, &device) ||
        py_gpu_check_copy(py_state_of(self), device) != 0) {
        return NULL;
    }
    struct py_lease *lease = lease_of(self);
    if (lease == NULL) {
        return NULL;
    }
    return lease->tensor.device != TB_CPU ? py_gpu_copy(lease)
                                          : py_view_copy(numpy_method(self, NULL));
}

static PyObject *array_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return py_view_array(self, numpy_method, args, kwargs);
}

static PyObject *dlpack_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    struct py_lease *lease = lease_of(self);
    struct py_dlpack_request request;
    if (lease == NULL || py_dlpack_parse(args, kwargs, lease->tensor.device, &request) != 0) {
        return NULL;
    }
    lease = lease_of(self); /* the arguments may be objects of Python, which have run anything */
    if (lease == NULL) {
        return NULL;
    }
    if (lease->tensor.device != TB_CPU) {
        return py_gpu_dlpack(lease, &request);
    }
    if (request.copy == 1) {
        py_lease_add_view(lease); /* the copy is made without the GIL: its memory stays */
        PyObject *copy = py_dlpack_copy(py_state_of(self), &lease->tensor, request.versioned);
        py_lease_drop_view(lease);
        return copy;
    }
    py_lease_add_view(lease);
    return py_dlpack_capsule(&lease->tensor, PY_DL_READ_ONLY, request.versioned, py_lease_drop_view,
                             lease);
}

static PyObject *get_cuda_interface(PyObject *self, void *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    PyObject *interface = lease != NULL ? py_gpu_frame_interface(lease) : NULL;
    /* NumPy was asked, perhaps imported: the frame may be over. */
    if (interface != NULL &&
        (lease_of(self) == NULL || py_gpu_wait(&frame_of(self)->lease, NULL) != 0)) {
        Py_CLEAR(interface);
    }
    frame_of(self)->lent |= interface != NULL;
    return interface;
}

static PyObject *dlpack_device_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    return lease != NULL ? py_dlpack_device(lease->tensor.device) : NULL;
}

/* ---- holding ---- */

static PyObject *hold_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    if (lease == NULL) {
        return NULL;
    }
    frame_of(self)->held = 1;
    py_lease_ref(lease);
    PyObject *another = wrap(py_state_of(self), lease);
    if (another != NULL) {
        frame_of(another)->held = 1;
    }
    return another;
}

/* ---- in the order of a GPU ---- */

static PyObject *wait_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", NULL};
    struct py_stream stream = {.stream = NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&:wait", names, py_stream_converter,
                                     &stream) ||
        lease_of(self) == NULL) {
        return NULL;
    }
    return py_gpu_wait(&frame_of(self)->lease, stream.stream) == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *poll_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    tb_status status = lease != NULL ? tb_frame_poll(lease->frame) : TB_OK;
    if (lease == NULL || (status != TB_OK && status != TB_AGAIN)) {
        return lease != NULL ? py_raise(py_state_of(self), status) : NULL;
    }
    return PyBool_FromLong(status == TB_OK);
}

/* Views that are in the order of another stream stay in it. */
static int give_order(struct py_lease **lease, tb_cuda_stream stream)
{
    int alive = (*lease)->bus->bus != NULL && !(*lease)->bus->forked;
    if (alive && (*lease)->on_stream && (*lease)->views > 0) {
        return py_gpu_wait(lease, stream);
    }
    (*lease)->stream = stream;
    (*lease)->on_stream = 1;
    return 0;
}

static PyObject *release_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", NULL};
    struct py_stream stream = {.stream = NULL};
    struct py_frame *frame = frame_of(self);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&:release", names, py_stream_converter,
                                     &stream)) {
        return NULL;
    }
    leave_turn(frame);
    int failed = 0;
    if (frame->lease != NULL && stream.given) {
        failed = give_order(&frame->lease, stream.stream) != 0;
    }
    tb_status status = end(frame);
    if (failed) {
        return NULL;
    }
    return status == TB_OK ? Py_NewRef(Py_None) : py_raise(py_state_of(self), status);
}

static PyObject *enter_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    return lease_of(self) != NULL ? Py_NewRef(self) : NULL;
}

/* An exception that leaves the block matters more than what became of the frame. */
static PyObject *exit_method(PyObject *self, PyObject *args)
{
    leave_turn(frame_of(self));
    tb_status status = end(frame_of(self));
    PyObject *type = PyTuple_GetItem(args, 0);
    if (type == NULL) {
        return NULL;
    }
    return status == TB_OK || type != Py_None ? Py_NewRef(Py_None)
                                              : py_raise(py_state_of(self), status);
}

/* ---- what is known ---- */

static PyObject *get_info(PyObject *self, void *unused)
{
    (void)unused;
    struct py_frame *frame = frame_of(self);
    if (frame->info == NULL) {
        struct py_lease *lease = lease_of(self);
        if (lease == NULL) {
            return NULL;
        }
        frame->info = py_frame_info_new(py_state_of(self), &lease->info);
    }
    return Py_XNewRef(frame->info);
}

static PyObject *get_handle(PyObject *self, void *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    return lease != NULL ? py_handle_new(py_state_of(self), &lease->info.handle) : NULL;
}

static PyObject *get_sequence(PyObject *self, void *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    return lease != NULL ? PyLong_FromUnsignedLongLong(lease->info.sequence) : NULL;
}

static PyObject *get_shape(PyObject *self, void *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    return lease != NULL ? py_shape_tuple(&lease->tensor) : NULL;
}

static PyObject *get_dtype(PyObject *self, void *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    return lease != NULL ? py_dtype_name(lease->tensor.dtype) : NULL;
}

static PyObject *get_ndim(PyObject *self, void *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    return lease != NULL ? PyLong_FromLong(lease->tensor.ndim) : NULL;
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    return lease != NULL ? PyLong_FromUnsignedLongLong(lease->info.handle.bytes) : NULL;
}

static PyObject *get_device(PyObject *self, void *unused)
{
    (void)unused;
    struct py_lease *lease = lease_of(self);
    if (lease == NULL) {
        return NULL;
    }
    return py_device_name(lease->tensor.device);
}

static PyObject *get_released(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(frame_of(self)->lease == NULL);
}

static PyObject *repr(PyObject *self)
{
    struct py_lease *lease = frame_of(self)->lease;
    if (lease == NULL) {
        return PyUnicode_FromString("<tensorbus.Frame: released>");
    }
    char text[200];
    tb_tensor_describe(&lease->tensor, text, sizeof text);
    return PyUnicode_FromFormat("<tensorbus.Frame: %llu of pool `%s%s%s`, %s>",
                                (unsigned long long)lease->info.sequence, lease->info.producer,
                                lease->info.producer[0] != '\0' ? "/" : "", lease->info.pool, text);
}

/* ---- the type ---- */

#define WITH_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"numpy", numpy_method, METH_NOARGS,
     "numpy($self, /)\n--\n\n"
     "The frame as a NumPy array: no copy, writeable=False, shape and dtype of the frame.\n\n"
     "The array keeps the frame held on its own, also after release() and beyond the loop's\n"
     "turn: a slot that is held cannot be written, so let go of arrays soon. bfloat16 and\n"
     "float8 need ml_dtypes (else UnsupportedError)."},
    {"copy", WITH_KEYWORDS(copy_method), METH_VARARGS | METH_KEYWORDS,
     "copy($self, device=None)\n--\n\n"
     "The frame's elements in a new, writable NumPy array that belongs to the caller.\n\n"
     "device: None or \"cpu\". A GPU's frame is waited for and copied without the GIL; for a copy\n"
     "on the GPU use torch.from_dlpack(frame).clone(). Raises IncompleteError."},
    {"wait", WITH_KEYWORDS(wait_method), METH_VARARGS | METH_KEYWORDS,
     "wait($self, stream=None)\n--\n\n"
     "Make a stream wait until a GPU has finished the frame. Returns at once.\n\n"
     "stream: a number, a stream of PyTorch or CuPy; None: the legacy default stream. The frame\n"
     "is given back in that stream's order, so the stream must outlive the frame. PyTorch, CuPy\n"
     "and JAX do this by themselves with from_dlpack(frame)."},
    {"poll", poll_method, METH_NOARGS,
     "poll($self, /)\n--\n\n"
     "Whether the frame is complete: True, or False while a GPU works on it. Raises\n"
     "IncompleteError when it never will be. Does not wait."},
    {"hold", hold_method, METH_NOARGS,
     "hold($self, /)\n--\n\n"
     "Keep the frame beyond its turn of a loop. Returns another Frame of the same elements; both\n"
     "are released on their own, by release() or with their last reference. No lease is taken."},
    {"release", WITH_KEYWORDS(release_method), METH_VARARGS | METH_KEYWORDS,
     "release($self, stream=None)\n--\n\n"
     "Give the frame back. Views of it stay valid, and keep it held, until they are gone.\n"
     "Releasing twice does nothing. Also happens at the end of a `with` block.\n\n"
     "stream: give it, and its views, back when the stream has done what it was given before;\n"
     "None: the stream of wait() or from_dlpack(), at once if there was none.\n"
     "Raises IncompleteError when a GPU did not finish the frame: drop what was computed from it."},
    {"__array__", WITH_KEYWORDS(array_method), METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack__", WITH_KEYWORDS(dlpack_method), METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "A DLPack capsule: no copy unless copy=True, read-only flag set, byte_offset 0. The "
     "capsule's\n"
     "consumer keeps the frame held. Consumers before DLPack 1.0 cannot be told that the memory "
     "is\n"
     "read-only: a write ends the process.\n\n"
     "stream: for a GPU's frame the consumer's stream as DLPack numbers it; it waits for the\n"
     "frame, which comes back in its order. dl_device=(1, 0): a copy in main memory."},
    {"__dlpack_device__", dlpack_device_method, METH_NOARGS, NULL},
    {"arrow", py_frame_arrow, METH_NOARGS,
     "arrow($self, /)\n--\n\n"
     "The frame as a pyarrow.Array, without a copy; it keeps the frame held. More than one\n"
     "dimension: fixed-size lists of rows. UnsupportedError for what Arrow has no array of."},
    {"__arrow_c_schema__", py_frame_arrow_schema, METH_NOARGS, NULL},
    {"__arrow_c_array__", WITH_KEYWORDS(py_frame_arrow_array), METH_VARARGS | METH_KEYWORDS, NULL},
    {"__enter__", enter_method, METH_NOARGS, NULL},
    {"__exit__", exit_method, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"info", get_info, NULL,
     "What is known about the frame: a FrameInfo. Once asked for, it stays after release().", NULL},
    {"handle", get_handle, NULL, "The Handle that names the frame.", NULL},
    {"sequence", get_sequence, NULL, "Number of the write in its pool, from 1.", NULL},
    {"shape", get_shape, NULL, "Shape of the tensor, a tuple.", NULL},
    {"dtype", get_dtype, NULL, "Name of the dtype, such as \"uint8\" or \"bfloat16\".", NULL},
    {"ndim", get_ndim, NULL, "Number of dimensions.", NULL},
    {"nbytes", get_nbytes, NULL, "Packed size in bytes.", NULL},
    {"device", get_device, NULL, "\"cpu\" or \"cuda:0\".", NULL},
    {"__cuda_array_interface__", get_cuda_interface, NULL,
     "Version 3 of it, read-only, for a GPU's frame. The frame is then held as long as this\n"
     "object is there, beyond its turn of a loop.",
     NULL},
    {"released", get_released, NULL, "Whether it was released, or its turn is over.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    doc, "A tensor in its owner's memory, read-only, that does not change while it is held.\n\n"
         "Readers, pool.read() and open_frame() make them. Look at it with numpy(),\n"
         "numpy.asarray(frame), torch.from_dlpack(frame), memoryview(frame). It is given back\n"
         "by release(), at the end of a `with` block, with its last reference, or when the loop\n"
         "that gave it out goes on; views keep it held on their own. Writing into it is\n"
         "refused; code that writes all the same (PyTorch in place) ends the process with a\n"
         "line that names the pool. One thread at a time.");

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
    .name = "tensorbus.Frame",
    .basicsize = sizeof(struct py_frame),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int py_frame_add(PyObject *module)
{
    return py_type_add(module, PY_FRAME_TYPE, &spec);
}

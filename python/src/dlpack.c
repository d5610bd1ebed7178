/* DLPack capsules. */
#include "dlpack.h"

#include <stddef.h>
#include <stdlib.h>

#include "errors.h"

#define NAME "dltensor"
#define NAME_VERSIONED "dltensor_versioned"
#define CPU 1
#define CUDA 2

_Static_assert(sizeof(struct py_dl_tensor) == 48 && offsetof(struct py_dl_tensor, shape) == 24 &&
                   offsetof(struct py_dl_managed, context) == 48 &&
                   offsetof(struct py_dl_versioned, flags) == 24 &&
                   offsetof(struct py_dl_versioned, tensor) == 32,
               "the layout that every consumer expects");

/* ---- devices ---- */

static void split_device(tb_device device, int32_t *type, int32_t *id)
{
    *type = device == TB_CPU ? CPU : CUDA;
    *id = device == TB_CPU ? 0 : (int32_t)(device & 0xffff);
}

PyObject *py_dlpack_device(tb_device device)
{
    int32_t type, id;
    split_device(device, &type, &id);
    return Py_BuildValue("(ii)", (int)type, (int)id);
}

/* ---- what a consumer asks for ---- */

static int parse_version(PyObject *max_version, int *out_versioned)
{
    int major, minor;
    if (max_version == Py_None) {
        *out_versioned = 0;
        return 0;
    }
    if (!PyTuple_Check(max_version) || !PyArg_ParseTuple(max_version, "ii", &major, &minor)) {
        PyErr_Format(PyExc_TypeError, "max_version must be (major, minor) or None, not %R",
                     max_version);
        return -1;
    }
    *out_versioned = major >= 1;
    return 0;
}

static int check_device(PyObject *dl_device, tb_device device, struct py_dlpack_request *out)
{
    int32_t type, id;
    int wanted_type, wanted_id;
    out->to_cpu = 0;
    if (dl_device == Py_None) {
        return 0;
    }
    split_device(device, &type, &id);
    if (!PyTuple_Check(dl_device) || !PyArg_ParseTuple(dl_device, "ii", &wanted_type, &wanted_id)) {
        PyErr_Format(PyExc_TypeError, "dl_device must be (type, id) or None, not %R", dl_device);
        return -1;
    }
    out->to_cpu = type == CUDA && wanted_type == CPU && out->copy != 0;
    if (!out->to_cpu && (wanted_type != type || wanted_id != id)) {
        PyErr_Format(PyExc_BufferError,
                     "the tensor is on device (%d, %d) and cannot be given on (%d, %d): take it as "
                     "it is, then copy it there",
                     (int)type, (int)id, wanted_type, wanted_id);
        return -1;
    }
    return 0;
}

/* On a GPU None and 1 are the legacy default stream, 2 is the thread's, -1 wants no order. Main
 * memory is ready when a frame is there: no stream has to wait for it. */
static int parse_stream(PyObject *stream, tb_device device, struct py_dlpack_request *out)
{
    out->stream = NULL;
    out->ordered = device != TB_CPU;
    if (device != TB_CPU && stream == Py_None) {
        return 0;
    }
    long number = stream == Py_None ? -1 : PyLong_AsLong(stream);
    if (number == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (device == TB_CPU && number != -1) {
        PyErr_Format(PyExc_ValueError, "memory of the CPU has no stream: pass None, not %ld",
                     number);
        return -1;
    }
    if (device != TB_CPU && (number == 0 || number < -1)) {
        PyErr_Format(PyExc_ValueError,
                     "stream is %ld, which DLPack does not allow: 1 is CUDA's legacy default "
                     "stream, 2 the thread's, -1 no stream at all",
                     number);
        return -1;
    }
    out->ordered = out->ordered && number != -1;
    out->stream = number > 1 ? (tb_cuda_stream)(uintptr_t)number : NULL;
    return 0;
}

int py_dlpack_parse(PyObject *args, PyObject *kwargs, tb_device device,
                    struct py_dlpack_request *out)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *max_version = Py_None, *dl_device = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", names, &stream,
                                     &max_version, &dl_device, &copy) ||
        parse_version(max_version, &out->versioned) != 0) {
        return -1;
    }
    out->copy = copy == Py_None ? -1 : PyObject_IsTrue(copy);
    if (out->copy == -1 && PyErr_Occurred()) {
        return -1;
    }
    return check_device(dl_device, device, out) != 0 || parse_stream(stream, device, out) != 0 ? -1
                                                                                               : 0;
}

/* ---- out ---- */

/* What a capsule's consumer holds. */
struct export
{
    union {
        struct py_dl_managed old;
        struct py_dl_versioned versioned;
    } managed;
    int64_t shape[TB_MAX_NDIM];
    int64_t strides[TB_MAX_NDIM];
    void (*release)(void *context);
    void *context;
};

/* Consumers let go on any thread, with the GIL or without, now and then when Python has ended. */
static void let_go(struct export *export)
{
    if (Py_IsInitialized()) {
        PyGILState_STATE gil = PyGILState_Ensure();
        export->release(export->context);
        PyGILState_Release(gil);
    }
    free(export);
}

static void delete_old(struct py_dl_managed *managed)
{
    let_go(managed->context);
}

static void delete_versioned(struct py_dl_versioned *managed)
{
    let_go(managed->context);
}

/* A capsule that nobody has taken. */
static void drop_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, NAME_VERSIONED)) {
        struct py_dl_versioned *managed = PyCapsule_GetPointer(capsule, NAME_VERSIONED);
        managed->deleter(managed);
    } else if (PyCapsule_IsValid(capsule, NAME)) {
        struct py_dl_managed *managed = PyCapsule_GetPointer(capsule, NAME);
        managed->deleter(managed);
    }
}

static void fill_tensor(struct export *export, struct py_dl_tensor *out, const tb_tensor *tensor)
{
    int64_t stride = 1;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        export->shape[i] = tensor->shape[i];
        export->strides[i] = tensor->strides != NULL ? tensor->strides[i] : stride;
        stride *= tensor->shape[i] > 1 ? tensor->shape[i] : 1;
    }
    *out = (struct py_dl_tensor){.data = tensor->data,
                                 .ndim = tensor->ndim,
                                 .code = (uint8_t)(tensor->dtype & 0xff),
                                 .bits = (uint8_t)(tensor->dtype >> 8 & 0xff),
                                 .lanes = (uint16_t)(tensor->dtype >> 16),
                                 .shape = export->shape,
                                 .strides = export->strides};
    split_device(tensor->device, &out->device_type, &out->device_id);
}

PyObject *py_dlpack_capsule(const tb_tensor *tensor, uint64_t flags, int versioned,
                            void (*release)(void *context), void *context)
{
    struct export *export = calloc(1, sizeof *export);
    if (export == NULL) {
        release(context);
        return PyErr_NoMemory();
    }
    export->release = release;
    export->context = context;
    PyObject *capsule;
    if (versioned) {
        export->managed.versioned = (struct py_dl_versioned){
            .major = 1, .minor = 1, .context = export, .deleter = delete_versioned, .flags = flags};
        fill_tensor(export, &export->managed.versioned.tensor, tensor);
        capsule = PyCapsule_New(&export->managed.versioned, NAME_VERSIONED, drop_capsule);
    } else {
        export->managed.old = (struct py_dl_managed){.context = export, .deleter = delete_old};
        fill_tensor(export, &export->managed.old.tensor, tensor);
        capsule = PyCapsule_New(&export->managed.old, NAME, drop_capsule);
    }
    if (capsule == NULL) {
        let_go(export);
    }
    return capsule;
}

/* ---- a copy ---- */

PyObject *py_dlpack_copy(struct py_state *state, const tb_tensor *tensor, int versioned)
{
    size_t bytes;
    void *memory = NULL;
    if (tb_tensor_bytes(tensor, &bytes) != TB_OK ||
        posix_memalign(&memory, 256, bytes > 0 ? bytes : 1) != 0) {
        return PyErr_NoMemory();
    }
    tb_tensor copy = *tensor;
    copy.data = memory;
    copy.device = TB_CPU;
    copy.strides = NULL;
    PyThreadState *thread = PyEval_SaveThread();
    tb_status status = bytes > 0 ? tb_copy(&copy, tensor) : TB_OK;
    PyEval_RestoreThread(thread);
    if (status != TB_OK) {
        free(memory);
        return py_raise(state, status);
    }
    return py_dlpack_capsule(&copy, PY_DL_COPIED, versioned, free, memory);
}

/* ---- in ---- */

static int is_on_gpu(PyObject *object)
{
    int type = CPU, id = 0;
    PyObject *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    if (device == NULL || !PyTuple_Check(device) || !PyArg_ParseTuple(device, "ii", &type, &id)) {
        PyErr_Clear(); /* a type that is an enumeration's member is an int, too */
    }
    Py_XDECREF(device);
    return type == CUDA;
}

/* __dlpack__() as the newest standard has it, else as older producers do. */
static PyObject *ask(PyObject *object, tb_cuda_stream stream)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyObject *none = PyTuple_New(0);
    PyObject *options = PyDict_New();
    PyObject *version = Py_BuildValue("(ii)", 1, 1);
    PyObject *number = py_stream_number(stream);
    PyObject *capsule = NULL;
    int failed = method == NULL || none == NULL || options == NULL || version == NULL ||
                 number == NULL || PyDict_SetItemString(options, "max_version", version) != 0 ||
                 (is_on_gpu(object) && PyDict_SetItemString(options, "stream", number) != 0);
    if (!failed) {
        capsule = PyObject_Call(method, none, options);
        if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            (void)PyDict_DelItemString(options, "max_version");
            capsule = PyObject_Call(method, none, options);
        }
    }
    Py_XDECREF(method);
    Py_XDECREF(none);
    Py_XDECREF(options);
    Py_XDECREF(version);
    Py_XDECREF(number);
    return capsule;
}

static const struct py_dl_tensor *open_capsule(struct py_state *state, PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, NAME_VERSIONED)) {
        struct py_dl_versioned *managed = PyCapsule_GetPointer(capsule, NAME_VERSIONED);
        if (managed->major != 1) {
            py_fail(state, TB_E_UNSUPPORTED, "a DLPack tensor of version %u.%u, 1.x is understood",
                    (unsigned)managed->major, (unsigned)managed->minor);
            return NULL;
        }
        return &managed->tensor;
    }
    if (PyCapsule_IsValid(capsule, NAME)) {
        struct py_dl_managed *managed = PyCapsule_GetPointer(capsule, NAME);
        return &managed->tensor;
    }
    PyErr_Format(PyExc_TypeError, "__dlpack__() returned %R, not a capsule with a tensor", capsule);
    return NULL;
}

static int read_tensor(struct py_state *state, const struct py_dl_tensor *given, tb_tensor *out)
{
    if (given->device_type != CPU && given->device_type != CUDA) {
        /* Pinned and managed memory (3, 13) is the CPU's as well. */
        if (given->device_type != 3 && given->device_type != 13) {
            py_fail(state, TB_E_UNSUPPORTED,
                    "a tensor on DLPack device (%d, %d): copy it to the CPU first",
                    (int)given->device_type, (int)given->device_id);
            return -1;
        }
    }
    if (given->ndim < 0 || given->ndim > TB_MAX_NDIM) {
        py_fail(state, TB_E_INVALID, "a tensor of %d dimensions: 0 to %d are possible",
                (int)given->ndim, TB_MAX_NDIM);
        return -1;
    }
    *out =
        (tb_tensor){.data = given->data != NULL ? (char *)given->data + given->byte_offset : NULL,
                    .device = given->device_type == CUDA ? TB_CUDA(given->device_id) : TB_CPU,
                    .dtype = TB_DTYPE(given->code, given->bits, given->lanes),
                    .ndim = given->ndim,
                    .strides = given->strides};
    for (int32_t i = 0; i < given->ndim; i++) {
        out->shape[i] = given->shape[i];
    }
    return 0;
}

int py_dlpack_import(struct py_state *state, PyObject *object, tb_cuda_stream stream,
                     tb_tensor *out, PyObject **out_capsule)
{
    PyObject *capsule = ask(object, stream);
    const struct py_dl_tensor *given = capsule != NULL ? open_capsule(state, capsule) : NULL;
    if (given == NULL || read_tensor(state, given, out) != 0) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace); /* the producer's deleter may be written in Python */
        Py_XDECREF(capsule);
        PyErr_Restore(type, value, trace);
        return -1;
    }
    /* It stays untaken: its own destructor deletes the tensor when the last reference goes. */
    *out_capsule = capsule;
    return 0;
}

int py_dlpack_is_read_only(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, NAME_VERSIONED)) {
        return 0; /* before 1.0 there was no word for it */
    }
    const struct py_dl_versioned *managed = PyCapsule_GetPointer(capsule, NAME_VERSIONED);
    return (managed->flags & PY_DL_READ_ONLY) != 0;
}

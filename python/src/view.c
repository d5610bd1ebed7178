/* Filling Py_buffer, and NumPy arrays over it. */
#include "view.h"

#include "dtype.h"

static const char *format_of(tb_dtype dtype, int raw)
{
    const char *format = py_dtype_format(dtype);
    if (format == NULL && raw) {
        size_t bytes = tb_dtype_bytes(dtype);
        format = bytes == 1 ? "B" : bytes == 2 ? "H" : bytes == 4 ? "I" : bytes == 8 ? "Q" : NULL;
    }
    return format;
}

static int is_fortran(const tb_tensor *tensor)
{
    int64_t stride = 1;
    int64_t packed = 1;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t given = packed;
        if (tensor->strides != NULL) {
            given = tensor->strides[i];
        } else {
            given = 1;
            for (int32_t j = i + 1; j < tensor->ndim; j++) {
                given *= tensor->shape[j];
            }
        }
        if (tensor->shape[i] > 1 && given != stride) {
            return 0;
        }
        stride *= tensor->shape[i];
    }
    return 1;
}

/* Whether the memory lies as `flags` need it. */
static int check_layout(const tb_tensor *tensor, int flags)
{
    int packed = tb_tensor_is_packed(tensor);
    if ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS) {
        return packed;
    }
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS) {
        return is_fortran(tensor);
    }
    if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS) {
        return packed || is_fortran(tensor);
    }
    return packed || (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
}

static void fill_shape(struct py_view *own, const tb_tensor *tensor, Py_ssize_t itemsize)
{
    Py_ssize_t stride = itemsize;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        own->shape[i] = (Py_ssize_t)tensor->shape[i];
        own->strides[i] =
            tensor->strides != NULL ? (Py_ssize_t)tensor->strides[i] * itemsize : stride;
        stride *= tensor->shape[i] > 1 ? own->shape[i] : 1;
    }
}

int py_view_fill(Py_buffer *view, PyObject *exporter, const tb_tensor *tensor, int read_only,
                 int raw, int flags, void *context)
{
    static char nothing[8]; /* where an empty tensor lies */
    const char *format = format_of(tensor->dtype, raw);
    size_t bytes;
    char name[32];
    view->obj = NULL;
    if (tensor->device != TB_CPU) {
        PyErr_Format(PyExc_BufferError, "the tensor is on cuda:%d: use DLPack, or copy it first",
                     (int)(tensor->device & 0xffff));
        return -1;
    }
    if (format == NULL || tb_tensor_bytes(tensor, &bytes) != TB_OK) {
        PyErr_Format(PyExc_BufferError,
                     "the buffer protocol has no format for %s: use .numpy() or DLPack",
                     tb_dtype_name(tensor->dtype, name));
        return -1;
    }
    if (read_only && (flags & PyBUF_WRITABLE) == PyBUF_WRITABLE) {
        PyErr_SetString(PyExc_BufferError,
                        "a frame is read-only for all its readers: write into a copy, .copy()");
        return -1;
    }
    if (!check_layout(tensor, flags)) {
        PyErr_SetString(PyExc_BufferError, "the frame's elements do not lie as is asked for: take "
                                           "its strides, or a copy");
        return -1;
    }
    struct py_view *own = PyMem_Malloc(sizeof *own);
    if (own == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t itemsize = (Py_ssize_t)tb_dtype_bytes(tensor->dtype);
    fill_shape(own, tensor, itemsize);
    own->context = context;
    int has_shape = (flags & PyBUF_ND) == PyBUF_ND;
    int has_strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
    *view = (Py_buffer){.buf = tensor->data != NULL ? tensor->data : nothing,
                        .obj = Py_NewRef(exporter),
                        .len = (Py_ssize_t)bytes,
                        .itemsize = itemsize,
                        .readonly = read_only,
                        .ndim = tensor->ndim,
                        .format = flags & PyBUF_FORMAT ? (char *)(uintptr_t)format : NULL,
                        .shape = has_shape ? own->shape : NULL,
                        .strides = has_strides ? own->strides : NULL,
                        .internal = own};
    return 0;
}

void *py_view_release(Py_buffer *view)
{
    struct py_view *own = view->internal;
    void *context = own->context;
    PyMem_Free(own);
    return context;
}

PyObject *py_view_numpy(struct py_state *state, PyObject *exporter, tb_dtype dtype, int *raw)
{
    PyObject *asarray = py_numpy_asarray(state);
    if (asarray == NULL) {
        return NULL;
    }
    if (py_dtype_format(dtype) != NULL) {
        return PyObject_CallFunctionObjArgs(asarray, exporter, NULL);
    }
    PyObject *wanted = py_dtype_numpy(state, dtype);
    if (wanted == NULL) {
        return NULL;
    }
    *raw = 1;
    PyObject *memory = PyMemoryView_FromObject(exporter);
    *raw = 0;
    PyObject *words = memory != NULL ? PyObject_CallFunctionObjArgs(asarray, memory, NULL) : NULL;
    PyObject *array = words != NULL ? PyObject_CallMethod(words, "view", "O", wanted) : NULL;
    Py_DECREF(wanted);
    Py_XDECREF(memory);
    Py_XDECREF(words);
    return array;
}

PyObject *py_view_copy(PyObject *array)
{
    PyObject *copy = array != NULL ? PyObject_CallMethod(array, "copy", NULL) : NULL;
    Py_XDECREF(array);
    return copy;
}

/* array.astype(dtype, copy=False): the array itself where it has that dtype. */
static PyObject *as_type(PyObject *array, PyObject *dtype)
{
    PyObject *arguments = Py_BuildValue("(O)", dtype);
    PyObject *options = Py_BuildValue("{sO}", "copy", Py_False);
    PyObject *convert = PyObject_GetAttrString(array, "astype");
    PyObject *result = arguments != NULL && options != NULL && convert != NULL
                           ? PyObject_Call(convert, arguments, options)
                           : NULL;
    Py_XDECREF(arguments);
    Py_XDECREF(options);
    Py_XDECREF(convert);
    return result;
}

PyObject *py_view_array(PyObject *self, PyCFunction numpy, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"dtype", "copy", NULL};
    PyObject *dtype = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:__array__", names, &dtype, &copy)) {
        return NULL;
    }
    int must_copy = copy == Py_None ? 0 : PyObject_IsTrue(copy);
    PyObject *view = must_copy >= 0 ? numpy(self, NULL) : NULL;
    PyObject *array = view != NULL && dtype != Py_None ? as_type(view, dtype) : Py_XNewRef(view);
    int copied = array != view;
    Py_XDECREF(view);
    if (array != NULL && copied && copy != Py_None && !must_copy) {
        PyErr_Format(PyExc_ValueError,
                     "copy=False: elements of %R have to be copied for another dtype", self);
        Py_CLEAR(array);
    }
    return must_copy == 1 && !copied ? py_view_copy(array) : array;
}

PyObject *py_shape_tuple(const tb_tensor *tensor)
{
    tb_tensor copy = *tensor; /* a new tuple may start the collector, which runs anything */
    PyObject *shape = PyTuple_New(copy.ndim);
    for (int32_t i = 0; shape != NULL && i < copy.ndim; i++) {
        PyObject *item = PyLong_FromLongLong(copy.shape[i]);
        if (item == NULL || PyTuple_SetItem(shape, i, item) != 0) {
            Py_CLEAR(shape);
        }
    }
    return shape;
}

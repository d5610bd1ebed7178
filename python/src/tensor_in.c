/* Tensors out of Python objects. */
#include "tensor_in.h"

#include <string.h>

#include "cuda_door.h"
#include "dlpack.h"
#include "dtype.h"
#include "errors.h"

/* Strides in bytes into elements. Returns 0 when one is no multiple of the element, or when the
 * elements are not aligned: then a copy has to be made. */
static int take_strides(struct py_source *source, const Py_ssize_t *strides, size_t element)
{
    size_t alignment = element > 8 || (element & (element - 1)) != 0 ? 8 : element;
    if (((uintptr_t)source->tensor.data & (alignment - 1)) != 0) {
        return 0;
    }
    if (strides == NULL) {
        return 1;
    }
    for (int32_t i = 0; i < source->tensor.ndim; i++) {
        if (strides[i] % (Py_ssize_t)element != 0) {
            return 0;
        }
        source->strides[i] = strides[i] / (Py_ssize_t)element;
    }
    source->tensor.strides = source->strides;
    return 1;
}

static int check_ndim(struct py_state *state, Py_ssize_t ndim)
{
    if (ndim > TB_MAX_NDIM) {
        py_fail(state, TB_E_INVALID, "a tensor of %zd dimensions: 0 to %d are possible", ndim,
                TB_MAX_NDIM);
        return -1;
    }
    return 0;
}

/* The same elements row-major in new memory. */
static int open_copy(struct py_state *state, PyObject *object, struct py_source *out)
{
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *copy = numpy != NULL ? PyObject_CallMethod(numpy, "array", "O", object) : NULL;
    PyObject *packed =
        copy != NULL ? PyObject_CallMethod(numpy, "ascontiguousarray", "O", copy) : NULL;
    Py_XDECREF(numpy);
    Py_XDECREF(copy);
    int result = packed != NULL ? py_source_open(state, packed, out) : -1;
    Py_XDECREF(packed);
    return result;
}

/* ---- the buffer protocol ---- */

static int open_buffer(struct py_state *state, PyObject *object, struct py_source *out)
{
    const Py_buffer *view = &out->view;
    tb_dtype dtype;
    if (check_ndim(state, view->ndim) != 0 ||
        py_dtype_from_format(state, view->format, view->itemsize, &dtype) != 0) {
        py_source_close(out);
        return -1;
    }
    out->tensor = (tb_tensor){.data = view->buf, .dtype = dtype, .ndim = view->ndim};
    for (int i = 0; i < view->ndim; i++) {
        out->tensor.shape[i] = view->shape[i];
    }
    if (!take_strides(out, view->strides, (size_t)view->itemsize)) {
        py_source_close(out);
        return open_copy(state, object, out);
    }
    return 0;
}

/* ---- NumPy's interface: for dtypes that the buffer protocol has no name for ---- */

static int read_shape(PyObject *shape, struct py_source *out)
{
    for (int32_t i = 0; i < out->tensor.ndim; i++) {
        PyObject *item = PySequence_GetItem(shape, i);
        out->tensor.shape[i] = item != NULL ? PyLong_AsLongLong(item) : -1;
        Py_XDECREF(item);
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

/* 1: read; 0: a copy has to be made; -1: an exception is set. */
static int read_interface(struct py_state *state, PyObject *interface, PyObject *dtype,
                          struct py_source *out)
{
    PyObject *shape = PyMapping_GetItemString(interface, "shape");
    PyObject *data = PyMapping_GetItemString(interface, "data");
    PyObject *address = data != NULL ? PySequence_GetItem(data, 0) : NULL;
    PyObject *strides = PyMapping_GetItemString(interface, "strides");
    PyErr_Clear(); /* strides may be missing */
    Py_ssize_t ndim = shape != NULL ? PySequence_Size(shape) : -1;
    Py_ssize_t steps[TB_MAX_NDIM] = {0};
    int has_steps = strides != NULL && strides != Py_None;
    int result = -1;
    if (shape == NULL || address == NULL) {
        PyErr_SetString(PyExc_TypeError, "__array_interface__ lacks shape or data");
    } else if (check_ndim(state, ndim) == 0 &&
               py_dtype_from(state, dtype, &out->tensor.dtype) == 0) {
        out->tensor.ndim = (int32_t)ndim;
        out->tensor.data = PyLong_AsVoidPtr(address);
        result = read_shape(shape, out);
        for (Py_ssize_t i = 0; result == 0 && has_steps && i < ndim; i++) {
            PyObject *item = PySequence_GetItem(strides, i);
            steps[i] = item != NULL ? PyLong_AsSsize_t(item) : 0;
            Py_XDECREF(item);
        }
        result = PyErr_Occurred() ? -1
                                  : take_strides(out, has_steps ? steps : NULL,
                                                 tb_dtype_bytes(out->tensor.dtype));
    }
    Py_XDECREF(shape);
    Py_XDECREF(data);
    Py_XDECREF(address);
    Py_XDECREF(strides);
    return result;
}

static int open_interface(struct py_state *state, PyObject *object, PyObject *interface,
                          struct py_source *out)
{
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    if (dtype == NULL) {
        PyErr_Clear();
        dtype = PyMapping_GetItemString(interface, "typestr");
    }
    int result = dtype != NULL ? read_interface(state, interface, dtype, out) : -1;
    Py_XDECREF(dtype);
    if (result == 0) {
        return open_copy(state, object, out);
    }
    if (result == 1) {
        out->keep = Py_NewRef(object);
        return 0;
    }
    return -1;
}

/* ---- the same of a GPU ---- */

/* The stream that the producer works on, for ours to wait for it; None: nothing is on its way. */
static int follow(struct py_state *state, PyObject *interface, tb_cuda_stream stream)
{
    struct py_stream other = {.stream = NULL};
    PyObject *number = PyMapping_GetItemString(interface, "stream");
    PyErr_Clear(); /* before version 3 there was none */
    int known = number == NULL || py_stream_converter(number, &other);
    Py_XDECREF(number);
    if (!known) {
        return -1;
    }
    return other.given ? py_cuda_follow(state, stream, other.stream) : 0;
}

static int open_cuda_interface(struct py_state *state, PyObject *object, tb_cuda_stream stream,
                               struct py_source *out)
{
    PyObject *interface = PyObject_GetAttrString(object, "__cuda_array_interface__");
    PyObject *dtype = interface != NULL ? PyMapping_GetItemString(interface, "typestr") : NULL;
    PyObject *mask = dtype != NULL ? PyMapping_GetItemString(interface, "mask") : NULL;
    int result = -1;
    if (dtype != NULL) {
        PyErr_Clear();
    }
    if (mask != NULL && mask != Py_None) {
        py_fail(state, TB_E_UNSUPPORTED, "a masked array of a GPU cannot be shared: fill it first");
    } else if (dtype != NULL) {
        result = read_interface(state, interface, dtype, out);
    }
    if (result == 0) {
        py_fail(state, TB_E_INVALID,
                "elements of a GPU that do not lie at multiples of their size cannot be shared: "
                "copy them first");
    }
    result = result == 1 ? 0 : -1;
    if (result == 0) {
        int device = py_cuda_device_of(out->tensor.data);
        out->tensor.device = TB_CUDA(device >= 0 ? device : py_cuda_current());
        out->keep = Py_NewRef(object);
        result = follow(state, interface, stream);
    }
    if (result != 0) {
        py_source_close(out);
    }
    Py_XDECREF(interface);
    Py_XDECREF(dtype);
    Py_XDECREF(mask);
    return result;
}

/* ---- the ways in ---- */

int py_source_like(PyObject *object)
{
    return PyObject_CheckBuffer(object) ||
           PyObject_HasAttrString(object, "__cuda_array_interface__") ||
           PyObject_HasAttrString(object, "__dlpack__") ||
           PyObject_HasAttrString(object, "__array_interface__") ||
           PyObject_HasAttrString(object, "__array__");
}

static int open_array(struct py_state *state, PyObject *object, struct py_source *out)
{
    PyObject *asarray = py_numpy_asarray(state);
    PyObject *array = asarray != NULL ? PyObject_CallFunctionObjArgs(asarray, object, NULL) : NULL;
    int result = array != NULL && array != object ? py_source_open(state, array, out) : -1;
    Py_XDECREF(array);
    return result;
}

int py_source_open(struct py_state *state, PyObject *object, struct py_source *out)
{
    return py_source_open_on(state, object, NULL, out);
}

int py_source_open_on(struct py_state *state, PyObject *object, tb_cuda_stream stream,
                      struct py_source *out)
{
    *out = (struct py_source){.keep = NULL};
    if (PyObject_CheckBuffer(object)) {
        if (PyObject_GetBuffer(object, &out->view, PyBUF_RECORDS_RO) == 0) {
            return open_buffer(state, object, out);
        }
        out->view.obj = NULL;
        PyErr_Clear(); /* NumPy has no format for bfloat16, datetimes and others */
    }
    PyObject *interface = PyObject_GetAttrString(object, "__array_interface__");
    if (interface != NULL) {
        int result = open_interface(state, object, interface, out);
        Py_DECREF(interface);
        return result;
    }
    PyErr_Clear();
    if (PyObject_HasAttrString(object, "__dlpack__")) {
        return py_dlpack_import(state, object, stream, &out->tensor, &out->keep);
    }
    if (PyObject_HasAttrString(object, "__cuda_array_interface__")) {
        return open_cuda_interface(state, object, stream, out);
    }
    if (PyObject_HasAttrString(object, "__array__")) {
        return open_array(state, object, out);
    }
    PyErr_Format(PyExc_TypeError,
                 "%R is no tensor: an array, bytes, or what has the buffer protocol or DLPack is "
                 "needed (a list or a number: numpy.asarray() makes one)",
                 (PyObject *)Py_TYPE(object));
    return -1;
}

void py_source_close(struct py_source *source)
{
    /* What lets go may be written in Python, and must not meet an exception that is set. */
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (source->view.obj != NULL) {
        PyBuffer_Release(&source->view);
    }
    Py_CLEAR(source->keep);
    PyErr_Restore(type, value, trace);
}

/* Reading what a pool shall hold. */
#include "shape.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_door.h"
#include "dtype.h"
#include "errors.h"
#include "tensor_in.h"

static int take_dimension(PyObject *item, int64_t *out)
{
    PyObject *number = item != NULL ? PyNumber_Index(item) : NULL;
    *out = number != NULL ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

int py_shape_from(struct py_state *state, PyObject *object, tb_tensor *out)
{
    if (PyIndex_Check(object)) {
        out->ndim = 1;
        return take_dimension(object, &out->shape[0]);
    }
    Py_ssize_t ndim = PySequence_Size(object);
    if (ndim < 0) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "a shape is a sequence of integers, not %R", object);
        return -1;
    }
    if (ndim > TB_MAX_NDIM) {
        py_fail(state, TB_E_INVALID, "a shape of %zd dimensions: 0 to %d are possible", ndim,
                TB_MAX_NDIM);
        return -1;
    }
    out->ndim = (int32_t)ndim;
    for (Py_ssize_t i = 0; i < ndim; i++) {
        PyObject *item = PySequence_GetItem(object, i);
        int result = take_dimension(item, &out->shape[i]);
        Py_XDECREF(item);
        if (result != 0) {
            return -1;
        }
    }
    return 0;
}

int py_device_from(struct py_state *state, PyObject *object, tb_device *out)
{
    if (object == NULL || object == Py_None) {
        return 0;
    }
    PyObject *text = PyObject_Str(object);
    const char *name = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    int result = -1;
    char *end = NULL;
    if (name == NULL) {
        /* an exception is set */
    } else if (strcmp(name, "cpu") == 0) {
        *out = TB_CPU;
        result = 0;
    } else if (strcmp(name, "cuda") == 0) {
        *out = TB_CUDA(py_cuda_current());
        result = 0;
    } else if (strncmp(name, "cuda:", 5) == 0 && name[5] >= '0' && name[5] <= '9') {
        unsigned long number = strtoul(name + 5, &end, 10);
        if (*end == '\0' && number < 65536) {
            *out = TB_CUDA((tb_device)number);
            result = 0;
        }
    }
    if (result != 0 && name != NULL) {
        py_fail(state, TB_E_INVALID, "no device `%s`: \"cpu\" or \"cuda:0\" are possible", name);
    }
    Py_XDECREF(text);
    return result;
}

/* By DLPack: (2, number) is a GPU of CUDA. Returns whether the object says so or otherwise. */
static int ask_dlpack(PyObject *object, tb_tensor *out)
{
    int type = 0, number = 0;
    PyObject *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    int known =
        device != NULL && PyTuple_Check(device) && PyArg_ParseTuple(device, "ii", &type, &number);
    PyErr_Clear();
    Py_XDECREF(device);
    if (known && type == 2) {
        out->device = TB_CUDA(number);
    }
    return known;
}

/* By where its memory lies, for what has __cuda_array_interface__ alone. */
static int ask_interface(PyObject *object, tb_tensor *out)
{
    PyObject *interface = PyObject_GetAttrString(object, "__cuda_array_interface__");
    PyObject *data = interface != NULL ? PyMapping_GetItemString(interface, "data") : NULL;
    PyObject *address = data != NULL ? PySequence_GetItem(data, 0) : NULL;
    if (address != NULL) {
        int device = py_cuda_device_of(PyLong_AsVoidPtr(address));
        out->device = TB_CUDA(device >= 0 ? device : py_cuda_current());
    }
    PyErr_Clear();
    Py_XDECREF(interface);
    Py_XDECREF(data);
    Py_XDECREF(address);
    return address != NULL;
}

/* The device that an array says it is on, where that is a GPU of CUDA. */
static int take_device(struct py_state *state, PyObject *object, tb_tensor *out)
{
    if (ask_dlpack(object, out) || ask_interface(object, out)) {
        return 0;
    }
    PyObject *device = PyObject_GetAttrString(object, "device");
    PyObject *text = device != NULL ? PyObject_Str(device) : NULL;
    PyErr_Clear();
    const char *name = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    int result = 0;
    if (name != NULL && strncmp(name, "cuda", 4) == 0) {
        result = py_device_from(state, text, &out->device);
    }
    PyErr_Clear();
    Py_XDECREF(device);
    Py_XDECREF(text);
    return result;
}

int py_like(struct py_state *state, PyObject *object, tb_tensor *out)
{
    *out = (tb_tensor){.device = TB_CPU};
    PyObject *shape = PyObject_GetAttrString(object, "shape");
    PyObject *dtype = shape != NULL ? PyObject_GetAttrString(object, "dtype") : NULL;
    if (shape == NULL || dtype == NULL) {
        PyErr_Clear();
        Py_XDECREF(shape);
        struct py_source source;
        if (py_source_open(state, object, &source) != 0) {
            return -1;
        }
        *out = source.tensor;
        out->data = NULL;
        out->strides = NULL;
        py_source_close(&source);
        return 0;
    }
    int result = py_shape_from(state, shape, out);
    if (result == 0) {
        result = py_dtype_from(state, dtype, &out->dtype);
    }
    if (result == 0) {
        result = take_device(state, object, out);
    }
    Py_DECREF(shape);
    Py_DECREF(dtype);
    return result;
}

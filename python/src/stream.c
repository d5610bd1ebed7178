/* Reading stream arguments. */
#include "stream.h"

/* __cuda_stream__() is (version, address). */
static PyObject *ask_protocol(PyObject *object)
{
    PyObject *pair = PyObject_CallMethod(object, "__cuda_stream__", NULL);
    PyObject *number = pair != NULL ? PySequence_GetItem(pair, 1) : NULL;
    Py_XDECREF(pair);
    return number;
}

/* The number of a stream object, a new reference. */
static PyObject *number_of(PyObject *object)
{
    static const char *const attributes[] = {"cuda_stream", "ptr"};
    if (PyLong_Check(object) && !PyBool_Check(object)) {
        return Py_NewRef(object);
    }
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        PyObject *number = PyObject_GetAttrString(object, attributes[i]);
        if (number != NULL && PyLong_Check(number)) {
            return number;
        }
        Py_XDECREF(number);
        PyErr_Clear();
    }
    if (PyObject_HasAttrString(object, "__cuda_stream__")) {
        return ask_protocol(object);
    }
    PyErr_Format(PyExc_TypeError,
                 "stream must be None, a number, or a stream of PyTorch or CuPy (with "
                 "__cuda_stream__(), .cuda_stream or .ptr), not %R",
                 object);
    return NULL;
}

static int read_stream(PyObject *object, int or_complete, struct py_stream *out)
{
    *out = (struct py_stream){.stream = NULL};
    if (object == Py_None) {
        return 1;
    }
    PyObject *number = number_of(object);
    if (number == NULL) {
        return 0;
    }
    long long value = PyLong_AsLongLong(number);
    Py_DECREF(number);
    if (value == -1 && PyErr_Occurred()) {
        return 0;
    }
    if (value < (or_complete ? -1 : 0)) {
        PyErr_Format(PyExc_ValueError, "stream is %lld: 0 or more are possible, or None%s", value,
                     or_complete ? ", or -1 for a slot that is complete already" : "");
        return 0;
    }
    out->given = 1;
    out->complete = value == -1;
    out->stream = value > 1 ? (tb_cuda_stream)(uintptr_t)value : NULL;
    return 1;
}

int py_stream_converter(PyObject *object, void *out_stream)
{
    return read_stream(object, 0, out_stream);
}

int py_publish_stream_converter(PyObject *object, void *out_stream)
{
    return read_stream(object, 1, out_stream);
}

PyObject *py_stream_number(tb_cuda_stream stream)
{
    return PyLong_FromUnsignedLongLong(stream != NULL ? (uintptr_t)stream : 1);
}

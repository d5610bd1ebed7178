/* Taking arrays through Arrow's PyCapsule interface; see arrow.h. */
#include "arrow.h"

#include <string.h>

#include "errors.h"

void py_arrow_raise(struct py_state *state, const struct py_arrow_error *error)
{
    switch (error->reason) {
    case PY_ARROW_NO_MEMORY:
        py_fail(state, TB_E_NOMEM, "%s", error->text);
        return;
    case PY_ARROW_UNSUPPORTED:
        py_fail(state, TB_E_UNSUPPORTED, "%s", error->text);
        return;
    default:
        py_fail(state, TB_E_CORRUPT, "%s", error->text);
    }
}

int py_arrow_like(PyObject *object)
{
    return PyObject_HasAttrString(object, "__arrow_c_array__") ||
           PyObject_HasAttrString(object, "__arrow_c_stream__");
}

static int open_array(PyObject *object, struct py_arrow_in *out)
{
    PyObject *pair = PyObject_CallMethod(object, "__arrow_c_array__", NULL);
    if (pair == NULL) {
        return -1;
    }
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        PyErr_Format(PyExc_TypeError, "__arrow_c_array__() of %R gave no pair of capsules",
                     (PyObject *)Py_TYPE(object));
        Py_DECREF(pair);
        return -1;
    }
    out->schema_capsule = Py_NewRef(PyTuple_GetItem(pair, 0));
    out->array_capsule = Py_NewRef(PyTuple_GetItem(pair, 1));
    Py_DECREF(pair);
    out->schema = PyCapsule_GetPointer(out->schema_capsule, "arrow_schema");
    out->array =
        out->schema != NULL ? PyCapsule_GetPointer(out->array_capsule, "arrow_array") : NULL;
    return out->array != NULL ? 0 : -1;
}

static int fail_stream(struct ArrowArrayStream *stream, int number)
{
    const char *text = stream->get_last_error(stream);
    PyErr_Format(PyExc_ValueError, "an Arrow stream failed: %s",
                 text != NULL ? text : strerror(number));
    return -1;
}

/* The one array of a stream; its end must follow. Returns 1, and no exception, when there are
 * several, or none. */
static int take_only(struct ArrowArrayStream *stream, struct py_arrow_in *out)
{
    struct ArrowArray second = {.release = NULL};
    int number = stream->get_schema(stream, &out->own_schema);
    if (number == 0) {
        number = stream->get_next(stream, &out->own_array);
    }
    if (number == 0 && out->own_array.release != NULL) {
        number = stream->get_next(stream, &second);
    }
    if (number != 0) {
        return fail_stream(stream, number);
    }
    if (out->own_array.release == NULL || second.release != NULL) {
        if (second.release != NULL) {
            second.release(&second);
        }
        return 1;
    }
    out->schema = &out->own_schema;
    out->array = &out->own_array;
    return 0;
}

static int open_stream(PyObject *object, struct py_arrow_in *out)
{
    PyObject *capsule = PyObject_CallMethod(object, "__arrow_c_stream__", NULL);
    struct ArrowArrayStream *stream =
        capsule != NULL ? PyCapsule_GetPointer(capsule, "arrow_array_stream") : NULL;
    int result = -1;
    if (stream != NULL && stream->release == NULL) {
        PyErr_SetString(PyExc_ValueError, "an Arrow stream that was released");
    } else if (stream != NULL) {
        result = take_only(stream, out);
    }
    Py_XDECREF(capsule);
    return result;
}

static int open_any(PyObject *object, struct py_arrow_in *out)
{
    *out = (struct py_arrow_in){.schema = NULL};
    return PyObject_HasAttrString(object, "__arrow_c_array__") ? open_array(object, out)
                                                               : open_stream(object, out);
}

/* What the object's own library makes one piece of it with: pyarrow's combine_chunks(), polars'
 * rechunk(). NULL without an exception when it has neither. */
static PyObject *in_one_piece(PyObject *object)
{
    static const char *const ways[] = {"combine_chunks", "rechunk"};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (PyObject_HasAttrString(object, ways[i])) {
            return PyObject_CallMethod(object, ways[i], NULL);
        }
    }
    return NULL;
}

int py_arrow_in_open(PyObject *object, struct py_arrow_in *out)
{
    int result = open_any(object, out);
    if (result == 1) {
        PyObject *whole = in_one_piece(object);
        if (whole != NULL) {
            py_arrow_in_close(out);
            result = open_any(whole, out);
            Py_DECREF(whole); /* what was opened keeps what it needs */
        }
    }
    if (result == 1 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError,
                     "a value is one array, this one has %s chunks: make one of it with its "
                     "library, such as combine_chunks() of pyarrow",
                     out->own_array.release == NULL ? "no" : "several");
    }
    return result == 0 ? 0 : -1;
}

void py_arrow_in_close(struct py_arrow_in *in)
{
    Py_CLEAR(in->schema_capsule);
    Py_CLEAR(in->array_capsule);
    if (in->own_schema.release != NULL) {
        in->own_schema.release(&in->own_schema);
    }
    if (in->own_array.release != NULL) {
        in->own_array.release(&in->own_array);
    }
}

/* What Python sends; see outgoing.h. */
#include "outgoing.h"

#include <stdio.h>
#include <string.h>

#include "arrow.h"
#include "errors.h"
#include "frame.h"
#include "handle.h"
#include "value.h"

static int is_frame(struct py_state *state, PyObject *object)
{
    return (PyObject *)Py_TYPE(object) == state->slots[PY_FRAME_TYPE];
}

static int begin_text(PyObject *object, struct py_outgoing *out)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text == NULL && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        /* A str of an event that was no UTF-8 is sent on as the bytes that it was. */
        PyErr_Clear();
        out->keep = PyUnicode_AsEncodedString(object, "utf-8", "surrogateescape");
        char *encoded;
        if (out->keep == NULL || PyBytes_AsStringAndSize(out->keep, &encoded, &size) != 0) {
            return -1;
        }
        text = encoded;
    }
    out->value = tb_bytes(text, (size_t)size);
    snprintf(out->mark, sizeof out->mark, "str");
    return text != NULL ? 0 : -1;
}

/* bytes, and memory that is nothing but bytes. 1: it is; 0: it is something else. */
static int begin_bytes(PyObject *object, struct py_outgoing *out)
{
    int plain = PyBytes_Check(object) || PyByteArray_Check(object);
    if (!plain && !PyMemoryView_Check(object)) {
        return 0;
    }
    if (PyObject_GetBuffer(object, &out->buffer, plain ? PyBUF_SIMPLE : PyBUF_RECORDS_RO) != 0) {
        return -1;
    }
    const Py_buffer *view = &out->buffer;
    const char *format = view->format != NULL ? view->format : "B";
    if (!plain && (view->ndim != 1 || strchr("Bbc", format[0]) == NULL || format[1] != '\0' ||
                   !PyBuffer_IsContiguous(view, 'C'))) {
        PyBuffer_Release(&out->buffer);
        out->buffer.obj = NULL;
        return 0;
    }
    out->value = tb_bytes(view->buf, (size_t)view->len);
    return 1;
}

static int begin_frame(struct py_state *state, PyObject *object, struct py_outgoing *out)
{
    out->lease = py_frame_lease(state, object);
    if (out->lease == NULL) {
        return -1;
    }
    py_lease_ref(out->lease);
    out->handle = out->lease->info.handle;
    out->value = tb_handle_value(&out->handle);
    return 0;
}

static int begin_value(PyObject *object, struct py_outgoing *out)
{
    struct py_value *value = (struct py_value *)object;
    if (py_value_alive(value) != 0) {
        return -1;
    }
    py_value_view_begin(value);
    out->received = value;
    py_value_mark(value, out->mark, sizeof out->mark);
    if (value->kind == PY_VALUE_BYTES || value->kind == PY_VALUE_ARROW) {
        out->value = tb_bytes(value->tensor.data, (size_t)value->tensor.shape[0]);
    } else {
        out->value = tb_tensor_value(&value->tensor);
    }
    return 0;
}

static int begin_arrow(struct py_state *state, PyObject *object, struct py_outgoing *out)
{
    struct py_arrow_error error = {.text = ""};
    if (py_arrow_in_open(object, &out->arrow) != 0) {
        return -1;
    }
    size_t room = sizeof out->mark;
    if (py_arrow_as_tensor(out->arrow.schema, out->arrow.array, &out->tensor) &&
        (size_t)snprintf(out->mark, room, "arrow:%s", out->arrow.schema->format) < room) {
        out->value = tb_tensor_value(&out->tensor);
        return 0;
    }
    snprintf(out->mark, room, "arrow");
    if (!py_arrow_plan_make(out->arrow.schema, out->arrow.array, &out->plan, &error)) {
        if (error.reason == PY_ARROW_INVALID) {
            py_fail(state, TB_E_INVALID, "%s", error.text);
        } else {
            py_arrow_raise(state, &error);
        }
        return -1;
    }
    out->value = tb_parts(out->plan.parts, out->plan.part_count);
    return 0;
}

static int begin_tensor(struct py_state *state, PyObject *object, struct py_outgoing *out)
{
    if (py_source_open(state, object, &out->source) != 0) {
        return -1;
    }
    out->has_source = 1;
    out->value = tb_tensor_value(&out->source.tensor);
    return 0;
}

static int refuse(PyObject *object)
{
    const char *remedy = "make an array of it (numpy.asarray, pyarrow.array), or bytes or a str";
    if (PyMapping_Check(object) && !PySequence_Check(object)) {
        remedy = "small named values go into the metadata";
    }
    PyErr_Format(PyExc_TypeError, "a value of type %R cannot be sent; %s",
                 (PyObject *)Py_TYPE(object), remedy);
    return -1;
}

int py_outgoing_begin(struct py_state *state, PyObject *object, struct py_outgoing *out)
{
    memset(out, 0, sizeof *out);
    if (object == Py_None) {
        out->value = tb_no_value();
        return 0;
    }
    if (PyUnicode_Check(object)) {
        return begin_text(object, out);
    }
    int is_bytes = begin_bytes(object, out);
    if (is_bytes != 0) {
        return is_bytes < 0 ? -1 : 0;
    }
    if (py_handle_check(state, object)) {
        out->value = tb_handle_value(&out->handle);
        return py_handle_from(state, object, &out->handle);
    }
    if (is_frame(state, object)) {
        return begin_frame(state, object, out);
    }
    if (py_value_check(state, object)) {
        return begin_value(object, out);
    }
    if (py_arrow_like(object)) {
        return begin_arrow(state, object, out);
    }
    return py_source_like(object) ? begin_tensor(state, object, out) : refuse(object);
}

void py_outgoing_end(struct py_outgoing *out)
{
    if (out->buffer.obj != NULL) {
        PyBuffer_Release(&out->buffer);
    }
    if (out->has_source) {
        py_source_close(&out->source);
    }
    if (out->lease != NULL) {
        py_lease_unref(out->lease);
    }
    if (out->received != NULL) {
        py_value_view_end(out->received);
    }
    py_arrow_plan_destroy(&out->plan);
    py_arrow_in_close(&out->arrow);
    Py_CLEAR(out->keep);
}

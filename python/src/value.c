/* tensorbus.Value; see value.h. */
#include "value.h"

#include <stdio.h>
#include <string.h>

#include "arrow.h"
#include "dlpack.h"
#include "dtype.h"
#include "errors.h"
#include "frame.h"
#include "metadata.h"
#include "view.h"

static struct py_value *value_of(PyObject *self)
{
    return (struct py_value *)self;
}

/* ------------------------------------------------------------------ its life */

int py_value_check(struct py_state *state, PyObject *object)
{
    return (PyObject *)Py_TYPE(object) == state->slots[PY_VALUE_TYPE];
}

int py_value_alive(struct py_value *value)
{
    return value->event != NULL ? py_event_check(value->event) : 0;
}

void py_value_view_begin(struct py_value *value)
{
    Py_INCREF((PyObject *)value);
    if (value->event != NULL) {
        py_event_view_begin(value->event);
    }
}

void py_value_view_end(void *context)
{
    struct py_value *value = context;
    if (value->event != NULL) {
        py_event_view_end(value->event);
    }
    Py_DECREF((PyObject *)value);
}

static struct py_value *create(struct py_state *state, enum py_value_kind kind,
                               const tb_tensor *tensor)
{
    PyTypeObject *type = (PyTypeObject *)state->slots[PY_VALUE_TYPE];
    struct py_value *self = (struct py_value *)PyType_GenericAlloc(type, 0);
    if (self != NULL) {
        self->kind = kind;
        self->tensor = *tensor;
    }
    return self;
}

static void destroy(PyObject *self)
{
    struct py_value *value = value_of(self);
    Py_XDECREF((PyObject *)value->event);
    if (value->source.obj != NULL) {
        PyBuffer_Release(&value->source);
    }
    py_object_free(self);
}

/* ------------------------------------------------------------------ what a message is */

/* What the mark says of bytes or a tensor; *format is set for a column. A mark that does not fit
 * means nothing. */
static enum py_value_kind kind_of(const tb_tensor *tensor, int is_bytes, const char *mark,
                                  const char **format)
{
    struct py_arrow_type type;
    if (is_bytes) {
        return strcmp(mark, "arrow") == 0 ? PY_VALUE_ARROW : PY_VALUE_BYTES;
    }
    *format = mark + 6;
    if (strncmp(mark, "arrow:", 6) == 0 && strlen(*format) < PY_FORMAT_SIZE && tensor->ndim == 1 &&
        py_arrow_type_parse(*format, &type) && type.dtype == tensor->dtype) {
        return PY_VALUE_COLUMN;
    }
    return PY_VALUE_TENSOR;
}

static struct py_value *create_marked(struct py_state *state, const tb_tensor *tensor, int is_bytes,
                                      const char *mark)
{
    const char *format = NULL;
    enum py_value_kind kind = kind_of(tensor, is_bytes, mark, &format);
    struct py_value *value = create(state, kind, tensor);
    if (value != NULL && kind == PY_VALUE_COLUMN) {
        memcpy(value->format, format, strlen(format) + 1);
    }
    return value;
}

PyObject *py_value_of_event(struct py_event *event)
{
    struct py_state *state = event->bus->state;
    tb_value_kind kind = tb_event_kind(event->event);
    const tb_tensor *tensor = tb_event_tensor(event->event);
    const char *mark = py_metadata_mark(tb_event_metadata(event->event));
    if (kind == TB_VALUE_NONE) {
        Py_RETURN_NONE;
    }
    if (kind == TB_VALUE_BYTES && strcmp(mark, "str") == 0) {
        return PyUnicode_DecodeUTF8(tensor->data, (Py_ssize_t)tensor->shape[0], "surrogateescape");
    }
    struct py_value *value = create_marked(state, tensor, kind == TB_VALUE_BYTES, mark);
    if (value != NULL) {
        value->event = (struct py_event *)Py_NewRef((PyObject *)event);
    }
    return (PyObject *)value;
}

void py_value_mark(const struct py_value *value, char *out, size_t size)
{
    if (value->kind == PY_VALUE_ARROW) {
        snprintf(out, size, "arrow");
    } else {
        snprintf(out, size, "%s%s", value->kind == PY_VALUE_COLUMN ? "arrow:" : "", value->format);
    }
}

/* ------------------------------------------------------------------ views */

static int refuse_arrow(const struct py_value *value, PyObject *error)
{
    if (value->kind == PY_VALUE_ARROW) {
        PyErr_SetString(error, "an Arrow array of this type has no plain memory: take it with "
                               "arrow(), or pyarrow.array(value)");
        return -1;
    }
    return 0;
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    struct py_value *value = value_of(self);
    view->obj = NULL;
    if (py_value_alive(value) != 0 || refuse_arrow(value, PyExc_BufferError) != 0 ||
        py_view_fill(view, self, &value->tensor, 1, value->raw, flags, value) != 0) {
        return -1;
    }
    py_value_view_begin(value);
    return 0;
}

static void release_buffer(PyObject *self, Py_buffer *view)
{
    (void)self;
    py_value_view_end(py_view_release(view));
}

static PyObject *arrow_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (py_value_alive(value_of(self)) != 0) {
        return NULL;
    }
    return py_arrow_pyarrow(self);
}

/* Through pyarrow: not every array of it can be looked at without a copy. */
static PyObject *arrow_to_numpy(PyObject *self)
{
    PyObject *array = arrow_method(self, NULL);
    PyObject *convert = array != NULL ? PyObject_GetAttrString(array, "to_numpy") : NULL;
    PyObject *arguments = PyTuple_New(0);
    PyObject *options = Py_BuildValue("{sO}", "zero_copy_only", Py_False);
    PyObject *result = convert != NULL && arguments != NULL && options != NULL
                           ? PyObject_Call(convert, arguments, options)
                           : NULL;
    Py_XDECREF(array);
    Py_XDECREF(convert);
    Py_XDECREF(arguments);
    Py_XDECREF(options);
    return result;
}

static PyObject *numpy_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_value *value = value_of(self);
    if (py_value_alive(value) != 0) {
        return NULL;
    }
    if (value->kind == PY_VALUE_ARROW) {
        return arrow_to_numpy(self);
    }
    return py_view_numpy(py_state_of(self), self, value->tensor.dtype, &value->raw);
}

static PyObject *copy_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    return py_view_copy(numpy_method(self, NULL));
}

static PyObject *array_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return py_view_array(self, numpy_method, args, kwargs);
}

static PyObject *dlpack_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    struct py_value *value = value_of(self);
    struct py_dlpack_request request;
    if (refuse_arrow(value, PyExc_BufferError) != 0 ||
        py_dlpack_parse(args, kwargs, value->tensor.device, &request) != 0 ||
        py_value_alive(value) != 0) {
        return NULL;
    }
    py_value_view_begin(value);
    if (request.copy == 1) {
        PyObject *copy = py_dlpack_copy(py_state_of(self), &value->tensor, request.versioned);
        py_value_view_end(value);
        return copy;
    }
    return py_dlpack_capsule(&value->tensor, PY_DL_READ_ONLY, request.versioned, py_value_view_end,
                             value);
}

static PyObject *dlpack_device_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    return py_value_alive(value_of(self)) == 0 ? py_dlpack_device(TB_CPU) : NULL;
}

/* ------------------------------------------------------------------ as a sequence */

/* The number of elements of an Arrow array is in its header. */
static int64_t length_of(PyObject *self)
{
    struct py_value *value = value_of(self);
    if (value->kind != PY_VALUE_ARROW) {
        return value->tensor.shape[0];
    }
    struct py_arrow_tree *tree = py_value_tree(value);
    int64_t length = tree != NULL ? tree->root->length : -1;
    py_arrow_tree_unref(tree);
    return length;
}

static Py_ssize_t length(PyObject *self)
{
    if (value_of(self)->tensor.ndim == 0) {
        PyErr_SetString(PyExc_TypeError, "a value without dimensions has no length");
        return -1;
    }
    return py_value_alive(value_of(self)) == 0 ? (Py_ssize_t)length_of(self) : -1;
}

static PyObject *get_item(PyObject *self, PyObject *key)
{
    PyObject *array = value_of(self)->kind == PY_VALUE_ARROW ? arrow_method(self, NULL)
                                                             : numpy_method(self, NULL);
    PyObject *item = array != NULL ? PyObject_GetItem(array, key) : NULL;
    Py_XDECREF(array);
    return item;
}

static PyObject *iterate(PyObject *self)
{
    PyObject *array = value_of(self)->kind == PY_VALUE_ARROW ? arrow_method(self, NULL)
                                                             : numpy_method(self, NULL);
    PyObject *iterator = array != NULL ? PyObject_GetIter(array) : NULL;
    Py_XDECREF(array);
    return iterator;
}

static PyObject *same_bytes(PyObject *self, PyObject *other)
{
    Py_buffer mine, theirs;
    if (PyObject_GetBuffer(self, &mine, PyBUF_SIMPLE) != 0) {
        return NULL;
    }
    if (PyObject_GetBuffer(other, &theirs, PyBUF_SIMPLE) != 0) {
        PyBuffer_Release(&mine);
        PyErr_Clear();
        return Py_NewRef(Py_NotImplemented);
    }
    int same = mine.len == theirs.len && memcmp(mine.buf, theirs.buf, (size_t)mine.len) == 0;
    PyBuffer_Release(&mine);
    PyBuffer_Release(&theirs);
    return PyBool_FromLong(same);
}

/* Bytes are compared with bytes; arrays are not: numpy() says what == means. */
static PyObject *compare(PyObject *self, PyObject *other, int operation)
{
    struct py_value *value = value_of(self);
    if ((operation != Py_EQ && operation != Py_NE) || value->kind != PY_VALUE_BYTES ||
        !PyObject_CheckBuffer(other)) {
        return Py_NewRef(Py_NotImplemented);
    }
    PyObject *same = same_bytes(self, other);
    if (operation == Py_EQ || same == NULL || same == Py_NotImplemented) {
        return same;
    }
    Py_DECREF(same);
    return PyBool_FromLong(same == Py_False);
}

/* ------------------------------------------------------------------ what it tells */

static PyObject *get_kind(PyObject *self, void *unused)
{
    (void)unused;
    static const char *const names[] = {"bytes", "tensor", "arrow", "arrow"};
    return PyUnicode_InternFromString(names[value_of(self)->kind]);
}

static PyObject *get_dtype(PyObject *self, void *unused)
{
    (void)unused;
    struct py_value *value = value_of(self);
    if (value->kind == PY_VALUE_ARROW) {
        Py_RETURN_NONE;
    }
    return py_dtype_name(value->tensor.dtype);
}

static PyObject *get_shape(PyObject *self, void *unused)
{
    (void)unused;
    struct py_value *value = value_of(self);
    if (value->kind != PY_VALUE_ARROW) {
        return py_shape_tuple(&value->tensor);
    }
    int64_t count = py_value_alive(value) == 0 ? length_of(self) : -1;
    return count >= 0 ? Py_BuildValue("(L)", (long long)count) : NULL;
}

static PyObject *get_ndim(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(value_of(self)->tensor.ndim);
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    (void)unused;
    size_t bytes = 0;
    tb_status ignored = tb_tensor_bytes(&value_of(self)->tensor, &bytes);
    (void)ignored;
    return PyLong_FromSize_t(bytes);
}

static PyObject *get_device(PyObject *self, void *unused)
{
    (void)self;
    (void)unused;
    return PyUnicode_InternFromString("cpu");
}

static PyObject *repr(PyObject *self)
{
    struct py_value *value = value_of(self);
    char text[200];
    if (value->kind == PY_VALUE_ARROW) {
        return PyUnicode_FromFormat("<tensorbus.Value: Arrow array, %lld bytes>",
                                    (long long)value->tensor.shape[0]);
    }
    tb_tensor_describe(&value->tensor, text, sizeof text);
    return PyUnicode_FromFormat("<tensorbus.Value: %s%s>",
                                value->kind == PY_VALUE_BYTES ? "bytes, " : "", text);
}

#define WITH_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"numpy", numpy_method, METH_NOARGS,
     "numpy($self, /)\n--\n\n"
     "The value as a NumPy array: no copy, writeable=False; of bytes uint8[n]. Arrow arrays with\n"
     "nulls, text or nesting become what pyarrow's to_numpy() makes of them, a copy.\n"
     "The array keeps the event's memory, also beyond its turn."},
    {"copy", copy_method, METH_NOARGS,
     "copy($self, /)\n--\n\nThe value in a new, writable NumPy array that belongs to the caller."},
    {"arrow", arrow_method, METH_NOARGS,
     "arrow($self, /)\n--\n\n"
     "The value as a pyarrow.Array, without a copy: pyarrow.array(value). Bytes are uint8; a\n"
     "tensor of more than one dimension is a fixed-size list of its rows. Raises\n"
     "UnsupportedError for what Arrow has no array of (bool tensors, complex, bfloat16),\n"
     "CorruptError for an array that a broken sender made up."},
    {"__array__", WITH_KEYWORDS(array_method), METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack__", WITH_KEYWORDS(dlpack_method), METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", dlpack_device_method, METH_NOARGS, NULL},
    {"__arrow_c_schema__", py_value_arrow_schema, METH_NOARGS, NULL},
    {"__arrow_c_array__", WITH_KEYWORDS(py_value_arrow_array), METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"kind", get_kind, NULL, "\"bytes\", \"tensor\" or \"arrow\".", NULL},
    {"dtype", get_dtype, NULL,
     "Name of the elements' dtype, such as \"float32\"; None for an Arrow array that is no plain\n"
     "array of numbers.",
     NULL},
    {"shape", get_shape, NULL, "Shape, a tuple; of bytes and Arrow arrays (n,).", NULL},
    {"ndim", get_ndim, NULL, "Number of dimensions.", NULL},
    {"nbytes", get_nbytes, NULL, "Size in bytes; of an Arrow array with its header.", NULL},
    {"device", get_device, NULL, "\"cpu\".", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    doc, "What an event brought, read-only, in the memory where it is: bytes, a tensor, or an\n"
         "Arrow array.\n\n"
         "Take it as you need it: numpy(), numpy.asarray(value), bytes(value),\n"
         "memoryview(value), torch.from_dlpack(value), pyarrow.array(value); bytes compare equal\n"
         "to bytes. Valid as long as its event (InvalidError then); what was taken from it keeps\n"
         "the memory. Sending it on with send_output() copies it once. Not hashable.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_dealloc, destroy},
    {Py_tp_iter, iterate},
    {Py_tp_richcompare, compare},
    {Py_tp_hash, PyObject_HashNotImplemented},
    {Py_mp_length, length},
    {Py_mp_subscript, get_item},
    {Py_bf_getbuffer, get_buffer},
    {Py_bf_releasebuffer, release_buffer},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tensorbus.Value",
    .basicsize = sizeof(struct py_value),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

/* ------------------------------------------------------------------ for tests */

/* What a hostile sender may do is done without one. */
static PyObject *value_over(PyObject *module, PyObject *args)
{
    struct py_state *state = py_state_of_module(module);
    Py_buffer source;
    const char *mark;
    if (!PyArg_ParseTuple(args, "y*s:_value_over", &source, &mark)) {
        return NULL;
    }
    tb_tensor tensor = {.data = source.buf, .dtype = TB_U8, .ndim = 1, .shape = {source.len}};
    struct py_value *value = create_marked(state, &tensor, 1, mark);
    if (value == NULL) {
        PyBuffer_Release(&source);
        return NULL;
    }
    value->source = source;
    return (PyObject *)value;
}

static PyMethodDef functions[] = {
    {"_value_over", value_over, METH_VARARGS, "A Value over bytes, as if they had been received."},
    {NULL, NULL, 0, NULL},
};

int py_value_add(PyObject *module)
{
    return py_type_add(module, PY_VALUE_TYPE, &spec) != 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}

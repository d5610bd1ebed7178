/* Metadata; see metadata.h. */
#include "metadata.h"

#include <string.h>

#include "errors.h"

/* ------------------------------------------------------------------ to C */

struct builder {
    struct py_state *state;
    tb_metadata *metadata;
    const char *key; /* UTF-8 */
    PyObject *key_object;
};

static int set_result(struct builder *builder, tb_status status)
{
    if (status != TB_OK) {
        py_raise(builder->state, status);
        return -1;
    }
    return 0;
}

static int refuse(const struct builder *builder, PyObject *value, const char *where)
{
    PyErr_Format(PyExc_TypeError,
                 "metadata key %R: a value of type %R%s cannot be sent; use bool, int, float, str, "
                 "or a list of int, float or str",
                 builder->key_object, (PyObject *)Py_TYPE(value), where);
    return -1;
}

/* UTF-8 of a str, terminated. *bytes is NULL or an object to be given back. Surrogates that stand
 * for bytes that were no UTF-8 (see text_from()) become those bytes again. */
static const char *text_of(const struct builder *builder, PyObject *value, PyObject **bytes)
{
    Py_ssize_t size;
    *bytes = NULL;
    const char *text = PyUnicode_AsUTF8AndSize(value, &size);
    if (text == NULL && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear();
        *bytes = PyUnicode_AsEncodedString(value, "utf-8", "surrogateescape");
        char *encoded;
        if (*bytes != NULL && PyBytes_AsStringAndSize(*bytes, &encoded, &size) == 0) {
            text = encoded;
        }
    }
    if (text == NULL) {
        Py_CLEAR(*bytes);
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "metadata key %R: a str that is no Unicode cannot be sent",
                     builder->key_object);
        return NULL;
    }
    if (memchr(text, '\0', (size_t)size) != NULL) {
        Py_CLEAR(*bytes);
        PyErr_Format(PyExc_ValueError, "metadata key %R: a str with a NUL character cannot be sent",
                     builder->key_object);
        return NULL;
    }
    return text;
}

static int integer_of(const struct builder *builder, PyObject *value, int64_t *out)
{
    int overflow;
    *out = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) {
        PyErr_Format(PyExc_OverflowError,
                     "metadata key %R: %R does not fit a 64-bit integer; send it as a str or float",
                     builder->key_object, value);
        return -1;
    }
    return *out == -1 && PyErr_Occurred() ? -1 : 0;
}

enum kind { KIND_OTHER, KIND_BOOL, KIND_INTEGER, KIND_REAL, KIND_TEXT, KIND_LIST };

static enum kind kind_of(PyObject *value)
{
    if (PyBool_Check(value)) {
        return KIND_BOOL;
    }
    if (PyLong_Check(value)) {
        return KIND_INTEGER;
    }
    if (PyFloat_Check(value)) {
        return KIND_REAL;
    }
    if (PyUnicode_Check(value)) {
        return KIND_TEXT;
    }
    return PyList_Check(value) || PyTuple_Check(value) ? KIND_LIST : KIND_OTHER;
}

/* A plain Python value for a scalar or a one-dimensional array of NumPy and its like; a new
 * reference, or NULL without an exception when it is neither. */
static PyObject *plain_of(PyObject *value)
{
    PyObject *plain = NULL;
    PyObject *ndim = PyObject_GetAttrString(value, "ndim");
    PyObject *dtype = ndim != NULL ? PyObject_GetAttrString(value, "dtype") : NULL;
    if (dtype != NULL && PyLong_Check(ndim) && PyLong_AsLong(ndim) <= 1) {
        plain = PyObject_CallMethod(value, "tolist", NULL);
    }
    Py_XDECREF(dtype);
    Py_XDECREF(ndim);
    PyErr_Clear();
    return plain;
}

/* The kind of all elements; ints among floats are floats. KIND_OTHER with *odd, borrowed. */
static enum kind element_kind(PyObject *list, PyObject **odd)
{
    enum kind all = KIND_INTEGER; /* of an empty list */
    Py_ssize_t count = PySequence_Size(list);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *element = PyList_Check(list) ? PyList_GetItem(list, i) : PyTuple_GetItem(list, i);
        enum kind kind = kind_of(element);
        int number = kind == KIND_INTEGER || kind == KIND_REAL;
        int numbers = all == KIND_INTEGER || all == KIND_REAL;
        if (i == 0 && (number || kind == KIND_TEXT)) {
            all = kind;
        } else if (number && numbers) {
            all = kind == KIND_REAL ? KIND_REAL : all;
        } else if (kind != KIND_TEXT || all != KIND_TEXT) {
            *odd = element;
            return KIND_OTHER;
        }
    }
    return all;
}

/* Elements of a list, plain. A new list, or NULL with an exception. */
static PyObject *plain_list(PyObject *value)
{
    PyObject *list = PySequence_List(value);
    for (Py_ssize_t i = 0; list != NULL && i < PyList_Size(list); i++) {
        PyObject *element = PyList_GetItem(list, i);
        PyObject *plain = kind_of(element) == KIND_OTHER ? plain_of(element) : NULL;
        if (plain != NULL && PyList_SetItem(list, i, plain) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static int set_integers(struct builder *builder, PyObject *list, size_t count)
{
    int64_t *values = PyMem_Malloc((count + 1) * sizeof *values);
    int result = values != NULL ? 0 : -1;
    for (size_t i = 0; result == 0 && i < count; i++) {
        result = integer_of(builder, PyList_GetItem(list, (Py_ssize_t)i), &values[i]);
    }
    if (result == 0) {
        result = set_result(builder,
                            tb_metadata_set_int64s(builder->metadata, builder->key, values, count));
    } else if (values == NULL) {
        PyErr_NoMemory();
    }
    PyMem_Free(values);
    return result;
}

static int set_reals(struct builder *builder, PyObject *list, size_t count)
{
    double *values = PyMem_Malloc((count + 1) * sizeof *values);
    int result = values != NULL ? 0 : -1;
    for (size_t i = 0; result == 0 && i < count; i++) {
        PyObject *element = PyList_GetItem(list, (Py_ssize_t)i);
        values[i] = PyFloat_AsDouble(element);
        if (values[i] == -1.0 && PyErr_Occurred()) {
            PyErr_Format(PyExc_OverflowError, "metadata key %R: %R does not fit a float",
                         builder->key_object, element);
            result = -1;
        }
    }
    if (result == 0) {
        result = set_result(
            builder, tb_metadata_set_doubles(builder->metadata, builder->key, values, count));
    } else if (values == NULL) {
        PyErr_NoMemory();
    }
    PyMem_Free(values);
    return result;
}

static int set_texts(struct builder *builder, PyObject *list, size_t count)
{
    const char **values = PyMem_Calloc(count + 1, sizeof *values);
    PyObject **bytes = PyMem_Calloc(count + 1, sizeof(void *));
    int result = values != NULL && bytes != NULL ? 0 : -1;
    if (result != 0) {
        PyErr_NoMemory();
    }
    for (size_t i = 0; result == 0 && i < count; i++) {
        values[i] = text_of(builder, PyList_GetItem(list, (Py_ssize_t)i), &bytes[i]);
        result = values[i] != NULL ? 0 : -1;
    }
    if (result == 0) {
        result = set_result(
            builder, tb_metadata_set_strings(builder->metadata, builder->key, values, count));
    }
    for (size_t i = 0; bytes != NULL && i < count; i++) {
        Py_XDECREF(bytes[i]);
    }
    PyMem_Free(bytes);
    PyMem_Free(values);
    return result;
}

static int set_list(struct builder *builder, PyObject *value)
{
    PyObject *list = plain_list(value);
    PyObject *odd = NULL;
    if (list == NULL) {
        return -1;
    }
    size_t count = (size_t)PyList_Size(list);
    int result;
    switch (element_kind(list, &odd)) {
    case KIND_INTEGER:
        result = set_integers(builder, list, count);
        break;
    case KIND_REAL:
        result = set_reals(builder, list, count);
        break;
    case KIND_TEXT:
        result = set_texts(builder, list, count);
        break;
    default:
        result = refuse(builder, odd, " in a list with what else it holds");
    }
    Py_DECREF(list);
    return result;
}

static int set_value(struct builder *builder, PyObject *value)
{
    PyObject *bytes;
    const char *text;
    int64_t integer;
    int result;
    switch (kind_of(value)) {
    case KIND_BOOL:
        return set_result(builder,
                          tb_metadata_set_bool(builder->metadata, builder->key, value == Py_True));
    case KIND_INTEGER:
        if (integer_of(builder, value, &integer) != 0) {
            return -1;
        }
        return set_result(builder, tb_metadata_set_int64(builder->metadata, builder->key, integer));
    case KIND_REAL:
        return set_result(builder, tb_metadata_set_double(builder->metadata, builder->key,
                                                          PyFloat_AsDouble(value)));
    case KIND_TEXT:
        text = text_of(builder, value, &bytes);
        if (text == NULL) {
            return -1;
        }
        result = set_result(builder, tb_metadata_set_string(builder->metadata, builder->key, text));
        Py_XDECREF(bytes);
        return result;
    case KIND_LIST:
        return set_list(builder, value);
    default:
        return refuse(builder, value, "");
    }
}

static int set_item(struct builder *builder, PyObject *key, PyObject *value)
{
    builder->key_object = key;
    if (!PyUnicode_Check(key)) {
        PyErr_Format(PyExc_TypeError, "metadata keys are str, not %R", key);
        return -1;
    }
    PyObject *bytes = NULL;
    builder->key = text_of(builder, key, &bytes);
    if (builder->key == NULL) {
        return -1;
    }
    int result;
    PyObject *plain = kind_of(value) == KIND_OTHER ? plain_of(value) : NULL;
    if (strcmp(builder->key, PY_VALUE_KEY) == 0) {
        PyErr_Format(PyExc_ValueError, "metadata key %R is kept for the kind of the value", key);
        result = -1;
    } else {
        result = set_value(builder, plain != NULL ? plain : value);
    }
    Py_XDECREF(plain);
    Py_XDECREF(bytes);
    return result;
}

static PyObject *items_of(PyObject *mapping)
{
    PyObject *items = PyMapping_Check(mapping) ? PyMapping_Items(mapping) : NULL;
    if (items == NULL && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_AttributeError))) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "metadata must be a dict or None, not %R",
                     (PyObject *)Py_TYPE(mapping));
    }
    return items;
}

static int set_items(struct builder *builder, PyObject *mapping)
{
    PyObject *items = items_of(mapping);
    int result = items != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; result == 0 && i < PyList_Size(items); i++) {
        PyObject *item = PyList_GetItem(items, i);
        if (!PyTuple_Check(item) || PyTuple_Size(item) != 2) {
            PyErr_Format(PyExc_TypeError, "metadata: items() gave %R, not a pair", item);
            result = -1;
            break;
        }
        result = set_item(builder, PyTuple_GetItem(item, 0), PyTuple_GetItem(item, 1));
    }
    Py_XDECREF(items);
    return result;
}

int py_metadata_make(struct py_state *state, PyObject *mapping, const char *mark, tb_metadata **out)
{
    struct builder builder = {.state = state};
    *out = NULL;
    if ((mapping == NULL || mapping == Py_None) && mark == NULL) {
        return 0;
    }
    tb_status status = tb_metadata_create(&builder.metadata);
    if (status == TB_OK && mark != NULL) {
        status = tb_metadata_set_string(builder.metadata, PY_VALUE_KEY, mark);
    }
    int result = set_result(&builder, status);
    if (result == 0 && mapping != NULL && mapping != Py_None) {
        result = set_items(&builder, mapping);
    }
    if (result != 0) {
        tb_metadata_destroy(builder.metadata);
        return -1;
    }
    *out = builder.metadata;
    return 0;
}

/* ------------------------------------------------------------------ to Python */

/* What is no UTF-8 is kept, too: such bytes become surrogates, and bytes again when sent on. */
static PyObject *text_from(const char *text, size_t bytes)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)bytes, "surrogateescape");
}

static PyObject *element_from(const tb_metadata_value *value, size_t index)
{
    switch (value->type) {
    case TB_META_INT64_LIST:
        return PyLong_FromLongLong(value->integers[index]);
    case TB_META_DOUBLE_LIST:
        return PyFloat_FromDouble(value->reals[index]);
    default:
        return text_from(value->strings[index], strlen(value->strings[index]));
    }
}

static PyObject *list_from(const tb_metadata_value *value)
{
    PyObject *list = PyList_New((Py_ssize_t)value->count);
    for (size_t i = 0; list != NULL && i < value->count; i++) {
        PyObject *element = element_from(value, i);
        if (element == NULL || PyList_SetItem(list, (Py_ssize_t)i, element) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *value_from(const tb_metadata_value *value)
{
    switch (value->type) {
    case TB_META_BOOL:
        return PyBool_FromLong(value->boolean);
    case TB_META_INT64:
        return PyLong_FromLongLong(value->integer);
    case TB_META_DOUBLE:
        return PyFloat_FromDouble(value->real);
    case TB_META_STRING:
        return text_from(value->string, value->string_bytes);
    default:
        return list_from(value);
    }
}

PyObject *py_metadata_dict(const tb_metadata *metadata)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < tb_metadata_count(metadata); i++) {
        const char *key;
        tb_metadata_value value;
        if (tb_metadata_at(metadata, i, &key, &value) != TB_OK || strcmp(key, PY_VALUE_KEY) == 0) {
            continue;
        }
        PyObject *name = text_from(key, strlen(key));
        PyObject *object = name != NULL ? value_from(&value) : NULL;
        if (object == NULL || PyDict_SetItem(dict, name, object) != 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(name);
        Py_XDECREF(object);
    }
    return dict;
}

const char *py_metadata_mark(const tb_metadata *metadata)
{
    tb_metadata_value value;
    if (tb_metadata_count(metadata) == 0 ||
        tb_metadata_get(metadata, PY_VALUE_KEY, &value) != TB_OK || value.type != TB_META_STRING ||
        strlen(value.string) != value.string_bytes) {
        return "";
    }
    return value.string;
}

/* Translating dtypes. NumPy is imported only when its dtypes are asked for. */
#include "dtype.h"

#include <stdlib.h>
#include <string.h>

#include "errors.h"

static const struct {
    tb_dtype dtype;
    const char *format;
} formats[] = {
    {TB_U8, "B"},  {TB_I8, "b"},  {TB_BOOL, "?"}, {TB_I16, "h"},   {TB_U16, "H"},
    {TB_I32, "i"}, {TB_U32, "I"}, {TB_I64, "q"},  {TB_U64, "Q"},   {TB_F16, "e"},
    {TB_F32, "f"}, {TB_F64, "d"}, {TB_C64, "Zf"}, {TB_C128, "Zd"},
};

const char *py_dtype_format(tb_dtype dtype)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (formats[i].dtype == dtype) {
            return formats[i].format;
        }
    }
    return NULL;
}

/* ---- formats ---- */

static int code_of(const char *kind)
{
    static const struct {
        const char *kinds;
        int code;
    } codes[] = {
        {"bhilqn", TB_CODE_INT}, {"BHILQNc", TB_CODE_UINT}, {"efd", TB_CODE_FLOAT},
        {"?", TB_CODE_BOOL},     {"FD", TB_CODE_COMPLEX},
    };
    if (kind[0] == 'Z' && (kind[1] == 'f' || kind[1] == 'd') && kind[2] == '\0') {
        return TB_CODE_COMPLEX;
    }
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (kind[0] != '\0' && kind[1] == '\0' && strchr(codes[i].kinds, kind[0]) != NULL) {
            return codes[i].code;
        }
    }
    return -1;
}

int py_dtype_from_format(struct py_state *state, const char *format, Py_ssize_t itemsize,
                         tb_dtype *out)
{
    if (format == NULL) {
        format = "B";
    }
    int ordered = format[0] != '\0' && strchr("@=<>!^", format[0]) != NULL;
    int code = code_of(format + ordered);
    tb_dtype dtype = TB_DTYPE(code, itemsize * 8, 1);
    if (code < 0 || itemsize > 16 || tb_dtype_bytes(dtype) != (size_t)itemsize) {
        py_fail(state, TB_E_INVALID,
                "elements of format `%s` (%zd bytes) cannot be shared: only booleans, integers, "
                "floats and complex numbers can",
                format, itemsize);
        return -1;
    }
    if ((format[0] == '>' || format[0] == '!') && itemsize > 1) {
        py_fail(state, TB_E_INVALID,
                "big-endian elements (format `%s`) cannot be shared: convert them first, "
                "a.astype(a.dtype.newbyteorder('='))",
                format);
        return -1;
    }
    *out = dtype;
    return 0;
}

/* ---- NumPy's ---- */

PyObject *py_numpy_asarray(struct py_state *state)
{
    if (state->slots[PY_NUMPY_ASARRAY] == NULL) {
        PyObject *numpy = PyImport_ImportModule("numpy");
        if (numpy == NULL) {
            return NULL;
        }
        state->slots[PY_NUMPY_ASARRAY] = PyObject_GetAttrString(numpy, "asarray");
        Py_DECREF(numpy);
    }
    return state->slots[PY_NUMPY_ASARRAY];
}

/* numpy.dtype(object). */
static PyObject *numpy_dtype(PyObject *object)
{
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *dtype = numpy != NULL ? PyObject_CallMethod(numpy, "dtype", "O", object) : NULL;
    Py_XDECREF(numpy);
    return dtype;
}

/* A dtype of NumPy, by its name. */
static int from_numpy(struct py_state *state, PyObject *dtype, tb_dtype *out)
{
    PyObject *name = PyObject_GetAttrString(dtype, "name");
    PyObject *string = name != NULL ? PyObject_GetAttrString(dtype, "str") : NULL;
    const char *name_text = name != NULL ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    const char *string_text = string != NULL ? PyUnicode_AsUTF8AndSize(string, NULL) : NULL;
    int result = -1;
    if (name_text == NULL || string_text == NULL) {
        /* an exception is set */
    } else if (string_text[0] == '>') {
        py_fail(state, TB_E_INVALID,
                "big-endian elements (%s) cannot be shared: convert them first, "
                "a.astype(a.dtype.newbyteorder('='))",
                string_text);
    } else if (tb_dtype_parse(name_text, out) != TB_OK || strcmp(name_text, "float128") == 0) {
        /* NumPy's float128 is the machine's long double, whatever that is. */
        py_fail(state, TB_E_INVALID,
                "elements of dtype %s cannot be shared: only booleans, integers, floats and "
                "complex numbers can (datetimes: view them as int64)",
                name_text);
    } else {
        result = 0;
    }
    Py_XDECREF(name);
    Py_XDECREF(string);
    return result;
}

int py_dtype_from(struct py_state *state, PyObject *object, tb_dtype *out)
{
    PyObject *text = PyUnicode_Check(object) ? Py_NewRef(object) : NULL;
    PyObject *module =
        text == NULL ? PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__module__") : NULL;
    if (module != NULL && PyUnicode_Check(module) &&
        PyUnicode_CompareWithASCIIString(module, "torch") == 0) {
        text = PyObject_Str(object);
    }
    Py_XDECREF(module);
    PyErr_Clear();
    const char *name = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    int known = name != NULL && tb_dtype_parse(name, out) == TB_OK;
    Py_XDECREF(text);
    if (known) {
        return 0;
    }
    PyErr_Clear();
    PyObject *dtype = numpy_dtype(object);
    if (dtype == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            py_fail(state, TB_E_INVALID, "%R is no dtype: names are like uint8, float32, bfloat16",
                    object);
        }
        return -1;
    }
    int result = from_numpy(state, dtype, out);
    Py_DECREF(dtype);
    return result;
}

PyObject *py_dtype_name(tb_dtype dtype)
{
    char name[32];
    return PyUnicode_FromString(tb_dtype_name(dtype, name));
}

PyObject *py_dtype_numpy(struct py_state *state, tb_dtype dtype)
{
    char name[32];
    tb_dtype_name(dtype, name);
    if (py_dtype_format(dtype) != NULL) {
        PyObject *text = PyUnicode_FromString(name);
        PyObject *made = text != NULL ? numpy_dtype(text) : NULL;
        Py_XDECREF(text);
        return made;
    }
    PyObject *extra = PyImport_ImportModule("ml_dtypes");
    if (extra == NULL && !PyErr_ExceptionMatches(PyExc_ImportError)) {
        return NULL;
    }
    PyObject *type = extra != NULL ? PyObject_GetAttrString(extra, name) : NULL;
    PyErr_Clear();
    PyObject *made = type != NULL ? numpy_dtype(type) : NULL;
    if (type == NULL) {
        py_fail(state, TB_E_UNSUPPORTED,
                extra == NULL
                    ? "NumPy has no %s: install ml_dtypes, or use DLPack (torch.from_dlpack(frame))"
                    : "neither NumPy nor ml_dtypes has %s: use DLPack (torch.from_dlpack(frame))",
                name);
    }
    Py_XDECREF(extra);
    Py_XDECREF(type);
    return made;
}

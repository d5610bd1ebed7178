/* Exporting values through Arrow's PyCapsule interface; see value.h. */
#include "arrow.h"

#include <stdlib.h>

#include "arrow_tree.h"
#include "errors.h"
#include "value.h"

#define SCHEMA_NAME "arrow_schema"
#define ARRAY_NAME "arrow_array"

/* Consumers let go on any thread, with the GIL or without, now and then when Python has ended. */
static void let_go(void *keep)
{
    if (Py_IsInitialized()) {
        PyGILState_STATE gil = PyGILState_Ensure();
        py_value_view_end(keep);
        PyGILState_Release(gil);
    }
}

static struct py_arrow_tree *make_tree(struct py_value *value, struct py_arrow_error *error)
{
    switch (value->kind) {
    case PY_VALUE_ARROW: {
        PyThreadState *thread = PyEval_SaveThread(); /* all of it is checked */
        struct py_arrow_tree *tree =
            py_arrow_tree_read(value->tensor.data, (size_t)value->tensor.shape[0], error);
        PyEval_RestoreThread(thread);
        return tree;
    }
    case PY_VALUE_COLUMN:
        return py_arrow_tree_of_tensor(&value->tensor, value->format, error);
    default: {
        const char *format = py_arrow_format_of(value->tensor.dtype);
        return py_arrow_tree_of_tensor(&value->tensor, format != NULL ? format : "", error);
    }
    }
}

struct py_arrow_tree *py_value_tree(struct py_value *value)
{
    struct py_arrow_error error = {.text = ""};
    if (py_value_alive(value) != 0) {
        return NULL;
    }
    py_value_view_begin(value);
    struct py_arrow_tree *tree = make_tree(value, &error);
    if (tree == NULL) {
        py_value_view_end(value);
        py_arrow_raise(py_state_of((PyObject *)value), &error);
        return NULL;
    }
    tree->keep = value;
    tree->release = let_go;
    return tree;
}

static void drop_schema(PyObject *capsule)
{
    struct ArrowSchema *schema = PyCapsule_GetPointer(capsule, SCHEMA_NAME);
    if (schema->release != NULL) {
        schema->release(schema);
    }
    free(schema);
}

static void drop_array(PyObject *capsule)
{
    struct ArrowArray *array = PyCapsule_GetPointer(capsule, ARRAY_NAME);
    if (array->release != NULL) {
        array->release(array);
    }
    free(array);
}

static PyObject *schema_capsule(struct py_arrow_tree *tree)
{
    struct ArrowSchema *schema = calloc(1, sizeof *schema);
    if (schema == NULL || !py_arrow_tree_export_schema(tree, schema)) {
        free(schema);
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(schema, SCHEMA_NAME, drop_schema);
    if (capsule == NULL) {
        schema->release(schema);
        free(schema);
    }
    return capsule;
}

static PyObject *array_capsule(struct py_arrow_tree *tree)
{
    struct ArrowArray *array = calloc(1, sizeof *array);
    if (array == NULL || !py_arrow_tree_export_array(tree, array)) {
        free(array);
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(array, ARRAY_NAME, drop_array);
    if (capsule == NULL) {
        array->release(array);
        free(array);
    }
    return capsule;
}

PyObject *py_value_arrow_schema(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct py_arrow_tree *tree = py_value_tree((struct py_value *)self);
    if (tree == NULL) {
        return NULL;
    }
    PyObject *capsule = schema_capsule(tree);
    py_arrow_tree_unref(tree);
    return capsule;
}

PyObject *py_value_arrow_array(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"requested_schema", NULL};
    PyObject *requested = Py_None; /* a wish; what is there is given */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:__arrow_c_array__", names, &requested)) {
        return NULL;
    }
    struct py_arrow_tree *tree = py_value_tree((struct py_value *)self);
    if (tree == NULL) {
        return NULL;
    }
    PyObject *schema = schema_capsule(tree);
    PyObject *array = schema != NULL ? array_capsule(tree) : NULL;
    PyObject *pair = array != NULL ? PyTuple_Pack(2, schema, array) : NULL;
    Py_XDECREF(schema);
    Py_XDECREF(array);
    py_arrow_tree_unref(tree);
    return pair;
}

/* Exporting values through Arrow's PyCapsule interface; see value.h. */
#include "arrow.h"

#include <stdlib.h>

#include "arrow_tree.h"
#include "errors.h"
#include "value.h"

#define SCHEMA_NAME "arrow_schema"
#define ARRAY_NAME "arrow_array"

void py_arrow_let_go(void (*release)(void *keep), void *keep)
{
    if (Py_IsInitialized()) {
        PyGILState_STATE gil = PyGILState_Ensure();
        release(keep);
        PyGILState_Release(gil);
    }
}

static void let_go(void *keep)
{
    py_arrow_let_go(py_value_view_end, keep);
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

PyObject *py_arrow_schema_capsule(struct py_arrow_tree *take_tree)
{
    if (take_tree == NULL) {
        return NULL;
    }
    PyObject *capsule = schema_capsule(take_tree);
    py_arrow_tree_unref(take_tree);
    return capsule;
}

PyObject *py_arrow_capsules(struct py_arrow_tree *take_tree)
{
    if (take_tree == NULL) {
        return NULL;
    }
    PyObject *schema = schema_capsule(take_tree);
    PyObject *array = schema != NULL ? array_capsule(take_tree) : NULL;
    PyObject *pair = array != NULL ? PyTuple_Pack(2, schema, array) : NULL;
    Py_XDECREF(schema);
    Py_XDECREF(array);
    py_arrow_tree_unref(take_tree);
    return pair;
}

int py_arrow_parse(PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"requested_schema", NULL};
    PyObject *requested = Py_None; /* a wish; what is there is given */
    return PyArg_ParseTupleAndKeywords(args, kwargs, "|O:__arrow_c_array__", names, &requested)
               ? 0
               : -1;
}

PyObject *py_arrow_pyarrow(PyObject *object)
{
    PyObject *pyarrow = PyImport_ImportModule("pyarrow");
    PyObject *array = pyarrow != NULL ? PyObject_CallMethod(pyarrow, "array", "O", object) : NULL;
    Py_XDECREF(pyarrow);
    return array;
}

PyObject *py_value_arrow_schema(PyObject *self, PyObject *unused)
{
    (void)unused;
    return py_arrow_schema_capsule(py_value_tree((struct py_value *)self));
}

PyObject *py_value_arrow_array(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return py_arrow_parse(args, kwargs) == 0
               ? py_arrow_capsules(py_value_tree((struct py_value *)self))
               : NULL;
}

/* Looking for what was made from a loan's array.
 *
 * A loan's array is made read-only when its slot is published, and everything that NumPy makes from
 * it afterwards is read-only as well. What was made from it before cannot be told; the slot's
 * memory can be made read-only then, but that costs system calls and time for every page. So it is
 * looked first whether there is anything of the kind: slices refer to the array's base, everything
 * else (a tensor of PyTorch, a memoryview) to the array itself, so the counts of references tell,
 * once it is known that the one reference which is expected is a variable and not, say, a tensor
 * that took its name. */
#include "alone.h"

/* Whether `locals`, a dict or a view of a function's variables, has the array as a value. */
static int has_value(PyObject *locals, PyObject *array, PyObject **out_key)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    int found = 0;
    *out_key = NULL;
    if (PyDict_Check(locals)) {
        while (!found && PyDict_Next(locals, &at, &key, &value)) {
            if (value == array) {
                *out_key = Py_NewRef(key);
                found = 1;
            }
        }
        return found;
    }
    PyObject *values = PyMapping_Values(locals);
    Py_ssize_t count = values != NULL ? PySequence_Size(values) : 0;
    for (Py_ssize_t i = 0; i < count && !found; i++) {
        value = PySequence_GetItem(values, i);
        found = value == array;
        Py_XDECREF(value);
    }
    Py_XDECREF(values);
    return found;
}

/* Up to CPython 3.12 a function's f_locals is a copy that the frame keeps: without this the array
 * would live until the function returns. Where variables live in a dict of their own (modules,
 * classes), that dict is no copy. */
static void forget_copy(PyObject *frame, PyObject *locals, PyObject *key)
{
    PyObject *code = key != NULL ? PyObject_GetAttrString(frame, "f_code") : NULL;
    PyObject *flags = code != NULL ? PyObject_GetAttrString(code, "co_flags") : NULL;
    const long optimized = 1; /* CO_OPTIMIZED */
    if (flags != NULL && (PyLong_AsLong(flags) & optimized) != 0) {
        (void)PyDict_DelItem(locals, key);
    }
    Py_XDECREF(code);
    Py_XDECREF(flags);
}

static int is_variable_of_caller(PyObject *array)
{
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    PyObject *locals = frame != NULL ? PyObject_GetAttrString(frame, "f_locals") : NULL;
    PyObject *key = NULL;
    int found = locals != NULL && has_value(locals, array, &key);
    if (found) {
        forget_copy(frame, locals, key);
    }
    Py_XDECREF(key);
    Py_XDECREF(locals);
    return found;
}

int py_alone(PyObject *array)
{
    const Py_ssize_t with_ours = 2; /* the variable's, or the array's own, and ours */
    if (Py_REFCNT(array) != with_ours) {
        return 0;
    }
    PyObject *base = PyObject_GetAttrString(array, "base");
    int alone = base != NULL && Py_REFCNT(base) == with_ours && is_variable_of_caller(array);
    Py_XDECREF(base);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return alone;
}

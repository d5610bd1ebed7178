/* The extension channel; see extension.h. */
#include "extension.h"

#include <tensorbus/extension.h>

#include "errors.h"
#include "log.h"
#include "node.h"
#include "wait.h"

/* The node of a call; NULL with an exception set. */
static struct py_node *node_of(PyObject *module, PyObject *given)
{
    struct py_state *state = py_state_of_module(module);
    if ((PyObject *)Py_TYPE(given) != state->slots[PY_NODE_TYPE]) {
        PyErr_Format(PyExc_TypeError, "node must be a tensorbus.Node, not %R",
                     (PyObject *)Py_TYPE(given));
        return NULL;
    }
    struct py_node *node = (struct py_node *)given;
    return py_bus_check(node->bus) == 0 ? node : NULL;
}

/* What every call ends with. 0: go on; -1: an exception is set. */
static int end_call(PyObject *module, struct py_wait *wait, tb_status status)
{
    int interrupted = py_wait_end(wait) != 0;
    py_log_drain();
    if (interrupted) {
        return -1;
    }
    if (status != TB_OK) {
        py_raise(py_state_of_module(module), status);
        return -1;
    }
    return 0;
}

static PyObject *store(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "space", "key", "value", NULL};
    PyObject *given;
    const char *space;
    const char *key;
    Py_buffer value;
    struct py_wait wait;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ossy*:extension_store", names, &given, &space,
                                     &key, &value)) {
        return NULL;
    }
    struct py_node *node = node_of(module, given);
    PyObject *result = NULL;
    if (node != NULL) {
        py_wait_begin(&wait, node->bus);
        tb_status status = tb_extension_store(node->node, space, key, value.buf, (size_t)value.len);
        result = end_call(module, &wait, status) == 0 ? Py_NewRef(Py_None) : NULL;
    }
    PyBuffer_Release(&value);
    return result;
}

static PyObject *load(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "space", "key", "remove", NULL};
    PyObject *given;
    const char *space;
    const char *key;
    int is_taken = 0;
    struct py_wait wait;
    tb_extension_value *value = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Oss|p:extension_load", names, &given, &space,
                                     &key, &is_taken)) {
        return NULL;
    }
    struct py_node *node = node_of(module, given);
    if (node == NULL) {
        return NULL;
    }
    py_wait_begin(&wait, node->bus);
    tb_status status = tb_extension_load(node->node, space, key, is_taken, &value);
    int failed = end_call(module, &wait, status == TB_AGAIN ? TB_OK : status) != 0;
    PyObject *result = NULL;
    if (!failed && status == TB_AGAIN) {
        result = Py_NewRef(Py_None);
    } else if (!failed) {
        size_t size;
        const void *bytes = tb_extension_value_bytes(value, &size);
        result = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
    }
    tb_extension_value_release(value);
    return result;
}

static PyObject *drop(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "space", "key", NULL};
    PyObject *given;
    const char *space;
    const char *key;
    struct py_wait wait;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Oss:extension_drop", names, &given, &space,
                                     &key)) {
        return NULL;
    }
    struct py_node *node = node_of(module, given);
    if (node == NULL) {
        return NULL;
    }
    py_wait_begin(&wait, node->bus);
    tb_status status = tb_extension_drop(node->node, space, key);
    return end_call(module, &wait, status) == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *key_list(const tb_extension_keys *keys)
{
    size_t count = tb_extension_keys_count(keys);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *key = PyUnicode_FromString(tb_extension_keys_at(keys, i));
        if (key == NULL || PyList_SetItem(list, (Py_ssize_t)i, key) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *drain(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "space", "timeout", NULL};
    PyObject *given;
    const char *space;
    int64_t timeout_ns = TB_POLL;
    struct py_wait wait;
    tb_extension_keys *keys = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Os|O&:extension_drain", names, &given, &space,
                                     py_timeout_converter, &timeout_ns)) {
        return NULL;
    }
    struct py_node *node = node_of(module, given);
    if (node == NULL) {
        return NULL;
    }
    py_wait_begin(&wait, node->bus);
    tb_status status = tb_extension_drain(node->node, space, timeout_ns, &keys);
    int failed = end_call(module, &wait, status == TB_AGAIN ? TB_OK : status) != 0;
    PyObject *list = failed ? NULL : key_list(keys);
    tb_extension_keys_destroy(keys);
    return list;
}

PyDoc_STRVAR(
    store_doc,
    "extension_store(node, space, key, value)\n--\n\n"
    "Store bytes under (space, key), or replace what this node stored there. They live until\n"
    "anybody drops them, this node ends, or the flow ends.\n\n"
    "value: bytes or anything with the buffer protocol, at most 64 MiB.\n"
    "Raises DeniedError (another node's key), LimitError, InvalidError, NotFoundError (the\n"
    "node was not started by a runner). Thread-safe. Waits: one round trip to the runner.");

PyDoc_STRVAR(
    load_doc,
    "extension_load(node, space, key, remove=False)\n--\n\n"
    "The bytes under (space, key), None when there are none. remove: drop them in the same\n"
    "round trip, so that one caller alone gets them. Whoever has loaded a key is told when\n"
    "it is dropped. Raises InvalidError, NotFoundError. Thread-safe.");

PyDoc_STRVAR(drop_doc,
             "extension_drop(node, space, key)\n--\n\n"
             "Drop a value, whoever stored it; every node that stored or loaded it is told. A key\n"
             "that is not there is no failure. Thread-safe.");

PyDoc_STRVAR(drain_doc,
             "extension_drain(node, space, timeout=0)\n--\n\n"
             "Take the keys of a space that were dropped since the last call, a list of str.\n\n"
             "timeout: seconds to wait for at least one; 0 polls, None waits for ever. With 0 it\n"
             "makes no system call. Thread-safe.");

#define WITH_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef functions[] = {
    {"extension_store", WITH_KEYWORDS(store), METH_VARARGS | METH_KEYWORDS, store_doc},
    {"extension_load", WITH_KEYWORDS(load), METH_VARARGS | METH_KEYWORDS, load_doc},
    {"extension_drop", WITH_KEYWORDS(drop), METH_VARARGS | METH_KEYWORDS, drop_doc},
    {"extension_drain", WITH_KEYWORDS(drain), METH_VARARGS | METH_KEYWORDS, drain_doc},
    {NULL, NULL, 0, NULL},
};

int py_extension_add(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

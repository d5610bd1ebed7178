/* tensorbus.Node; see node.h. One thread at a time asks for events; any number send. */
#include "node.h"

#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "log.h"
#include "metadata.h"
#include "outgoing.h"
#include "wait.h"

/* ------------------------------------------------------------------ opening and closing */

static void close_node(void *context)
{
    tb_node_close(context);
}

static tb_node *open_node(struct py_state *state)
{
    tb_node *node;
    struct py_wait wait;
    py_wait_begin(&wait, NULL);
    tb_status status = tb_node_open(&node);
    int interrupted = py_wait_end(&wait) != 0;
    py_log_drain();
    if (status != TB_OK) {
        if (!interrupted) {
            py_raise(state, status);
        }
        return NULL;
    }
    if (interrupted) {
        tb_node_close(node);
        return NULL;
    }
    return node;
}

/* A pool or a reader that was made before the node has opened a bus of the node's name. */
static int check_name(struct py_state *state)
{
    const char *name = getenv("TENSORBUS_NODE");
    for (struct py_bus *bus = state->buses; name != NULL && bus != NULL; bus = bus->next) {
        if (bus->bus != NULL && !state->forked && strcmp(tb_bus_name(bus->bus), name) == 0) {
            py_fail(state, TB_E_EXISTS,
                    "this process has opened node `%s` already, or a bus of its name: make the "
                    "Node first, then its pools and readers",
                    name);
            return -1;
        }
    }
    return 0;
}

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    struct py_state *state = PyType_GetModuleState(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Node", names)) {
        return NULL;
    }
    struct py_node *self = (struct py_node *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->node = check_name(state) == 0 ? open_node(state) : NULL;
    if (self->node != NULL) {
        self->bus = py_bus_adopt(state, tb_node_bus(self->node), close_node, self->node);
        if (self->bus == NULL) {
            tb_node_close(self->node);
        }
    }
    if (self->bus == NULL) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    py_bus_set_default(state, self->bus);
    return (PyObject *)self;
}

int py_node_is_open(const struct py_node *node)
{
    return node->bus != NULL && node->bus->bus != NULL && !py_bus_is_closing(node->bus);
}

int py_node_check(struct py_node *node)
{
    if (py_node_is_open(node)) {
        return 0;
    }
    py_fail(py_state_of((PyObject *)node), TB_CLOSED, "the node was closed");
    return -1;
}

static void end_helper(struct py_node *node)
{
    PyObject *helper = node->helper;
    node->helper = NULL;
    PyObject *done = helper != NULL ? PyObject_CallMethod(helper, "close", NULL) : NULL;
    if (helper != NULL && done == NULL) {
        PyErr_WriteUnraisable(helper);
    }
    Py_XDECREF(done);
    Py_XDECREF(helper);
}

/* Returns -1 with the exception of a signal's handler set; the node is closed all the same. */
static int close_now(struct py_node *node)
{
    end_helper(node);
    py_event_turn_end(&node->turn);
    if (!py_node_is_open(node)) {
        return 0;
    }
    tb_event_release(node->pending);
    node->pending = NULL;
    return py_bus_close(node->bus);
}

/* Nobody can catch what is raised where the last reference goes: Ctrl-C is passed on to the main
 * thread's next instruction. */
static void pass_on(void)
{
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        PyErr_Clear();
        PyErr_SetInterrupt();
    } else {
        PyErr_WriteUnraisable(NULL);
    }
}

static void destroy(PyObject *self)
{
    struct py_node *node = (struct py_node *)self;
    if (node->bus != NULL) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        Py_SET_REFCNT(self, 1); /* closing lets other threads run */
        if (close_now(node) != 0) {
            pass_on();
        }
        Py_SET_REFCNT(self, 0);
        PyErr_Restore(type, value, trace);
        Py_CLEAR(node->bus);
    }
    py_object_free(self);
}

static PyObject *close_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (close_now((struct py_node *)self) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return py_node_check((struct py_node *)self) == 0 ? Py_NewRef(self) : NULL;
}

static PyObject *iterate(PyObject *self)
{
    return Py_NewRef(self);
}

/* ------------------------------------------------------------------ sending */

static PyObject *send_output(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"output", "value", "metadata", "timeout", NULL};
    struct py_node *node = (struct py_node *)self;
    struct py_state *state = py_state_of(self);
    const char *output;
    PyObject *value = Py_None;
    PyObject *mapping = Py_None;
    int64_t timeout_ns = TB_FOREVER;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|OOO&:send_output", names, &output, &value,
                                     &mapping, py_timeout_converter, &timeout_ns) ||
        py_node_check(node) != 0) {
        return NULL;
    }
    struct py_outgoing outgoing;
    tb_metadata *metadata = NULL;
    tb_status status = TB_OK;
    int sent = py_outgoing_begin(state, value, &outgoing) == 0 &&
               py_metadata_make(state, mapping, outgoing.mark[0] != '\0' ? outgoing.mark : NULL,
                                &metadata) == 0 &&
               py_node_check(node) == 0; /* looking at the value may have run anything */
    if (sent) {
        struct py_wait wait;
        py_wait_begin(&wait, node->bus);
        status = tb_node_send(node->node, output, outgoing.value, metadata, timeout_ns);
        int interrupted = py_wait_end(&wait) != 0;
        if (!interrupted && status != TB_OK) {
            py_raise(state, status);
        }
        sent = !interrupted && status == TB_OK;
    }
    tb_metadata_destroy(metadata);
    py_outgoing_end(&outgoing);
    if (!sent) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *close_output(PyObject *self, PyObject *args)
{
    struct py_node *node = (struct py_node *)self;
    const char *output;
    if (!PyArg_ParseTuple(args, "s:close_output", &output) || py_node_check(node) != 0) {
        return NULL;
    }
    tb_status status = tb_node_close_output(node->node, output);
    if (status != TB_OK) {
        return py_raise(py_state_of(self), status);
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ what it tells */

static PyObject *get_id(PyObject *self, void *unused)
{
    (void)unused;
    struct py_node *node = (struct py_node *)self;
    return py_node_check(node) == 0 ? PyUnicode_FromString(tb_node_id(node->node)) : NULL;
}

static PyObject *get_bus(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef((PyObject *)((struct py_node *)self)->bus);
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(!py_node_is_open((struct py_node *)self));
}

static PyObject *names_of(PyObject *self, const char *(*name)(const tb_node *node, size_t index))
{
    struct py_node *node = (struct py_node *)self;
    PyObject *list = PyList_New(0); /* first: it may start the collector, which runs anything */
    if (list != NULL && py_node_check(node) != 0) {
        Py_CLEAR(list);
    }
    for (size_t i = 0; list != NULL && name(node->node, i) != NULL; i++) {
        PyObject *text = PyUnicode_FromString(name(node->node, i));
        if (text == NULL || PyList_Append(list, text) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(text);
    }
    PyObject *tuple = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static PyObject *get_inputs(PyObject *self, void *unused)
{
    (void)unused;
    return names_of(self, tb_node_input);
}

static PyObject *get_outputs(PyObject *self, void *unused)
{
    (void)unused;
    return names_of(self, tb_node_output);
}

static PyObject *repr(PyObject *self)
{
    struct py_node *node = (struct py_node *)self;
    if (!py_node_is_open(node)) {
        return PyUnicode_FromString("<tensorbus.Node: closed>");
    }
    return PyUnicode_FromFormat("<tensorbus.Node: `%s`>", tb_node_id(node->node));
}

static PyGetSetDef attributes[] = {
    {"id", get_id, NULL, "Id of the node, as in the flow's file.", NULL},
    {"bus", get_bus, NULL,
     "The node's Bus: the default bus of this process, on which its pools and readers are.", NULL},
    {"inputs", get_inputs, NULL, "Names of the inputs, in the order of the flow's file.", NULL},
    {"outputs", get_outputs, NULL, "Names of the outputs, in the order of the flow's file.", NULL},
    {"closed", get_closed, NULL, "Whether it was closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(next_doc,
             "next($self, timeout=None)\n--\n\n"
             "Wait for the next event of any input or timer; the one before is then over.\n\n"
             "timeout: seconds; 0 polls, None waits for ever.\n"
             "Returns an Event, or None when nothing came in time.\n"
             "Raises ClosedError when all inputs are closed or STOP was delivered before;\n"
             "InvalidError when another thread waits already. Ctrl-C ends the wait; what had come\n"
             "is delivered by the next call.");

PyDoc_STRVAR(
    send_doc,
    "send_output($self, output, value=None, metadata=None, timeout=None)\n--\n\n"
    "Send a value to all subscribers of an output.\n\n"
    "value: None; bytes, bytearray, memoryview; str; a NumPy array, or anything with DLPack\n"
    "or the buffer protocol (any strides; receivers get it row-major); an Arrow array\n"
    "(__arrow_c_array__, __arrow_c_stream__; several chunks are made one); a Handle or Frame,\n"
    "which sends the handle and no bytes; a Value.\n"
    "Everything but handles is copied once, before the call returns. Above 32 KiB it\n"
    "travels as a frame by itself, at most 1 GiB for each node.\n"
    "metadata: a dict of bool, int (64 bits), float, str and lists of int, float or str, at\n"
    "most 64 KiB.\n"
    "timeout: seconds that it may wait for room in a `backpressure` input; None: for ever.\n"
    "Raises AgainError (no room in time: nobody got it), ClosedError (the output is\n"
    "closed), NotFoundError (no such output: names those that exist; or the owner of the\n"
    "handle is gone), TypeError and OverflowError (value, metadata: names the key),\n"
    "LimitError, StaleError, FreedError. Any thread may send, also while another waits in\n"
    "next().");

static PyMethodDef methods[] = {
    {"next", (PyCFunction)(void (*)(void))py_node_next, METH_VARARGS | METH_KEYWORDS, next_doc},
    {"send_output", (PyCFunction)(void (*)(void))send_output, METH_VARARGS | METH_KEYWORDS,
     send_doc},
    {"close_output", close_output, METH_VARARGS,
     "close_output($self, output)\n--\n\n"
     "Close one output now: its receivers get what was sent, then INPUT_CLOSED."},
    {"close", close_method, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Close: receivers get what was sent, then INPUT_CLOSED. Pools and readers of the node's bus\n"
     "are closed, too. Arrays that look at events stay readable until the process ends. Closing\n"
     "twice does nothing. Waits until receivers have taken the queued messages whose frames this\n"
     "node keeps, at most 10 s, or until STOP. Ctrl-C ends the wait: KeyboardInterrupt is raised,\n"
     "the node is closed, and what they have not taken is lost."},
    {"_fetch", py_node_fetch, METH_NOARGS, "Wait for an event without delivering it."},
    {"_set_cancel", py_node_set_cancel, METH_O, "Whether _fetch() shall come back."},
    {"_try_next", py_node_try_next, METH_NOARGS, "An event if there is one."},
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", close_method, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(doc,
             "Node()\n--\n\n"
             "A process of a flow, as the runner describes it in the environment: `tensorbus run`\n"
             "starts it. Waits until the other ends of its inputs and outputs are there.\n\n"
             "    with tensorbus.Node() as node:\n"
             "        for event in node:\n"
             "            if event.type == \"INPUT\":\n"
             "                node.send_output(\"boxes\", boxes, {\"count\": 3})\n\n"
             "Iterating ends when all inputs are closed, or after STOP; `async for` does the same\n"
             "within asyncio. Its bus becomes the default bus of this process.\n\n"
             "Raises NotFoundError (not started by a runner), InvalidError (environment),\n"
             "ExistsError (a process of this name lives).");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_new, create},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_iter, iterate},
    {Py_tp_iternext, py_node_iterate},
    {Py_am_aiter, iterate},
    {Py_am_anext, py_node_async_next},
    {Py_tp_dealloc, destroy},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tensorbus.Node",
    .basicsize = sizeof(struct py_node),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int py_node_add(PyObject *module)
{
    return py_type_add(module, PY_NODE_TYPE, &spec);
}

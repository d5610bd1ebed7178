/* Initialisation of `tensorbus._core`, and its state per interpreter. */
#include "module.h"

#include <string.h>

#include "bus.h"
#include "errors.h"
#include "event.h"
#include "extension.h"
#include "frame.h"
#include "frame_info.h"
#include "handle.h"
#include "loan.h"
#include "log.h"
#include "node.h"
#include "pool.h"
#include "reader.h"
#include "tensor_pool.h"
#include "value.h"

/* In this order: a file may use what the ones above it have added. */
static int (*const parts[])(PyObject *module) = {
    py_errors_add, py_log_add,   py_handle_add, py_bus_add,         py_frame_info_add,
    py_frame_add,  py_pool_add,  py_loan_add,   py_reader_add,      py_frames_add,
    py_value_add,  py_event_add, py_node_add,   py_tensor_pool_add, py_extension_add,
};

struct py_state *py_state_of(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}

struct py_state *py_state_of_module(PyObject *module)
{
    return PyModule_GetState(module);
}

int py_type_add(PyObject *module, enum py_slot slot, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL) {
        return -1;
    }
    py_state_of_module(module)->slots[slot] = type;
    const char *dot = strrchr(spec->name, '.');
    return PyModule_AddObjectRef(module, dot != NULL ? dot + 1 : spec->name, type);
}

void py_object_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static int add_parts(PyObject *module)
{
    py_state_of_module(module)->module = module;
    if (PyModule_AddStringConstant(module, "__version__", tb_version()) != 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i](module) != 0) {
            return -1;
        }
    }
    return 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    struct py_state *state = py_state_of_module(module);
    for (int i = 0; i < PY_SLOT_COUNT; i++) {
        Py_VISIT(state->slots[i]);
    }
    for (int i = 0; i < PY_ERROR_COUNT; i++) {
        Py_VISIT(state->errors[i]);
    }
    Py_VISIT(state->error);
    return 0;
}

static int clear(PyObject *module)
{
    struct py_state *state = py_state_of_module(module);
    for (int i = 0; i < PY_SLOT_COUNT; i++) {
        Py_CLEAR(state->slots[i]);
    }
    for (int i = 0; i < PY_ERROR_COUNT; i++) {
        Py_CLEAR(state->errors[i]);
    }
    Py_CLEAR(state->error);
    return 0;
}

static void destroy(void *module)
{
    (void)clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_parts},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tensorbus._core",
    .m_doc = "The part of tensorbus that is written in C. Use the package `tensorbus`.",
    .m_size = sizeof(struct py_state),
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = destroy,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}

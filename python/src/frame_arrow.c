/* A Frame as an Arrow array; see frame_arrow.h. */
#include "frame_arrow.h"

#include "arrow.h"
#include "errors.h"
#include "frame.h"

static void let_go(void *lease)
{
    py_arrow_let_go(py_lease_drop_view, lease);
}

static struct py_arrow_tree *tree_of(PyObject *self)
{
    struct py_state *state = py_state_of(self);
    struct py_lease *lease = py_frame_lease(state, self);
    struct py_arrow_error error = {.text = ""};
    if (lease == NULL) {
        return NULL;
    }
    const char *format = py_arrow_format_of(lease->tensor.dtype);
    if (lease->tensor.device != TB_CPU || !tb_tensor_is_packed(&lease->tensor)) {
        py_fail(state, TB_E_UNSUPPORTED,
                "Arrow arrays lie row-major in main memory, this frame does not: take a copy");
        return NULL;
    }
    struct py_arrow_tree *tree =
        py_arrow_tree_of_tensor(&lease->tensor, format != NULL ? format : "", &error);
    if (tree == NULL) {
        py_arrow_raise(state, &error);
        return NULL;
    }
    py_lease_add_view(lease);
    tree->keep = lease;
    tree->release = let_go;
    return tree;
}

PyObject *py_frame_arrow(PyObject *self, PyObject *unused)
{
    (void)unused;
    return py_frame_lease(py_state_of(self), self) != NULL ? py_arrow_pyarrow(self) : NULL;
}

PyObject *py_frame_arrow_schema(PyObject *self, PyObject *unused)
{
    (void)unused;
    return py_arrow_schema_capsule(tree_of(self));
}

PyObject *py_frame_arrow_array(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return py_arrow_parse(args, kwargs) == 0 ? py_arrow_capsules(tree_of(self)) : NULL;
}

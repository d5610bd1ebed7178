/* tensorbus.Handle. */
#include "handle.h"

#include <string.h>

#include "errors.h"

struct py_handle {
    PyObject_HEAD tb_handle handle;
};
_Static_assert(sizeof(tb_handle) == TB_HANDLE_BYTES, "a handle is its bytes");

static tb_handle *handle_of(PyObject *self)
{
    return &((struct py_handle *)self)->handle;
}

PyObject *py_handle_new(struct py_state *state, const tb_handle *handle)
{
    PyTypeObject *type = (PyTypeObject *)state->slots[PY_HANDLE_TYPE];
    struct py_handle *self = PyObject_New(struct py_handle, type);
    if (self != NULL) {
        self->handle = *handle;
    }
    return (PyObject *)self;
}

int py_handle_check(struct py_state *state, PyObject *object)
{
    return (PyObject *)Py_TYPE(object) == state->slots[PY_HANDLE_TYPE];
}

int py_handle_from(struct py_state *state, PyObject *object, tb_handle *out)
{
    if (py_handle_check(state, object)) {
        *out = *handle_of(object);
        return 0;
    }
    Py_buffer view;
    if (!PyObject_CheckBuffer(object) || PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) != 0) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "a tensorbus.Handle or its %d bytes are needed, not %R",
                     TB_HANDLE_BYTES, (PyObject *)Py_TYPE(object));
        return -1;
    }
    if (view.len != TB_HANDLE_BYTES) {
        py_fail(state, TB_E_INVALID, "a handle has %d bytes, these are %zd", TB_HANDLE_BYTES,
                view.len);
        PyBuffer_Release(&view);
        return -1;
    }
    memcpy(out, view.buf, TB_HANDLE_BYTES);
    PyBuffer_Release(&view);
    return 0;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"data", NULL};
    PyObject *data;
    tb_handle handle;
    struct py_state *state = PyType_GetModuleState(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Handle", names, &data) ||
        py_handle_from(state, data, &handle) != 0) {
        return NULL;
    }
    return py_handle_new(state, &handle);
}

static PyObject *to_bytes(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBytes_FromStringAndSize((const char *)handle_of(self), TB_HANDLE_BYTES);
}

static PyObject *reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("O(N)", (PyObject *)Py_TYPE(self), to_bytes(self, NULL));
}

static Py_hash_t hash(PyObject *self)
{
    PyObject *bytes = to_bytes(self, NULL);
    if (bytes == NULL) {
        return -1;
    }
    Py_hash_t value = PyObject_Hash(bytes);
    Py_DECREF(bytes);
    return value;
}

static PyObject *compare(PyObject *left, PyObject *right, int operation)
{
    if (Py_TYPE(left) != Py_TYPE(right) || (operation != Py_EQ && operation != Py_NE)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    int same = memcmp(handle_of(left), handle_of(right), TB_HANDLE_BYTES) == 0;
    return PyBool_FromLong(same == (operation == Py_EQ));
}

static PyObject *hex_of_uid(const tb_handle *handle)
{
    char text[33];
    for (int i = 0; i < 16; i++) {
        PyOS_snprintf(text + 2 * i, 3, "%02x", handle->pool_uid[i]);
    }
    return PyUnicode_FromString(text);
}

static PyObject *repr(PyObject *self)
{
    const tb_handle *handle = handle_of(self);
    PyObject *uid = hex_of_uid(handle);
    if (uid == NULL) {
        return NULL;
    }
    PyObject *text = PyUnicode_FromFormat("<tensorbus.Handle: frame %llu of pool %U, %llu bytes>",
                                          (unsigned long long)tb_handle_sequence(handle), uid,
                                          (unsigned long long)handle->bytes);
    Py_DECREF(uid);
    return text;
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, self, handle_of(self), TB_HANDLE_BYTES, 1, flags);
}

static PyObject *get_pool_uid(PyObject *self, void *unused)
{
    (void)unused;
    return PyBytes_FromStringAndSize((const char *)handle_of(self)->pool_uid, 16);
}

static PyObject *get_sequence(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(tb_handle_sequence(handle_of(self)));
}

static PyObject *get_generation(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(handle_of(self)->generation);
}

static PyObject *get_slot(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(handle_of(self)->slot);
}

static PyObject *get_stamp_ns(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(handle_of(self)->stamp_ns);
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(handle_of(self)->bytes);
}

static PyGetSetDef attributes[] = {
    {"pool_uid", get_pool_uid, NULL, "16 bytes that name the pool.", NULL},
    {"sequence", get_sequence, NULL, "Number of the write in its pool, from 1.", NULL},
    {"generation", get_generation, NULL, "Twice the sequence.", NULL},
    {"slot", get_slot, NULL, "Slot of the pool that the frame lies in.", NULL},
    {"stamp_ns", get_stamp_ns, NULL,
     "When it was published, in ns on the owner's CLOCK_MONOTONIC (time.monotonic_ns()).", NULL},
    {"nbytes", get_nbytes, NULL, "Packed size of the frame's tensor in bytes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    {"__bytes__", to_bytes, METH_NOARGS, "The 48 bytes, to be sent through any channel."},
    {"__reduce__", reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(doc, "Handle(data)\n--\n\n"
                  "The 48 bytes that name a frame, and all that has to travel.\n\n"
                  "Publishing makes one (pool.last, pool.write()); send bytes(handle) through any\n"
                  "channel or pickle it; Handle(data) makes it again from the bytes, and\n"
                  "open_frame() or Reader.frame() turn it back into the frame. It holds nothing:\n"
                  "when the frame was overwritten, opening it raises StaleError. A value: equal\n"
                  "bytes are equal handles, and it is hashable. Thread-safe.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)doc},
    {Py_tp_new, make},
    {Py_tp_repr, repr},
    {Py_tp_hash, hash},
    {Py_tp_richcompare, compare},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_dealloc, py_object_free},
    {Py_bf_getbuffer, get_buffer},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tensorbus.Handle",
    .basicsize = sizeof(struct py_handle),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int py_handle_add(PyObject *module)
{
    return py_type_add(module, PY_HANDLE_TYPE, &spec);
}

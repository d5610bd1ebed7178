/* See adopt.h. The library tells of a memory's end on any thread, with the GIL or without, and may
 * be waited for by a thread that has the GIL: so what it tells is only put into a list, which is
 * swept with the GIL. */
#include "adopt.h"

#include <string.h>

#include "dlpack.h"
#include "errors.h"

struct py_adopted {
    struct py_adopted *next;
    size_t users; /* the library, and views of loans */
    struct py_source source;
};

static struct py_adopted *came_back; /* atomic */

void py_adopt_keep(struct py_adopted *adopted)
{
    if (adopted != NULL) {
        adopted->users++;
    }
}

void py_adopt_let_go(struct py_adopted *adopted)
{
    if (adopted != NULL && --adopted->users == 0) {
        py_source_close(&adopted->source);
        PyMem_Free(adopted);
    }
}

void py_adopt_sweep(void)
{
    /* Acquire: pairs with the release exchange in on_release(). */
    struct py_adopted *list = __atomic_exchange_n(&came_back, NULL, __ATOMIC_ACQUIRE);
    while (list != NULL) {
        struct py_adopted *adopted = list;
        list = adopted->next;
        py_adopt_let_go(adopted);
    }
}

static int sweep_soon(void *unused)
{
    (void)unused;
    py_adopt_sweep();
    return 0;
}

/* Any thread, with the GIL or without. */
static void on_release(void *context)
{
    struct py_adopted *adopted = context;
    adopted->next = __atomic_load_n(&came_back, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&came_back, &adopted->next, adopted, 0, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED)) {
    }
    (void)Py_AddPendingCall(sweep_soon, NULL); /* if there is no room, the next use of pools does */
}

/* ---- what is given ---- */

int py_adopt_parse(struct py_state *state, PyObject *adopt, PyObject *offset, tb_adoption *adoption)
{
    *adoption = (tb_adoption){.fd = -1};
    if (offset != NULL && offset != Py_None) {
        adoption->offset = PyLong_AsUnsignedLongLong(offset);
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    int by_fd = adopt != NULL && adopt != Py_None && !PyBool_Check(adopt);
    if (by_fd) {
        adoption->by = TB_ADOPT_MEMFD;
        adoption->fd = PyObject_AsFileDescriptor(adopt);
        if (adoption->fd < 0) {
            return -1;
        }
    } else if (adoption->offset != 0) {
        py_fail(state, TB_E_INVALID,
                "adopt_offset is a place in a descriptor's memory: give that as adopt, or for a "
                "tensor on a GPU give the part of it that is to be adopted");
        return -1;
    }
    adoption->size = by_fd || adopt == Py_True ? sizeof *adoption : 0;
    return 0;
}

int py_adopt_is_of(const tb_adoption *adoption, PyObject *like)
{
    return adoption->size != 0 && (adoption->fd < 0 || py_source_like(like));
}

static int is_contiguous(const tb_tensor *tensor)
{
    int64_t step = 1;
    for (int32_t i = tensor->ndim - 1; tensor->strides != NULL && i >= 0; i--) {
        if (tensor->shape[i] > 1 && tensor->strides[i] != step) {
            return 0;
        }
        step *= tensor->shape[i];
    }
    return 1;
}

/* 1: the tensor's owner allows no writes to it; -1: an exception is set. */
static int is_read_only(PyObject *tensor, const struct py_source *source)
{
    if (source->keep != NULL && PyCapsule_CheckExact(source->keep)) {
        return py_dlpack_is_read_only(source->keep);
    }
    if (source->view.obj != NULL) {
        return source->view.readonly;
    }
    PyObject *interface = PyObject_GetAttrString(tensor, source->tensor.device == TB_CPU
                                                             ? "__array_interface__"
                                                             : "__cuda_array_interface__");
    PyObject *data = interface != NULL ? PyMapping_GetItemString(interface, "data") : NULL;
    PyObject *flag = data != NULL ? PySequence_GetItem(data, 1) : NULL;
    int result = flag != NULL ? PyObject_IsTrue(flag) : -1;
    Py_XDECREF(interface);
    Py_XDECREF(data);
    Py_XDECREF(flag);
    return result;
}

/* Whether the memory goes with what names it to other processes. */
static int check_place(struct py_state *state, const tb_tensor *tensor, int fd)
{
    if (tensor->device == TB_CPU && fd < 0) {
        py_fail(state, TB_E_UNSUPPORTED,
                "adopt=True takes a tensor on a GPU: other processes map host memory by a memfd "
                "that it is a mapping of; give that as adopt (os.memfd_create(\"frames\", "
                "os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)), write into a loan of a pool, or copy "
                "with write()");
        return -1;
    }
    if (tensor->device != TB_CPU && fd >= 0) {
        py_fail(state, TB_E_INVALID,
                "the tensor is on cuda:%d, and a descriptor names other memory: for the tensor's "
                "say adopt=True; for a DMA-BUF give tensorbus.Spec(shape, dtype) in its place",
                (int)(tensor->device & 0xffff));
        return -1;
    }
    return 0;
}

static int check(struct py_state *state, PyObject *object, const struct py_source *source,
                 uint32_t slots, int fd)
{
    const tb_tensor *tensor = &source->tensor;
    if (check_place(state, tensor, fd) != 0) {
        return -1;
    }
    int read_only = is_read_only(object, source);
    if (read_only != 0) {
        if (read_only > 0) {
            py_fail(state, TB_E_UNSUPPORTED,
                    "adopt: the tensor is read-only, and a pool's slots are written: register "
                    "a pool like it, and copy with write()");
        }
        return -1;
    }
    if (!is_contiguous(tensor)) {
        py_fail(state, TB_E_INVALID,
                "adopt takes a contiguous tensor: make it so before (.contiguous())");
        return -1;
    }
    if (slots > 0 && (tensor->ndim == 0 || tensor->shape[0] != (int64_t)slots)) {
        py_fail(state, TB_E_INVALID,
                "adopt with %u slots takes a tensor whose first dimension is %u: each slot is "
                "one of its items; leave slots away to make the whole tensor one",
                (unsigned)slots, (unsigned)slots);
        return -1;
    }
    return 0;
}

int py_adopt(struct py_state *state, PyObject *tensor, uint32_t slots, tb_pool_options *options,
             tb_adoption *adoption, struct py_adopted **out)
{
    py_adopt_sweep();
    struct py_adopted *adopted = PyMem_Malloc(sizeof *adopted);
    if (adopted == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    adopted->users = 1;
    if (py_source_open(state, tensor, &adopted->source) != 0) {
        PyMem_Free(adopted);
        return -1;
    }
    size_t bytes = 0;
    if (check(state, tensor, &adopted->source, slots, adoption->fd) != 0) {
        py_adopt_let_go(adopted);
        return -1;
    }
    (void)!tb_tensor_bytes(&adopted->source.tensor, &bytes);
    const tb_tensor *given = &adopted->source.tensor;
    int32_t skip = slots > 0;
    options->dtype = given->dtype;
    options->device = given->device;
    options->ndim = given->ndim - skip;
    memcpy(options->shape, given->shape + skip, (size_t)options->ndim * sizeof options->shape[0]);
    options->slots = slots > 0 ? slots : 1;
    adoption->data = given->data;
    adoption->bytes = bytes;
    adoption->release = on_release;
    adoption->context = adopted;
    options->adopt = adoption;
    *out = adopted;
    return 0;
}

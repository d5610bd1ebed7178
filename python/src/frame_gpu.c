/* Frames on GPUs. */
#include "frame_gpu.h"

#include <string.h>

#include "dtype.h"
#include "errors.h"
#include "view.h"
#include "wait.h"

PyObject *py_device_name(tb_device device)
{
    return device == TB_CPU ? PyUnicode_FromString("cpu")
                            : PyUnicode_FromFormat("cuda:%d", (int)(device & 0xffff));
}

int py_gpu_refuse_numpy(const struct py_lease *lease)
{
    if (lease->tensor.device == TB_CPU) {
        return 0;
    }
    py_fail(lease->bus->state, TB_E_UNSUPPORTED,
            "the frame is on cuda:%d, where NumPy cannot look: copy it to main memory with "
            "frame.copy(), or use it where it is with torch.from_dlpack(frame)",
            (int)(lease->tensor.device & 0xffff));
    return -1;
}

int py_gpu_check_copy(struct py_state *state, PyObject *device)
{
    if (device == Py_None) {
        return 0;
    }
    PyObject *text = PyObject_Str(device);
    if (text == NULL) {
        return -1;
    }
    int is_cpu = PyUnicode_CompareWithASCIIString(text, "cpu") == 0;
    if (!is_cpu) {
        py_fail(
            state, TB_E_UNSUPPORTED,
            "copy(\"%U\"): NumPy arrays are made in main memory alone, \"cpu\"; for a copy on a "
            "GPU use torch.from_dlpack(frame).clone() or cupy.from_dlpack(frame).copy()",
            text);
    }
    Py_DECREF(text);
    return is_cpu ? 0 : -1;
}

/* ---- copies ---- */

/* Behind the frame's completion, in the order of the default stream. Without the GIL. */
static tb_status copy_out(struct py_lease *lease, void *memory)
{
    tb_tensor destination = lease->tensor;
    destination.data = memory;
    destination.device = TB_CPU;
    destination.strides = NULL;
    tb_status status = tb_frame_wait_on(lease->frame, NULL);
    if (status == TB_OK) {
        status = tb_copy(&destination, &lease->tensor);
    }
    if (status == TB_OK) {
        status = tb_frame_poll(lease->frame);
    }
    return status == TB_AGAIN ? TB_OK : status; /* the gate was passed, the owner's word comes */
}

/* Bytes of NumPy's that can be written: the array is returned, its memory is in *out. */
static PyObject *new_bytes(size_t bytes, Py_buffer *out)
{
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *array = numpy != NULL
                          ? PyObject_CallMethod(numpy, "empty", "ns", (Py_ssize_t)bytes, "uint8")
                          : NULL;
    Py_XDECREF(numpy);
    if (array != NULL && PyObject_GetBuffer(array, out, PyBUF_WRITABLE) != 0) {
        Py_CLEAR(array);
    }
    return array;
}

/* Returns -1 with an exception set. */
static int copy_into(struct py_lease *lease, void *memory, size_t bytes)
{
    struct py_wait wait;
    if (py_bus_check(lease->bus) != 0) { /* making room for the copy may have run anything */
        return -1;
    }
    py_wait_begin(&wait, lease->bus);
    tb_status status = bytes > 0 ? copy_out(lease, memory) : TB_OK;
    if (py_wait_end(&wait) != 0) {
        return -1;
    }
    if (status != TB_OK) {
        py_raise(lease->bus->state, status);
        return -1;
    }
    return 0;
}

PyObject *py_gpu_copy(struct py_lease *lease)
{
    size_t bytes = 0;
    Py_buffer memory;
    PyObject *result = NULL;
    py_lease_ref(lease); /* NumPy is asked: the frame may be released meanwhile */
    PyObject *dtype = py_dtype_numpy(lease->bus->state, lease->tensor.dtype);
    PyObject *shape = dtype != NULL ? py_shape_tuple(&lease->tensor) : NULL;
    (void)!tb_tensor_bytes(&lease->tensor, &bytes);
    PyObject *raw = shape != NULL ? new_bytes(bytes, &memory) : NULL;
    if (raw != NULL) {
        int failed = copy_into(lease, memory.buf, bytes) != 0;
        PyBuffer_Release(&memory);
        PyObject *typed = !failed ? PyObject_CallMethod(raw, "view", "O", dtype) : NULL;
        result = typed != NULL ? PyObject_CallMethod(typed, "reshape", "O", shape) : NULL;
        Py_XDECREF(typed);
    }
    py_lease_unref(lease);
    Py_XDECREF(raw);
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    return result;
}

/* ---- the protocols ---- */

int py_gpu_wait(struct py_lease **lease, tb_cuda_stream stream)
{
    struct py_lease *former = *lease;
    py_lease_ref(former); /* while the GIL is released */
    struct py_lease *used = py_lease_on(former, stream);
    int failed = used == NULL;
    if (!failed && *lease == NULL) {
        py_fail(former->bus->state, TB_E_INVALID,
                "this frame was released by another thread while the GPU was waited for");
        py_lease_unref(used);
        failed = 1;
    } else if (!failed) {
        struct py_lease *before = *lease; /* by another thread's stream, perhaps */
        *lease = used;
        py_lease_unref(before);
    }
    py_lease_unref(former);
    return failed ? -1 : 0;
}

static PyObject *copy_capsule(struct py_lease *lease, int versioned)
{
    struct py_wait wait;
    py_lease_add_view(lease); /* its memory stays, whatever other threads close */
    py_wait_begin(&wait, lease->bus);
    tb_status status = tb_frame_wait_on(lease->frame, NULL);
    PyObject *copy = NULL;
    if (py_wait_end(&wait) == 0) {
        copy = status == TB_OK ? py_dlpack_copy(lease->bus->state, &lease->tensor, versioned)
                               : py_raise(lease->bus->state, status);
    }
    py_lease_drop_view(lease);
    return copy;
}

PyObject *py_gpu_dlpack(struct py_lease *lease, const struct py_dlpack_request *request)
{
    if (request->to_cpu) {
        return copy_capsule(lease, request->versioned);
    }
    if (request->copy == 1) {
        PyErr_Format(PyExc_BufferError,
                     "a frame on cuda:%d is not copied by DLPack: take it as it is and copy that, "
                     "torch.from_dlpack(frame).clone()",
                     (int)(lease->tensor.device & 0xffff));
        return NULL;
    }
    struct py_lease *used = lease;
    if (request->ordered) {
        used = py_lease_on(lease, request->stream);
        if (used == NULL) {
            return NULL;
        }
    }
    py_lease_add_view(used);
    if (request->ordered) {
        py_lease_unref(used); /* the view is its user now */
    }
    return py_dlpack_capsule(&used->tensor, PY_DL_READ_ONLY, request->versioned, py_lease_drop_view,
                             used);
}

/* NumPy's text of a dtype, such as "<f4"; NULL with an exception set when there is none. */
static PyObject *typestr(struct py_state *state, tb_dtype dtype)
{
    char name[32];
    if (py_dtype_format(dtype) == NULL) {
        return py_fail(state, TB_E_UNSUPPORTED,
                       "__cuda_array_interface__ has no name for %s: use DLPack, "
                       "torch.from_dlpack(frame)",
                       tb_dtype_name(dtype, name));
    }
    PyObject *numpy = py_dtype_numpy(state, dtype);
    PyObject *text = numpy != NULL ? PyObject_GetAttrString(numpy, "str") : NULL;
    Py_XDECREF(numpy);
    return text;
}

/* Strides in bytes; None when the elements are row-major. */
static PyObject *byte_strides(const tb_tensor *tensor)
{
    if (tensor->strides == NULL) {
        return Py_NewRef(Py_None);
    }
    PyObject *strides = PyTuple_New(tensor->ndim);
    int64_t element = (int64_t)tb_dtype_bytes(tensor->dtype);
    for (int32_t i = 0; strides != NULL && i < tensor->ndim; i++) {
        PyObject *item = PyLong_FromLongLong(tensor->strides[i] * element);
        if (item == NULL || PyTuple_SetItem(strides, i, item) != 0) {
            Py_CLEAR(strides);
        }
    }
    return strides;
}

PyObject *py_gpu_interface(struct py_state *state, const tb_tensor *tensor, int read_only,
                           tb_cuda_stream stream)
{
    PyObject *type = typestr(state, tensor->dtype);
    PyObject *shape = type != NULL ? py_shape_tuple(tensor) : NULL;
    PyObject *strides = shape != NULL ? byte_strides(tensor) : NULL;
    PyObject *number = strides != NULL ? py_stream_number(stream) : NULL;
    PyObject *interface = NULL;
    if (number != NULL) {
        size_t bytes = 0;
        (void)!tb_tensor_bytes(tensor, &bytes);
        interface = Py_BuildValue("{sO sO s(KO) sO sO si}", "shape", shape, "typestr", type, "data",
                                  bytes > 0 ? (unsigned long long)(uintptr_t)tensor->data : 0ULL,
                                  read_only ? Py_True : Py_False, "strides", strides, "stream",
                                  number, "version", 3);
    }
    Py_XDECREF(type);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    Py_XDECREF(number);
    return interface;
}

PyObject *py_gpu_frame_interface(struct py_lease *lease)
{
    if (lease->tensor.device == TB_CPU) {
        PyErr_SetString(PyExc_AttributeError,
                        "a frame in main memory has no __cuda_array_interface__: use .numpy()");
        return NULL;
    }
    py_lease_ref(lease); /* NumPy is asked: the frame may be released meanwhile */
    PyObject *interface = py_gpu_interface(lease->bus->state, &lease->tensor, 1, NULL);
    py_lease_unref(lease);
    return interface;
}

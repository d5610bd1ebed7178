/* Leases. With the GIL. */
#include "lease.h"

#include <string.h>

#include "errors.h"
#include "guard.h"

struct py_lease *py_lease_new(struct py_bus *bus, PyObject *keep, void (*gone)(PyObject *keep),
                              tb_frame *take_frame)
{
    struct py_lease *lease = PyMem_Malloc(sizeof *lease);
    if (lease == NULL) {
        tb_frame_release(take_frame);
        PyErr_NoMemory();
        return NULL;
    }
    lease->info.size = sizeof lease->info;
    tb_status status = tb_frame_get_info(take_frame, &lease->info);
    if (status != TB_OK) {
        tb_frame_release(take_frame);
        PyMem_Free(lease);
        py_raise(bus->state, status);
        return NULL;
    }
    lease->frame = take_frame;
    lease->tensor = *tb_frame_tensor(take_frame);
    if (lease->tensor.strides != NULL) {
        memcpy(lease->strides, lease->tensor.strides, sizeof lease->strides);
        lease->tensor.strides = lease->strides;
    }
    Py_INCREF((PyObject *)bus);
    Py_XINCREF(keep);
    lease->bus = bus;
    lease->keep = keep;
    lease->gone = gone;
    lease->users = 1;
    lease->views = 0;
    lease->guard = -1;
    return lease;
}

void py_lease_ref(struct py_lease *lease)
{
    lease->users++;
}

void py_lease_unref(struct py_lease *lease)
{
    if (--lease->users > 0) {
        return;
    }
    /* After the bus has gone the frame has, too. In a forked child nothing happens. */
    if (lease->bus->bus != NULL) {
        tb_frame_release(lease->frame);
    }
    py_guard_remove(lease->guard);
    if (lease->gone != NULL) {
        lease->gone(lease->keep);
    }
    Py_XDECREF(lease->keep);
    Py_DECREF((PyObject *)lease->bus);
    PyMem_Free(lease);
}

void py_lease_add_view(struct py_lease *lease)
{
    lease->views++;
    if (lease->guard < 0) {
        lease->guard = py_guard_add(PY_GUARD_FRAME, lease->tensor.data, lease->info.handle.bytes,
                                    lease->info.producer, lease->info.pool);
    }
    py_guard_look();
    lease->users++;
    lease->bus->views++;
}

void py_lease_drop_view(void *context)
{
    struct py_lease *lease = context;
    lease->views--;
    lease->bus->views--;
    py_lease_unref(lease);
}

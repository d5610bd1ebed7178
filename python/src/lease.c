/* Leases. With the GIL. */
#include "lease.h"

#include <string.h>

#include "errors.h"
#include "guard.h"
#include "wait.h"

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
    lease->stream = NULL;
    lease->on_stream = 0;
    lease->parent = NULL;
    lease->guard = -1;
    return lease;
}

void py_lease_ref(struct py_lease *lease)
{
    lease->users++;
}

/* Where no stream works on it a frame is given back at once. A stream takes what it is told only
 * when its queue has room, and what empties the queue may need the GIL. Nobody else has the lease
 * any more. */
static tb_status give_back(struct py_lease *lease)
{
    if (!lease->on_stream) {
        tb_frame_release(lease->frame);
        return TB_OK;
    }
    py_bus_enter(lease->bus);
    PyThreadState *thread = PyEval_SaveThread();
    tb_status status = tb_frame_release_on(lease->frame, lease->stream);
    PyEval_RestoreThread(thread);
    py_bus_leave(lease->bus);
    return status == TB_E_UNSUPPORTED ? TB_OK : status; /* no driver, so no stream has work */
}

tb_status py_lease_unref(struct py_lease *lease)
{
    if (--lease->users > 0) {
        return TB_OK;
    }
    /* After the bus has gone the frame has, too. In a forked child nothing happens. */
    tb_status status = lease->bus->bus != NULL && !lease->bus->forked ? give_back(lease) : TB_OK;
    py_guard_remove(lease->guard);
    if (lease->gone != NULL) {
        lease->gone(lease->keep);
    }
    Py_XDECREF(lease->keep);
    if (lease->parent != NULL) {
        py_lease_unref(lease->parent);
    }
    Py_DECREF((PyObject *)lease->bus);
    PyMem_Free(lease);
    return status;
}

/* The same frame, held once more on its own. */
static struct py_lease *hold_again(struct py_lease *lease)
{
    tb_frame *another;
    tb_status status = tb_frame_hold(lease->frame, &another);
    if (status != TB_OK) {
        py_raise(lease->bus->state, status);
        return NULL;
    }
    struct py_lease *made = py_lease_new(lease->bus, NULL, NULL, another);
    if (made != NULL) {
        py_lease_ref(lease); /* what must outlive the frame */
        made->parent = lease;
    }
    return made;
}

/* The GPU is at work on the frame: the stream waits for that, and where it cannot this thread does,
 * without the GIL. Threads that come with another stream meanwhile see a view in this one's order,
 * and hold the frame once more. */
static int wait_on(struct py_lease *lease, tb_cuda_stream stream)
{
    struct py_wait wait;
    tb_cuda_stream former = lease->stream;
    int had_stream = lease->on_stream;
    lease->stream = stream;
    lease->on_stream = 1;
    lease->views++;
    py_wait_begin(&wait, lease->bus);
    tb_status status = tb_frame_wait_on(lease->frame, stream);
    int interrupted = py_wait_end(&wait) != 0;
    lease->views--;
    if (status != TB_OK && lease->views == 0) {
        lease->stream = former;
        lease->on_stream = had_stream;
    }
    if (status != TB_OK && !interrupted) {
        py_raise(lease->bus->state, status);
    }
    return status == TB_OK && !interrupted ? 0 : -1;
}

/* With a look first: mostly the frame is complete, and nothing can block. */
static int order(struct py_lease *lease, tb_cuda_stream stream)
{
    tb_status status = tb_frame_poll(lease->frame);
    if (status == TB_AGAIN) {
        return wait_on(lease, stream);
    }
    if (status != TB_OK && status != TB_E_INCOMPLETE) { /* incomplete: told when it is released */
        py_raise(lease->bus->state, status);
        return -1;
    }
    lease->stream = stream;
    lease->on_stream = 1;
    return 0;
}

struct py_lease *py_lease_on(struct py_lease *lease, tb_cuda_stream stream)
{
    int other = lease->on_stream && lease->views > 0 && lease->stream != stream;
    struct py_lease *used = other ? hold_again(lease) : lease;
    if (used == NULL) {
        return NULL;
    }
    if (!other) {
        py_lease_ref(lease);
    }
    if (order(used, stream) != 0) {
        py_lease_unref(used);
        return NULL;
    }
    return used;
}

void py_lease_add_view(struct py_lease *lease)
{
    lease->views++;
    if (lease->guard < 0 && lease->tensor.device == TB_CPU) {
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

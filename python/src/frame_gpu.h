/* Frames in a GPU's memory: what Frame does there. With the GIL. */
#ifndef PY_FRAME_GPU_H
#define PY_FRAME_GPU_H

#include "dlpack.h"
#include "lease.h"

/* Returns -1 with UnsupportedError set for a frame that NumPy cannot see. */
int py_gpu_refuse_numpy(const struct py_lease *lease);

/* Whether copy(device) can be: None and "cpu". Returns -1 with an exception set. */
int py_gpu_check_copy(struct py_state *state, PyObject *device);

/* A NumPy array with the elements: waits for the frame and the copy. */
PyObject *py_gpu_copy(struct py_lease *lease);

/* The capsule that a consumer has asked for. */
PyObject *py_gpu_dlpack(struct py_lease *lease, const struct py_dlpack_request *request);

/* frame.wait(): the frame's use of its lease goes over to the one that is in the stream's order.
 * Returns -1 with an exception set. */
int py_gpu_wait(struct py_lease **lease, tb_cuda_stream stream);

/* __cuda_array_interface__ of a frame, whose user calls py_gpu_wait() for the default stream then;
 * AttributeError for one that is no GPU's. */
PyObject *py_gpu_frame_interface(struct py_lease *lease);

/* The dictionary for any tensor on a GPU; `what` names its object in errors. */
PyObject *py_gpu_interface(struct py_state *state, const tb_tensor *tensor, int read_only,
                           tb_cuda_stream stream);

/* "cuda:1": a new str; "cpu". */
PyObject *py_device_name(tb_device device);

#endif

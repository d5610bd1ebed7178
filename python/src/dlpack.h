/* DLPack: tensors in and out of other frameworks without a copy. Structures as version 1.1 of the
 * standard lays them out in memory; capsules of both kinds. */
#ifndef PY_DLPACK_H
#define PY_DLPACK_H

#include "stream.h"

struct py_dl_tensor {
    void *data;
    int32_t device_type; /* 1 CPU, 2 CUDA */
    int32_t device_id;
    int32_t ndim;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* elements; NULL = row-major */
    uint64_t byte_offset;
};

/* Before 1.0: "dltensor". */
struct py_dl_managed {
    struct py_dl_tensor tensor;
    void *context;
    void (*deleter)(struct py_dl_managed *self);
};

/* From 1.0 on: "dltensor_versioned". */
struct py_dl_versioned {
    uint32_t major;
    uint32_t minor;
    void *context;
    void (*deleter)(struct py_dl_versioned *self);
    uint64_t flags;
    struct py_dl_tensor tensor;
};

#define PY_DL_READ_ONLY UINT64_C(1)
#define PY_DL_COPIED UINT64_C(2)

/* What a consumer asks of __dlpack__(). */
struct py_dlpack_request {
    int versioned; /* it takes versioned capsules */
    int copy;      /* 1: must be a copy, 0: must not, -1: either */
    int to_cpu;    /* a GPU's memory is asked for in main memory: a copy */
    int ordered;   /* `stream` is what the memory must be ready for; 0: nothing is to be done */
    tb_cuda_stream stream;
};

/* Read the arguments of __dlpack__(*, stream, max_version, dl_device, copy) for memory on `device`.
 * Returns -1 with an exception set: BufferError for what cannot be given. */
int py_dlpack_parse(PyObject *args, PyObject *kwargs, tb_device device,
                    struct py_dlpack_request *out);

/* (device type, device id) for __dlpack_device__(). */
PyObject *py_dlpack_device(tb_device device);

/* A capsule over memory that lives until release(context), which is called once, with the GIL, when
 * the consumer is done, or by this function when it fails. `data` is the true first element. */
PyObject *py_dlpack_capsule(const tb_tensor *tensor, uint64_t flags, int versioned,
                            void (*release)(void *context), void *context);

/* A capsule in main memory over a private, writable copy of a tensor on any device. */
PyObject *py_dlpack_copy(struct py_state *state, const tb_tensor *tensor, int versioned);

/* Ask an object for a capsule and read it; *out_capsule keeps the memory alive. Strides point into
 * the capsule. What the producer has on its way to a GPU is ordered before `stream`. Returns -1
 * with an exception set. */
int py_dlpack_import(struct py_state *state, PyObject *object, tb_cuda_stream stream,
                     tb_tensor *out, PyObject **out_capsule);

/* Whether such a capsule says that its tensor may not be written. */
int py_dlpack_is_read_only(PyObject *capsule);

#endif

/* Streams of a GPU, as Python's libraries have them. */
#ifndef PY_STREAM_H
#define PY_STREAM_H

#include "module.h"

struct py_stream {
    tb_cuda_stream stream; /* NULL: the legacy default stream */
    int given;             /* 0: None */
    int complete;          /* publish() alone: nothing is on its way */
};

/* For PyArg_ParseTupleAndKeywords "O&": None; a number as in DLPack or of a cudaStream_t (0 and 1:
 * the legacy default stream, 2: the thread's); an object with __cuda_stream__(), `.cuda_stream`
 * (PyTorch) or `.ptr` (CuPy). 1 on success; 0 with an exception set. */
int py_stream_converter(PyObject *object, void *out_stream);

/* The same, and -1 as in DLPack: there is nothing to wait for. */
int py_publish_stream_converter(PyObject *object, void *out_stream);

/* What DLPack calls the stream: a new int. */
PyObject *py_stream_number(tb_cuda_stream stream);

#endif

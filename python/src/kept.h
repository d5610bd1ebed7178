/* Sources of copies that a GPU makes later: kept until its stream has passed them. With the GIL. */
#ifndef PY_KEPT_H
#define PY_KEPT_H

#include "tensor_in.h"

struct py_kept;

/* Keep what a stream was given work on just now. Takes the source's references: closing it then
 * does nothing. Where the driver cannot mark the place it waits for the stream. */
void py_kept_add(struct py_kept **list, struct py_source *source, tb_cuda_stream stream,
                 tb_device device);

/* Let go of those that were passed; of all, waiting for them. */
void py_kept_sweep(struct py_kept **list);
void py_kept_end(struct py_kept **list);

#endif

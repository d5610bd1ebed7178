/* Tensors whose memory is a pool's slots: Pool.register(tensor, adopt=True). Kept until the library
 * says that nobody uses the memory any more. With the GIL, unless said otherwise. */
#ifndef PY_ADOPT_H
#define PY_ADOPT_H

#include "tensor_in.h"

struct py_adopted;

/* Look at a tensor that is to be adopted as `slots` slots (0: it is one; else its first dimension
 * counts them): fills dtype, shape, device and slots of *options, and *adoption, both to be given
 * to tb_pool_register(). Once that has succeeded the tensor is kept; when it has failed, *out is
 * the caller's to forget. Returns -1 with an exception set: UnsupportedError (not on a GPU,
 * read-only), InvalidError (not contiguous, shape), and what opening a tensor raises. */
int py_adopt(struct py_state *state, PyObject *tensor, uint32_t slots, tb_pool_options *options,
             tb_adoption *adoption, struct py_adopted **out);
void py_adopt_forget(struct py_adopted *adopted);

/* Let go of tensors whose memory came back: it does so by itself soon, in the main thread. */
void py_adopt_sweep(void);

#endif

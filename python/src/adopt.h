/* Memory that is a pool's slots: Pool.register(tensor, adopt=True) for a GPU's, and
 * adopt=descriptor for a memfd and a DMA-BUF. Tensors are kept until the library says that nobody
 * uses the memory any more, and no view of a loan looks at it. With the GIL, unless said otherwise.
 */
#ifndef PY_ADOPT_H
#define PY_ADOPT_H

#include "tensor_in.h"

struct py_adopted;

/* Read the arguments `adopt` and `adopt_offset`, each of which may be NULL, into *adoption, of
 * which nothing else is set: adoption->size is 0 when nothing is to be adopted. Returns -1 with an
 * exception set. */
int py_adopt_parse(struct py_state *state, PyObject *adopt, PyObject *offset,
                   tb_adoption *adoption);

/* Whether such an adoption is of the memory of `like`; otherwise `like` only says what a slot of
 * the descriptor's memory looks like. */
int py_adopt_is_of(const tb_adoption *adoption, PyObject *like);

/* Look at a tensor that is to be adopted as `slots` slots (0: it is one; else its first dimension
 * counts them): fills dtype, shape, device and slots of *options, and *adoption, both to be given
 * to tb_pool_register(). Once that has succeeded the tensor is kept; when it has failed, *out is
 * the caller's to let go. Returns -1 with an exception set: UnsupportedError (not where it must be,
 * read-only), InvalidError (not contiguous, shape), and what opening a tensor raises. */
int py_adopt(struct py_state *state, PyObject *tensor, uint32_t slots, tb_pool_options *options,
             tb_adoption *adoption, struct py_adopted **out);

/* A view of the memory comes, and goes: the tensor is let go when there is none any more and the
 * library, which has one from the beginning, has given its own back. NULL: does nothing. */
void py_adopt_keep(struct py_adopted *adopted);
void py_adopt_let_go(struct py_adopted *adopted);

/* Let go of tensors whose memory came back: it does so by itself soon, in the main thread. */
void py_adopt_sweep(void);

#endif

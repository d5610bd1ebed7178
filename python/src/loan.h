/* tensorbus.Loan: a slot to write into, published at the end of its `with` block. */
#ifndef PY_LOAN_H
#define PY_LOAN_H

#include "pool.h"
#include "stream.h"

int py_loan_add(PyObject *module);

/* Borrow a slot; `shape` (nothing else of it) for a pool whose shapes vary, NULL: the registered
 * one. NULL with an exception set. `stream`: that fills it, and that it is published on unless
 * publish() names another. */
PyObject *py_loan_new(struct py_pool *pool, int64_t timeout_ns, const tb_tensor *shape,
                      const struct py_stream *stream);

#endif

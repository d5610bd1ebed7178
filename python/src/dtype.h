/* dtypes: between tb_dtype, PEP 3118 formats, NumPy's dtypes (ml_dtypes' too) and PyTorch's. */
#ifndef PY_DTYPE_H
#define PY_DTYPE_H

#include "module.h"

/* PEP 3118 format of a dtype; NULL when there is none (bfloat16, float8). Static. */
const char *py_dtype_format(tb_dtype dtype);

/* The dtype of a PEP 3118 format and item size; NULL is bytes. Returns -1 with InvalidError set for
 * what cannot be shared: big-endian numbers, structures, text, objects. */
int py_dtype_from_format(struct py_state *state, const char *format, Py_ssize_t itemsize,
                         tb_dtype *out);

/* The dtype that an object names: "uint8", "<f4", a NumPy or ml_dtypes dtype or type,
 * torch.float32, float. Returns -1 with an exception set. */
int py_dtype_from(struct py_state *state, PyObject *object, tb_dtype *out);

/* "uint8", "bfloat16", ...: a new str. */
PyObject *py_dtype_name(tb_dtype dtype);

/* NumPy's dtype object, a new reference. UnsupportedError when NumPy has none and ml_dtypes is not
 * installed. */
PyObject *py_dtype_numpy(struct py_state *state, tb_dtype dtype);

/* numpy.asarray, borrowed; imports NumPy the first time. NULL with an exception set. */
PyObject *py_numpy_asarray(struct py_state *state);

#endif

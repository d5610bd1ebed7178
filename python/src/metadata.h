/* Metadata: a Python dict to a tb_metadata and back.
 *
 * One key is ours: PY_VALUE_KEY says what Python or Arrow value the bytes or the tensor stand for
 * ("str", "arrow", "arrow:<format>"). Users neither set nor see it. */
#ifndef PY_METADATA_H
#define PY_METADATA_H

#include "module.h"

#define PY_VALUE_KEY "tensorbus.value"

/* Build metadata from a mapping (None, NULL: empty) and `mark`, the value of our key (NULL: none).
 * *out is NULL when there is nothing; the caller destroys it. Returns -1 with an exception set,
 * which names the key. */
int py_metadata_make(struct py_state *state, PyObject *mapping, const char *mark,
                     tb_metadata **out);

/* A new dict of bool, int, float, str and lists; our key is left out. */
PyObject *py_metadata_dict(const tb_metadata *metadata);

/* The value of our key, borrowed from the metadata; "" when there is none. */
const char *py_metadata_mark(const tb_metadata *metadata);

#endif

/* Named tuples of what the library counts and knows: FrameInfo, PoolStats, ReaderStats. */
#ifndef PY_FRAME_INFO_H
#define PY_FRAME_INFO_H

#include "module.h"

int py_frame_info_add(PyObject *module);

PyObject *py_frame_info_new(struct py_state *state, const tb_frame_info *info);
PyObject *py_pool_stats_new(struct py_state *state, const tb_pool_stats *stats);
PyObject *py_reader_stats_new(struct py_state *state, const tb_reader_stats *stats);

#endif

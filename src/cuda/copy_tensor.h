/* Copies of tensors between devices, strided ones too. */
#ifndef TB_CUDA_COPY_TENSOR_H
#define TB_CUDA_COPY_TENSOR_H

#include "cuda/copy.h"

/* Copy src into dst, of the same dtype and shape, in the order of `stream`: as tb__gpu_copy(). Rows
 * that lie apart are copied by the driver's copies of pitched rows; scattered host memory is packed
 * into pinned chunks first (page-locked memory then waits for the stream, which may write it).
 * TB_E_MISMATCH: dtype or shape differ. TB_E_UNSUPPORTED: so scattered that it would take thousands
 * of calls: make it contiguous first. */
tb_status tb__gpu_copy_tensor(const tb_tensor *dst, const tb_tensor *src, tb__stream stream,
                              struct tb__copy_result *result);

#endif

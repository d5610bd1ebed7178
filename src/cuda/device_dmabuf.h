/* Steps of device_memory.c for memory of other drivers (a camera's) by DMA-BUF descriptor. The
 * struct is begun (kind, gpu, sizes), the device's context current; what is half-built on failure
 * is for tb__dmabuf_free(). */
#ifndef TB_CUDA_DEVICE_DMABUF_H
#define TB_CUDA_DEVICE_DMABUF_H

#include "cuda/device_memory.h"

tb_status tb__dmabuf_import(struct tb__device_memory *memory, int borrow_fd);
void tb__dmabuf_free(struct tb__device_memory *memory);

#endif

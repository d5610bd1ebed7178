/* Steps of device_memory.c for mapped host memory. The struct is begun (kind, gpu, sizes); what is
 * half-built on failure is for tb__mapped_free(). */
#ifndef TB_CUDA_DEVICE_MAPPED_H
#define TB_CUDA_DEVICE_MAPPED_H

#include "cuda/device_memory.h"

tb_status tb__mapped_alloc(struct tb__device_memory *memory);
tb_status tb__mapped_import(struct tb__device_memory *memory, int borrow_fd);
void tb__mapped_free(struct tb__device_memory *memory);

#endif

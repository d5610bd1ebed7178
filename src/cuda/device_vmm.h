/* Steps of device_memory.c for virtual memory. The struct is begun (kind, gpu, sizes), the device's
 * context current; what is half-built on failure is for tb__vmm_free(). */
#ifndef TB_CUDA_DEVICE_VMM_H
#define TB_CUDA_DEVICE_VMM_H

#include "cuda/device_memory.h"

tb_status tb__vmm_alloc(struct tb__device_memory *memory);
tb_status tb__vmm_import(struct tb__device_memory *memory, int borrow_fd);
/* Access for one more device. */
tb_status tb__vmm_allow(const struct tb__device_memory *memory, const struct tb__gpu *gpu);
/* The same for what tb__vmm_alloc() or tb__vmm_import() has mapped around an address. No context
 * need be current. TB_E_NOT_FOUND: nothing; TB_E_UNSUPPORTED: the device cannot reach it. */
tb_status tb__vmm_open_to(uint64_t address, const struct tb__gpu *gpu);
void tb__vmm_free(struct tb__device_memory *memory);

#endif

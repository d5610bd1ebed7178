/* Memory that GPUs see: the allocation behind a pool on a GPU, shared by all its users in this
 * process; and host memory that is registered with a GPU's driver so that it can copy from it, copy
 * to it, and write or watch its words. */
#ifndef TB_POOL_DEVICE_H
#define TB_POOL_DEVICE_H

#include <stdint.h>

#include "cuda/adopt.h"
#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/host_memory.h"
#include "segment/doradma.h"

/* ---- a GPU's allocation ---- */

struct tb__device_share;

/* Allocate; `spec` learns how others get at it. *out_take_fd is -1 when no descriptor is needed. */
tb_status tb__device_share_create(tb_device device, uint64_t bytes, struct tb__doradma_spec *spec,
                                  struct tb__device_share **out, int *out_take_fd);
/* The same with memory of the user's own: it stays his, and *adopted is the share's from here on,
 * also on failure. */
tb_status tb__device_share_adopt(struct tb__adopted *adopted, struct tb__doradma_spec *spec,
                                 struct tb__device_share **out, int *out_take_fd);
/* ... and with `bytes` behind a DMA-BUF descriptor, which stays the caller's. */
tb_status tb__device_share_dmabuf(tb_device device, int borrow_fd, uint64_t bytes,
                                  struct tb__doradma_spec *spec, struct tb__device_share **out,
                                  int *out_take_fd);
/* Get at another process's allocation, or find this process's own. `device` 0: the GPU that has it.
 * borrow_fd may be -1. */
tb_status tb__device_share_open(const struct tb__doradma_view *view, tb_device device,
                                int borrow_fd, struct tb__device_share **out);
/* NULL is allowed. The last user's call frees or unmaps it, and may wait for the GPU. */
void tb__device_share_close(struct tb__device_share *share);

uint8_t *tb__device_data(const struct tb__device_share *share);
const struct tb__gpu *tb__device_gpu(const struct tb__device_share *share);
tb_device tb__device_id(const struct tb__device_share *share);

/* ---- registered host memory ---- */

struct tb__mapped {
    int done;
    struct tb__host_registration registration;
};
/* Register once. */
tb_status tb__mapped_get(struct tb__mapped *mapped, const struct tb__gpu *gpu, void *memory,
                         uint64_t bytes, int read_only);
/* The address that a GPU has for `pointer` in that memory. */
uint64_t tb__mapped_address(const struct tb__mapped *mapped, const void *memory,
                            const void *pointer);
void tb__mapped_end(struct tb__mapped *mapped);

#endif

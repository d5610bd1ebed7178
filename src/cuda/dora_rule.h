/* The rules of dora's tensor-pool for GPUs, under its names: for segments that are shared with it,
 * and to measure against what it does. Our own choice is path.h. Pure functions. */
#ifndef TB_CUDA_DORA_RULE_H
#define TB_CUDA_DORA_RULE_H

#include <stdint.h>

/* CPU sources of strictly more bytes than this are pinned around each copy. */
#define TB__DORA_PIN_BYTES ((uint64_t)25 << 20)

int tb__should_pin(int is_cuda, uint64_t bytes);

/* How a GPU pool is fed, chosen when it is registered. */
enum tb__dora_transport {
    TB__DORA_SAME_DEVICE_DTOD = 0,     /* SameDeviceDtoD: also for every CPU source */
    TB__DORA_P2P_PEER_ACCESS = 1,      /* P2PPeerAccess */
    TB__DORA_HOST_STAGING_TRANSIT = 2, /* HostStagingTransit */
};
enum tb__dora_transport tb__classify_transport(int sender_device, int receiver_device,
                                               int p2p_available, int is_cuda_source);
const char *tb__dora_transport_name(enum tb__dora_transport transport);

/* How one write goes. ipc_flag: the header's word, of which only 1 means a GPU pool; transit: there
 * is a page-locked transit buffer. */
enum tb__dora_write {
    TB__DORA_CPU_TO_GPU_POOL_DMA = 0,     /* CpuToGpuPoolDma */
    TB__DORA_GPU_TO_GPU_POOL_TRANSIT = 1, /* GpuToGpuPoolTransit */
    TB__DORA_GPU_TO_GPU_POOL_DTOD = 2,    /* GpuToGpuPoolDtoD */
    TB__DORA_GPU_TO_SHMEM = 3,            /* GpuToShmem */
    TB__DORA_CPU_TO_SHMEM = 4,            /* CpuToShmem */
};
enum tb__dora_write tb__classify_write_path(uint64_t ipc_flag, int is_cuda, int transit);
const char *tb__dora_write_name(enum tb__dora_write path);

#endif

/* The reference system's rules. */
#include "cuda/dora_rule.h"

#include <stddef.h>

int tb__should_pin(int is_cuda, uint64_t bytes)
{
    return !is_cuda && bytes > TB__DORA_PIN_BYTES;
}

enum tb__dora_transport tb__classify_transport(int sender_device, int receiver_device,
                                               int p2p_available, int is_cuda_source)
{
    int one_device = !is_cuda_source || sender_device == receiver_device;
    return one_device      ? TB__DORA_SAME_DEVICE_DTOD
           : p2p_available ? TB__DORA_P2P_PEER_ACCESS
                           : TB__DORA_HOST_STAGING_TRANSIT;
}

const char *tb__dora_transport_name(enum tb__dora_transport transport)
{
    static const char *const names[] = {"SameDeviceDtoD", "P2PPeerAccess", "HostStagingTransit"};
    return transport >= 0 && transport <= TB__DORA_HOST_STAGING_TRANSIT ? names[transport] : "?";
}

enum tb__dora_write tb__classify_write_path(uint64_t ipc_flag, int is_cuda, int transit)
{
    if (ipc_flag != 1) {
        return is_cuda ? TB__DORA_GPU_TO_SHMEM : TB__DORA_CPU_TO_SHMEM;
    }
    if (!is_cuda) {
        return TB__DORA_CPU_TO_GPU_POOL_DMA;
    }
    return transit ? TB__DORA_GPU_TO_GPU_POOL_TRANSIT : TB__DORA_GPU_TO_GPU_POOL_DTOD;
}

const char *tb__dora_write_name(enum tb__dora_write path)
{
    static const char *const names[] = {"CpuToGpuPoolDma", "GpuToGpuPoolTransit",
                                        "GpuToGpuPoolDtoD", "GpuToShmem", "CpuToShmem"};
    return path >= 0 && path <= TB__DORA_CPU_TO_SHMEM ? names[path] : "?";
}

/* Memory that GPUs use and that other processes can import.
 *
 * Which kind it is follows from what the device says that it can do:
 *   VMM     virtual memory; a POSIX descriptor goes to readers, who map it read-only.
 *   IPC     plain memory and a legacy IPC handle. Readers can write it: nothing enforces more.
 *   MAPPED  page-locked host memory in a memfd: integrated GPUs share the machine's memory and have
 *           no IPC handles.
 *   DMABUF  memory of another driver, a camera's, by its DMA-BUF descriptor, which readers get,
 *           too. It is not allocated here, and nothing keeps readers from writing it.
 *
 * Sizes are rounded up to whole pages of the kind, also so that nothing of another allocation lies
 * in what a reader can map. Addresses are multiples of 256 at least. Any thread; one struct belongs
 * to one thread at a time. */
#ifndef TB_CUDA_DEVICE_MEMORY_H
#define TB_CUDA_DEVICE_MEMORY_H

#include <stdint.h>

#include "cuda/device.h"
#include "cuda/host_memory.h"

enum tb__device_kind {
    TB__DEVICE_NONE = 0,
    TB__DEVICE_VMM = 1,
    TB__DEVICE_IPC = 2,
    TB__DEVICE_MAPPED = 3,
    TB__DEVICE_DMABUF = 4,
};

struct tb__device_memory {
    enum tb__device_kind kind;
    const struct tb__gpu *gpu; /* in whose context it is used */
    uint64_t ptr;              /* for kernels and copies; for MAPPED not the CPU's address */
    uint64_t bytes;            /* asked for */
    uint64_t mapped_bytes;
    int imported;
    int read_only;             /* writes through this mapping are refused */
    int home;                  /* ordinal of the device that it lies on */
    unsigned long long handle; /* VMM */
    int has_handle, is_mapped;
    void *host;                    /* MAPPED: the CPU's address */
    int fd;                        /* MAPPED: the memfd, of the exporter; DMABUF: its descriptor */
    tb__external external;         /* DMABUF */
    int given_fd;                  /* DMABUF: what the driver got, */
    uint64_t given_dev, given_ino; /* ... and of which file */
    struct tb__host_registration registration;
};

/* The kind that a device's memory is. NONE: it has none that others can import. */
enum tb__device_kind tb__device_kind_of(const struct tb__gpu *gpu);
const char *tb__device_kind_name(enum tb__device_kind kind);

/* Allocate. TB_E_NOMEM names what is free; TB_E_UNSUPPORTED: the device can share no memory. */
tb_status tb__device_alloc(const struct tb__gpu *gpu, uint64_t bytes,
                           struct tb__device_memory *out);

/* The same as plain memory with a legacy IPC handle, whatever else the device can do: for readers
 * that know nothing else. TB_E_UNSUPPORTED: it has none (integrated GPUs). */
tb_status tb__device_alloc_plain(const struct tb__gpu *gpu, uint64_t bytes,
                                 struct tb__device_memory *out);

/* Let streams of another device of this process reach the memory. TB_E_UNSUPPORTED: they cannot. */
tb_status tb__device_allow(const struct tb__device_memory *memory, const struct tb__gpu *gpu);

/* A descriptor for other processes: VMM, MAPPED and DMABUF. */
tb_status tb__device_export_fd(const struct tb__device_memory *memory, int *out_take_fd);

/* A legacy handle for other processes: IPC. Valid as long as the memory. */
tb_status tb__device_export_ipc(const struct tb__device_memory *memory, uint8_t handle[64]);

/* Map what another process exported, at least `bytes` of it, for use in `gpu`'s context. The peer
 * is not trusted: what is no such memory, or less than it says, is an error. TB_E_UNSUPPORTED: it
 * lies on a device that this one cannot reach. The descriptor stays the caller's. */
/* (A DMA-BUF of one's own is "imported", too.) */
tb_status tb__device_import_fd(const struct tb__gpu *gpu, enum tb__device_kind kind, int borrow_fd,
                               uint64_t bytes, int read_only, struct tb__device_memory *out);
tb_status tb__device_import_ipc(const struct tb__gpu *gpu, const uint8_t handle[64], uint64_t bytes,
                                struct tb__device_memory *out);

/* Unmap and free; all work with it is done. Takes half-built ones and zeroed ones. In a forked
 * child it only forgets. */
void tb__device_free(struct tb__device_memory *memory);

/* For those that import: where the memory was found to lie. TB_E_UNSUPPORTED: `gpu` cannot reach
 * it, or is not to (TENSORBUS_GPU_PEERS=0), whatever the driver has mapped. */
tb_status tb__device_lies_on(struct tb__device_memory *memory, const struct tb__gpu *home);

/* For messages: "64.0 MiB (67108864 bytes) on cuda:0", and a failed allocation, with what is free.
 * The device's context is current. */
#define TB__DEVICE_TEXT 80
const char *tb__device_what(const struct tb__device_memory *memory, char text[TB__DEVICE_TEXT]);
tb_status tb__device_alloc_failed(int result, const char *call,
                                  const struct tb__device_memory *memory);

#endif

/* GPUs as this process sees them, and whose context a thread is in.
 *
 * A device is known by its UUID (for an instance of a divided GPU, MIG, the instance's), because
 * CUDA_VISIBLE_DEVICES gives each process numbers of its own. What a device can do is asked from
 * its attributes, never concluded from its name. Structs live as long as the process. Any thread.
 *
 * Contexts: work is done in the context that the caller has made current if that is one of the
 * device, else in the device's primary context, which PyTorch, JAX, CuPy and the CUDA runtime use,
 * too. It is retained at the first use and not before, and then kept. */
#ifndef TB_CUDA_DEVICE_H
#define TB_CUDA_DEVICE_H

#include <stdint.h>

#include <tensorbus/tensor.h>

#include "cuda/driver.h"

#define TB__UUID_TEXT 48

struct tb__gpu {
    int ordinal; /* n of "cuda:n" in this process */
    int device;  /* the driver's CUdevice */
    uint8_t uuid[16];
    char name[96];
    uint64_t total_bytes;
    uint64_t granularity; /* of virtual memory; 0 without it */
    int capability_major;
    int capability_minor;
    int mig;                            /* an instance of a divided GPU */
    int integrated;                     /* shares the machine's memory */
    int unified;                        /* one address space with the CPU */
    int can_map_host;                   /* reaches page-locked host memory */
    int host_register;                  /* memory can be page-locked after it was allocated */
    int host_pointer_is_device_pointer; /* registered memory has one address for both */
    int read_only_host_register;        /* memory mapped read-only can be registered */
    int vmm;                            /* virtual memory management */
    int posix_fd;                       /* ... with descriptors for other processes */
    int stream_mem_ops_64;              /* streams wait for and write 64-bit words */
    int dma_buf;
    int managed;
    int concurrent_managed;
    int pageable_access; /* reaches all host memory as it is */
    int memory_pools;
    uint64_t max_pitch;
};

/* Number of devices: at least 1 when it succeeds. */
tb_status tb__gpu_count(int *out);

/* The device "cuda:ordinal". TB_E_NOT_FOUND: there are fewer, or CUDA_VISIBLE_DEVICES hides it. */
tb_status tb__gpu_get(int ordinal, const struct tb__gpu **out);

/* The device with a UUID. TB_E_NOT_FOUND: this process does not see it. */
tb_status tb__gpu_by_uuid(const uint8_t uuid[16], const struct tb__gpu **out);

/* "cuda" without a number: the device of the thread's current context, else the first. Which one it
 * is was logged (info). */
tb_status tb__gpu_current(const struct tb__gpu **out);

/* The device of a tb_device. TB_E_INVALID: it is no GPU. */
tb_status tb__gpu_of_device(tb_device device, const struct tb__gpu **out);

/* "GPU-00112233-4455-..." or "MIG-...", as nvidia-smi -L prints it. */
const char *tb__gpu_uuid_text(const uint8_t uuid[16], int mig, char text[TB__UUID_TEXT]);

/* Make a context of the device current for this thread, and put back what was. Between the two the
 * thread may call the driver. leave() takes scopes of failed enters. */
struct tb__gpu_scope {
    int pushed;
    tb__context context; /* the one that is current inside */
};
tb_status tb__gpu_enter(const struct tb__gpu *gpu, struct tb__gpu_scope *out);
void tb__gpu_leave(struct tb__gpu_scope *scope);

/* The same to give something back: 1 when inside; the thread's last error stays as it is. 0 in a
 * forked child, whose parent owns all there is, and when the context is gone with all that was in
 * it (logged). */
int tb__gpu_enter_to_free(const struct tb__gpu *gpu, struct tb__gpu_scope *out);

/* The device of the context that is current. Asks the driver only about contexts that are no
 * device's primary one. */
tb_status tb__gpu_of_context(tb__context current, const struct tb__gpu **out);

/* Whether a can reach b's memory and b a's; access is switched on (once, for the primary contexts)
 * when they can. 1 for a device and itself. */
tb_status tb__gpu_peer(const struct tb__gpu *a, const struct tb__gpu *b, int *can);

/* Free and total memory, as the driver says now. */
tb_status tb__gpu_memory(const struct tb__gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes);

#endif

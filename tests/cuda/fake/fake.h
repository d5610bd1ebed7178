/* A libcuda.so.1 without a GPU, for tests: every path, every failure and every leak can be run
 * where there is no device.
 *
 * "Device" memory lies in memfds; a device address is a reserved range that the CPU cannot touch,
 * and copies go through a second mapping of the same memory, so who confuses the two kinds of
 * pointers ends by SIGSEGV, as with a real device that has no such mapping. Streams are threads
 * that do what was enqueued in order, later: who reuses memory too early is seen. The first work of
 * a default stream does not pass streams that wait for words in memory, not even non-blocking ones:
 * the driver does not see what such a wait is for and may put both into one queue of the device.
 * A real one (580, H200) was seen to hang so, while later work of a default stream did pass. What
 * the real driver refuses is refused: a range that reaches beyond its allocation, a write through a
 * read-only mapping, a call without a context, after a fork, or in a broken context.
 *
 * Environment:
 *   FAKE_CUDA="devices=3;peer=0-1,1-2;integrated=2;mig=1;no_vmm=0,2;memory=64"
 *       devices      how many (1); 0: the driver finds no device
 *       peer         pairs that reach each other's memory (none)
 *       integrated, mig   lists of devices, or `all`
 *       no_ABILITY   devices without it: vmm posix_fd stream_ops ipc managed pools
 *                    read_only_register same_pointer host_register dma_buf unified
 *       dma_buf_borrows  1: an imported descriptor stays the caller's
 *       memory       MiB of each device (1024)
 *       empty        1: the driver starts, but counts no devices
 *       slow         microseconds that each copy takes besides (0); with slow_to_device=1 only
 *                    those from the host to a device
 *       queue        works that a stream takes; a call that gives it more waits (0: without end)
 *   FAKE_CUDA_FAIL="cuMemAlloc_v2:2:2,*:7:719,async:cuMemcpyHtoDAsync_v2:1:700"
 *       the n-th call of a name (or of all) returns a code; async: the n-th work of that name fails
 *       when it is done. A code that breaks a context breaks it. Each rule acts once.
 *   FAKE_CUDA_LEAKS=path: at exit a line per process that still has something is appended.
 *   CUDA_VISIBLE_DEVICES as with the real one.
 *
 * A test that has it loaded reaches the same through control.h. */
#ifndef TB_TESTS_CUDA_FAKE_H
#define TB_TESTS_CUDA_FAKE_H

#include <pthread.h>
#include <stdint.h>

#include "cuda/api.h"
#include "tests/cuda/fake/control.h"

#define FAKE_API __attribute__((visibility("default")))
#define MAX_DEVICES 16
#define PAGE 4096u
#define GRANULARITY ((size_t)2 << 20)

/* ------------------------------------------------------------------ devices (config.c) */

struct fake_device {
    int physical; /* number on the machine: what the UUID is made from */
    int integrated, mig, vmm, posix_fd, stream_ops, ipc, managed, pools;
    int read_only_register, same_pointer, host_register, dma_buf, unified;
    size_t total, used;
};

struct fake_context {
    int device;
    int is_primary;
    int retained;
    int broken; /* the code that every call in it returns */
    unsigned peers;
    struct CUstream_st *legacy, *per_thread;
    pthread_mutex_t callbacks; /* host functions come one after another, as with the real one */
    struct fake_context *next;
};

/* One lock for everything; `changed` tells of every step of a stream and of every event. */
extern struct fake {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int initialised, forked;
    int dma_buf_borrows;
    int empty; /* it starts, and counts no devices */
    int device_count;
    struct fake_device devices[MAX_DEVICES];
    unsigned peers[MAX_DEVICES]; /* by physical number */
    unsigned slow_us;
    int slow_to_device;
    uint64_t queue;
    struct fake_context primaries[MAX_DEVICES];
    struct fake_context *contexts; /* all others */
} fake;

void fake_configure(void);
void fake_uuid(int physical, int instance, char out[16]);
int fake_peers(int a, int b);

/* ------------------------------------------------------------------ every call (call.c) */

/* First line of a call: counts it; returns what it must return at once, or 0. */
int fake_enter(const char *name);
/* The same for calls that give back: they do their work and then return this. */
int fake_enter_release(const char *name);
/* What the n-th work of a name fails with when it is done; 0. The lock is held. */
int fake_async_failure(const char *name);
int fake_is_sticky(int code);

#define ENTER(name)                                                                                \
    do {                                                                                           \
        int entered = fake_enter(name);                                                            \
        if (entered != 0) {                                                                        \
            return entered;                                                                        \
        }                                                                                          \
    } while (0)

static inline void fake_lock(void)
{
    pthread_mutex_lock(&fake.lock);
}

static inline int fake_unlock(int result)
{
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* The current context of the thread, NULL if none (context.c). */
struct fake_context *fake_current(void);
/* Its code if it is broken; 201 if there is none. */
int fake_context_check(struct fake_context **out);

/* ------------------------------------------------------------------ memory (range.c) */

enum range_kind {
    RANGE_DEVICE = 1, /* cuMemAlloc */
    RANGE_POOL,       /* cuMemAllocAsync */
    RANGE_MANAGED,
    RANGE_HOST_ALLOC, /* cuMemHostAlloc */
    RANGE_REGISTERED,
    RANGE_IPC,      /* an opened handle */
    RANGE_RESERVED, /* virtual addresses, perhaps mapped */
    RANGE_EXTERNAL,
};

struct range {
    struct range *next;
    enum range_kind kind;
    uint64_t base; /* device address */
    size_t bytes;
    char *host; /* where the bytes are for us; NULL when nothing is mapped */
    int device;
    int fd;              /* memfd behind it, or -1 */
    unsigned flags;      /* of the registration */
    unsigned readers;    /* devices that may read, by ordinal */
    unsigned writers;    /* devices that may write */
    unsigned opened;     /* RANGE_IPC: how many times */
    struct block *block; /* RANGE_RESERVED: the physical memory */
    uint64_t key;        /* RANGE_IPC: which memory it is */
};

/* Physical memory of the virtual-memory calls. */
struct block {
    struct block *next;
    unsigned long long handle;
    size_t bytes;
    int device; /* ordinal here, -1 when not visible */
    int exportable;
    int fd;
    unsigned handles; /* created, imported or retained, and not released */
    unsigned mappings;
    int imported;
};

/* All of these: the lock is held. */
struct range *range_add(enum range_kind kind, int device, uint64_t base, size_t bytes);
void range_remove(struct range *range);
struct range *range_find(uint64_t address);
struct range *range_find_host(const void *host);
struct range *range_next(struct range *range); /* NULL: the first */
struct block *block_next(struct block *block);
struct block *block_add(size_t bytes, int device, int fd);
struct block *block_find(unsigned long long handle);
/* Frees it when it has neither handles nor mappings. */
void block_drop(struct block *block);
/* Bytes of device memory: reserves an address, makes the memfd and both mappings. */
int range_back(struct range *range, size_t bytes);
/* Where `bytes` at a device address lie, for a device that reads or writes them; NULL: not allowed.
 */
char *fake_resolve(uint64_t address, size_t bytes, int device, int writing);
/* Whether a host range is page-locked as a whole (1), not at all (0), or in part (-1). */
int fake_host_locked(const void *host, size_t bytes);

/* A memfd of `bytes` that says of itself what it is, for other processes. */
struct memory_tag {
    char magic[16];
    uint64_t bytes;
    int32_t physical;
    int32_t kind;
    uint64_t key;
};
int tag_make(size_t bytes, int physical, enum range_kind kind, int *out_fd, uint64_t *out_key);
int tag_read(int fd, struct memory_tag *out);
/* A handle of 64 bytes through which another process opens the memfd. */
void handle_make(struct tb__ipc_handle *out, int fd);
int handle_open(const struct tb__ipc_handle *handle, int *out_fd);

/* ------------------------------------------------------------------ streams (stream.c) */

struct work;
typedef int work_fn(struct work *work); /* on the stream's thread, without the lock */

struct work {
    struct work *next;
    const char *name; /* the call, for failures */
    work_fn *run;
    work_fn *ready; /* NULL or: 1 when it may run; asked again and again, with the lock held */
    uint64_t args[8];
    void *owned; /* freed afterwards */
    struct CUstream_st *after[64];
    uint64_t after_ticket[64];
    int after_count;
    uint64_t ticket;
};

struct CUstream_st {
    uint64_t magic;
    struct fake_context *context;
    int non_blocking;
    int is_default;
    int closing;
    pthread_t thread;
    pthread_cond_t wake; /* there is work */
    struct work *first, *last;
    uint64_t enqueued, done;
    uint64_t waits; /* the ticket of its last wait for a word */
    struct CUstream_st *next;
};

/* The stream behind a handle (0, 1 and 2 too) in the current context; NULL: 400 or 201 in *error.
 * The lock is held. */
struct CUstream_st *stream_of(tb__stream handle, int *error);
struct CUstream_st *stream_next(struct CUstream_st *stream);
/* Enqueue; takes the work. The lock is held. */
void stream_enqueue(struct CUstream_st *stream, struct work *work);
/* Wait until a ticket is done. The lock is held and given up meanwhile. */
int stream_wait_ticket(struct CUstream_st *stream, uint64_t ticket);
/* Everything that was enqueued in a context is done. The lock is held. */
int context_wait(struct fake_context *context);
/* The streams of the device's broken contexts have nothing left. The lock is held. */
void device_run_empty(int device);
struct work *work_make(const char *name, work_fn *run);

int event_count(void);
void managed_advice(unsigned *advice, unsigned *type, int *id);

#endif

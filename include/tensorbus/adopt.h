/* Memory of one's own as a pool's slots: adopted, not copied.
 *
 * A pool usually allocates its slots. A program whose frames are in memory already, or must be in
 * memory that something else allocated (a camera's buffers, a framework's tensor), registers the
 * pool with `adopt` set: then the slots are that memory. Loans are slots as they are, with what
 * they hold, so a tensor that is there is published without a copy; readers in other processes map
 * the same pages.
 *
 *   TB_ADOPT_ADDRESS  `data` is memory of tb_alloc() (DEVICE, SHARED_PINNED), or a GPU's memory of
 *                     any library: virtual memory made with a POSIX descriptor, and plain memory
 *                     (cudaMalloc(), PyTorch's default allocator). That one is shared by a legacy
 *                     IPC handle of the whole block that the driver took it from: readers can see
 *                     its neighbours and can write, and it must not be freed while a reader is
 *                     attached.
 *   TB_ADOPT_MEMFD    `fd` is a memfd with the slots at `offset`; `data`, when given, is where its
 *                     owner has mapped `offset` writable and shared (else it is mapped here). It
 *                     gets the seals SHRINK, GROW, FUTURE_WRITE and SEAL, and keeps them: only they
 *                     make sure that readers can neither write it, nor punch holes into it, nor
 *                     fault. Mappings that are there stay writable; no new one will be. A
 *                     descriptor that cannot have them (not a memfd, or made without
 *                     MFD_ALLOW_SEALING) is refused: then use a pool's own memory.
 *   TB_ADOPT_DMABUF   `fd` is a DMA-BUF (a camera's), for the GPU that the pool's options name, if
 *                     its driver imports such. Nothing keeps readers, nor the camera, from writing.
 *
 * Everything else (managed, stream-ordered, page-locked, malloc()'s) has nothing by which another
 * process could map it, and is refused by the name of its kind: tb_memory_can_share() says why, and
 * what to use instead.
 *
 * Whose is it, and until when? The memory stays its owner's: it is never freed here, and a
 * registration that fails leaves it alone (but for seals). From the call on until the end that
 * `release` tells of it must stay where it is, and only loans may be written. The end is when the
 * pool was closed (tb_pool_close(), or tb_bus_close() for those that are open) and no frame of it
 * is held by a living process; for plain memory (legacy IPC) also no reader of another process is
 * attached (those that opened frames by handle detach with a handle of another pool, or with their
 * bus). Then, once, release(context) is called: by the thread that closes if it is so at once, else
 * by a thread of the library, or by the one that closes the bus, which waits for it, 10 s at most.
 * Readers that hold a frame after that are named in an error message, `release` is not called, and
 * the memory must stay as long as the process does. Nor is it called in a forked child, or when
 * registering failed.
 *
 * Closing frees the pool at once: frames that a reader has not taken by then are lost to it. Use
 * tb_pool_wait_acked() first where that matters.
 *
 * A reader's end, whatever its kind, ends its claims. When the owner is killed, readers go on with
 * the frames they have: a memfd's and virtual memory's pages stay as long as somebody maps them; of
 * plain memory no driver promises that. */
#ifndef TENSORBUS_ADOPT_H
#define TENSORBUS_ADOPT_H

#include <tensorbus/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tb_adopt_by {
    TB_ADOPT_ADDRESS = 0,
    TB_ADOPT_MEMFD = 1,
    TB_ADOPT_DMABUF = 2
} tb_adopt_by;

typedef struct tb_adoption {
    size_t size; /* sizeof(tb_adoption) */
    tb_adopt_by by;
    int32_t fd;      /* MEMFD, DMABUF: the caller's, who may close it when the call has returned */
    void *data;      /* ADDRESS: first byte of slot 0; MEMFD: the same, or NULL */
    uint64_t offset; /* MEMFD, DMABUF: of slot 0 in the descriptor's memory, in bytes */
    uint64_t bytes;  /* > 0: the slots must fit this many, from slot 0 on */
    uint64_t stride_bytes; /* from slot to slot; 0: one behind the other, without a gap */
    /* Called once, when nobody uses the memory any more; NULL: nobody wants to know. May be called
     * by a thread of the library; may free the memory and register or close pools, but must not
     * close the bus. */
    void (*release)(void *context);
    void *context;
} tb_adoption;

#ifdef __cplusplus
}
#endif
#endif

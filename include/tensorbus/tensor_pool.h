/* The four verbs of dora's tensor-pool: register once, write in place, read without a copy, free.
 *
 * A thin layer over pools, readers and frames for nodes written in that style. Pools are named by
 * an id, `pool_<process>_<counter>`, that travels as text through any message. Misuse is a warning
 * and a status, never a crash: Attempt to {release,read,write} memory pool [ID] failed - reason:
 * pool does not exist. Operation aborted. A written frame never changes while a reader holds it, so
 * writer and reader need not take turns: a reader may say "go on" while it still holds the frame
 * before, because every pool has two slots at least. Each reader that lags behind the others, or
 * keeps frames for longer, needs one more (`slots`); without it a write ends with TB_AGAIN at its
 * timeout, and its text names the holders.
 *
 * A `live` pool is dora's own kind: one slot, overwritten in place. Its frames are views of what is
 * there now: they change under their holder, and while a write is going on they are half old and
 * half new. Take turns.
 *
 * Readers that are not ours (dora's) find a pool that has a name for them as a file
 * /dev/shm/dora_pool_...: the DORADMA segment of docs/segment.md, with one slot, locked (flock) by
 * its owner, gone with the pool, and swept when its owner was killed. They see the raw slot, as in
 * dora. Unless the pool is live the file is memory of its own: each write copies twice. */
#ifndef TENSORBUS_TENSOR_POOL_H
#define TENSORBUS_TENSOR_POOL_H

#include <tensorbus/pool.h>
#include <tensorbus/reader.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TB_POOL_ID_SIZE 96 /* "pool_" + 64 + "_" + 20 digits + terminator, rounded up */

/** Register a pool shaped like `tensor`, with two slots, on the tensor's device, and write it as
 *  the first frame. The bus must have a name.
 *  Shape:   every write has this tensor's dtype and shape.
 *  Owner:   the bus owns the pool. id belongs to the caller.
 *  Returns: as tb_pool_register() and tb_pool_write(); TB_E_INVALID (NULL, a bus without a name).
 *  Threads: any.   Waits: while memory is allocated, and for the copy.
 *  Source:  src/pool/tensor_pool.c */
TB_API TB_MUST_USE tb_status tb_register(tb_bus *bus, const tb_tensor *tensor,
                                         char id[TB_POOL_ID_SIZE]);

/* Options of a registration. NULL, or zeros, are what tb_register() does. */
typedef struct tb_register_options {
    size_t size;              /* sizeof(tb_register_options) */
    const char *doradma_name; /* "dora_pool_...": also a file in /dev/shm for foreign readers */
    const char *machine;      /* of the receiver; NULL or "": this one, all that is possible now */
    uint64_t max_bytes;       /* > 0: a tensor of 0 bytes, or of more, is refused (dora: 1 GiB) */
    tb_device receiver;       /* TB_CUDA(n): the pool is on this GPU, where its receiver works;
                                 0: on the tensor's device, in host memory if `host` */
    uint32_t exported;        /* 1: as doradma_name, with the name that dora gives by itself:
                                 dora_pool_[<$DORA_MACHINE_ID>_]<flow>_<process>_<counter> */
    uint32_t slots;           /* 0: 2 (a live pool has 1) */
    uint32_t live;            /* 1: one slot that changes under its holders, see above */
    uint32_t max_leases;      /* frames that one reader may hold at once; 0: 4 */
    uint32_t host;            /* 1: in host memory, wherever the tensor is (receiver: 0) */
} tb_register_options;

/** As tb_register(), with options.
 *  Shape:   every write has this tensor's dtype and shape.
 *  Owner:   the bus owns the pool. id belongs to the caller. Options are copied.
 *  Returns: as tb_register(); TB_E_INVALID (name, slots; data: "Invalid source pointer (NULL)"),
 *           TB_E_EXISTS (the file: "failed to create pool shared memory"), TB_E_LIMIT ("Invalid
 *           size: N bytes"), TB_E_UNSUPPORTED (machine, receiver), TB_E_NOT_FOUND (receiver: no
 *           such GPU).
 *  Threads: any.   Waits: while memory is allocated, and for the copies.
 *  Source:  src/pool/tensor_pool.c */
TB_API TB_MUST_USE tb_status tb_register_with(tb_bus *bus, const tb_tensor *tensor,
                                              const tb_register_options *options,
                                              char id[TB_POOL_ID_SIZE]);

/** Write a tensor into a pool of this bus.
 *  Shape:   the registered dtype and shape; strided sources are packed.
 *  Units:   timeout in ns on CLOCK_MONOTONIC; 0 polls, -1 waits for ever.
 *  Owner:   the tensor stays the caller's.
 *  Returns: as tb_pool_write(); TB_E_FREED with the warning above when it was freed or never was.
 *  Threads: any.   Waits: up to the timeout for a slot, and for the copy.
 *  Source:  src/pool/tensor_pool.c */
TB_API TB_MUST_USE tb_status tb_write(tb_bus *bus, const char *id, const tb_tensor *tensor,
                                      int64_t timeout_ns);

/** Lease the newest frame of a pool, its own or another process's; the same one again if there is
 *  nothing newer.
 *  Shape:   the frame's tensor has the registered shape.
 *  Units:   timeout in ns on CLOCK_MONOTONIC; 0 polls, -1 waits for ever.
 *  Owner:   the caller; end with tb_frame_release().
 *  Returns: TB_OK, TB_AGAIN (nothing written within the timeout), TB_E_FREED with the warning
 *           above (at once) when it was freed, its owner is gone or it never was, TB_E_INVALID
 *           (id), TB_E_BUSY (all leases in use), TB_E_FORKED; at the first read of a pool also
 *           what tb_reader_open() returns.
 *  Threads: any.   Waits: up to the timeout; to attach, as tb_reader_open().
 *  Source:  src/pool/tensor_pool.c */
TB_API TB_MUST_USE tb_status tb_read(tb_bus *bus, const char *id, int64_t timeout_ns,
                                     tb_frame **out);

/** Free a pool, its own or another process's.
 *  Returns: TB_OK, TB_E_FREED with the warning above, TB_E_INVALID (id), TB_E_FORKED; for another
 *           process's pool also what tb_reader_open() returns.
 *  Threads: any.   Waits: one round trip; to attach, as tb_reader_open().
 *  Source:  src/pool/tensor_pool.c */
TB_API TB_MUST_USE tb_status tb_free(tb_bus *bus, const char *id);

#ifdef __cplusplus
}
#endif
#endif

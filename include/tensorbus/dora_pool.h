/* Pools that dora's own nodes have registered with their tensor-pool, read in place.
 *
 * Such a pool is a file /dev/shm/dora_pool_...: its tensor lies in the file, or in a GPU's memory
 * for which the file has a legacy IPC handle. It has one slot, which its writer overwrites whoever
 * looks: what tb_dora_pool_read() gives is a view of it and the generation that was complete then.
 * Use it (or copy it, and wait for the copy), then ask tb_dora_pool_check() whether it was still
 * that one; or take turns with the writer, as dora's nodes do. Nothing tells when there is
 * something new: it is looked for. Pools that this library has exported for dora's nodes can be
 * read so, too.
 *
 * What keeps our own pools from harm is not there: a writer that cuts its file short while it is
 * read makes its readers fault, as does one that announces bytes it never wrote when /dev/shm is
 * full; and one that frees a GPU's memory under a reader takes it away. */
#ifndef TENSORBUS_DORA_POOL_H
#define TENSORBUS_DORA_POOL_H

#include <tensorbus/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tb_dora_pool tb_dora_pool;

/** Open a pool of dora's by the name of its file, "dora_pool_...". A mirror whose origin is on this
 *  machine opens the origin.
 *  Shape:   device: the GPU to map a GPU's pool on; TB_CPU (0): the current one, or whichever of
 *           this process's can.
 *  Owner:   the caller; end with tb_dora_pool_close().
 *  Returns: TB_OK, TB_E_NOT_FOUND (no such file, or its maker has not filled it yet), TB_E_INVALID
 *           (NULL, the name), TB_E_CORRUPT (the file's head: names the field), TB_E_DENIED,
 *           TB_E_UNSUPPORTED (no driver; no GPU of this process reaches the memory; a tensor that
 *           is not aligned to its elements), TB_E_MISMATCH (device is a GPU, the tensor is the
 *           host's), TB_E_NOMEM, TB_E_SYSTEM, TB_E_FORKED.
 *  Threads: any.   Waits: never; the first use of a GPU up to a second.
 *  Source:  src/pool/dora_pool.c */
TB_API TB_MUST_USE tb_status tb_dora_pool_open(const char *name, tb_device device,
                                               tb_dora_pool **out);

/** A view of the pool's tensor, once a generation that is complete and not `after` is there.
 *  Shape:   dtype and shape that the pool was registered with; row-major.
 *  Units:   timeout in ns on CLOCK_MONOTONIC; 0 polls, -1 waits for ever.
 *  Owner:   *out lies in the pool's memory, read-only, until tb_dora_pool_close(). *generation is
 *           the one to check, and to pass as `after` the next time; 0 as `after`: any.
 *  Returns: TB_OK, TB_AGAIN (none in time: nothing was written, or a write is not over), TB_E_FREED
 *           (the file was removed: it was freed or replaced), TB_E_CORRUPT (it was cut short),
 *           TB_E_SYSTEM, TB_E_INVALID (NULL).
 *  Threads: any, several at once.   Waits: up to the timeout, looking every millisecond.
 *  Source:  src/pool/dora_pool.c */
TB_API TB_MUST_USE tb_status tb_dora_pool_read(tb_dora_pool *pool, uint64_t after,
                                               int64_t timeout_ns, tb_tensor *out,
                                               uint64_t *generation);

/** Whether a generation is there still: whatever was read since it was returned is whole.
 *  Returns: TB_OK, TB_E_STALE (it was overwritten, or is being), TB_E_INVALID (NULL).
 *  Threads: any.   Waits: never.   Source: src/pool/dora_pool.c */
TB_API TB_MUST_USE tb_status tb_dora_pool_check(const tb_dora_pool *pool, uint64_t generation);

/** Close; views are dead. NULL is allowed. In a forked child a GPU's memory is the parent's.
 *  Owner:   takes the pool.
 *  Threads: one, after all use has ended.   Waits: for the device, as its driver does.
 *  Source:  src/pool/dora_pool.c */
TB_API void tb_dora_pool_close(tb_dora_pool *pool);

#ifdef __cplusplus
}
#endif
#endif

/* Pools, for their owner: register, loan or write, publish, free.
 *
 * A pool is 1 to 256 equal slots for tensors, written by the process that registered it and read by
 * any number of others. Each write goes into a slot that nobody holds and makes one frame. To write
 * without a copy, borrow a slot (tb_pool_loan), fill it in place, publish it. tb_pool_write()
 * copies. All memory is checked against what the machine has, allocated and touched when
 * registering.
 *
 * A pool ends in two steps: tb_pool_free() (by the owner, or asked for by any process of the flow)
 * ends it for everybody: frames that are held stay valid, new reads say TB_E_FREED.
 * tb_pool_close() gives back the owner's object, freeing first if that has not happened. */
#ifndef TENSORBUS_POOL_H
#define TENSORBUS_POOL_H

#include <tensorbus/adopt.h>
#include <tensorbus/bus.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tb_pool tb_pool;
typedef struct tb_loan tb_loan;

#define TB_MAX_SLOTS 256
#define TB_MAX_LEASES 64
#define TB_MAX_COPY_THREADS 32

/* Which slots may be overwritten. */
typedef enum tb_policy {
    TB_LATEST = 0, /* any slot that nobody holds, oldest first, never the newest */
    TB_EVERY = 1   /* only slots that every reader which asked for every frame has taken */
} tb_policy;

typedef struct tb_pool_options {
    size_t size;      /* sizeof(tb_pool_options) */
    const char *name; /* unique in the bus; NULL: "pool-<n>" */
    tb_dtype dtype;
    int32_t ndim;
    int64_t shape[TB_MAX_NDIM];
    tb_device device; /* TB_CPU or TB_CUDA(n) */
    uint32_t slots;   /* 0: 4 */
    tb_policy policy;
    uint32_t max_leases; /* frames that one reader may hold at once; 0: 4, at most TB_MAX_LEASES */
    uint32_t
        wait_readers; /* the first loan or write waits for so many readers that want every frame */
    uint64_t capacity_bytes;    /* > 0: slots have this size and shape may vary per frame */
    uint32_t lock_memory;       /* 1: lock the slots in RAM */
    uint32_t no_prefault;       /* 1: allocate when first touched, not when registering */
    uint32_t require_zero_copy; /* 1: tb_pool_write() is an error */
    const char *const
        *ackers; /* names of processes that must acknowledge; NULL-terminated; or NULL */
    const char *doradma_name; /* "dora_pool_...": a /dev/shm file for foreign readers; one slot. On
                                 a GPU the slot is plain memory with a legacy IPC handle in that
                                 file, which readers can write, too */
    uint32_t live;   /* 1: one slot, written in place whoever holds it: a frame changes under its
                        holders, and may be half old and half new. No write waits for readers */
    uint32_t pinned; /* 1: register host slots with CUDA at once, not when a GPU first copies */
    /* Threads that share the copy of a write of 4 MiB or more, the caller among them; 0, 1: the
     * caller alone. The others are started here and sleep between writes; host memory and packed
     * sources only. Faster, and more processors busy for as long. */
    uint32_t copy_threads;
    uint32_t reserved;        /* 0 */
    const tb_adoption *adopt; /* the slots are memory of one's own, see adopt.h; NULL: the pool's */
} tb_pool_options;

/** Register a pool.
 *  Shape:   options give dtype, ndim and shape of every frame, of the first if capacity_bytes > 0.
 *  Owner:   the caller; end with tb_pool_close(). Options are copied.
 *  Returns: TB_OK, TB_E_INVALID, TB_E_EXISTS (the name, or the file of doradma_name), TB_E_NOMEM
 *           (names needed and available bytes), TB_E_LIMIT (slots, leases, copy_threads, overflow,
 *           locked memory, open files), TB_E_UNSUPPORTED (device, an option of a newer release,
 *           memory that cannot be adopted: says why, and what to use instead), TB_E_MISMATCH
 *           (memory to adopt lies on another device than options name), TB_E_SYSTEM, TB_E_FORKED.
 *  Threads: any.   Waits: while memory is allocated and touched, about 0.7 s of processor time per
 *           GiB; when a runner has started the process, for its answer to the first pool.
 *  Source:  src/pool/pool.c */
TB_API TB_MUST_USE tb_status tb_pool_register(tb_bus *bus, const tb_pool_options *options,
                                              tb_pool **out);

/** Borrow a free slot to write into.
 *  Shape:   the loan's tensor is row-major with the registered shape.
 *  Units:   timeout in ns on CLOCK_MONOTONIC; 0 polls, -1 waits for ever.
 *  Owner:   the caller holds *out until tb_loan_publish() or tb_loan_cancel().
 *  Returns: TB_OK, TB_AGAIN (no slot came free; counted as a drop, tb_last_error_text() names the
 *           holders), TB_E_DEADLOCK (the calling thread itself holds every slot that stands in the
 *           way), TB_E_FREED, TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: any, several at once.   Waits: up to the timeout.   Source: src/pool/loan.c */
TB_API TB_MUST_USE tb_status tb_pool_loan(tb_pool *pool, int64_t timeout_ns, tb_loan **out);

/** The tensor of a loan: memory of the slot, with whatever it held before. It is aligned to 4096
 *  bytes; adopted slots lie as their user's memory does.
 *  Shape:   the registered one, or that of tb_loan_reshape().
 *  Owner:   borrowed; dead after publish or cancel.   Returns: NULL for NULL.
 *  Threads: the loan belongs to one thread at a time.   Waits: never.   Source: src/pool/loan.c */
TB_API const tb_tensor *tb_loan_tensor(const tb_loan *loan);

/** Give a loan of a pool with varying shapes its shape and, optionally, strides.
 *  Shape:   ndim and shape as given; strides in elements, NULL = row-major; no negative strides.
 *  Owner:   shape and strides are copied.
 *  Returns: TB_OK, TB_E_INVALID (NULL, ndim, a negative dimension or stride), TB_E_LIMIT
 *           (overflow), TB_E_MISMATCH (fixed-shape pool, larger than the slot, or not of as many
 *           bytes as were promised).
 *  Threads: the loan belongs to one thread at a time.   Waits: never.   Source: src/pool/loan.c */
TB_API TB_MUST_USE tb_status tb_loan_reshape(tb_loan *loan, int32_t ndim, const int64_t *shape,
                                             const int64_t *strides);

/** Copy a tensor into a loan; strided sources are packed on the way, and a loan of a pool with
 *  varying shapes takes the tensor's shape. Counted as a copy.
 *  Shape:   tensor must have the registered dtype and shape, or fit the capacity when shapes vary.
 *  Owner:   the tensor stays the caller's, the loan too, also on failure: nothing is written then.
 *  Returns: TB_OK, TB_E_MISMATCH (names both dtypes or shapes), TB_E_INVALID and TB_E_LIMIT (NULL,
 *           the tensor itself), TB_E_UNSUPPORTED (require_zero_copy, device), TB_E_FORKED.
 *  Threads: the loan belongs to one thread at a time.   Waits: for the copy.
 *  Source:  src/pool/write.c */
TB_API TB_MUST_USE tb_status tb_loan_write(tb_loan *loan, const tb_tensor *tensor);

/** Let the helpers of copy_threads begin a tb_loan_write(), while the caller does something else,
 *  such as sending the handle of tb_loan_promise(). Without helpers, or where they have another
 *  copy, nothing is done ahead.
 *  Shape:   as tb_loan_write(): a loan of a pool with varying shapes takes the tensor's.
 *  Owner:   the tensor stays the caller's, and as it is, until tb_loan_write() of the same has
 *           returned, which must follow, or the loan is cancelled, by the end of its bus as well.
 *           Cancelling waits for the blocks that helpers are at, publishing for the whole copy.
 *  Returns: as tb_loan_write().
 *  Threads: the loan belongs to one thread at a time.   Waits: never.
 *  Source:  src/pool/write.c */
TB_API TB_MUST_USE tb_status tb_loan_write_ahead(tb_loan *loan, const tb_tensor *tensor);

/** Number a loan's frame now and give its handle out, before the frame is written: the handle can
 *  travel meanwhile. Who opens it waits until the loan is published. Frames that are published
 *  later come to readers in order only behind this one.
 *  Shape:   the loan's must be final: that of the pool, or as given by tb_loan_reshape().
 *  Owner:   the loan stays the caller's. *out is 48 bytes of plain data, the same at each call and
 *           as tb_loan_publish() gives; its stamp is that of the promise.
 *  Returns: TB_OK, TB_E_FREED, TB_E_UNSUPPORTED (a GPU's pool: tb_loan_publish_on() needs none),
 *           TB_E_LIMIT (hundreds of promises were given up while an earlier one stands),
 *           TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: the loan belongs to one thread at a time.   Waits: never.
 *  Source:  src/pool/promise.c */
TB_API TB_MUST_USE tb_status tb_loan_promise(tb_loan *loan, tb_handle *out);

/** Publish a filled slot: the frame becomes readable, sleeping readers are woken.
 *  Owner:   consumes the loan, also on failure. *out (may be NULL) is 48 bytes of plain data.
 *  Returns: TB_OK, TB_E_FREED (the pool was freed meanwhile; the frame is discarded),
 *           TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: the loan belongs to one thread at a time.   Waits: never.   Source: src/pool/loan.c */
TB_API TB_MUST_USE tb_status tb_loan_publish(tb_loan *loan, tb_handle *out);

/** Give a slot back unpublished. NULL is allowed. Who waits for a frame that it promised is told
 *  TB_E_STALE.
 *  Owner:   consumes the loan.
 *  Threads: the loan belongs to one thread at a time.   Waits: never.   Source: src/pool/loan.c */
TB_API void tb_loan_cancel(tb_loan *loan);

/** Whether tb_pool_write() would take a tensor: what it checks before it borrows a slot.
 *  Returns: TB_OK, TB_E_MISMATCH, TB_E_INVALID, TB_E_LIMIT and TB_E_UNSUPPORTED as tb_pool_write(),
 *           TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/pool/write.c */
TB_API TB_MUST_USE tb_status tb_pool_check(tb_pool *pool, const tb_tensor *tensor);

/** Copy a tensor into a free slot and publish it; strided sources are packed on the way.
 *  Shape:   tensor must have the registered dtype and shape, or fit the capacity when shapes vary.
 *  Units:   timeout in ns, as tb_pool_loan().
 *  Owner:   the tensor stays the caller's. *out (may be NULL) is 48 bytes of plain data.
 *  Returns: as tb_pool_loan(); TB_E_MISMATCH (names both dtypes or shapes; nothing is written),
 *           TB_E_INVALID and TB_E_LIMIT (the tensor itself), TB_E_UNSUPPORTED (require_zero_copy,
 *           device).
 *  Threads: any, several at once.   Waits: up to the timeout, and for the copy.
 *  Source:  src/pool/write.c */
TB_API TB_MUST_USE tb_status tb_pool_write(tb_pool *pool, const tb_tensor *tensor,
                                           int64_t timeout_ns, tb_handle *out);

/** Wait until every reader that acknowledges, and everyone named at registration, has acknowledged
 *  a frame and those before it.
 *  Units:   timeout in ns on CLOCK_MONOTONIC; 0 polls, -1 waits for ever.
 *  Returns: TB_OK, TB_E_NOT_ACKED (tb_last_error_text() names who has not in time; at once when one
 *           who was named is missing or dead), TB_E_INCOMPLETE (published on a stream that failed),
 *           TB_E_STALE (handle of another pool), TB_E_FREED, TB_E_INVALID (NULL, or not published
 *           yet), TB_E_FORKED.
 *  Threads: any.   Waits: up to the timeout.   Source: src/pool/ack.c */
TB_API TB_MUST_USE tb_status tb_pool_wait_acked(tb_pool *pool, const tb_handle *handle,
                                                int64_t timeout_ns);

/** End a pool for everybody. Frames that readers hold stay valid until they release them.
 *  Returns: TB_OK, TB_E_FREED (it was freed before: a warning is logged), TB_E_INVALID (NULL),
 *           TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/pool/pool.c */
TB_API tb_status tb_pool_free(tb_pool *pool);

/** Close the owner's object; frees the pool first if it is not freed yet. NULL is allowed.
 *  Owner:   takes the pool. Open loans are cancelled: their pointers are dead.
 *           Adopted memory stays in use as adopt.h says.
 *  Threads: one, after all other calls on the pool have returned.   Waits: for the end of the
 *           threads of copy_threads, if any.
 *  Source:  src/pool/pool.c */
TB_API void tb_pool_close(tb_pool *pool);

/** Name of a pool, as registered.
 *  Owner:   borrowed, lives as long as the pool.   Returns: "" for NULL.   Threads: any.
 *  Waits:   never.   Source: src/pool/pool.c */
TB_API const char *tb_pool_name(const tb_pool *pool);

/* Counters of a pool since registration. */
typedef struct tb_pool_stats {
    size_t size;     /* sizeof(tb_pool_stats), set by the caller */
    uint64_t frames; /* published */
    uint64_t bytes;  /* published, payload */
    uint64_t copies; /* frames that tb_pool_write() copied in */
    uint64_t copied_bytes;
    uint64_t drops;      /* loans and writes that found no slot in time */
    uint64_t overwrites; /* frames overwritten that at least one attached reader had not taken;
                            readers that were attached for a handle miss none */
    uint64_t waits;      /* loans and writes that slept */
    uint64_t wakeups;    /* readers woken by system call */
    uint32_t readers;    /* attached now; not the owner's own attachments for handles */
    uint32_t held;       /* leases held now */
    uint32_t slots;
    uint32_t freed; /* 1 after free */
    uint64_t slot_bytes;
    /* That readers told of: memory that they could not map or page-lock, contexts that broke. The
     * same one after another by one reader counts once. */
    uint64_t troubles;
    tb_status trouble_status; /* of the newest */
    uint32_t reserved;
    char trouble[120]; /* the newest: who, and what; cut off if need be */
} tb_pool_stats;

/** Read the counters of a pool.
 *  Owner:   the caller sets out->size.   Returns: TB_OK, TB_E_INVALID (NULL, size), TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/pool/stats.c */
TB_API TB_MUST_USE tb_status tb_pool_get_stats(tb_pool *pool, tb_pool_stats *out);

/** Who reads a pool now: the name of the process of each attached reader, "" when it has none.
 *  Readers that are counted in tb_pool_stats; one process may have several.
 *  Units:   *count is how many there are, `room` how many names fit.
 *  Owner:   names belongs to the caller; NULL with room 0 only counts. The first `room` of them are
 *           written, on success.
 *  Returns: TB_OK, TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/pool/stats.c */
TB_API TB_MUST_USE tb_status tb_pool_get_readers(tb_pool *pool, char (*names)[65], uint32_t room,
                                                 uint32_t *count);

#ifdef __cplusplus
}
#endif
#endif

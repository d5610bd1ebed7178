/* Readers and frames: attach to a pool, lease frames, look at them in place.
 *
 * A reader is one attachment of this process to one pool; threads may share it. What it returns is
 * a frame: a tensor in the owner's memory, mapped read-only, that does not change while it is held
 * (unless its owner registered the pool as `live`).
 * Hold few and release soon: a reader may hold max_leases frames at once (TB_E_BUSY beyond), and a
 * slot that is held cannot be written. When the owner goes, frames that are held stay valid. */
#ifndef TENSORBUS_READER_H
#define TENSORBUS_READER_H

#include <tensorbus/bus.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tb_reader tb_reader;
typedef struct tb_frame tb_frame;

/* How the bytes of a frame became readable. */
typedef enum tb_lane {
    TB_LANE_DIRECT = 0, /* mapped: no copy */
    TB_LANE_DMA = 1,    /* one device copy */
    TB_LANE_STAGED = 2, /* through pinned host memory */
    TB_LANE_MIRROR = 3, /* over the network */
    TB_LANE_COPY = 4    /* serialised */
} tb_lane;

typedef struct tb_reader_options {
    size_t size;         /* sizeof(tb_reader_options) */
    int64_t wait_ns;     /* how long to wait for a pool that does not exist yet; 0: not at all */
    uint32_t every;      /* 1: wants every frame (counts for TB_EVERY pools and wait_readers) */
    uint32_t ack;        /* 1: acknowledges frames with tb_reader_ack() */
    uint32_t max_leases; /* 0: the pool's default */
    uint32_t start_next; /* 1: skip what was published before; 0: begin with the newest frame */
    uint32_t spin_us;    /* spin so long before sleeping; 0: sleep at once */
    uint32_t stream_ordered; /* 1: frames come before the GPU has finished them, see cuda.h */
    tb_device device;        /* where to map a GPU's pool; 0: on the GPU that has it */
    uint32_t no_prefault;    /* 1: map host memory when first touched: attaching takes microseconds
                              * instead of 45 us per MiB of the pool, the first pass over each slot
                              * takes page faults instead */
} tb_reader_options;

/** Attach to a pool by "process/pool".
 *  Owner:   the caller; end with tb_reader_close(). Options are copied; NULL = all defaults.
 *  Returns: TB_OK, TB_E_NOT_FOUND (no such process or pool within wait_ns, or its owner does not
 *           answer), TB_E_FREED, TB_E_INVALID, TB_E_DENIED, TB_E_LIMIT (leases, a quota of the
 *           owner, open files), TB_E_CORRUPT (the segment fails its checks: names the field),
 *           TB_E_PROTOCOL, TB_E_UNSUPPORTED (another release), TB_E_NOMEM, TB_E_SYSTEM,
 *           TB_E_FORKED.
 *  Threads: any.   Waits: up to wait_ns and for a few round trips; up to 15 s for an owner that is
 *           stopped.
 *  Source:  src/pool/reader.c */
TB_API TB_MUST_USE tb_status tb_reader_open(tb_bus *bus, const char *path,
                                            const tb_reader_options *options, tb_reader **out);

/** Attach to the pool of a handle, wherever its owner is in the flow.
 *  Owner:   as tb_reader_open().
 *  Returns: as tb_reader_open(); TB_E_STALE (its owner has no such pool any more), TB_E_NOT_FOUND
 *           (the owner is gone).
 *  Threads: any.   Waits: up to wait_ns and for a few round trips; up to 2 s for an owner that is
 *           stopped.
 *  Source:  src/pool/reader.c */
TB_API TB_MUST_USE tb_status tb_reader_open_handle(tb_bus *bus, const tb_handle *handle,
                                                   const tb_reader_options *options,
                                                   tb_reader **out);

/** Detach. Frames that are still held are released: their pointers are dead. NULL is allowed.
 *  Owner:   takes the reader.
 *  Threads: one, after all other calls on the reader have returned.   Waits: never.
 *  Source:  src/pool/reader.c */
TB_API void tb_reader_close(tb_reader *reader);

/** The next frame in order: the oldest one after the last that this reader returned.
 *  Shape:   the frame's tensor has the pool's shape, or its own when shapes vary.
 *  Units:   timeout in ns on CLOCK_MONOTONIC; 0 polls, -1 waits for ever.
 *  Owner:   the caller holds *out until tb_frame_release().
 *  Returns: TB_OK, TB_AGAIN (nothing newer), TB_CLOSED (the owner said goodbye), TB_E_OWNER_DIED,
 *           TB_E_FREED, TB_E_BUSY (all leases in use), TB_E_CORRUPT (a varying frame's record),
 *           TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: any, several at once: each frame goes to one of them.   Waits: up to the timeout.
 *  Source:  src/pool/acquire.c */
TB_API TB_MUST_USE tb_status tb_reader_next(tb_reader *reader, int64_t timeout_ns, tb_frame **out);

/** The newest frame, skipping older ones.
 *  Shape, Units, Owner: as tb_reader_next().
 *  Returns: as tb_reader_next(); TB_AGAIN when the newest was returned before.
 *  Threads: any, several at once.   Waits: up to the timeout.   Source: src/pool/acquire.c */
TB_API TB_MUST_USE tb_status tb_reader_newest(tb_reader *reader, int64_t timeout_ns,
                                              tb_frame **out);

/** The frame that a handle names. The order of tb_reader_next() is not touched.
 *  Shape:   as tb_reader_next().
 *  Owner:   the caller holds *out until tb_frame_release().
 *  Returns: TB_OK, TB_E_STALE (overwritten, given up, or of another pool), TB_E_BUSY, TB_E_FREED,
 *           TB_E_INVALID (NULL, no handle), TB_E_CORRUPT (a varying frame's record), TB_E_FORKED;
 *           of a promised frame (tb_loan_promise()) also TB_AGAIN (not published within 10 s),
 *           TB_E_OWNER_DIED, TB_CLOSED, TB_E_DEADLOCK (this thread itself is to publish it).
 *  Threads: any.   Waits: never; up to 0.5 s for an owner that stands still in the middle of taking
 *           the frame's slot; up to 10 s for a promised frame.
 *  Source:  src/pool/acquire_handle.c */
TB_API TB_MUST_USE tb_status tb_reader_frame(tb_reader *reader, const tb_handle *handle,
                                             tb_frame **out);

/** Find the owner of a bare handle, attach if needed, and lease its frame. The bus keeps the
 *  attachment for later handles of the same pool (at most 64, least recently used first out).
 *  Units:   timeout_ns is not used: the owner of a handle is there or gone for good.
 *  Shape:   as tb_reader_next().
 *  Owner:   the caller holds *out until tb_frame_release().
 *  Returns: as tb_reader_frame() and tb_reader_open_handle().
 *  Threads: any.   Waits: as tb_reader_open_handle() for the first handle of a pool, then as
 *           tb_reader_frame().
 *  Source:  src/pool/frame_open.c */
TB_API TB_MUST_USE tb_status tb_frame_open(tb_bus *bus, const tb_handle *handle, int64_t timeout_ns,
                                           tb_frame **out);

/** Copy the newest frame out without a lease (seqlock): for tools that must not disturb anyone.
 *  Shape:   the frame's packed bytes; strides that the owner gave it are not undone.
 *  Units:   capacity and *bytes in bytes.
 *  Owner:   buffer belongs to the caller. *bytes and *sequence are set on success.
 *  Returns: TB_OK, TB_AGAIN (overwritten while copying, nothing published), TB_E_LIMIT (capacity),
 *           TB_E_CORRUPT, TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/pool/acquire_handle.c */
TB_API TB_MUST_USE tb_status tb_reader_copy_newest(tb_reader *reader, void *buffer, size_t capacity,
                                                   size_t *bytes, uint64_t *sequence);

/** Acknowledge a frame and all before it; see tb_pool_wait_acked().
 *  Owner:   the frame stays the caller's.
 *  Returns: TB_OK, TB_E_INVALID (NULL, a frame of another pool, a reader without `ack`),
 *           TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/pool/reader.c */
TB_API TB_MUST_USE tb_status tb_reader_ack(tb_reader *reader, const tb_frame *frame);

/** A descriptor that becomes readable when there may be something new, or the owner is gone (within
 *  10 ms of the beginning of its end), for programs with an event loop; tb_reader_next(reader, 0,
 *  ...) until TB_AGAIN drains it. The first one of a bus starts a thread that watches owners.
 *  Owner:   borrowed, closed with the reader. A reader that never drains it blocks nobody.
 *  Returns: TB_OK, TB_E_LIMIT (open files, here or at the owner), TB_E_NOT_FOUND (the owner does
 *           not answer), TB_E_OWNER_DIED, TB_CLOSED, TB_E_SYSTEM (no thread), TB_E_INVALID (NULL),
 *           TB_E_FORKED.
 *  Threads: any.   Waits: one round trip at the first call, up to 10 s for a stopped owner.
 *  Source:  src/pool/poke.c */
TB_API TB_MUST_USE tb_status tb_reader_fd(tb_reader *reader, int *out_borrow_fd);

/** Ask the owner to free the pool, as tb_pool_free() would.
 *  Returns: TB_OK, TB_E_FREED (a warning is logged), TB_E_OWNER_DIED, TB_CLOSED, TB_E_NOT_FOUND
 *           (the owner does not answer), TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: any.   Waits: one round trip, up to 10 s for a stopped owner.
 *  Source:  src/pool/reader.c */
TB_API TB_MUST_USE tb_status tb_reader_free_pool(tb_reader *reader);

/** The tensor of a frame, read-only memory: writing to it ends the process with SIGSEGV.
 *  Shape:   as tb_reader_next(); strides in elements, NULL = row-major.
 *  Owner:   borrowed; dead after release.   Returns: NULL for NULL.   Threads: any.
 *  Waits:   never.   Source: src/pool/frame.c */
TB_API const tb_tensor *tb_frame_tensor(const tb_frame *frame);

typedef struct tb_frame_info {
    size_t size; /* sizeof(tb_frame_info), set by the caller */
    tb_handle handle;
    uint64_t sequence;
    uint64_t generation;
    uint64_t stamp_ns; /* CLOCK_MONOTONIC of the owner at publish */
    uint64_t missed;   /* frames between the reader's last one and this that it will not see */
    tb_lane lane;
    uint32_t copies;   /* of the payload between the producer's memory and this frame */
    char producer[65]; /* name of the owner's process, "" when it has none */
    char pool[65];
    uint32_t live; /* 1: of a live pool: the bytes may change while the frame is held */
} tb_frame_info;

/** What is known about a frame.
 *  Owner:   the caller sets out->size.   Returns: TB_OK, TB_E_INVALID (NULL, size), TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/pool/frame.c */
TB_API TB_MUST_USE tb_status tb_frame_get_info(const tb_frame *frame, tb_frame_info *out);

/** Hold the same frame once more: *out is released on its own, by any thread.
 *  Owner:   the caller holds *out until tb_frame_release().
 *  Returns: TB_OK, TB_E_BUSY (all leases in use, or the owner stands still), TB_E_INCOMPLETE (a
 *           GPU will not finish it), TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: any.   Waits: never; up to 0.5 s for an owner that stands still in the middle of
 *           taking the frame's slot.
 *  Source:  src/pool/frame.c */
TB_API TB_MUST_USE tb_status tb_frame_hold(tb_frame *frame, tb_frame **out);

/** Give a frame back. NULL is allowed.
 *  Owner:   takes the frame.
 *  Threads: one frame belongs to one thread at a time.   Waits: never.
 *  Source:  src/pool/frame.c */
TB_API void tb_frame_release(tb_frame *frame);

/* Counters of a reader since it attached. */
typedef struct tb_reader_stats {
    size_t size;     /* sizeof(tb_reader_stats), set by the caller */
    uint64_t frames; /* returned */
    uint64_t missed; /* overwritten before this reader took them */
    uint64_t stale;  /* handles that came too late */
    uint64_t waits;  /* calls that slept */
    uint32_t held;   /* now */
    uint32_t max_leases;
    tb_lane lane;
    uint32_t reserved;
    uint64_t incomplete; /* released frames that a GPU had not finished, see cuda.h */
} tb_reader_stats;

/** Read the counters of a reader.
 *  Owner:   the caller sets out->size.   Returns: TB_OK, TB_E_INVALID (NULL, size), TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/pool/reader.c */
TB_API TB_MUST_USE tb_status tb_reader_get_stats(tb_reader *reader, tb_reader_stats *out);

#ifdef __cplusplus
}
#endif
#endif

/* The pool layer's structures: what the owner keeps of its pools and their readers, and what a
 * reader keeps of its attachment. Shared between the files of this folder only. */
#ifndef TB_POOL_STATE_H
#define TB_POOL_STATE_H

#include <pthread.h>
#include <tensorbus/pool.h>
#include <tensorbus/reader.h>

#include "base/options.h"
#include "endpoint/bus.h"
#include "pool/device.h"
#include "pool/watch.h"
#include "segment/gates.h"
#include "segment/lease.h"
#include "segment/slot.h"

struct tb__copy_team;
struct tb__order;

/* ---- owner's side ---- */

/* One attached reader, as the owner sees it. Made and retired by the service thread. */
struct tb__attached {
    struct tb__attached *next; /* of the pool, or of its retired ones; bus mutex */
    struct tb__page_map map;
    int page_fd;         /* until the reader has mapped it */
    _Atomic int poke_fd; /* our end of the reader's wake-up socket, or -1 */
    uint64_t reader_id;
    uint32_t request; /* that asked for it */
    uint32_t max_leases;
    uint32_t every;
    uint32_t ack;
    uint32_t in_order;           /* 0: opened for a handle, and not expected to take every frame */
    uint32_t own;                /* for a handle, in the owner's own process: no reader to it */
    struct tb__lifeline *line;   /* kept */
    struct tb__gates_shm *gates; /* of a reader that orders itself on a GPU; else NULL */
    int gates_fd;                /* until the reader has mapped it */
    struct tb__mapped gates_mapped; /* with our GPU; order mutex */
    uint64_t last_gated;            /* newest frame whose gate a stream of ours writes; the same */
    struct tb__a32 gone; /* 1: detached, but still in the writers' set for want of memory */
    struct tb__a64 dead_since_ns; /* when a writer first saw its life word marked; 0: alive */
};

/* The readers as writers see them: an array that never changes; changes make another one. */
struct tb__page_set {
    struct tb__page_set *next_retired;
    uint32_t count;
    uint32_t every_count;
    uint32_t reader_count; /* without the owner's own attachments */
    uint32_t gated_count;  /* readers that order themselves on a GPU */
    struct tb__page_ref {
        struct tb__page_shm *shm;
        struct tb__attached *who;
    } refs[];
};

/* Slots that are memory of the pool's user: see pool/adopt.h. */
struct tb__adoption {
    uint32_t on;
    uint32_t ending; /* closed by its user, and linked until nobody uses it; bus mutex */
    uint32_t unused; /* nobody uses the memory any more; its closing thread */
    uint8_t *slots;  /* host memory: slot 0; NULL: on a GPU, see tb_pool.device */
    void *map;       /* mapped by us, with the slots; or NULL */
    uint64_t map_bytes;
    void (*release)(void *context);
    void *context;
};

enum tb__loan_state {
    TB__LOAN_NONE = 0,
    TB__LOAN_TRIED = 1, /* a writer is finding out whether it may have the slot */
    TB__LOAN_GIVEN = 2,
};

struct tb_loan {
    tb_pool *pool;
    uint32_t slot;
    struct tb__a32 thread; /* that borrowed it */
    uint32_t copies;
    struct tb__a32 active; /* enum tb__loan_state: this slot belongs to a writer */
    uint64_t promised;     /* its frame's generation, given out before it is published; 0: none */
    const void *ahead;     /* what the copy team copies into it already; NULL: nothing */
    size_t ahead_bytes;
    tb_tensor tensor;
    int64_t strides[TB_MAX_NDIM];
};

/* Publishers that overtook an earlier one leave their generation here until it is its turn. */
#define TB__TURNS 512

struct tb_pool {
    tb_pool *next; /* of the bus, the next older one; bus mutex */
    tb_bus *bus;
    struct tb__pool_layer *layer;
    uint64_t number; /* in the order of registration, from 1; set with the bus mutex held */
    char name[TB__NAME_SIZE];
    uint8_t uid[16];
    int segment_fd;
    char *export_path;               /* of a DORADMA export, to unlink; or NULL */
    struct tb__device_share *device; /* a GPU's memory with the slots; NULL: the host's */
    int device_fd;                   /* names it, or an adopted memfd, to readers; or -1 */
    struct tb__adoption adoption;
    pthread_mutex_t map_mutex;
    struct tb__mapped mapped;       /* host slots, once a GPU copies from or to them; map_mutex */
    struct tb__a64 stream_slice_ns; /* claim.c: writers' sleep while streams hold the slots */
    struct tb__a32 stream_claims;   /* slots that were claimed since the last such sleep */
    _Atomic(struct tb__order *) order; /* frames that GPUs work on; NULL until there is one */
    struct tb__segment segment;
    tb_tensor proto; /* data NULL */
    size_t proto_bytes;
    uint32_t slots;
    uint32_t max_leases;
    uint32_t wait_readers;
    uint32_t require_zero_copy;
    uint32_t varying;
    uint32_t every; /* policy */
    uint32_t live;  /* leases hold nothing */
    char (*ackers)[TB__NAME_SIZE];
    uint32_t acker_count;

    _Atomic int freed;
    _Atomic(struct tb__page_set *) pages;
    _Atomic uint32_t scans;            /* writers looking at `pages` right now */
    struct tb__a32 contended;          /* a writer passed over a slot that another one was trying */
    _Atomic uint32_t waiters;          /* threads that wait for a slot or an acknowledgement */
    struct tb__attached *attached;     /* bus mutex */
    struct tb__attached *retired;      /* unlinked, perhaps still looked at; bus mutex */
    struct tb__page_set *retired_sets; /* bus mutex */

    struct tb__a64 reserved; /* last generation that a publisher took */
    struct tb__a64 turns[TB__TURNS];
    /* Generation that a slot was last found leased with: that one is looked for before it is
     * marked, so that a held frame is marked once at most. Writers' guess, never relied upon. */
    struct tb__a64 found_held[TB_MAX_SLOTS];
    /* Generation that a GPU did not finish, while readers' streams may still have it; 0: none. */
    struct tb__a64 given_up[TB_MAX_SLOTS];
    tb_loan *loans;                  /* one per slot */
    struct tb__copy_team *copy_team; /* helps with large copies; NULL: the writer copies alone */
};

/* ---- reader's side ---- */

enum tb__frame_use {
    TB__FRAME_IDLE = 0,
    TB__FRAME_HELD = 1,
    TB__FRAME_ON_STREAM = 2, /* released: a stream clears the entry */
};

struct tb_frame {
    tb_reader *reader;
    uint32_t index; /* of its entry */
    uint32_t slot;
    uint64_t generation;
    uint64_t missed;
    struct tb__a32 busy;     /* enum tb__frame_use: the struct and its entry are in use */
    struct tb__a32 thread;   /* that acquired it; set before the entry is */
    struct tb__a64 complete; /* newest generation that a look at its gate found complete */
    tb_tensor tensor;
    int64_t strides[TB_MAX_NDIM];
};

struct tb_reader {
    tb_reader *next; /* of the bus; bus mutex */
    tb_bus *bus;
    struct tb__pool_layer *layer;
    struct tb__lifeline *line;
    char name[TB__NAME_SIZE];
    uint8_t uid[16];
    uint64_t reader_id;
    struct tb__segment segment; /* mapped read-only */
    struct tb__page_map page;
    uint32_t max_leases;
    uint32_t ack;
    uint32_t no_prefault;
    int64_t spin_ns;
    struct tb__a32 brisk;            /* 0 to 3: how often frames came soon, of late; acquire.c */
    struct tb__a64 gone_since_ns;    /* when the owner was first seen dead */
    struct tb__a64 trouble;          /* its kind, that was told the owner last; 0: none */
    _Atomic int poke_fd;             /* its end of a wake-up socket, or -1 */
    tb_frame *frames;                /* max_leases */
    tb_device wanted_device;         /* to map a GPU's pool on; 0: where it is */
    struct tb__device_share *device; /* a GPU's memory with the slots; or NULL */
    struct tb__gates_shm *gates;     /* it orders itself on a GPU; or NULL */
    pthread_mutex_t map_mutex;       /* the next three */
    struct tb__mapped gates_mapped;
    struct tb__mapped page_mapped;
    struct tb__mapped segment_mapped;
    /* Attachments that tb_frame_open() keeps; bus mutex. */
    uint32_t cached;
    uint32_t cache_users;
    uint64_t cache_used_at;
};

/* ---- the layer of one bus ---- */

/* An open request for a pool that does not exist yet. */
struct tb__pending_open {
    struct tb__pending_open *next;
    struct tb__lifeline *line; /* not referenced: removed at its hang-up, before it goes */
    uint32_t request;
    struct tb__pool_open_wire wire;
};

struct tb__pool_layer {
    tb_bus *bus;
    tb_pool *pools; /* newest first */
    tb_reader *readers;
    struct tb__pending_open *pending;
    uint64_t next_reader_id;
    _Atomic uint64_t next_pool_number;
    uint64_t cache_clock;
    pthread_mutex_t cache_mutex; /* one opening per handle's pool at a time */
    /* Owners of handles that did not answer: not asked again before. With cache_mutex held. */
    struct tb__silent {
        uint64_t owner_id;
        int64_t until_ns;
    } silent[8];
    _Atomic(struct tb__lifeline *) runner; /* told about pools; NULL without a runner */
    pthread_mutex_t runner_mutex;          /* looking for it; never taken by the service thread */
    int runner_looked_up;
    int closing;     /* nobody attaches any more; bus mutex */
    int readers_end; /* the bus closes: readers go, whatever streams still do; closing thread */
    int64_t ending_look_ns; /* until the next look at pools that end: adopt_end.c; bus mutex */
    struct tb__watch watch;
    _Atomic int stream_ordered; /* frames are opened by handle before GPUs have finished them */
};

struct tb__pool_layer *tb__pool_layer_of(const tb_bus *bus);
uint32_t tb__thread_id(void);

/* layer.c: bus mutex held: the pool that a request names, or NULL; and the failure that there is
 * none, with the nearest names. */
tb_pool *tb__pool_find(struct tb__pool_layer *layer, const struct tb__pool_open_wire *wire);
void tb__pool_fail_missing(const struct tb__pool_layer *layer,
                           const struct tb__pool_open_wire *wire);

/* attach.c: on the service thread, bus mutex held. */
/* 0: another hand-over is under way on the line; nothing was done. */
int tb__attach(tb_pool *pool, struct tb__lifeline *line, uint32_t request,
               const struct tb__pool_open_wire *wire);
void tb__detach(tb_pool *pool, struct tb__attached *who);
void tb__detach_all(tb_pool *pool);
void tb__attached_reclaim(tb_pool *pool);
/* Those whose gates our GPU has: as reclaim, on a thread that may call the driver. */
void tb__attached_reclaim_gated(tb_pool *pool);
/* Any thread: set every page's state and wake every reader. */
void tb__pages_tell(tb_pool *pool, enum tb__page_state state);

/* Writers' look at the readers: between enter and leave nothing in the set is unmapped. */
static inline const struct tb__page_set *tb__pages_enter(tb_pool *pool)
{
    /* seq_cst: counted before the set is loaded; pairs with the service thread's exchange of the
     * set and its look at the count. */
    atomic_fetch_add(&pool->scans, 1);
    return atomic_load(&pool->pages);
}
static inline void tb__pages_leave(tb_pool *pool)
{
    /* Pairs with the service thread's look at the count before it unmaps. */
    atomic_fetch_sub_explicit(&pool->scans, 1, memory_order_release);
}

/* loan.c */
tb_status tb__pool_fail_freed(const tb_pool *pool);
void tb__loan_discard(tb_pool *pool, uint32_t slot);
/* The steps of publishing: the record; the next generation; and moving the head over it once its
 * frame is complete, or given up. */
tb_status tb__loan_bytes(const tb_loan *loan, size_t *out);
void tb__loan_record(const tb_loan *loan, uint64_t bytes, uint64_t stamp_ns);
uint64_t tb__generation_reserve(tb_pool *pool);
void tb__head_advance(tb_pool *pool, uint64_t g);
void tb__loan_end(tb_loan *loan); /* published: the slot is no writer's any more */
void tb__handle_fill(const tb_pool *pool, uint32_t slot, uint64_t g, tb_handle *out);

/* pool.c: take a pool apart that nobody finds any more. */
void tb__pool_destroy(tb_pool *pool);

/* stats.c: leases that a reader holds; a pool's counters as anyone who maps it sees them. */
uint32_t tb__page_held(const struct tb__page_ref *ref);
tb_pool_stats tb__stats_read(const struct tb__segment *segment);
/* Who reads the pool: writes the first `room` of them, returns how many there are. */
uint32_t tb__stats_readers(tb_pool *pool, struct tb__reader_name_wire *out, uint32_t room);

/* reader.c, acquire.c, acquire_handle.c */
tb_status tb__reader_check(const tb_reader *reader); /* every public call on one begins with it */
int tb__reader_owner_gone(tb_reader *reader);
/* Why there will be nothing new, or TB_OK while there may; and its text, once it is the result. */
tb_status tb__reader_look(const tb_reader *reader);
tb_status tb__reader_fail(const tb_reader *reader, tb_status ended);
tb_status tb__reader_fail_silent(const tb_reader *reader); /* the owner does not answer */
void tb__reader_ring_owner(tb_reader *reader);
tb_status tb__frame_fill(tb_frame *frame);
#define TB__HANDLE_PATIENCE_NS INT64_C(500000000)
enum tb__lease_result tb__frame_lease(tb_frame *frame, uint32_t slot, uint64_t g,
                                      int64_t patience_ns);
/* Where a frame's bytes lie. */
static inline uint8_t *tb__slot_data(const struct tb__segment *segment,
                                     const struct tb__device_share *device, uint32_t slot)
{
    return device == NULL ? tb__segment_slot(segment, slot)
                          : tb__device_data(device) + (uint64_t)slot * segment->view.slot_stride;
}
static inline tb_lane tb__reader_lane(const tb_reader *reader)
{
    (void)reader; /* mapped, in host memory or on its GPU */
    return TB_LANE_DIRECT;
}
tb_frame *tb__frame_reserve(tb_reader *reader);
tb_status tb__reader_fail_busy(const tb_reader *reader); /* none is left to reserve */
void tb__frame_unreserve(tb_frame *frame);

/* poke.c: close a wake-up descriptor, unless it is -1; nobody else uses it any more. */
void tb__poke_close(_Atomic int *fd);

#endif

/* What the owner writes beside the payload: one record per slot, and the pool's counters. Both are
 * read by anyone who maps the segment. */
#ifndef TB_SEGMENT_SLOT_H
#define TB_SEGMENT_SLOT_H

#include <tensorbus/tensor.h>

#include "segment/atomics.h"
#include "segment/doradma.h"

/* Written by the owner between claiming and publishing; stable while the slot is leased. */
struct tb__record_shm {
    struct tb__a64 stamp_ns; /* CLOCK_MONOTONIC at publish */
    struct tb__a64 bytes;    /* packed size of the frame */
    struct tb__a32 ndim;     /* of this frame, when shapes vary */
    struct tb__a32 strided;  /* 1: strides have meaning; 0: row-major */
    struct tb__a32 copies;   /* of the payload before it was published */
    struct tb__a32 lane;     /* tb_lane */
    /* Generation that a GPU is working on: enqueued, not finished; 0: none. The slot's own word
     * says "being written" meanwhile. Only readers that order themselves on a GPU may lease it. */
    struct tb__a64 pending;
    struct tb__a64 failed; /* newest generation that was never finished: by a GPU, or that was
                              promised and given up */
    /* Generation that was numbered, and whose handle was given out, before it was published; 0:
     * none. The slot's own word says "being written" meanwhile. */
    struct tb__a64 promised;
    uint8_t pad0[8]; /* written 0 */
    struct tb__a64 shape[TB_MAX_NDIM];
    struct tb__a64 strides[TB_MAX_NDIM];
    uint8_t pad1[64]; /* written 0 */
};
_Static_assert(__builtin_offsetof(struct tb__record_shm, ndim) == 16, "record: ndim");
_Static_assert(__builtin_offsetof(struct tb__record_shm, pending) == 32, "record: pending");
_Static_assert(__builtin_offsetof(struct tb__record_shm, promised) == 48, "record: promised");
_Static_assert(__builtin_offsetof(struct tb__record_shm, shape) == 64, "record: shape");
_Static_assert(__builtin_offsetof(struct tb__record_shm, strides) == 128, "record: strides");
_Static_assert(sizeof(struct tb__record_shm) == TB__RECORD_BYTES, "record size");

#define TB__TROUBLE_WORDS 15
#define TB__TROUBLE_BYTES (TB__TROUBLE_WORDS * 8) /* with a terminator */

/* Written by the owner's threads, read by tools. */
struct tb__counters_shm {
    struct tb__a64 bytes;  /* published */
    struct tb__a64 frames; /* published */
    struct tb__a64 copies; /* frames copied in by the owner */
    struct tb__a64 copied_bytes;
    struct tb__a64 drops;         /* loans that found no slot in time */
    struct tb__a64 overwrites;    /* frames overwritten that a reader in order had not taken */
    struct tb__a64 waits;         /* loans that slept */
    struct tb__a64 wakeups;       /* readers woken by system call */
    struct tb__a64 readers;       /* attached now, but for handles in the owner's own process */
    struct tb__a64 attached;      /* readers ever attached */
    struct tb__a64 freed;         /* 1: the pool was freed */
    struct tb__a64 lane;          /* tb_lane of its frames */
    struct tb__a64 registered_ns; /* CLOCK_MONOTONIC */
    struct tb__a64 issued;     /* generation of the newest frame, enqueued on a GPU ones included */
    struct tb__a64 incomplete; /* frames that a GPU did not finish */
    /* What hindered readers: twice how often, and 1 while the next two are written; the newest. */
    struct tb__a64 troubles;
    struct tb__a64 trouble_status; /* tb_status */
    struct tb__a64 trouble_text[TB__TROUBLE_WORDS];
};
_Static_assert(sizeof(struct tb__counters_shm) == TB__COUNTERS_BYTES, "counters size");

/* The words of a mapped segment, found once after its head has been checked. */
struct tb__segment {
    uint8_t *base;        /* NULL when not mapped */
    struct tb__a64 *head; /* generation of the newest frame, 0: none */
    struct tb__a64 *gens; /* generation of slot s at gens + s */
    struct tb__record_shm *records;
    struct tb__counters_shm *counters;
    uint8_t *data; /* slot s at data + s * view.slot_stride */
    struct tb__doradma_view view;
    void *slots_map; /* of another descriptor, with adopted slots; or NULL */
    uint64_t slots_map_bytes;
};

static inline void tb__segment_bind(struct tb__segment *segment)
{
    const struct tb__doradma_view *view = &segment->view;
    segment->head = (struct tb__a64 *)(segment->base + view->gens_offset);
    segment->gens = (struct tb__a64 *)(segment->base + tb__doradma_gen_offset(
                                                           view->slot_count, view->gens_offset, 0));
    segment->records = (struct tb__record_shm *)(segment->base + view->records_offset);
    segment->counters = (struct tb__counters_shm *)(segment->base + view->counters_offset);
    segment->data = segment->base + view->data_offset;
}

/* The whole pages that host slots lie on. */
static inline uint8_t *tb__segment_pages(const struct tb__segment *segment, uint64_t *bytes)
{
    const struct tb__doradma_view *view = &segment->view;
    uint64_t skip = (uint64_t)(uintptr_t)segment->data % TB__SEGMENT_PAGE;
    uint64_t used = view->flags & TB__GEOMETRY_ADOPTED
                        ? view->slot_stride * (view->slot_count - 1) + view->slot_bytes
                        : view->slot_stride * view->slot_count;
    *bytes = (skip + used + TB__SEGMENT_PAGE - 1) / TB__SEGMENT_PAGE * TB__SEGMENT_PAGE;
    return segment->data - skip;
}

static inline uint8_t *tb__segment_slot(const struct tb__segment *segment, uint32_t slot)
{
    return segment->data + (uint64_t)slot * segment->view.slot_stride;
}

#endif

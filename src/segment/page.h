/* The page: a memfd of 4096 bytes shared by one reader (or subscriber) and the owner (or sender)
 * alone. It holds everything that either side says to the other without a system call.
 *
 * Life: the owner creates it, links it where its publishers look, sends its descriptor, and seals
 * it against further writable mappings once the reader has mapped it. Either side may vanish at any
 * instruction; what it leaves in the page is void once its life word is marked.
 *
 * The mapping has a private page in front of the shared one. The nodes of the kernel's robust list
 * lie there, at the same offset as their life words, so the peer cannot touch the list. */
#ifndef TB_SEGMENT_PAGE_H
#define TB_SEGMENT_PAGE_H

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "segment/atomics.h"

#define TB__PAGE_BYTES 4096
#define TB__NEAR_ENTRIES 4
#define TB__MAX_ENTRIES 64

/* What the owner says to the reader about its end. */
enum tb__page_state {
    TB__PAGE_OPEN = 0,
    TB__PAGE_FREED = 1,   /* the pool was freed */
    TB__PAGE_GOODBYE = 2, /* the owner closed its bus (or the sender its output) */
};

struct tb__page_shm {
    /* Line 0: written by the reader; the owner looks when it claims a slot. */
    struct tb__a64 entries[TB__NEAR_ENTRIES]; /* 0 or the generation of a held frame */
    struct tb__a64 taken; /* generation (stream: sequence) up to which the reader has taken */
    struct tb__a64 acked; /* generation up to which the reader has acknowledged */
    struct tb__a32 entries_used; /* entries from this index on were never used: not scanned */
    uint8_t pad0[12];            /* written 0 */
    /* Line 1: written by the reader; the owner looks when it publishes. Apart from line 0, so that
     * a look at the flag does not take away the line in which the reader is leasing just then. */
    struct tb__a32 armed;       /* TB__ARMED_*: reader sets, the owner clears when it wakes it */
    uint32_t pad1;              /* written 0 */
    struct tb__a32 reader_life; /* service thread of the reader's process; marked by the kernel */
    uint8_t pad2[52];           /* written 0 */
    /* Line 2: written by the owner. */
    struct tb__a32 owner_life; /* service thread of the owner's process; marked by the kernel */
    uint32_t pad3;             /* written 0 */
    struct tb__a32 waiting;    /* owner: somebody waits for a slot, an acknowledgement or room */
    struct tb__a32 state;      /* enum tb__page_state */
    uint8_t pad4[48];          /* written 0 */
    /* Line 3: counters of the reader, for tools. */
    struct tb__a64 frames;     /* returned to the user */
    struct tb__a64 missed;     /* overwritten before the reader came to them */
    struct tb__a64 stale;      /* handles that came too late */
    struct tb__a64 waits;      /* calls that slept */
    struct tb__a64 incomplete; /* frames that a GPU had not finished when they were released */
    uint8_t pad5[24];          /* written 0 */
    /* Lines 4 to 11: entries beyond the near ones, for readers with max_leases above 4. */
    struct tb__a64 far_entries[TB__MAX_ENTRIES - TB__NEAR_ENTRIES];
    uint8_t pad6[32]; /* written 0 */
};
_Static_assert(__builtin_offsetof(struct tb__page_shm, taken) == 32, "page: taken");
_Static_assert(__builtin_offsetof(struct tb__page_shm, acked) == 40, "page: acked");
_Static_assert(__builtin_offsetof(struct tb__page_shm, entries_used) == 48, "page: entries_used");
_Static_assert(__builtin_offsetof(struct tb__page_shm, armed) == 64, "page: armed");
_Static_assert(__builtin_offsetof(struct tb__page_shm, reader_life) == 72, "page: reader_life");
_Static_assert(__builtin_offsetof(struct tb__page_shm, owner_life) == 128, "page: owner_life");
_Static_assert(__builtin_offsetof(struct tb__page_shm, waiting) == 136, "page: waiting");
_Static_assert(__builtin_offsetof(struct tb__page_shm, state) == 140, "page: state");
_Static_assert(__builtin_offsetof(struct tb__page_shm, frames) == 192, "page: frames");
_Static_assert(__builtin_offsetof(struct tb__page_shm, far_entries) == 256, "page: far entries");
_Static_assert(sizeof(struct tb__page_shm) == 768, "page: 12 lines");

/* The struct does not begin at the page's first byte in every page: pages would then compete for
 * the same few sets of the owner's cache, which scans them all. The owner chooses a shift by the
 * reader's number; both sides use it. */
#define TB__PAGE_SHIFTS 53
static inline uint32_t tb__page_shift(uint64_t number)
{
    return (uint32_t)(number % TB__PAGE_SHIFTS) * 64;
}
_Static_assert((TB__PAGE_SHIFTS - 1) * 64 + sizeof(struct tb__page_shm) <= TB__PAGE_BYTES,
               "a shifted page fits");

#define TB__ARMED_SLEEP 1u /* a thread of the reader sleeps on its doorbell */
#define TB__ARMED_POKE 2u  /* the reader wants a byte on its wake-up descriptor */

static inline struct tb__a64 *tb__page_entry(struct tb__page_shm *page, uint32_t index)
{
    return index < TB__NEAR_ENTRIES ? &page->entries[index]
                                    : &page->far_entries[index - TB__NEAR_ENTRIES];
}

/* One mapping of a page. */
struct tb__page_map {
    uint8_t *base;            /* the private page; NULL when not mapped */
    struct tb__page_shm *shm; /* in the shared page: base + TB__PAGE_BYTES + shift */
};

/* Create a page's memfd, size-sealed, and map it; shift as of tb__page_shift() or 0. */
tb_status tb__page_create(struct tb__page_map *map, uint32_t shift, int *out_take_fd);

/* Map a page that a peer sent, after checking the descriptor. */
tb_status tb__page_map(struct tb__page_map *map, uint32_t shift, int borrow_fd);

/* Forbid any further writable mapping, change of seals, or hole. */
tb_status tb__page_seal(int borrow_fd);

void tb__page_unmap(struct tb__page_map *map);

/* A life word: the id of the thread that lives, with the futex bit that makes the kernel wake a
 * sleeper at its end; OWNER_DIED once the kernel has marked it. 0: not attached yet, or gone in
 * good order. */
#define TB__LIFE_WAITERS 0x80000000u
#define TB__LIFE_DIED 0x40000000u

static inline int tb__life_died(uint32_t word)
{
    return (word & TB__LIFE_DIED) != 0;
}

/* After a mark, siblings of the dead thread may still run for a moment: act only after this long.
 */
#define TB__DEATH_SETTLE_NS INT64_C(10000000)

#endif

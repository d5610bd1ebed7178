/* The lease protocol: hazard pointers across processes.
 *
 * Each slot has a generation: even and not 0, a complete frame; odd with the highest bit clear,
 * being written; odd with the highest bit set, *claimed*: the owner is about to take the frame away
 * and looks once more whether somebody leased it; 0, never written.
 *
 * Reader: see g; store g in a free entry of its page; see g again: leased. While it sees the
 * claimed mark of g it waits with the entry in place; anything else is stale, and it clears the
 * entry.
 *
 * Owner: mark the slot claimed; load the list of readers; see g in no entry: the slot is its own.
 * Else it puts g back. Where it found g leased before, it looks before it marks, too.
 *
 * Both sides store before they look (sequentially consistent), so at least one sees the other. A
 * second hold of a frame also looks again: the owner's look at the entries is not one moment, and a
 * lease that moved from an entry not yet looked at to one already passed would be missed.
 * tests/model proves it, with every rule's removal caught. */
#ifndef TB_SEGMENT_LEASE_H
#define TB_SEGMENT_LEASE_H

#include "segment/atomics.h"
#include "segment/page.h"

#define TB__GEN_TOP (UINT64_C(1) << 63)

/* The generation after g: 0 is skipped when the counter wraps. */
static inline uint64_t tb__gen_next(uint64_t g)
{
    return g + 2 != 0 ? g + 2 : 2;
}

static inline uint64_t tb__gen_claimed(uint64_t g)
{
    return g | 1 | TB__GEN_TOP;
}

/* Mark of a write that will follow `head`. */
static inline uint64_t tb__gen_writing(uint64_t head)
{
    return (head + 1) & ~TB__GEN_TOP;
}

static inline int tb__gen_is_claimed(uint64_t word)
{
    return (word & 1) != 0 && (word & TB__GEN_TOP) != 0;
}

static inline int tb__gen_is_frame(uint64_t word)
{
    return (word & 1) == 0 && word != 0;
}

/* Frames from a (exclusive) to b. Generations lie less than half the counter apart. */
static inline int64_t tb__gen_distance(uint64_t a, uint64_t b)
{
    return (int64_t)(b - a) / 2;
}

/* The frame that a slot's word stands for and that lies in (after, head]; 0 if none. A claimed
 * frame is one: it may yet be put back. Its highest bit was lost in the mark, so both are tried. */
static inline uint64_t tb__gen_in_window(uint64_t word, uint64_t after, uint64_t head)
{
    uint64_t g = word & ~UINT64_C(1);
    if (!tb__gen_is_frame(word) && !tb__gen_is_claimed(word)) {
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        if (g != 0 && tb__gen_distance(after, g) > 0 && tb__gen_distance(g, head) >= 0) {
            return g;
        }
        if (!tb__gen_is_claimed(word)) {
            return 0;
        }
        g ^= TB__GEN_TOP;
    }
    return 0;
}

enum tb__lease_result {
    TB__LEASE_HELD,
    TB__LEASE_STALE,
    TB__LEASE_CLAIMED, /* look again in a moment; the entry stays, so the owner's next look sees it
                        */
};

/* Reader: look whether generation g, stored in the caller's entry, is leased. With the owner dead
 * for good (`owner_gone`) a claimed frame was not touched and never will be: it is leased, too. */
static inline enum tb__lease_result tb__lease_look(const struct tb__a64 *gen, uint64_t g,
                                                   int owner_gone)
{
    /* seq_cst: after the entry was stored; pairs with the owner's mark and second look. */
    uint64_t seen = tb__a64_load_seq(gen);
    if (seen == g || (owner_gone && seen == tb__gen_claimed(g))) {
        return TB__LEASE_HELD;
    }
    return seen == tb__gen_claimed(g) ? TB__LEASE_CLAIMED : TB__LEASE_STALE;
}

/* Reader: begin to lease generation g of the slot whose word is `gen`, in `entry`, which is the
 * caller's and reads 0. After CLAIMED the caller looks again until it is decided; after STALE the
 * entry must be cleared, and a waiting owner rung. */
static inline enum tb__lease_result tb__lease_try(const struct tb__a64 *gen, struct tb__a64 *entry,
                                                  uint64_t g)
{
    /* Pairs with the owner's release store at publish: the payload of g is visible. */
    uint64_t seen = tb__a64_load_acquire(gen);
    if (seen != g && seen != tb__gen_claimed(g)) {
        return TB__LEASE_STALE;
    }
    /* seq_cst: store the claim before looking again. */
    tb__a64_store_seq(entry, g);
    return tb__lease_look(gen, g, 0);
}

/* The same for a reader that orders itself on a GPU: it may also lease a frame that is pending, see
 * slot.h. The owner says that g is pending before anyone is told of g; when the GPU has finished it
 * writes g into the slot's word and then takes `pending` back; only then may it mark the slot
 * claimed. So who sees g pending with its entry in place has stored the entry before the mark. */
static inline enum tb__lease_result tb__lease_look_pending(const struct tb__a64 *pending,
                                                           const struct tb__a64 *gen, uint64_t g,
                                                           int owner_gone)
{
    /* seq_cst: after the entry was stored, and before the look at the slot's word; pairs with the
     * owner's store when it takes `pending` back. */
    return tb__a64_load_seq(pending) == g ? TB__LEASE_HELD : tb__lease_look(gen, g, owner_gone);
}

static inline enum tb__lease_result tb__lease_try_pending(const struct tb__a64 *pending,
                                                          const struct tb__a64 *gen,
                                                          struct tb__a64 *entry, uint64_t g)
{
    /* Pairs with the owner's release store of `pending`: the record of g is visible. */
    if (tb__a64_load_acquire(pending) != g) {
        return tb__lease_try(gen, entry, g);
    }
    /* seq_cst: store the claim before looking again. */
    tb__a64_store_seq(entry, g);
    return tb__lease_look_pending(pending, gen, g, 0);
}

/* Reader: note that entries up to `index` may be in use, before the first is. */
static inline void tb__lease_note_entry(struct tb__page_shm *page, uint32_t index)
{
    uint32_t used = tb__a32_load_relaxed(&page->entries_used);
    while (used <= index && !tb__a32_cas(&page->entries_used, &used, index + 1)) {
    }
}

/* Owner: whether an entry of the page holds g. Scans the near line, and far entries as far as the
 * reader ever used them; what a reader claims about that hurts only itself. */
static inline int tb__lease_page_holds(const struct tb__page_shm *page, uint64_t g)
{
    /* seq_cst loads: they come after the mark; plain loads on x86. */
    uint64_t a = tb__a64_load_seq(&page->entries[0]);
    uint64_t b = tb__a64_load_seq(&page->entries[1]);
    uint64_t c = tb__a64_load_seq(&page->entries[2]);
    uint64_t d = tb__a64_load_seq(&page->entries[3]);
    uint32_t used = tb__a32_load_seq(&page->entries_used);
    /* An idle reader holds nothing and never used a far entry ((used + 3) & ~7 is 0 up to 4): one
     * branch, because a thousand of them are looked at for each publish. */
    if (__builtin_expect((a | b | c | d | ((used + 3) & ~7u)) == 0, 1)) {
        return 0;
    }
    int held = a == g || b == g || c == g || d == g;
    used = used < TB__MAX_ENTRIES ? used : TB__MAX_ENTRIES;
    for (uint32_t i = TB__NEAR_ENTRIES; i < used; i++) {
        held |= tb__a64_load_seq(&page->far_entries[i - TB__NEAR_ENTRIES]) == g;
    }
    return held;
}

#endif

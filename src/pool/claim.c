/* Claiming a slot to write into: the owner's side of the lease protocol, the policies, and waiting.
 * Runs on writers' threads, several at once. */
#define TB_LOG_TOPIC "pool"
#include "pool/claim.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/slack.h"
#include "pool/order.h"

int tb__attached_void(struct tb__attached *who, int64_t now_ns)
{
    /* Pairs with the release store in tb__detach(). */
    if (tb__a32_load_acquire(&who->gone)) {
        return 1;
    }
    /* Pairs with the kernel's mark, or with tb_reader_close(). */
    if (!tb__life_died(tb__a32_load_acquire(&who->map.shm->reader_life))) {
        return 0;
    }
    uint64_t since = 0;
    if (tb__a64_cas(&who->dead_since_ns, &since, (uint64_t)now_ns)) {
        return 0;
    }
    /* Sibling threads of the dead one may still read for a moment. */
    return now_ns - (int64_t)since >= TB__DEATH_SETTLE_NS;
}

static int page_holds(const struct tb__page_ref *ref, uint64_t g)
{
    return tb__lease_page_holds(ref->shm, g) && !tb__attached_void(ref->who, tb__now_ns());
}

static int anybody_holds(const struct tb__page_set *set, uint64_t g)
{
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        if (__builtin_expect(tb__lease_page_holds(set->refs[i].shm, g), 0) &&
            page_holds(&set->refs[i], g)) {
            return 1;
        }
    }
    return 0;
}

/* TB_EVERY: whether all who want every frame have taken g. */
static int everybody_took(const struct tb__page_set *set, uint64_t g)
{
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        const struct tb__page_ref *ref = &set->refs[i];
        /* Pairs with the exchange of `taken`: the reader's lease was in place before it. */
        if (ref->who->every && tb__gen_distance(g, tb__a64_load_acquire(&ref->shm->taken)) < 0 &&
            !tb__attached_void(ref->who, tb__now_ns())) {
            return 0;
        }
    }
    return 1;
}

static int somebody_missed(const struct tb__page_set *set, uint64_t g)
{
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        if (tb__gen_distance(g, tb__a64_load_relaxed(&set->refs[i].shm->taken)) < 0 &&
            set->refs[i].who->in_order) {
            return 1;
        }
    }
    return 0;
}

/* Whether a writer has the slot. Who passes over one that is being tried says so, so that a writer
 * that gives it up wakes it; the end of a loan rings by itself. */
static int is_taken(tb_pool *pool, uint32_t slot)
{
    uint32_t active = tb__a32_load_relaxed(&pool->loans[slot].active);
    if (active != TB__LOAN_TRIED) {
        return active != TB__LOAN_NONE;
    }
    /* seq_cst: say so before looking again; pairs with give_up(). */
    tb__a32_store_seq(&pool->contended, 1);
    return tb__a32_load_seq(&pool->loans[slot].active) != TB__LOAN_NONE;
}

static void give_up(tb_pool *pool, uint32_t slot)
{
    tb__a32_store_seq(&pool->loans[slot].active, TB__LOAN_NONE);
    if (tb__a32_exchange(&pool->contended, 0) != 0 && atomic_load(&pool->waiters) != 0) {
        tb__bus_ring_self(pool->bus);
    }
}

/* The oldest slot that is idle, not tried yet, and not the newest unless the policy allows; -1:
 * none. *out_g is the generation that was judged. */
static int pick(tb_pool *pool, const struct tb__page_set *set, const uint64_t *tried,
                uint64_t *out_g)
{
    int best = -1;
    uint64_t best_age = 0;
    /* Pairs with the publisher's release store, of another writer. */
    uint64_t head = tb__a64_load_acquire(pool->segment.head);
    int newest_ok = pool->slots == 1 || (pool->every && set != NULL && set->every_count > 0);
    for (uint32_t s = 0; s < pool->slots; s++) {
        if ((tried[s / 64] >> (s % 64) & 1) != 0 || is_taken(pool, s)) {
            continue;
        }
        uint64_t g = tb__a64_load_relaxed(&pool->segment.gens[s]);
        uint64_t age;
        if (!tb__gen_is_frame(g)) {
            age = UINT64_MAX; /* never written, or a loan that was cancelled */
        } else if (tb__gen_distance(head, g) > 0 || (g == head && !newest_ok)) {
            continue; /* complete but not visible yet, or the newest */
        } else {
            age = head - g + 1;
        }
        if (best < 0 || age > best_age) {
            best = (int)s;
            best_age = age;
            *out_g = g;
        }
    }
    return best;
}

/* Whether the policy and the leases let frame g go. */
static int may_go(const tb_pool *pool, const struct tb__page_set *set, uint64_t g)
{
    return pool->live || (!(pool->every && !everybody_took(set, g)) && !anybody_holds(set, g));
}

/* Whether frame g keeps its slot for now, as far as can be told without disturbing anybody: a slot
 * that was found leased is looked at again before it is marked again, or even tried. */
static int is_kept(const tb_pool *pool, const struct tb__page_set *set, uint32_t slot, uint64_t g)
{
    return tb__gen_is_frame(g) &&
           ((pool->every && !everybody_took(set, g)) ||
            (tb__a64_load_relaxed(&pool->found_held[slot]) == g && anybody_holds(set, g)));
}

/* The protocol of lease.h for one slot, which this thread has made its own among writers and whose
 * generation g it has judged. */
static int take_away(tb_pool *pool, uint32_t slot, uint64_t g)
{
    struct tb__a64 *gen = &pool->segment.gens[slot];
    if (tb__a64_load_relaxed(gen) != g) {
        return 0; /* another writer used it meanwhile: it may be the newest now */
    }
    if (tb__gen_is_frame(g)) {
        /* seq_cst: mark before looking; pairs with the reader's entry and second look. */
        tb__a64_store_seq(gen, tb__gen_claimed(g));
        tb__fence_full();
        /* The list as it is now: a reader that joined since may have leased g before the mark, or
         * wants it. */
        const struct tb__page_set *set = atomic_load(&pool->pages);
        if (!may_go(pool, set, g)) {
            tb__a64_store_seq(gen, g);
            tb__a64_store_relaxed(&pool->found_held[slot], g);
            return 0;
        }
        if (somebody_missed(set, g)) {
            tb__a64_add_relaxed(&pool->segment.counters->overwrites, 1);
        }
    }
    /* Streams of readers may still have a frame that a GPU did not finish: it is not pending any
     * more, so nobody can lease it now, and no mark is needed. Pairs with complete(). */
    uint64_t given_up = tb__a64_load_acquire(&pool->given_up[slot]);
    if (__builtin_expect(given_up != 0, 0)) {
        tb__fence_full();
        if (anybody_holds(atomic_load(&pool->pages), given_up)) {
            return 0;
        }
        tb__a64_store_relaxed(&pool->given_up[slot], 0);
    }
    tb__a64_store_relaxed(gen, tb__gen_writing(tb__a64_load_relaxed(pool->segment.head)));
    /* The payload is touched only after everybody can see that the frame is gone: a seqlock reader
     * relies on it. Pairs with its acquire fence. */
    tb__fence_full();
    return 1;
}

static int try_claim(tb_pool *pool, uint32_t waiting, uint32_t *out_slot)
{
    int streams = atomic_load_explicit(&pool->order, memory_order_acquire) != NULL;
    if (__builtin_expect(streams, 0) && tb__order_complete(pool) &&
        atomic_load(&pool->waiters) > waiting) {
        tb__bus_ring_self(pool->bus); /* for other threads: this one is looking */
    }
    const struct tb__page_set *set = tb__pages_enter(pool);
    uint64_t tried[TB_MAX_SLOTS / 64] = {0};
    int found = 0;
    int ready = tb__a64_load_relaxed(&pool->reserved) != 0 || pool->wait_readers == 0 ||
                (set != NULL && set->every_count >= pool->wait_readers);
    while (ready && !found) {
        uint64_t g = 0;
        int slot = pick(pool, set, tried, &g);
        if (slot < 0) {
            break;
        }
        if (is_kept(pool, set, (uint32_t)slot, g)) {
            tried[slot / 64] |= UINT64_C(1) << (slot % 64);
            continue;
        }
        uint32_t idle = TB__LOAN_NONE;
        if (!tb__a32_cas(&pool->loans[slot].active, &idle, TB__LOAN_TRIED)) {
            continue; /* another writer was faster: look at the slots anew */
        }
        if (take_away(pool, (uint32_t)slot, g)) {
            tb__a32_store_relaxed(&pool->loans[slot].active, TB__LOAN_GIVEN);
            *out_slot = (uint32_t)slot;
            found = 1;
        } else {
            /* A slot that changed under our eyes is judged anew. */
            if (tb__a64_load_relaxed(&pool->segment.gens[slot]) == g) {
                tried[slot / 64] |= UINT64_C(1) << (slot % 64);
            }
            give_up(pool, (uint32_t)slot);
        }
    }
    tb__pages_leave(pool);
    if (__builtin_expect(streams && found, 0)) {
        tb__a32_add_relaxed(&pool->stream_claims, 1);
    }
    return found;
}

/* ---- waiting ---- */

/* Streams that give a frame back, or finish one, ring nobody: a writer looks again after a while.
 * How long follows what it finds: too short is many looks, too long lets the GPU run out of work.
 * When most slots have come free meanwhile, it was too long; when few, too short. */
#define STREAM_MIN_NS INT64_C(5000)
#define STREAM_MAX_NS INT64_C(200000)

static int64_t stream_slice(tb_pool *pool)
{
    uint32_t claimed = tb__a32_exchange(&pool->stream_claims, 0);
    int64_t slice_ns = (int64_t)tb__a64_load_relaxed(&pool->stream_slice_ns);
    if (claimed + 1 >= pool->slots) {
        slice_ns /= 2;
    } else if (claimed * 2 < pool->slots) {
        slice_ns *= 2;
    }
    slice_ns = slice_ns < STREAM_MIN_NS ? STREAM_MIN_NS : slice_ns;
    slice_ns = slice_ns > STREAM_MAX_NS ? STREAM_MAX_NS : slice_ns;
    tb__a64_store_relaxed(&pool->stream_slice_ns, (uint64_t)slice_ns);
    return slice_ns;
}

static void sleep_for_stream(tb_pool *pool, uint32_t seen, int64_t deadline_ns)
{
    unsigned long slack = tb__slack_begin();
    tb__bus_sleep(pool->bus, seen, NULL, 0, deadline_ns);
    tb__slack_end(slack);
}

/* Ask readers to ring, or no more. Not those that order themselves on a GPU: their frames come back
 * when their streams are done, which rings nobody, and a ring at each taking would wake in vain. */
static void set_flags(tb_pool *pool, uint32_t waiting)
{
    const struct tb__page_set *set = tb__pages_enter(pool);
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        if (set->gated_count == 0 || set->refs[i].who->gates == NULL) {
            tb__a32_store_seq(&set->refs[i].shm->waiting, waiting);
        }
    }
    tb__pages_leave(pool);
}

void tb__wait_begin(tb_pool *pool)
{
    atomic_fetch_add(&pool->waiters, 1);
    set_flags(pool, 1);
    /* Pairs with the reader's sequentially consistent store of an entry before it reads the flag.
     */
    tb__fence_full();
}

void tb__wait_end(tb_pool *pool)
{
    if (atomic_fetch_sub(&pool->waiters, 1) != 1) {
        return;
    }
    set_flags(pool, 0);
    tb__fence_full();
    if (atomic_load(&pool->waiters) != 0) {
        /* Another thread began to wait meanwhile: its flags must stand. */
        set_flags(pool, 1);
        /* Whoever gave something back while the flags were down did not ring. */
        tb__bus_ring_self(pool->bus);
    }
}

void tb__wait_sleep(tb_pool *pool, uint32_t seen, int64_t deadline_ns)
{
    struct tb__life_watch lives[TB__MAX_LIVES];
    uint32_t count = 0;
    int64_t until = deadline_ns;
    int64_t now = tb__now_ns();
    const struct tb__page_set *set = tb__pages_enter(pool);
    /* A stream that gives a frame back, or finishes one, rings nobody. */
    int streams = (set != NULL && set->gated_count > 0) || atomic_load(&pool->order) != NULL;
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        struct tb__attached *who = set->refs[i].who;
        uint32_t life = tb__a32_load_acquire(&who->map.shm->reader_life);
        /* Notes the time of death: a look at slots ends at the first reader in the way, and all who
         * died together shall settle together. */
        tb__attached_void(who, now);
        uint64_t since = tb__a64_load_relaxed(&who->dead_since_ns);
        if (tb__life_died(life)) {
            int64_t settled = (since != 0 ? (int64_t)since : now) + TB__DEATH_SETTLE_NS;
            until = settled > now && settled < until ? settled : until;
        } else if (life != 0 && count < TB__MAX_LIVES) {
            lives[count++] = (struct tb__life_watch){&who->map.shm->reader_life, life};
        } else if (life != 0) {
            /* More than the kernel watches at once: look at the others now and then. */
            until = now + TB__UNWATCHED_NS < until ? now + TB__UNWATCHED_NS : until;
        }
    }
    tb__pages_leave(pool);
    if (streams) {
        int64_t soon = now + stream_slice(pool);
        sleep_for_stream(pool, seen, soon < until ? soon : until);
        return;
    }
    /* Not counted while asleep, or pages that are detached meanwhile could not be unmapped. Only
     * the kernel looks at the words from here on: one that is gone makes it return, and no more. */
    tb__bus_sleep(pool->bus, seen, lives, count, until);
}

static tb_status wait_for_slot(tb_pool *pool, int64_t timeout_ns, uint32_t *out_slot)
{
    int64_t deadline = tb__deadline_ns(timeout_ns);
    tb_status status = TB_OK;
    tb__wait_begin(pool);
    tb__a64_add_relaxed(&pool->segment.counters->waits, 1);
    for (;;) {
        uint32_t seen = tb__bus_bell(pool->bus);
        if (atomic_load(&pool->freed)) {
            status = tb__pool_fail_freed(pool);
            break;
        }
        if (try_claim(pool, 1, out_slot)) {
            break;
        }
        if (tb__holders_only_self(pool)) {
            status = TB_E_DEADLOCK;
            break;
        }
        if (tb__left_ns(deadline) == 0) {
            status = TB_AGAIN;
            break;
        }
        tb__wait_sleep(pool, seen, deadline);
    }
    tb__wait_end(pool);
    tb__bus_lock(pool->bus);
    tb__attached_reclaim(pool); /* what was detached while this thread slept */
    tb__bus_unlock(pool->bus);
    return status;
}

tb_status tb__claim(tb_pool *pool, int64_t timeout_ns, uint32_t *out_slot)
{
    if (__builtin_expect(try_claim(pool, 0, out_slot), 1)) {
        return TB_OK;
    }
    tb_status status = timeout_ns == 0 ? TB_AGAIN : wait_for_slot(pool, timeout_ns, out_slot);
    if (status == TB_AGAIN) {
        tb__a64_add_relaxed(&pool->segment.counters->drops, 1);
        tb__holders_fail(pool);
    }
    return status;
}

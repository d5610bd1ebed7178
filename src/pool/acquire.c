/* Leasing frames: next in order, newest. Readers' threads, several at once. No system call, lock or
 * allocation unless the caller has to wait. */
#include <sched.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "base/slack.h"
#include "pool/gate.h"
#include "pool/wake.h"

/* An owner that decides about a frame does so in nanoseconds, when it runs. Who asks for the next
 * frame asks again; who asks for one by its handle is told that it is gone. */
#define CLAIM_PATIENCE_NS INT64_C(20000000)
#define STREAM_PAUSE_NS 30000

/* A reader that orders itself on a GPU is given frames that are not finished, one soon after the
 * other. */
#define BRISK_SPIN_NS INT64_C(10000) /* before it sleeps: about what sleeping and waking costs */
#define BRISK_SOON_NS INT64_C(7000)  /* ... of which the driver takes some, behind the stamp */
#define BRISK_MOST 3

/* ---- frames of a reader ---- */

tb_frame *tb__frame_reserve(tb_reader *reader)
{
    for (uint32_t i = 0; i < reader->max_leases; i++) {
        tb_frame *frame = &reader->frames[i];
        uint32_t use = tb__a32_load_relaxed(&frame->busy);
        /* A stream that releases a frame clears the entry when it is done. Acquire: pairs with its
         * write. */
        if (__builtin_expect(use == TB__FRAME_HELD, 0) ||
            (__builtin_expect(use == TB__FRAME_ON_STREAM, 0) &&
             tb__a64_load_acquire(tb__page_entry(reader->page.shm, i)) != 0)) {
            continue;
        }
        /* Pairs with the release store in tb__frame_unreserve(). */
        if (tb__a32_cas(&frame->busy, &use, TB__FRAME_HELD)) {
            if (__builtin_expect(use == TB__FRAME_ON_STREAM, 0)) {
                tb__frame_passed(frame);
            }
            tb__a32_store_relaxed(&frame->thread, tb__thread_id());
            if (__builtin_expect(i >= TB__NEAR_ENTRIES, 0)) {
                tb__lease_note_entry(reader->page.shm, i);
            }
            return frame;
        }
    }
    return NULL;
}

void tb__frame_unreserve(tb_frame *frame)
{
    /* The entry reads 0 already: it may be used again. Pairs with the exchange in
     * tb__frame_reserve(). */
    tb__a32_store_release(&frame->busy, TB__FRAME_IDLE);
}

tb_status tb__reader_fail_busy(const tb_reader *reader)
{
    return TB__FAIL(TB_E_BUSY,
                    "pool `%s`: this reader holds %u frames, all that it may: release one or open "
                    "it with a larger max_leases",
                    reader->name, reader->max_leases);
}

/* Give up a lease that was taken too late. */
static void drop_lease(tb_frame *frame)
{
    tb_reader *reader = frame->reader;
    /* seq_cst: before the look at the waiting flag; pairs with the owner's fence. */
    tb__a64_store_seq(tb__page_entry(reader->page.shm, frame->index), 0);
    tb__reader_ring_owner(reader);
}

static void yield_or_sleep(unsigned spins)
{
    struct timespec pause = {.tv_nsec = 100000};
    if (spins < 1000) {
        sched_yield();
    } else {
        nanosleep(&pause, NULL);
    }
}

/* Lease g in slot s for a reserved frame. Waits out a claimed mark with the entry in place: the
 * owner decides within its next instructions, or is dead, or is not running right now. CLAIMED when
 * it has not decided for `patience_ns`: it is stopped, or means no good. Unless HELD, the entry
 * reads 0 again.
 */
enum tb__lease_result tb__frame_lease(tb_frame *frame, uint32_t slot, uint64_t g,
                                      int64_t patience_ns)
{
    tb_reader *reader = frame->reader;
    const struct tb__a64 *gen = &reader->segment.gens[slot];
    const struct tb__a64 *pending = &reader->segment.records[slot].pending;
    struct tb__a64 *entry = tb__page_entry(reader->page.shm, frame->index);
    enum tb__lease_result result = __builtin_expect(reader->gates == NULL, 1)
                                       ? tb__lease_try(gen, entry, g)
                                       : tb__lease_try_pending(pending, gen, entry, g);
    int64_t until_ns = 0;
    for (unsigned spins = 0; result == TB__LEASE_CLAIMED; spins++) {
        int owner_gone = 0;
        if (spins < 200) {
            tb__pause();
        } else {
            int64_t now_ns = tb__now_ns();
            until_ns = until_ns != 0 ? until_ns : now_ns + patience_ns;
            if (now_ns >= until_ns) {
                break;
            }
            owner_gone = tb__reader_owner_gone(reader);
            yield_or_sleep(spins);
        }
        /* A claimed frame is pending no more. */
        result = tb__lease_look(gen, g, owner_gone);
    }
    if (result != TB__LEASE_HELD) {
        drop_lease(frame); /* the owner may have seen the entry and gone to sleep over it */
    }
    return result;
}

/* ---- choosing ---- */

/* The frame to return: the oldest after the cursor, or the newest. 0: none to be seen. */
static uint64_t choose(const tb_reader *reader, uint64_t cursor, uint64_t head, int newest,
                       uint32_t *out_slot)
{
    uint64_t best = 0;
    for (uint32_t s = 0; s < reader->segment.view.slot_count; s++) {
        uint64_t g = tb__gen_in_window(tb__reader_word(reader, s), cursor, head);
        if (g == 0 || (newest && g != head)) {
            continue;
        }
        if (best == 0 || tb__gen_distance(g, best) > 0) {
            best = g;
            *out_slot = s;
        }
    }
    return best;
}

static void count_taken(tb_reader *reader, uint64_t missed)
{
    struct tb__page_shm *page = reader->page.shm;
    tb__a64_store_relaxed(&page->frames, tb__a64_load_relaxed(&page->frames) + 1);
    if (__builtin_expect(missed != 0, 0)) {
        tb__a64_add_relaxed(&page->missed, missed);
    }
    tb__reader_ring_owner(reader);
}

/* One attempt. TB_AGAIN: nothing newer. */
static tb_status try_take(tb_reader *reader, int newest, tb_frame **out)
{
    struct tb__a64 *taken = &reader->page.shm->taken;
    uint64_t cursor = tb__a64_load_relaxed(taken);
    uint64_t head = tb__reader_newest(reader);
    if (head == cursor) {
        /* The owner has looked at our entries: a poller wants the line back before the next frame.
         */
        tb__prefetch_write(reader->page.shm);
        return TB_AGAIN;
    }
    tb_frame *frame = tb__frame_reserve(reader);
    if (frame == NULL) {
        return tb__reader_fail_busy(reader);
    }
    tb_status status = TB_AGAIN;
    /* Bounded: an owner that makes its words dance does not keep us here. */
    for (int attempts = 0; attempts < 1000; attempts++) {
        uint32_t slot = 0;
        uint64_t g = choose(reader, cursor, head, newest, &slot);
        enum tb__lease_result leased =
            g != 0 ? tb__frame_lease(frame, slot, g, CLAIM_PATIENCE_NS) : TB__LEASE_STALE;
        if (leased == TB__LEASE_CLAIMED) {
            break; /* the owner stands still */
        }
        if (leased == TB__LEASE_HELD) {
            /* With the lease in place, taking is what tells the owner that g may go afterwards. */
            if (tb__a64_cas(taken, &cursor, g)) {
                frame->slot = slot;
                frame->generation = g;
                /* Where the counter wraps, 0 is skipped and counts for nothing. */
                frame->missed = (uint64_t)tb__gen_distance(cursor, g) - 1 - (g < cursor);
                count_taken(reader, frame->missed);
                status = tb__frame_fill(frame);
                break;
            }
            drop_lease(frame); /* another thread of this reader took it; cursor is fresh now */
        } else {
            cursor = tb__a64_load_relaxed(taken);
        }
        uint64_t before = head;
        head = tb__reader_newest(reader);
        if (head == cursor || (g == 0 && head == before)) {
            break; /* nothing left, or the only slot is being written */
        }
    }
    if (status == TB_OK) {
        *out = frame;
        return TB_OK;
    }
    tb__frame_unreserve(frame);
    return status;
}

/* ---- waiting ---- */

/* Whether a look would find something else than "nothing new". A head without a frame does not
 * count: the only slot is being written, and who publishes it will ring. */
static int worth_looking(const tb_reader *reader, int newest)
{
    uint64_t taken = tb__a64_load_relaxed(&reader->page.shm->taken);
    uint64_t head = tb__reader_newest(reader);
    uint32_t slot;
    /* The acquire load pairs with the owner's release store in tb__pages_tell(). */
    return (head != taken && choose(reader, taken, head, newest, &slot) != 0) ||
           tb__a32_load_acquire(&reader->page.shm->state) != TB__PAGE_OPEN ||
           tb__lifeline_is_dead(reader->line);
}

/* Spinning is asked for by the reader, so it is done at full speed: no pause between looks. Returns
 * 1 as soon as there is something new, without another look at the clock. */
static int spin_until(tb_reader *reader, int64_t until_ns)
{
    const struct tb__page_shm *page = reader->page.shm;
    while (tb__now_ns() < until_ns) {
        for (int i = 0; i < 256; i++) {
            uint64_t taken = tb__a64_load_relaxed(&page->taken);
            if (tb__a64_load_relaxed(reader->segment.head) != taken ||
                (reader->gates != NULL && tb__reader_newest(reader) != taken)) {
                return 1;
            }
            if (i % 16 == 0) {
                /* The owner's look at our entries may have taken the line. */
                tb__prefetch_write(page);
            }
        }
        if (tb__reader_look(reader) != TB_OK) {
            return 1;
        }
    }
    return 0;
}

/* Who was rung for a frame that is not there yet: its writer is at the end of a copy, or busy with
 * a driver, and may want this very processor for that. */
static void look_for_news(const tb_reader *reader, int newest, int64_t deadline_ns)
{
    if (__builtin_expect(worth_looking(reader, newest), 1)) {
        return;
    }
    int64_t until_ns = tb__now_ns() + TB__RUNG_SPIN_NS;
    until_ns = until_ns < deadline_ns ? until_ns : deadline_ns;
    while (!worth_looking(reader, newest) && tb__now_ns() < until_ns) {
        for (int i = 0; i < 64 && !worth_looking(reader, newest); i++) {
            tb__pause();
        }
        sched_yield();
    }
}

/* Returns whether somebody has rung for this reader, or may have. */
static int sleep_for_news(tb_reader *reader, int newest, int64_t deadline_ns)
{
    struct tb__page_shm *page = reader->page.shm;
    uint32_t seen = tb__bus_bell(reader->bus);
    atomic_fetch_or(&page->armed.value, TB__ARMED_SLEEP);
    /* Full fence between arming and the last look; pairs with the publisher's. */
    tb__fence_full();
    uint32_t life = tb__a32_load_relaxed(&page->owner_life);
    if (!worth_looking(reader, newest) && !tb__life_died(life)) {
        struct tb__life_watch watch = {&page->owner_life, life};
        tb__a64_add_relaxed(&page->waits, 1);
        tb__bus_sleep(reader->bus, seen, &watch, 1, deadline_ns);
    }
    return (tb__a32_load_relaxed(&page->armed) & TB__ARMED_SLEEP) == 0;
}

/* How long to look for a frame before the first sleep. */
static int64_t first_spin_ns(const tb_reader *reader)
{
    int64_t brisk_ns =
        reader->gates != NULL && tb__a32_load_relaxed(&reader->brisk) > 0 ? BRISK_SPIN_NS : 0;
    return reader->spin_ns > brisk_ns ? reader->spin_ns : brisk_ns;
}

/* Learn from a frame that was waited for: came it so soon that looking for it was, or would have
 * been, cheaper than sleeping? A few that come late, as between bursts, are forgiven. The stamp is
 * the owner's; a wrong one costs such a look. */
static void learn_pace(tb_reader *reader, const tb_frame *frame, int64_t begun_ns)
{
    uint32_t brisk = tb__a32_load_relaxed(&reader->brisk);
    const struct tb__record_shm *record = &reader->segment.records[frame->slot];
    int soon = (int64_t)tb__a64_load_relaxed(&record->stamp_ns) < begun_ns + BRISK_SOON_NS;
    if (soon && brisk < BRISK_MOST) {
        tb__a32_store_relaxed(&reader->brisk, brisk + 1);
    } else if (!soon && brisk > 0) {
        tb__a32_store_relaxed(&reader->brisk, brisk - 1);
    }
}

/* Before a poll reports "nothing": empty the wake-up descriptor and arm it again. Returns 1 when
 * something came meanwhile. */
static int rearm_poke(tb_reader *reader, int newest)
{
    /* Pairs with the release store of the thread that made it. */
    int fd = atomic_load_explicit(&reader->poke_fd, memory_order_acquire);
    char scrap[64];
    if (fd < 0) {
        return 0;
    }
    while (recv(fd, scrap, sizeof scrap, MSG_DONTWAIT) > 0) {
    }
    atomic_fetch_or(&reader->page.shm->armed.value, TB__ARMED_POKE);
    /* Full fence between arming and the last look; pairs with the publisher's. */
    tb__fence_full();
    return worth_looking(reader, newest);
}

static int is_freed(const tb_reader *reader)
{
    /* Pairs with the release store in tb__pages_tell(). */
    return tb__a32_load_acquire(&reader->page.shm->state) == TB__PAGE_FREED;
}

/* A look that found nothing, with no time to wait. Frames that were published before the end come
 * first, so the end is looked at before the last look. */
static tb_status poll_again(tb_reader *reader, int newest, tb_frame **out)
{
    tb_status ended = tb__reader_look(reader);
    int news = ended != TB_OK || rearm_poke(reader, newest);
    if (__builtin_expect(!news, 1)) {
        return TB_AGAIN;
    }
    tb_status status = ended == TB_E_FREED ? TB_AGAIN : try_take(reader, newest, out);
    return status == TB_AGAIN && ended != TB_OK ? tb__reader_fail(reader, ended) : status;
}

static int streams_hold(const tb_reader *reader)
{
    for (uint32_t i = 0; i < reader->max_leases; i++) {
        if (tb__a32_load_relaxed(&reader->frames[i].busy) == TB__FRAME_ON_STREAM) {
            return 1;
        }
    }
    return 0;
}

/* All leases are in use, some by frames that streams will give back: nobody rings for that. */
static tb_status try_until_free(tb_reader *reader, int newest, int64_t deadline_ns, tb_frame **out)
{
    const struct timespec pause = {.tv_nsec = STREAM_PAUSE_NS};
    tb_status status = TB_E_BUSY;
    unsigned long slack = tb__slack_begin();
    while (status == TB_E_BUSY && streams_hold(reader) && tb__left_ns(deadline_ns) != 0) {
        nanosleep(&pause, NULL);
        status = try_take(reader, newest, out);
    }
    tb__slack_end(slack);
    return status;
}

static tb_status wait_and_take(tb_reader *reader, int newest, int64_t timeout_ns, tb_frame **out)
{
    int64_t deadline = tb__deadline_ns(timeout_ns);
    int64_t spin_ns = first_spin_ns(reader);
    int64_t begun_ns = spin_ns > 0 || reader->gates != NULL ? tb__now_ns() : 0;
    int64_t spin_end = spin_ns > 0 ? begun_ns + spin_ns : 0;
    for (;;) {
        if (spin_end != 0) {
            if (!spin_until(reader, spin_end < deadline ? spin_end : deadline)) {
                spin_end = 0;
            }
        } else if (sleep_for_news(reader, newest, deadline)) {
            look_for_news(reader, newest, deadline);
        }
        tb_status status =
            is_freed(reader) ? tb__reader_fail(reader, TB_E_FREED) : try_take(reader, newest, out);
        if (__builtin_expect(status == TB_E_BUSY, 0)) {
            status = try_until_free(reader, newest, deadline, out);
        }
        if (status == TB_AGAIN) {
            status = poll_again(reader, newest, out);
        }
        if (status == TB_OK && reader->gates != NULL) {
            learn_pace(reader, *out, begun_ns);
        }
        if (status != TB_AGAIN || tb__left_ns(deadline) == 0) {
            return status;
        }
    }
}

static tb_status take(tb_reader *reader, int newest, int64_t timeout_ns, tb_frame **out)
{
    TB__TRY(tb__reader_check(reader));
    /* Freed is freed, even if there are frames that this reader has not taken. */
    if (__builtin_expect(is_freed(reader), 0)) {
        return tb__reader_fail(reader, TB_E_FREED);
    }
    tb_status status = try_take(reader, newest, out);
    if (__builtin_expect(status == TB_E_BUSY && timeout_ns != 0, 0)) {
        status = try_until_free(reader, newest, tb__deadline_ns(timeout_ns), out);
    }
    if (__builtin_expect(status != TB_AGAIN, 1)) {
        return status;
    }
    status = poll_again(reader, newest, out);
    if (status != TB_AGAIN || timeout_ns == 0) {
        return status;
    }
    return wait_and_take(reader, newest, timeout_ns, out);
}

tb_status tb_reader_next(tb_reader *reader, int64_t timeout_ns, tb_frame **out)
{
    return take(reader, 0, timeout_ns, out);
}

tb_status tb_reader_newest(tb_reader *reader, int64_t timeout_ns, tb_frame **out)
{
    return take(reader, 1, timeout_ns, out);
}

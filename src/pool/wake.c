/* Waking readers. Runs on writers' threads and on the service thread. */
#include <sys/socket.h>

#include "pool/wake.h"

/* Ring a reader that armed itself for one of these kinds of wake-up. Returns system calls made. */
static uint32_t ring_one(const struct tb__page_ref *ref, uint32_t kinds)
{
    /* Taking the flag down makes one ring of one sleep. */
    uint32_t armed = atomic_fetch_and(&ref->shm->armed.value, ~kinds) & kinds;
    uint32_t calls = 0;
    if (armed & TB__ARMED_SLEEP) {
        calls += (uint32_t)tb__lifeline_ring(ref->who->line);
    }
    /* Pairs with the release store in serve_fd(). */
    int poke_fd = atomic_load_explicit(&ref->who->poke_fd, memory_order_acquire);
    if ((armed & TB__ARMED_POKE) && poke_fd >= 0) {
        /* Full means that it is readable already. */
        ssize_t ignored = send(poke_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)ignored;
        calls++;
    }
    return calls;
}

static void ring(tb_pool *pool, const struct tb__page_set *set, enum tb__wake_whom whom,
                 uint32_t kinds)
{
    if (set == NULL || (whom == TB__WAKE_GATED && set->gated_count == 0)) {
        return;
    }
    uint32_t calls = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        uint32_t armed = tb__a32_load_relaxed(&set->refs[i].shm->armed) & kinds;
        if (__builtin_expect(armed != 0, 0) &&
            (whom & (set->refs[i].who->gates == NULL ? TB__WAKE_UNGATED : TB__WAKE_GATED))) {
            calls += ring_one(&set->refs[i], kinds);
        }
    }
    if (calls != 0) {
        tb__a64_add_relaxed(&pool->segment.counters->wakeups, calls);
    }
}

void tb__wake_listed(tb_pool *pool, const struct tb__page_set *set, enum tb__wake_whom whom)
{
    ring(pool, set, whom, TB__ARMED_SLEEP | TB__ARMED_POKE);
}

void tb__wake(tb_pool *pool, enum tb__wake_whom whom)
{
    /* Pairs with the reader's fence between arming and its last look; also before the list is
     * loaded: a reader that joined and armed since is then on it. */
    tb__fence_full();
    tb__wake_listed(pool, tb__pages_enter(pool), whom);
    tb__pages_leave(pool);
}

void tb__wake_early(tb_pool *pool, enum tb__wake_whom whom)
{
    ring(pool, tb__pages_enter(pool), whom, TB__ARMED_SLEEP);
    tb__pages_leave(pool);
}

void tb__pages_tell(tb_pool *pool, enum tb__page_state state)
{
    const struct tb__page_set *set = tb__pages_enter(pool);
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        struct tb__a32 *word = &set->refs[i].shm->state;
        /* What was said first stands: a goodbye is not turned into a free by what follows it. */
        if (tb__a32_load_relaxed(word) == TB__PAGE_OPEN) {
            /* Pairs with the reader's acquire load: frames published before are seen first. */
            tb__a32_store_release(word, state);
        }
    }
    tb__pages_leave(pool);
    tb__wake(pool, TB__WAKE_ALL);
}

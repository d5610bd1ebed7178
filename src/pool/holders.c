/* Who holds what: the text of a failed loan, and the search for a thread that waits for itself.
 * Only on the slow path. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pool/claim.h"
#include "pool/state.h"

struct text {
    char *at;
    size_t left;
    int empty;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(text->at, text->left, format, arguments);
    va_end(arguments);
    size_t step = used < 0 ? 0 : (size_t)used < text->left ? (size_t)used : text->left - 1;
    text->at += step;
    text->left -= step;
    text->empty = 0;
}

/* One reader that is in the way, unless the text is full: then it is counted only. */
static void add_reader(struct text *text, const struct tb__page_ref *ref, uint32_t held,
                       int64_t behind, uint32_t *unnamed)
{
    char item[160];
    const char *name = tb__lifeline_peer_name(ref->who->line);
    int used = snprintf(item, sizeof item, "%s`%s` (pid %u)", text->empty ? "" : ", ",
                        name[0] != '\0' ? name : "?", tb__lifeline_peer_pid(ref->who->line));
    if (held > 0) {
        used += snprintf(item + used, sizeof item - (size_t)used, " holds %u", held);
    }
    if (behind > 0) {
        used += snprintf(item + used, sizeof item - (size_t)used, "%s has %lld to take",
                         held > 0 ? " and" : "", (long long)behind);
    }
    if ((size_t)used < text->left) {
        add(text, "%s", item);
    } else {
        ++*unnamed;
    }
}

tb_status tb__holders_fail(tb_pool *pool)
{
    char buffer[280] = ""; /* so that the way out stays within an error's text */
    struct text text = {buffer, sizeof buffer, 1};
    uint32_t loans = 0, in_the_way = 0, unnamed = 0;
    for (uint32_t s = 0; s < pool->slots; s++) {
        loans += tb__a32_load_relaxed(&pool->loans[s].active) != TB__LOAN_NONE;
    }
    if (loans > 0) {
        add(&text, "%u on loan", loans);
    }
    const struct tb__page_set *set = tb__pages_enter(pool);
    uint32_t every = set != NULL ? set->every_count : 0;
    uint64_t head = tb__a64_load_relaxed(pool->segment.head);
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        const struct tb__attached *who = set->refs[i].who;
        uint32_t held = tb__page_held(&set->refs[i]);
        int64_t behind =
            who->every ? tb__gen_distance(tb__a64_load_relaxed(&set->refs[i].shm->taken), head) : 0;
        if (held > 0 || behind > 0) {
            in_the_way++;
            add_reader(&text, &set->refs[i], held, behind, &unnamed);
        }
    }
    tb__pages_leave(pool);
    char more[32] = "";
    if (unnamed > 0) {
        snprintf(more, sizeof more, " and %u more", unnamed);
    }
    if (tb__a64_load_relaxed(&pool->reserved) == 0 && every < pool->wait_readers) {
        return TB__FAIL(TB_AGAIN,
                        "pool `%s`: %u of the %u readers that it waits for are attached: open them "
                        "with `every`, or lower wait_readers",
                        pool->name, every, pool->wait_readers);
    }
    return TB__FAIL(TB_AGAIN,
                    "pool `%s`: none of %u slots is free: %s%s; %s or register more slots",
                    pool->name, pool->slots, text.empty ? "writers hold them" : buffer, more,
                    in_the_way > 0 ? "release frames sooner" : "publish loans sooner");
}

/* Frames of this pool that the calling thread holds through readers of this process. */
static int self_holds(const tb_pool *pool, uint64_t g, uint32_t thread)
{
    for (const tb_reader *reader = pool->layer->readers; reader != NULL; reader = reader->next) {
        if (memcmp(reader->uid, pool->uid, sizeof reader->uid) != 0) {
            continue;
        }
        for (uint32_t i = 0; i < reader->max_leases; i++) {
            /* Pairs with the store of the entry, which comes after that of the thread. */
            if (tb__a64_load_acquire(tb__page_entry(reader->page.shm, i)) == g &&
                tb__a32_load_relaxed(&reader->frames[i].thread) == thread) {
                return 1;
            }
        }
    }
    return 0;
}

static uint32_t holders_of(tb_pool *pool, uint64_t g)
{
    uint32_t count = 0;
    const struct tb__page_set *set = tb__pages_enter(pool);
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        count += (uint32_t)tb__lease_page_holds(set->refs[i].shm, g);
    }
    tb__pages_leave(pool);
    return count;
}

/* Every slot that stands in the way is on loan to this thread or held by it, and by nobody else. */
int tb__holders_only_self(tb_pool *pool)
{
    uint32_t thread = tb__thread_id();
    uint64_t head = tb__a64_load_acquire(pool->segment.head);
    uint32_t own = 0;
    int only_self = 1;
    tb__bus_lock(pool->bus);
    for (uint32_t s = 0; s < pool->slots && only_self; s++) {
        uint64_t g = tb__a64_load_acquire(&pool->segment.gens[s]);
        if (tb__a32_load_acquire(&pool->loans[s].active) != TB__LOAN_NONE) {
            only_self = tb__a32_load_relaxed(&pool->loans[s].thread) == thread;
            own += (uint32_t)only_self;
        } else if (tb__gen_is_frame(g)) {
            uint32_t holders = holders_of(pool, g);
            if (holders > 0) {
                only_self = holders == 1 && self_holds(pool, g, thread);
                own += (uint32_t)only_self;
            } else if (g != head || pool->slots == 1 || pool->every) {
                only_self = 0; /* free, or a reader has yet to take it */
            }
        } else {
            only_self = 0;
        }
    }
    tb__bus_unlock(pool->bus);
    if (only_self && own > 0) {
        TB__FAIL(TB_E_DEADLOCK,
                 "pool `%s`: this thread waits for a slot while it holds all %u that stand in the "
                 "way: release a frame or publish a loan first",
                 pool->name, own);
        return 1;
    }
    return 0;
}

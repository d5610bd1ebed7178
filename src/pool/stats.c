/* Counters of a pool, for its owner and for tools. Any thread. */
#include "pool/trouble.h"

uint32_t tb__page_held(const struct tb__page_ref *ref)
{
    uint32_t held = 0;
    for (uint32_t e = 0; e < ref->who->max_leases; e++) {
        held += tb__a64_load_relaxed(tb__page_entry(ref->shm, e)) != 0;
    }
    return held;
}

tb_pool_stats tb__stats_read(const struct tb__segment *segment)
{
    const struct tb__counters_shm *counters = segment->counters;
    tb_pool_stats stats = {
        .size = sizeof(tb_pool_stats),
        .frames = tb__a64_load_relaxed(&counters->frames),
        .bytes = tb__a64_load_relaxed(&counters->bytes),
        .copies = tb__a64_load_relaxed(&counters->copies),
        .copied_bytes = tb__a64_load_relaxed(&counters->copied_bytes),
        .drops = tb__a64_load_relaxed(&counters->drops),
        .overwrites = tb__a64_load_relaxed(&counters->overwrites),
        .waits = tb__a64_load_relaxed(&counters->waits),
        .wakeups = tb__a64_load_relaxed(&counters->wakeups),
        .readers = (uint32_t)tb__a64_load_relaxed(&counters->readers),
        .slots = segment->view.slot_count,
        .freed = (uint32_t)tb__a64_load_relaxed(&counters->freed),
        .slot_bytes = segment->view.slot_bytes,
    };
    tb__trouble_read(segment, &stats);
    return stats;
}

/* A dead reader is attached until its memory is gone; it counts for nothing from its death on. */
static int is_alive(const struct tb__page_ref *ref)
{
    return !tb__life_died(tb__a32_load_acquire(&ref->shm->reader_life)) &&
           !tb__a32_load_acquire(&ref->who->gone);
}

tb_status tb_pool_get_stats(tb_pool *pool, tb_pool_stats *out)
{
    if (pool == NULL) {
        return TB__FAIL(TB_E_INVALID, "pool is NULL");
    }
    TB__TRY(tb__bus_check(pool->bus));
    tb_pool_stats stats = tb__stats_read(&pool->segment);
    stats.freed = (uint32_t)atomic_load(&pool->freed);
    /* The owner that opens its own handles is no reader of the pool, but holds what it holds. */
    stats.readers = 0;
    const struct tb__page_set *set = tb__pages_enter(pool);
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        const struct tb__page_ref *ref = &set->refs[i];
        if (is_alive(ref)) {
            stats.readers += !ref->who->own;
            stats.held += tb__page_held(ref);
        }
    }
    tb__pages_leave(pool);
    return TB__INFO(tb_pool_stats, out, &stats);
}

/* The line of the next reader from *index on; NULL: there are no more. */
static const struct tb__lifeline *next_reader(const struct tb__page_set *set, uint32_t *index)
{
    while (set != NULL && *index < set->count) {
        const struct tb__page_ref *ref = &set->refs[(*index)++];
        if (is_alive(ref) && !ref->who->own) {
            return ref->who->line;
        }
    }
    return NULL;
}

uint32_t tb__stats_readers(tb_pool *pool, struct tb__reader_name_wire *out, uint32_t room)
{
    uint32_t found = 0;
    const struct tb__page_set *set = tb__pages_enter(pool);
    const struct tb__lifeline *line;
    for (uint32_t i = 0; (line = next_reader(set, &i)) != NULL; found++) {
        if (found < room) {
            out[found] = (struct tb__reader_name_wire){.pid = tb__lifeline_peer_pid(line)};
            tb__name_copy(out[found].name, tb__lifeline_peer_name(line));
        }
    }
    tb__pages_leave(pool);
    return found;
}

tb_status tb_pool_get_readers(tb_pool *pool, char (*names)[65], uint32_t room, uint32_t *count)
{
    _Static_assert(sizeof names[0] == TB__NAME_SIZE, "a name");
    if (pool == NULL || count == NULL || (names == NULL && room > 0)) {
        return TB__FAIL(TB_E_INVALID, "%s is NULL",
                        pool == NULL    ? "pool"
                        : count == NULL ? "count"
                                        : "names");
    }
    TB__TRY(tb__bus_check(pool->bus));
    uint32_t found = 0;
    const struct tb__page_set *set = tb__pages_enter(pool);
    const struct tb__lifeline *line;
    for (uint32_t i = 0; (line = next_reader(set, &i)) != NULL; found++) {
        if (found < room) {
            tb__name_copy(names[found], tb__lifeline_peer_name(line));
        }
    }
    tb__pages_leave(pool);
    *count = found;
    return TB_OK;
}

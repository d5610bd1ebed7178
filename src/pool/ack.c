/* Acknowledgements: waiting until those who must have acknowledged a frame. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "pool/claim.h"
#include "pool/state.h"

/* Who has not acknowledged, as text; "" when all have. *hopeless: a named one is missing or dead.
 */
static void find_missing(tb_pool *pool, uint64_t g, char *text, size_t size, int *hopeless)
{
    size_t used = 0;
    *hopeless = 0;
    text[0] = '\0';
    int64_t now = tb__now_ns();
    const struct tb__page_set *set = tb__pages_enter(pool);
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        struct tb__attached *who = set->refs[i].who;
        /* Pairs with the exchange in tb_reader_ack(): the reader is done with what it acknowledges.
         */
        if (!who->ack || tb__attached_void(who, now) ||
            tb__gen_distance(g, tb__a64_load_acquire(&set->refs[i].shm->acked)) >= 0) {
            continue;
        }
        const char *name = tb__lifeline_peer_name(who->line);
        int step = snprintf(text + used, size - used, "%s`%s` (pid %u) has not acknowledged",
                            used > 0 ? ", " : "", name[0] != '\0' ? name : "?",
                            tb__lifeline_peer_pid(who->line));
        used = used + (size_t)step < size ? used + (size_t)step : size - 1;
    }
    for (uint32_t a = 0; a < pool->acker_count; a++) {
        int present = 0;
        for (uint32_t i = 0; set != NULL && i < set->count && !present; i++) {
            struct tb__attached *who = set->refs[i].who;
            present = who->ack && !tb__attached_void(who, now) &&
                      strcmp(tb__lifeline_peer_name(who->line), pool->ackers[a]) == 0;
        }
        if (!present) {
            int step = snprintf(text + used, size - used, "%s`%s` is not attached or has died",
                                used > 0 ? ", " : "", pool->ackers[a]);
            used = used + (size_t)step < size ? used + (size_t)step : size - 1;
            *hopeless = 1;
        }
    }
    tb__pages_leave(pool);
}

static tb_status wait_acked(tb_pool *pool, const tb_handle *handle, int64_t deadline)
{
    for (;;) {
        uint32_t seen = tb__bus_bell(pool->bus);
        char text[400];
        int hopeless;
        find_missing(pool, handle->generation, text, sizeof text, &hopeless);
        if (text[0] == '\0') {
            return TB_OK;
        }
        if (atomic_load(&pool->freed)) {
            return tb__pool_fail_freed(pool);
        }
        /* Who waits for it never gets it. */
        if (tb__a64_load_relaxed(&pool->segment.records[handle->slot].failed) ==
            handle->generation) {
            return TB__FAIL(TB_E_INCOMPLETE,
                            "pool `%s`, frame %llu: it was given up, or its stream failed",
                            pool->name, (unsigned long long)tb_handle_sequence(handle));
        }
        if (hopeless || tb__left_ns(deadline) == 0) {
            return TB__FAIL(TB_E_NOT_ACKED, "pool `%s`, frame %llu: %s", pool->name,
                            (unsigned long long)tb_handle_sequence(handle), text);
        }
        tb__wait_sleep(pool, seen, deadline);
    }
}

/* Also when a GPU is still at work on it. */
static int is_published(const tb_pool *pool, uint64_t g)
{
    /* Pairs with the release store of the head when it was published, and with that of `issued`
     * when it was announced. */
    return tb__gen_distance(g, tb__a64_load_acquire(pool->segment.head)) >= 0 ||
           (atomic_load(&pool->order) != NULL &&
            tb__gen_distance(g, tb__a64_load_acquire(&pool->segment.counters->issued)) >= 0);
}

tb_status tb_pool_wait_acked(tb_pool *pool, const tb_handle *handle, int64_t timeout_ns)
{
    if (pool == NULL || handle == NULL) {
        return TB__FAIL(TB_E_INVALID, "%s is NULL", pool == NULL ? "pool" : "handle");
    }
    TB__TRY(tb__bus_check(pool->bus));
    if (memcmp(handle->pool_uid, pool->uid, sizeof pool->uid) != 0) {
        return TB__FAIL(TB_E_STALE, "the handle belongs to another pool than `%s`", pool->name);
    }
    if (handle->slot >= pool->slots || !is_published(pool, handle->generation)) {
        return TB__FAIL(TB_E_INVALID, "pool `%s` has not published frame %llu yet", pool->name,
                        (unsigned long long)tb_handle_sequence(handle));
    }
    tb__wait_begin(pool);
    tb_status status = wait_acked(pool, handle, tb__deadline_ns(timeout_ns));
    tb__wait_end(pool);
    return status;
}

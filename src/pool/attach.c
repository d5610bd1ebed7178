/* The owner's side of readers: attach, detach, and the array of pages that writers scan. All of it
 * runs with the bus mutex held, on the service thread or on a thread that closes the pool. */
#define TB_LOG_TOPIC "pool"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "pool/order.h"

static struct tb__page_set *set_create(const tb_pool *pool)
{
    uint32_t count = 0;
    for (const struct tb__attached *who = pool->attached; who != NULL; who = who->next) {
        count++;
    }
    struct tb__page_set *set = calloc(1, sizeof *set + count * sizeof set->refs[0]);
    if (set == NULL) {
        return NULL;
    }
    for (struct tb__attached *who = pool->attached; who != NULL; who = who->next) {
        if (!tb__a32_load_relaxed(&who->gone)) {
            set->refs[set->count++] = (struct tb__page_ref){who->map.shm, who};
            set->every_count += who->every;
            set->reader_count += !who->own;
            set->gated_count += who->gates != NULL;
        }
    }
    return set;
}

/* Those that had to stay in the former set for want of memory: no writer finds them any more. */
static void retire_gone(tb_pool *pool)
{
    for (struct tb__attached **at = &pool->attached; *at != NULL;) {
        struct tb__attached *who = *at;
        if (!tb__a32_load_relaxed(&who->gone)) {
            at = &who->next;
            continue;
        }
        *at = who->next;
        who->next = pool->retired;
        pool->retired = who;
    }
}

/* Show writers the present list. Without memory for the array the old one stays: a page that leaves
 * is then kept mapped, and a page that joins is refused. */
static int set_replace(tb_pool *pool)
{
    struct tb__page_set *set = set_create(pool);
    if (set == NULL) {
        return 0;
    }
    /* seq_cst: pairs with tb__pages_enter(); whoever is counted after this loads the new set. */
    struct tb__page_set *before = atomic_exchange(&pool->pages, set);
    if (before != NULL) {
        before->next_retired = pool->retired_sets;
        pool->retired_sets = before;
    }
    tb__a64_store_relaxed(&pool->segment.counters->readers, set->reader_count);
    retire_gone(pool);
    return 1;
}

static void attached_destroy(tb_pool *pool, struct tb__attached *who)
{
    if (who->map.shm != NULL) {
        tb__bus_life_detach(pool->bus, &who->map, &who->map.shm->owner_life);
        tb__page_unmap(&who->map);
    }
    tb__mapped_end(&who->gates_mapped);
    tb__gates_unmap(&who->gates);
    tb__fd_close(&who->gates_fd);
    tb__fd_close(&who->page_fd);
    tb__poke_close(&who->poke_fd);
    tb__lifeline_release(who->line);
    free(who);
}

void tb__attached_reclaim(tb_pool *pool)
{
    /* Writers look for microseconds; give one that is looking right now the time to finish. */
    for (int i = 0; i < 1000 && atomic_load(&pool->scans) != 0; i++) {
        tb__pause();
    }
    if (atomic_load(&pool->scans) != 0) {
        return; /* tried again at the next change, and at the pool's end */
    }
    for (struct tb__attached **at = &pool->retired; *at != NULL;) {
        struct tb__attached *who = *at;
        if (who->gates_mapped.done) {
            at = &who->next; /* for the watching thread: the driver may wait */
            continue;
        }
        *at = who->next;
        attached_destroy(pool, who);
    }
    while (pool->retired_sets != NULL) {
        struct tb__page_set *set = pool->retired_sets;
        pool->retired_sets = set->next_retired;
        free(set);
    }
}

void tb__attached_reclaim_gated(tb_pool *pool)
{
    struct tb__attached *gone = NULL;
    tb__bus_lock(pool->bus);
    int looking = pool->retired != NULL && atomic_load(&pool->scans) != 0;
    for (struct tb__attached **at = &pool->retired; !looking && *at != NULL;) {
        struct tb__attached *who = *at;
        if (!who->gates_mapped.done || !tb__order_gates_idle(pool, who)) {
            at = &who->next;
            continue;
        }
        *at = who->next;
        who->next = gone;
        gone = who;
    }
    tb__bus_unlock(pool->bus);
    while (gone != NULL) {
        struct tb__attached *who = gone;
        gone = who->next;
        attached_destroy(pool, who);
    }
}

/* Where a new reader begins: with the newest frame, or after it. */
static uint64_t first_cursor(const tb_pool *pool, uint32_t flags)
{
    /* Pairs with the publisher's release store: of another thread of this process. */
    uint64_t head = tb__a64_load_acquire(pool->segment.head);
    if (head == 0 || (flags & TB__OPEN_START_NEXT)) {
        return head;
    }
    return head - 2 != 0 ? head - 2 : head - 4;
}

static tb_status attached_create(tb_pool *pool, struct tb__lifeline *line,
                                 const struct tb__pool_open_wire *wire, struct tb__attached **out)
{
    struct tb__attached *who = calloc(1, sizeof *who);
    if (who == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a reader of pool `%s`", pool->name);
    }
    who->page_fd = who->gates_fd = -1;
    atomic_init(&who->poke_fd, -1);
    who->reader_id = ++pool->layer->next_reader_id;
    who->max_leases = wire->max_leases != 0 ? wire->max_leases : pool->max_leases;
    who->every = (wire->flags & TB__OPEN_EVERY) != 0;
    who->ack = (wire->flags & TB__OPEN_ACK) != 0;
    who->in_order = (wire->flags & TB__OPEN_BY_NAME) != 0;
    who->own = !who->in_order && tb__lifeline_peer_pid(line) == (uint32_t)getpid();
    tb_status status = tb__page_create(&who->map, tb__page_shift(who->reader_id), &who->page_fd);
    if (status == TB_OK && (wire->flags & TB__OPEN_GATED)) {
        status = tb__gates_create(&who->gates, &who->gates_fd);
    }
    if (status != TB_OK) {
        tb__page_unmap(&who->map);
        tb__fd_close(&who->page_fd);
        free(who);
        return status;
    }
    who->line = line;
    tb__lifeline_keep(line);
    struct tb__page_shm *page = who->map.shm;
    tb__bus_life_attach(pool->bus, &who->map, &page->owner_life);
    uint64_t cursor = first_cursor(pool, wire->flags);
    tb__a64_store_relaxed(&page->taken, cursor);
    tb__a64_store_relaxed(&page->acked, cursor);
    uint64_t head = tb__a64_load_relaxed(pool->segment.head);
    for (uint32_t s = 0; who->gates != NULL && s < TB_MAX_SLOTS; s++) {
        /* Not reached by any frame to come, wherever the counter stands; and no frame's own. */
        tb__a64_store_relaxed(&who->gates->gate[s], head);
        tb__a64_store_relaxed(&who->gates->poisoned[s], head - 1);
    }
    *out = who;
    return TB_OK;
}

/* Link first, answer then: a writer that publishes after the reader has its answer sees its page.
 */
static tb_status attached_link(tb_pool *pool, struct tb__attached *who)
{
    who->next = pool->attached;
    pool->attached = who;
    if (!set_replace(pool)) {
        pool->attached = who->next;
        return TB__FAIL(TB_E_NOMEM, "no memory for another reader of pool `%s`", pool->name);
    }
    /* After linking, so that a thread that begins to wait now raises the flag itself. seq_cst:
     * pairs with the reader's store of an entry before its look at the flag. */
    if (atomic_load(&pool->waiters) != 0 && who->gates == NULL) {
        tb__a32_store_seq(&who->map.shm->waiting, 1);
    }
    tb__a64_add_relaxed(&pool->segment.counters->attached, 1);
    return TB_OK;
}

static uint32_t answer_flags(const tb_pool *pool)
{
    uint64_t leases = 0;
    for (const struct tb__attached *who = pool->attached; who != NULL; who = who->next) {
        leases += who->max_leases;
    }
    return (leases + 2 > pool->slots ? TB__POOL_DRY : 0) |
           (pool->export_path != NULL ? TB__POOL_EXPORTED : 0) |
           (pool->device_fd >= 0 ? TB__POOL_DEVICE_FD : 0);
}

int tb__attach(tb_pool *pool, struct tb__lifeline *line, uint32_t request,
               const struct tb__pool_open_wire *wire)
{
    struct tb__attached *who = NULL;
    tb_status status = TB_OK;
    if (!tb__lifeline_flight_begin(line)) {
        return 0;
    }
    int granted = tb__lifeline_page_take(line);
    if (!granted) {
        status = TB__FAIL(TB_E_LIMIT,
                          "uid %u has all the readers at process `%s` that it may: close some or "
                          "open the process's bus with a larger max_pages",
                          tb__lifeline_peer_uid(line), tb_bus_name(pool->bus));
    } else {
        status = attached_create(pool, line, wire, &who);
        if (status == TB_OK) {
            status = attached_link(pool, who);
        }
    }
    if (status != TB_OK) {
        if (who != NULL) {
            attached_destroy(pool, who);
        }
        tb__lifeline_flight_end(line);
        tb__lifeline_reply_error(line, request);
        if (granted) {
            tb__lifeline_page_give(line);
        }
        return 1;
    }
    who->request = request;
    tb__lifeline_flight_name(line, who->reader_id);
    struct tb__pool_wire answer = {.reader_id = who->reader_id,
                                   .segment_bytes = pool->segment.view.segment_bytes,
                                   .max_leases = who->max_leases,
                                   .flags = answer_flags(pool)};
    memcpy(answer.uid, pool->uid, sizeof answer.uid);
    tb__name_copy(answer.name, pool->name);
    int fds[4] = {pool->segment_fd, who->page_fd};
    uint32_t fd_count = 2;
    if (who->gates != NULL) {
        answer.flags |= TB__POOL_GATED;
        fds[fd_count++] = who->gates_fd;
    }
    if (pool->device_fd >= 0) {
        fds[fd_count++] = pool->device_fd;
    }
    tb__lifeline_reply(line, &(struct tb__packet){.type = TB__MSG_POOL,
                                                  .request = request,
                                                  .body = &answer,
                                                  .body_bytes = sizeof answer,
                                                  .borrow_fds = fds,
                                                  .fd_count = fd_count});
    tb__bus_ring_self(pool->bus); /* a writer may wait for its readers */
    return 1;
}

void tb__detach(tb_pool *pool, struct tb__attached *who)
{
    struct tb__attached **at = &pool->attached;
    while (*at != who) {
        at = &(*at)->next;
    }
    *at = who->next;
    if (!tb__a32_load_relaxed(&who->gone)) {
        tb__lifeline_page_give(who->line);
    }
    if (set_replace(pool)) {
        who->next = pool->retired;
        pool->retired = who;
        tb__attached_reclaim(pool);
    } else {
        /* Writers still see the page: its reader is gone, so its claims are void. */
        who->next = pool->attached;
        pool->attached = who;
        /* Pairs with the acquire load in tb__attached_void(). */
        tb__a32_store_release(&who->gone, 1);
    }
    tb__bus_ring_self(pool->bus); /* slots may have come free */
    if (pool->adoption.ending) {
        tb__watch_changed(pool->layer);
    }
}

void tb__detach_all(tb_pool *pool)
{
    struct tb__page_set *set = atomic_exchange(&pool->pages, NULL);
    free(set);
    while (pool->attached != NULL) {
        struct tb__attached *who = pool->attached;
        pool->attached = who->next;
        if (!tb__a32_load_relaxed(&who->gone)) {
            tb__lifeline_page_give(who->line);
        }
        attached_destroy(pool, who);
    }
    for (struct tb__attached *who = pool->retired; who != NULL; who = who->next) {
        tb__mapped_end(&who->gates_mapped); /* nothing is pending any more */
    }
    tb__attached_reclaim(pool);
}

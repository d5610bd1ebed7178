/* Outputs and their subscribers: see output.h for who runs what. */
#define TB_LOG_TOPIC "node"
#include "node/output.h"

#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"

tb_status tb__output_init(struct tb__output *output, tb_bus *bus,
                          const struct tb__output_config *config)
{
    *output = (struct tb__output){.bus = bus, .config = config};
    pthread_mutex_init(&output->mutex, NULL);
    output->expected = calloc(config->subscriber_count + 1, sizeof *output->expected);
    if (output->expected == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for output `%s`", config->name);
    }
    return TB_OK;
}

/* ---- one subscriber ---- */

static void subscriber_destroy(struct tb__output *output, struct tb__subscriber *subscriber)
{
    tb__hold_queue_fini(&subscriber->holds);
    if (subscriber->page.base != NULL) {
        tb__bus_life_detach(output->bus, &subscriber->page, &subscriber->page.shm->owner_life);
        tb__page_unmap(&subscriber->page);
    }
    tb__ring_unmap(&subscriber->ring);
    tb__fd_close(&subscriber->page_fd);
    tb__lifeline_page_give(subscriber->line);
    tb__lifeline_release(subscriber->line);
    free(subscriber);
}

void tb__subscriber_unref(struct tb__output *output, struct tb__subscriber *subscriber)
{
    if (--subscriber->references == 0) {
        subscriber_destroy(output, subscriber);
    }
}

int tb__subscriber_is_dead(const struct tb__subscriber *subscriber)
{
    return tb__life_died(tb__a32_load_acquire(&subscriber->page.shm->reader_life)) ||
           tb__lifeline_is_dead(subscriber->line);
}

/* What the subscriber has taken, never above the head: it may lie. */
static uint64_t taken_of(const struct tb__subscriber *subscriber)
{
    uint64_t head = tb__ring_head(&subscriber->ring);
    /* Acquire: pairs with the release in tb__stream_advance(); the subscriber's own lease of the
     * message's frame is older than this word, so ours may end. */
    uint64_t taken = tb__a64_load_acquire(&subscriber->page.shm->taken);
    return taken < head ? taken : head;
}

int tb__subscriber_has_room(const struct tb__subscriber *subscriber)
{
    return subscriber->policy == TB__DROP_OLDEST ||
           tb__ring_head(&subscriber->ring) - taken_of(subscriber) <
               subscriber->ring.geometry.queue_size;
}

void tb__subscriber_wake(struct tb__subscriber *subscriber)
{
    struct tb__a32 *armed = &subscriber->page.shm->armed;
    if (tb__a32_load_relaxed(armed) != 0 && tb__a32_exchange(armed, 0) != 0) {
        tb__lifeline_ring(subscriber->line);
    }
}

void tb__subscriber_set_waiting(struct tb__output *output, struct tb__subscriber *subscriber)
{
    uint32_t waiting = output->takers_ring != 0 ? TB__WAITS_FOR_ROOM : 0;
    if (subscriber->policy == TB__BACKPRESSURE) {
        waiting |= output->sleepers != 0 ? TB__WAITS_FOR_ROOM : 0;
        waiting |= subscriber->holds.count != 0 ? TB__WAITS_FOR_HOLDS : 0;
    }
    tb__a32_store_relaxed(&subscriber->page.shm->waiting, waiting);
}

static uint32_t reap_one(struct tb__output *output, struct tb__subscriber *subscriber)
{
    if (subscriber->holds.count == 0) {
        return 0;
    }
    uint64_t done = taken_of(subscriber);
    if (tb__subscriber_is_dead(subscriber)) {
        done = UINT64_MAX;
    } else if (subscriber->policy == TB__DROP_OLDEST) {
        uint64_t head = tb__ring_head(&subscriber->ring);
        uint64_t queue = subscriber->ring.geometry.queue_size;
        uint64_t fallen = head > queue ? head - queue : 0;
        done = fallen > done ? fallen : done;
    }
    uint32_t released = tb__hold_queue_release(&subscriber->holds, done);
    if (released != 0) {
        tb__subscriber_set_waiting(output, subscriber);
    }
    return released;
}

/* ---- what a subscriber gets over its lives ---- */

static struct tb__expected *find_expected(const struct tb__output *output, const char *node,
                                          const char *input)
{
    for (size_t i = 0; i < output->config->subscriber_count; i++) {
        const struct tb__subscriber_config *named = &output->config->subscribers[i];
        if (strcmp(named->input, input) == 0 && strcmp(named->node, node) == 0) {
            return &output->expected[i];
        }
    }
    return NULL;
}

/* Mutex held. A life that took nothing told its program of no loss: then the mark stays. */
static void note_taken(struct tb__subscriber *subscriber)
{
    uint64_t taken = taken_of(subscriber);
    if (subscriber->expected != NULL && taken != 0 &&
        subscriber->before + taken > subscriber->expected->taken) {
        subscriber->expected->taken = subscriber->before + taken;
    }
}

/* Mutex held. Link a new subscriber. Returns what it missed since its former life. */
static uint64_t link_subscriber(struct tb__output *output, struct tb__subscriber *subscriber)
{
    struct tb__expected *expected = subscriber->expected;
    if (output->closed) {
        tb__a32_store_release(&subscriber->page.shm->state, TB__PAGE_GOODBYE);
    }
    /* The former life may be dead, but its hang-up not here yet. */
    for (struct tb__subscriber *at = output->subscribers; expected != NULL && at != NULL;
         at = at->next) {
        if (at->expected == expected) {
            note_taken(at);
        }
    }
    subscriber->before = output->sequence;
    subscriber->next = output->subscribers;
    output->subscribers = subscriber;
    return expected != NULL ? output->sequence - expected->taken : 0;
}

/* ---- service thread ---- */

static tb_status subscriber_create(struct tb__output *output, struct tb__lifeline *line,
                                   const struct tb__stream_open_wire *open, uint64_t id,
                                   int *out_take_ring_fd, struct tb__subscriber **out)
{
    if (!tb__lifeline_page_take(line)) {
        return TB__FAIL(TB_E_LIMIT, "process `%s` serves too many pages of uid %u already",
                        tb_bus_name(output->bus), tb__lifeline_peer_uid(line));
    }
    struct tb__subscriber *subscriber = calloc(1, sizeof *subscriber);
    if (subscriber == NULL) {
        tb__lifeline_page_give(line);
        return TB__FAIL(TB_E_NOMEM, "no memory for a subscriber");
    }
    subscriber->references = 1;
    subscriber->id = id;
    subscriber->page_fd = -1;
    subscriber->policy = (enum tb__queue_policy)open->policy;
    tb__name_copy(subscriber->input, open->input);
    tb__lifeline_keep(line);
    subscriber->line = line;
    subscriber->expected = find_expected(output, tb__lifeline_peer_name(line), subscriber->input);
    tb_status status = tb__page_create(&subscriber->page, tb__page_shift(id), &subscriber->page_fd);
    if (status == TB_OK) {
        tb__bus_life_attach(output->bus, &subscriber->page, &subscriber->page.shm->owner_life);
        status = tb__ring_create(&subscriber->ring, open->queue_size, out_take_ring_fd);
    }
    if (status != TB_OK) {
        subscriber_destroy(output, subscriber);
        return status;
    }
    *out = subscriber;
    return TB_OK;
}

void tb__output_attach(struct tb__output *output, struct tb__lifeline *line, uint32_t request,
                       const struct tb__stream_open_wire *open, uint64_t id)
{
    struct tb__subscriber *subscriber = NULL;
    int ring_fd = -1;
    if (!tb__lifeline_flight_begin(line)) {
        TB__FAIL(TB_E_LIMIT,
                 "one stream or pool after the other: an earlier one is not mapped yet");
        tb__lifeline_reply_error(line, request);
        return;
    }
    if (subscriber_create(output, line, open, id, &ring_fd, &subscriber) != TB_OK) {
        tb__lifeline_flight_end(line);
        tb__lifeline_reply_error(line, request);
        return;
    }
    /* Linked before the answer: every message sent after the subscriber knows of it is its. */
    pthread_mutex_lock(&output->mutex);
    struct tb__stream_opened_wire body = {id, link_subscriber(output, subscriber)};
    pthread_mutex_unlock(&output->mutex);
    int fds[] = {ring_fd, subscriber->page_fd};
    tb__lifeline_reply(line, &(struct tb__packet){.type = TB__MSG_STREAM,
                                                  .request = request,
                                                  .body = &body,
                                                  .body_bytes = sizeof body,
                                                  .borrow_fds = fds,
                                                  .fd_count = 2});
    tb__fd_close(&ring_fd);
}

static struct tb__subscriber *find(struct tb__output *output, const struct tb__lifeline *line,
                                   uint64_t id)
{
    struct tb__subscriber *at = output->subscribers;
    while (at != NULL && !(at->id == id && at->line == line)) {
        at = at->next;
    }
    return at;
}

int tb__output_mapped(struct tb__output *output, struct tb__lifeline *line, uint64_t id)
{
    pthread_mutex_lock(&output->mutex);
    struct tb__subscriber *subscriber = find(output, line, id);
    if (subscriber != NULL && !subscriber->mapped) {
        if (tb__page_seal(subscriber->page_fd) != TB_OK) {
            tb_log_warn_limited("output `%s`: %s", output->config->name, tb_last_error_text());
        }
        tb__fd_close(&subscriber->page_fd);
        tb__lifeline_flight_end(line);
        subscriber->mapped = 1;
        if (subscriber->expected != NULL) {
            subscriber->expected->seen = 1;
        }
    }
    pthread_mutex_unlock(&output->mutex);
    tb__bus_ring_self(output->bus);
    return subscriber != NULL;
}

/* Take subscribers out of the list: those of a line, one of them if id is not 0. */
static int detach(struct tb__output *output, struct tb__lifeline *line, uint64_t id)
{
    int found = 0;
    pthread_mutex_lock(&output->mutex);
    for (struct tb__subscriber **at = &output->subscribers; *at != NULL;) {
        struct tb__subscriber *subscriber = *at;
        if (subscriber->line != line || (id != 0 && subscriber->id != id)) {
            at = &subscriber->next;
            continue;
        }
        *at = subscriber->next;
        found = 1;
        note_taken(subscriber);
        if (!subscriber->mapped) {
            tb__lifeline_flight_end(line);
        }
        /* A sender that sleeps with a reference must not keep the frames. */
        tb__hold_queue_release(&subscriber->holds, UINT64_MAX);
        tb__subscriber_unref(output, subscriber);
    }
    pthread_mutex_unlock(&output->mutex);
    if (found) {
        tb__bus_ring_self(output->bus);
    }
    return found;
}

int tb__output_detach(struct tb__output *output, struct tb__lifeline *line, uint64_t id)
{
    return detach(output, line, id);
}

void tb__output_hangup(struct tb__output *output, struct tb__lifeline *line)
{
    detach(output, line, 0);
}

int tb__output_taken(struct tb__output *output, struct tb__lifeline *line, uint64_t id)
{
    pthread_mutex_lock(&output->mutex);
    struct tb__subscriber *subscriber = find(output, line, id);
    if (subscriber != NULL) {
        reap_one(output, subscriber);
    }
    pthread_mutex_unlock(&output->mutex);
    return subscriber != NULL;
}

int tb__output_list_pools(struct tb__output *output, const struct tb__lifeline *line, uint64_t id,
                          struct tb__stream_pools_wire *out)
{
    pthread_mutex_lock(&output->mutex);
    int found = find(output, line, id) != NULL;
    *out = found ? output->pools : (struct tb__stream_pools_wire){0};
    pthread_mutex_unlock(&output->mutex);
    return found;
}

/* ---- any thread ---- */

void tb__output_note_pool(struct tb__output *output, const uint8_t uid[16])
{
    struct tb__stream_pool_wire *pools = output->pools.pools;
    for (uint32_t i = 0; i < output->pools.count; i++) {
        if (memcmp(pools[i].uid, uid, sizeof pools[i].uid) == 0) {
            return;
        }
    }
    uint32_t place = output->pools.count;
    if (place < TB__STREAM_POOLS) {
        output->pools.count++;
    } else {
        place = output->next_pool++ % TB__STREAM_POOLS;
    }
    memcpy(pools[place].uid, uid, sizeof pools[place].uid);
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        /* A full socket, or a peer that is gone: the handle itself must do. */
        tb_status ignored =
            tb__lifeline_send(at->line, TB__MSG_STREAM_POOL, &pools[place], sizeof pools[place]);
        (void)ignored;
    }
}

int tb__output_missing(struct tb__output *output, int (*gone)(void *context, const char *node),
                       void *context)
{
    int missing = -1;
    pthread_mutex_lock(&output->mutex);
    for (size_t i = 0; i < output->config->subscriber_count && missing < 0; i++) {
        if (!output->expected[i].seen && !gone(context, output->config->subscribers[i].node)) {
            missing = (int)i;
        }
    }
    pthread_mutex_unlock(&output->mutex);
    return missing;
}

uint32_t tb__output_reap(struct tb__output *output)
{
    uint32_t released = 0;
    pthread_mutex_lock(&output->mutex);
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        released += reap_one(output, at);
    }
    pthread_mutex_unlock(&output->mutex);
    return released;
}

uint32_t tb__output_give_up_oldest(struct tb__output *output)
{
    uint32_t released = 0;
    pthread_mutex_lock(&output->mutex);
    for (struct tb__subscriber *at = output->subscribers; at != NULL && released == 0;
         at = at->next) {
        if (at->policy == TB__DROP_OLDEST) {
            released = tb__hold_queue_release_oldest(&at->holds);
        }
    }
    pthread_mutex_unlock(&output->mutex);
    return released;
}

void tb__output_close(struct tb__output *output)
{
    pthread_mutex_lock(&output->mutex);
    output->closed = 1;
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        /* Release: whoever sees the end sees all messages before it. */
        tb__a32_store_release(&at->page.shm->state, TB__PAGE_GOODBYE);
        tb__lifeline_ring(at->line);
    }
    pthread_mutex_unlock(&output->mutex);
    tb__bus_ring_self(output->bus); /* senders that wait for room */
}

int tb__output_drained(struct tb__output *output)
{
    int drained = 1;
    pthread_mutex_lock(&output->mutex);
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        drained &= taken_of(at) >= at->last_frame || tb__subscriber_is_dead(at);
    }
    pthread_mutex_unlock(&output->mutex);
    return drained;
}

void tb__output_wait_for_takers(struct tb__output *output, int wait)
{
    pthread_mutex_lock(&output->mutex);
    output->takers_ring += wait ? 1 : -1;
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        tb__subscriber_set_waiting(output, at);
    }
    pthread_mutex_unlock(&output->mutex);
    /* Pairs with the fence in tb__stream_advance(). */
    tb__fence_full();
}

void tb__output_release(struct tb__output *output)
{
    pthread_mutex_lock(&output->mutex);
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        tb__hold_queue_release(&at->holds, UINT64_MAX);
    }
    pthread_mutex_unlock(&output->mutex);
}

void tb__output_fini(struct tb__output *output)
{
    if (output->bus == NULL) {
        return;
    }
    while (output->subscribers != NULL) {
        struct tb__subscriber *subscriber = output->subscribers;
        output->subscribers = subscriber->next;
        subscriber_destroy(output, subscriber);
    }
    pthread_mutex_destroy(&output->mutex);
    free(output->expected);
    *output = (struct tb__output){0};
}

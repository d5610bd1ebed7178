/* Waiting for room, and making some. Users' threads, several at once. */
#include "node/room.h"

#include "base/clock.h"
#include "base/error.h"

static void survey_take(const struct tb__output *output, struct tb__survey *out)
{
    *out = (struct tb__survey){.room_bytes = UINT32_MAX, .has_room = 1};
    for (const struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        if (tb__subscriber_is_dead(at)) {
            continue;
        }
        out->subscribers++;
        out->backpressure += at->policy == TB__BACKPRESSURE;
        out->has_room &= tb__subscriber_has_room(at);
        if (at->ring.geometry.room_bytes < out->room_bytes) {
            out->room_bytes = at->ring.geometry.room_bytes;
        }
    }
}

/* ---- waiting ---- */

static void set_waiting(struct tb__output *output)
{
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        tb__subscriber_set_waiting(output, at);
    }
}

/* Mutex held. From here on subscribers ring when they take a message. */
static void begin_wait(struct tb__output *output)
{
    output->sleepers++;
    set_waiting(output);
    /* Pairs with the fence in tb__stream_advance(): it sees the waiting word, or we see its move.
     */
    tb__fence_full();
}

static void end_wait(struct tb__output *output)
{
    output->sleepers--;
    set_waiting(output);
}

/* Sleep until something may have changed since `seen`, also when a subscriber dies. Mutex held on
 * both sides. */
static void sleep_once(struct tb__output *output, uint32_t seen, int64_t deadline_ns)
{
    struct tb__subscriber *kept[TB__MAX_LIVES];
    struct tb__life_watch lives[TB__MAX_LIVES];
    uint32_t count = 0;
    for (struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        uint32_t alive = tb__a32_load_acquire(&at->page.shm->reader_life);
        if (alive == 0 || tb__life_died(alive)) {
            continue;
        }
        if (count == TB__MAX_LIVES) {
            int64_t soon_ns = tb__deadline_ns(TB__UNWATCHED_NS);
            deadline_ns = soon_ns < deadline_ns ? soon_ns : deadline_ns;
            break;
        }
        lives[count] = (struct tb__life_watch){&at->page.shm->reader_life, alive};
        at->references++;
        kept[count++] = at;
    }
    pthread_mutex_unlock(&output->mutex);
    tb__bus_sleep(output->bus, seen, lives, count, deadline_ns);
    pthread_mutex_lock(&output->mutex);
    for (uint32_t i = 0; i < count; i++) {
        tb__subscriber_unref(output, kept[i]);
    }
}

static tb_status fail_again(const struct tb__output *output)
{
    const char *who = "";
    for (const struct tb__subscriber *at = output->subscribers; at != NULL; at = at->next) {
        if (!tb__subscriber_is_dead(at) && !tb__subscriber_has_room(at)) {
            who = tb__lifeline_peer_name(at->line);
        }
    }
    return TB__FAIL(TB_AGAIN, "output `%s`: the queue of `%s` stayed full", output->config->name,
                    who);
}

tb_status tb__room_wait(struct tb__output *output, int64_t deadline_ns, struct tb__survey *out)
{
    tb_status status = TB_OK;
    int waiting = 0;
    for (;;) {
        uint32_t seen = tb__bus_bell(output->bus);
        survey_take(output, out);
        if (output->closed) {
            status = TB__FAIL(TB_CLOSED, "output `%s` is closed", output->config->name);
            break;
        }
        if (out->has_room) {
            break;
        }
        if (tb__left_ns(deadline_ns) == 0) {
            status = fail_again(output);
            break;
        }
        if (!waiting) {
            begin_wait(output);
            waiting = 1;
            continue;
        }
        sleep_once(output, seen, deadline_ns);
    }
    if (waiting) {
        end_wait(output);
    }
    return status;
}

/* ---- making room ---- */

static uint32_t reap_all(tb_node *node)
{
    uint32_t released = 0;
    for (size_t i = 0; i < node->config.output_count; i++) {
        released += tb__output_reap(&node->outputs[i]);
    }
    return released;
}

static uint32_t give_up_oldest(tb_node *node)
{
    uint32_t released = 0;
    for (size_t i = 0; i < node->config.output_count && released == 0; i++) {
        released = tb__output_give_up_oldest(&node->outputs[i]);
    }
    return released;
}

static void for_all_outputs(tb_node *node, void (*call)(struct tb__output *output))
{
    for (size_t i = 0; i < node->config.output_count; i++) {
        pthread_mutex_lock(&node->outputs[i].mutex);
        call(&node->outputs[i]);
        pthread_mutex_unlock(&node->outputs[i].mutex);
    }
}

tb_status tb__room_make(tb_node *node, struct tb__output *output, int may_drop, int64_t deadline_ns)
{
    if (reap_all(node) != 0 || (may_drop && give_up_oldest(node) != 0)) {
        return TB_OK;
    }
    if (tb__left_ns(deadline_ns) == 0) {
        return TB_AGAIN;
    }
    for_all_outputs(node, begin_wait);
    uint32_t seen = tb__bus_bell(node->bus);
    if (reap_all(node) == 0) {
        pthread_mutex_lock(&output->mutex);
        sleep_once(output, seen, deadline_ns);
        pthread_mutex_unlock(&output->mutex);
    }
    for_all_outputs(node, end_wait);
    return TB_OK;
}

/* Waiting for the next event of all inputs, timers and STOP at once.
 *
 * One look goes over all inputs; the message with the oldest stamp is taken, so that no input
 * starves another. Before sleeping, every stream's page is armed and looked at once more; then the
 * thread sleeps once on the process's doorbell, until the next timer, and on its senders' life
 * words. One thread at a time. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "node/node.h"

/* A sender with old stamps may not keep others waiting for ever. */
#define PATIENCE 64

/* What one look found. */
struct looked {
    struct tb__input *best;
    struct tb__input_look best_look;
    int64_t wake_ns;
    size_t living; /* inputs that may still have something */
};

static tb_status deliver_stop(tb_node *node, tb_event **out)
{
    TB__TRY(tb__event_create(TB_EVENT_STOP, "", 0, out));
    (*out)->stamp_ns = tb__now_ns();
    node->stop_delivered = 1;
    return TB_OK;
}

static tb_status deliver_closed(struct tb__input *input, int64_t now_ns, tb_event **out)
{
    TB__TRY(tb__event_create(TB_EVENT_INPUT_CLOSED, input->config->name, 0, out));
    (*out)->stamp_ns = now_ns;
    (*out)->dropped = input->dropped;
    input->dropped = 0;
    input->told_closed = 1;
    return TB_OK;
}

static tb_status deliver_error(struct tb__input *input, int64_t now_ns, const char *text,
                               tb_event **out)
{
    TB__TRY(tb__event_create_error(input->config->name, text, out));
    (*out)->stamp_ns = now_ns;
    return TB_OK;
}

static tb_status deliver_silence(struct tb__input *input, int64_t now_ns, tb_event **out)
{
    char text[400];
    snprintf(text, sizeof text, "input `%s`: nothing came from `%s/%s` for %.3f s",
             input->config->name, input->config->source_node, input->config->source_output,
             (double)(now_ns - input->heard_ns) / 1e9);
    TB__TRY(deliver_error(input, now_ns, text, out));
    input->told_silent = 1;
    return TB_OK;
}

/* The sender broke the rules: its input ends here. */
static tb_status deliver_broken(struct tb__input *input, int64_t now_ns, tb_event **out)
{
    char text[600];
    snprintf(text, sizeof text, "input `%s` is closed: %s", input->config->name,
             tb_last_error_text());
    TB__TRY(deliver_error(input, now_ns, text, out));
    tb__input_close(input);
    return TB_OK;
}

/* Whether this input's message goes before the best one so far. */
static int goes_first(const struct looked *found, const struct tb__input *input, int64_t stamp_ns)
{
    if (found->best == NULL) {
        return 1;
    }
    int waited = input->passed_over >= PATIENCE;
    int best_waited = found->best->passed_over >= PATIENCE;
    return waited != best_waited ? waited : stamp_ns < found->best_look.stamp_ns;
}

/* TB_OK with an event; TB_AGAIN with what was looked at. */
static tb_status look(tb_node *node, int64_t now_ns, struct looked *found, tb_event **out)
{
    *found = (struct looked){.wake_ns = TB__NO_DEADLINE};
    for (size_t i = 0; i < node->config.input_count; i++) {
        struct tb__input *input = &node->inputs[i];
        struct tb__input_look input_look;
        enum tb__input_news news = tb__input_look(input, now_ns, &found->wake_ns, &input_look);
        if (news != TB__NEWS_MESSAGE) {
            input->passed_over = 0;
        } else if (input->passed_over < PATIENCE) {
            input->passed_over++;
        }
        switch (news) {
        case TB__NEWS_CLOSED:
            return deliver_closed(input, now_ns, out);
        case TB__NEWS_SILENT:
            return deliver_silence(input, now_ns, out);
        case TB__NEWS_CORRUPT:
            return deliver_broken(input, now_ns, out);
        case TB__NEWS_MESSAGE:
            if (goes_first(found, input, input_look.stamp_ns)) {
                found->best = input;
                found->best_look = input_look;
            }
            break;
        default:
            break;
        }
        int timer = input->config->period_ns > 0;
        found->living += timer ? (size_t)node->timers_keep_alive : input->state != TB__INPUT_CLOSED;
    }
    return TB_AGAIN;
}

/* Take the best message. */
static tb_status take(struct looked *found, int64_t now_ns, tb_event **out)
{
    tb_status status = tb__input_take(found->best, &found->best_look, out);
    if (status == TB_OK) {
        found->best->passed_over = 0;
    }
    if (status == TB_E_PROTOCOL || status == TB_E_CORRUPT) {
        return deliver_broken(found->best, now_ns, out);
    }
    if (status == TB_E_BUSY) {
        /* The message stays; without this event the node would wait for itself. */
        char text[600];
        snprintf(text, sizeof text, "input `%s`: %s", found->best->config->name,
                 tb_last_error_text());
        return deliver_error(found->best, now_ns, text, out);
    }
    return status;
}

static void for_all_streams(tb_node *node, void (*call)(struct tb__stream *stream))
{
    for (size_t i = 0; i < node->config.input_count; i++) {
        if (node->inputs[i].stream != NULL) {
            call(node->inputs[i].stream);
        }
    }
}

static void sleep_once(tb_node *node, uint32_t seen, int64_t until_ns)
{
    struct tb__life_watch lives[TB__MAX_LIVES];
    uint32_t count = 0;
    for (size_t i = 0; i < node->config.input_count; i++) {
        struct tb__stream *stream = node->inputs[i].stream;
        if (stream == NULL) {
            continue;
        }
        uint32_t alive = tb__a32_load_acquire(&stream->page.shm->owner_life);
        if (alive == 0 || tb__life_died(alive)) {
            continue;
        }
        if (count == TB__MAX_LIVES) {
            int64_t soon_ns = tb__deadline_ns(TB__UNWATCHED_NS);
            until_ns = soon_ns < until_ns ? soon_ns : until_ns;
            break;
        }
        lives[count++] = (struct tb__life_watch){&stream->page.shm->owner_life, alive};
    }
    tb__bus_sleep(node->bus, seen, lives, count, until_ns);
}

/* Frames that this node keeps for others go back as soon as it comes by. */
static void reap(tb_node *node)
{
    for (size_t i = 0; i < node->config.output_count; i++) {
        tb__output_reap(&node->outputs[i]);
    }
}

static int has_streams(const tb_node *node)
{
    for (size_t i = 0; i < node->config.input_count; i++) {
        if (node->config.inputs[i].period_ns == 0) {
            return 1;
        }
    }
    return 0;
}

/* TB_AGAIN: nothing; *wake_ns is when to look again without a ring. */
static tb_status look_and_take(tb_node *node, int64_t *wake_ns, tb_event **out)
{
    for (;;) {
        struct looked found;
        if (atomic_load(&node->stop)) {
            return deliver_stop(node, out);
        }
        int64_t now_ns = tb__now_ns();
        tb_status status = look(node, now_ns, &found, out);
        if (status != TB_AGAIN) {
            return status;
        }
        if (found.living == 0 && has_streams(node)) {
            return TB_CLOSED;
        }
        if (found.best == NULL) {
            *wake_ns = found.wake_ns;
            return TB_AGAIN;
        }
        status = take(&found, now_ns, out);
        if (status != TB_AGAIN) {
            return status;
        }
    }
}

tb_status tb_node_next(tb_node *node, int64_t timeout_ns, tb_event **out)
{
    TB__TRY(tb__node_check(node));
    if (node->stop_delivered) {
        return TB_CLOSED;
    }
    int64_t deadline_ns = tb__deadline_ns(timeout_ns);
    int armed = 0;
    tb_status status;
    for (;;) {
        uint32_t seen = tb__bus_bell(node->bus);
        int64_t wake_ns = TB__NO_DEADLINE;
        reap(node);
        status = look_and_take(node, &wake_ns, out);
        if (status != TB_AGAIN || tb__left_ns(deadline_ns) == 0) {
            break;
        }
        if (!armed) {
            for_all_streams(node, tb__stream_arm);
            /* Pairs with the fence in a sender's deliver(): it sees that we sleep, or we see its
             * message in the look that follows. */
            tb__fence_full();
            armed = 1;
            continue;
        }
        sleep_once(node, seen, wake_ns < deadline_ns ? wake_ns : deadline_ns);
        armed = 0; /* whoever rang took our flag down: arm again before the next sleep */
    }
    for_all_streams(node, tb__stream_disarm);
    return status;
}

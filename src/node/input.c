/* Inputs: subscribing, looking, taking. The thread of tb_node_next(), but for look_for_sender(). */
#define TB_LOG_TOPIC "node"
#include "node/input.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "node/node.h"

#define SLICE_NS INT64_C(250000000) /* between looks for a node that is gone, or STOP */
#define RETRY_NS INT64_C(20000000)
#define REMIND_NS INT64_C(10000000000)
#define SETTLE_NS INT64_C(2000000000) /* an endpoint that serves no such output yet */

/* ---- opening ---- */

static struct tb__stream_options options_of(const struct tb__input_config *config)
{
    return (struct tb__stream_options){
        .node = config->source_node,
        .output = config->source_output,
        .input = config->name,
        .queue_size = config->queue_size,
        .policy = config->policy,
    };
}

static void pause_ns(int64_t ns)
{
    struct timespec pause = tb__timespec(ns);
    nanosleep(&pause, NULL);
}

/* One patient attempt. TB_AGAIN: try again. */
static tb_status attempt(struct tb__input *input, int64_t *first_refusal_ns,
                         struct tb__stream **out)
{
    struct tb__stream_options options = options_of(input->config);
    int64_t begun = tb__now_ns();
    tb_status status = tb__stream_open(input->node->bus, &options, begun + SLICE_NS, out);
    if (status == TB_OK) {
        tb__stream_open_pools(*out);
    }
    if (status == TB_OK || status == TB_CLOSED) {
        return status;
    }
    if (status != TB_E_NOT_FOUND && status != TB_E_OWNER_DIED && status != TB_E_LIMIT) {
        return status;
    }
    int64_t now = tb__now_ns();
    if (now - begun >= SLICE_NS) {
        *first_refusal_ns = 0;
        return TB_AGAIN;
    }
    /* Somebody answered at once: a process that is just ending or beginning, or another program. */
    if (*first_refusal_ns == 0) {
        *first_refusal_ns = now;
    }
    if (now - *first_refusal_ns > SETTLE_NS && status == TB_E_NOT_FOUND) {
        return TB__FAIL(TB_E_NOT_FOUND, "input `%s` from `%s/%s`: %.300s", input->config->name,
                        input->config->source_node, input->config->source_output,
                        tb_last_error_text());
    }
    pause_ns(RETRY_NS);
    return TB_AGAIN;
}

static void adopt(struct tb__input *input, struct tb__stream *stream)
{
    input->stream = stream;
    input->state = TB__INPUT_OPEN;
    input->dropped += stream->missed;
    input->heard_ns = tb__now_ns();
    input->told_silent = 0;
}

tb_status tb__input_open(struct tb__input *input)
{
    const struct tb__input_config *config = input->config;
    int64_t remind_ns = tb__now_ns() + REMIND_NS;
    int64_t refused_ns = 0;
    if (config->period_ns > 0) {
        tb__timer_start(&input->timer, config->period_ns, config->queue_size, tb__now_ns());
        return TB_OK;
    }
    while (!atomic_load(&input->node->stop)) {
        struct tb__stream *stream;
        if (tb__node_is_gone(input->node, config->source_node)) {
            break;
        }
        tb_status status = attempt(input, &refused_ns, &stream);
        if (status == TB_OK) {
            adopt(input, stream);
            return TB_OK;
        }
        if (status == TB_CLOSED && !config->restart) {
            break;
        }
        if (status == TB_CLOSED) {
            pause_ns(RETRY_NS);
            status = TB_AGAIN;
        }
        if (status != TB_AGAIN) {
            return status;
        }
        tb__interrupt_ask(0);
        if (tb__interrupted()) {
            return TB__FAIL(TB_AGAIN,
                            "interrupted while waiting for `%s/%s`, the source of input "
                            "`%s`",
                            config->source_node, config->source_output, config->name);
        }
        if (tb__now_ns() >= remind_ns) {
            tb_log_warn("node `%s` waits for `%s/%s`, the source of its input `%s`",
                        input->node->config.node, config->source_node, config->source_output,
                        config->name);
            remind_ns += REMIND_NS;
        }
    }
    input->state = TB__INPUT_CLOSED;
    return TB_OK;
}

/* ---- a sender that may come back ---- */

static void *look_for_sender(void *argument)
{
    struct tb__input *input = argument;
    int64_t refused_ns = 0;
    while (!atomic_load(&input->quit) &&
           !tb__node_is_gone(input->node, input->config->source_node)) {
        struct tb__stream *stream;
        tb_status status = attempt(input, &refused_ns, &stream);
        if (status == TB_OK) {
            input->found = stream;
            break;
        }
        if (status != TB_AGAIN) {
            /* Its successor may still come: only the runner knows that it will not. */
            pause_ns(SLICE_NS);
        }
    }
    atomic_store(&input->looked, 1);
    tb__bus_ring_self(input->node->bus);
    return NULL;
}

static void start_looking(struct tb__input *input)
{
    sigset_t all;
    sigset_t before;
    atomic_store(&input->quit, 0);
    atomic_store(&input->looked, 0);
    input->found = NULL;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    input->looking_started = pthread_create(&input->looking, NULL, look_for_sender, input) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    input->state = input->looking_started ? TB__INPUT_AWAY : TB__INPUT_CLOSED;
    if (!input->looking_started) {
        tb_log_error("input `%s`: no thread to look for `%s`: closed", input->config->name,
                     input->config->source_node);
    }
}

static void stop_looking(struct tb__input *input)
{
    if (input->looking_started) {
        atomic_store(&input->quit, 1);
        pthread_join(input->looking, NULL);
        input->looking_started = 0;
    }
}

/* The stream is at its end. */
static void end_stream(struct tb__input *input)
{
    tb__stream_close(input->stream);
    input->stream = NULL;
    if (input->config->restart && !tb__node_is_gone(input->node, input->config->source_node)) {
        start_looking(input);
    } else {
        input->state = TB__INPUT_CLOSED;
    }
}

void tb__input_close(struct tb__input *input)
{
    stop_looking(input);
    tb__stream_close(input->found);
    input->found = NULL;
    tb__stream_close(input->stream);
    input->stream = NULL;
    input->state = TB__INPUT_CLOSED;
}

/* ---- looking ---- */

static void lower(int64_t *wake_ns, int64_t at_ns)
{
    *wake_ns = at_ns < *wake_ns ? at_ns : *wake_ns;
}

static enum tb__input_news look_timer(struct tb__input *input, int64_t now_ns, int64_t *wake_ns,
                                      struct tb__input_look *out)
{
    input->dropped += tb__timer_expire(&input->timer, now_ns);
    out->stamp_ns = input->timer.next_ns;
    if (tb__timer_due(&input->timer, now_ns)) {
        return TB__NEWS_MESSAGE;
    }
    lower(wake_ns, input->timer.next_ns);
    return TB__NEWS_NONE;
}

static enum tb__input_news look_silence(struct tb__input *input, int64_t now_ns, int64_t *wake_ns)
{
    if (input->config->timeout_ns == 0 || input->told_silent) {
        return TB__NEWS_NONE;
    }
    int64_t at_ns = input->heard_ns + input->config->timeout_ns;
    if (now_ns >= at_ns) {
        return TB__NEWS_SILENT;
    }
    lower(wake_ns, at_ns);
    return TB__NEWS_NONE;
}

static enum tb__input_news look_stream(struct tb__input *input, int64_t now_ns, int64_t *wake_ns,
                                       struct tb__input_look *out)
{
    struct tb__stream *stream = input->stream;
    int ended = tb__stream_ended(stream, now_ns, wake_ns);
    tb_status status = tb__ring_peek(&stream->ring, stream->cursor, &out->item);
    if (status == TB_OK) {
        /* A sender cannot date its messages into the future to hold others up, see next.c. */
        out->stamp_ns = out->item.stamp_ns < now_ns ? out->item.stamp_ns : now_ns;
        return TB__NEWS_MESSAGE;
    }
    if (status != TB_AGAIN) {
        return TB__NEWS_CORRUPT;
    }
    if (ended) {
        end_stream(input);
    }
    return TB__NEWS_NONE;
}

enum tb__input_news tb__input_look(struct tb__input *input, int64_t now_ns, int64_t *wake_ns,
                                   struct tb__input_look *out)
{
    if (input->config->period_ns > 0) {
        return look_timer(input, now_ns, wake_ns, out);
    }
    if (input->state == TB__INPUT_AWAY && atomic_load(&input->looked)) {
        stop_looking(input);
        if (input->found != NULL) {
            adopt(input, input->found);
            input->found = NULL;
        } else {
            input->state = TB__INPUT_CLOSED;
        }
    }
    if (input->state == TB__INPUT_OPEN) {
        enum tb__input_news news = look_stream(input, now_ns, wake_ns, out);
        if (news != TB__NEWS_NONE) {
            return news;
        }
    }
    if (input->state == TB__INPUT_CLOSED) {
        return input->told_closed ? TB__NEWS_NONE : TB__NEWS_CLOSED;
    }
    return look_silence(input, now_ns, wake_ns);
}

/* ---- taking ---- */

/* The frame of a handle or carrier. TB_E_STALE: it is gone, whatever the reason. */
static tb_status open_frame(struct tb__input *input, const tb_handle *handle, tb_frame **out)
{
    tb_status status = tb_frame_open(input->node->bus, handle, 0, out);
    switch (status) {
    case TB_OK:
    case TB_E_BUSY:
    case TB_E_NOMEM:
    case TB_E_FORKED:
        return status;
    default:
        tb_log_info("input `%s`: a message's frame is gone: %s", input->config->name,
                    tb_last_error_text());
        return TB_E_STALE;
    }
}

static tb_status fill(struct tb__input *input, const struct tb__ring_item *item, tb_event *event)
{
    struct tb__message message;
    struct tb__message_layout layout;
    TB__TRY(tb__ring_copy(&input->stream->ring, item, event->message));
    TB__TRY(tb__message_decode(event->message, item->bytes, &message, &layout));
    if (message.kind == TB_VALUE_HANDLE) {
        TB__TRY(open_frame(input, &message.handle, &event->frame));
    }
    if (message.flags & TB__MESSAGE_CARRIED) {
        TB__TRY(open_frame(input, &message.carrier, &event->carrier));
    }
    return tb__event_unpack(event, &message, &layout);
}

static tb_status take_tick(struct tb__input *input, tb_event **out)
{
    TB__TRY(tb__event_create(TB_EVENT_INPUT, input->config->name, 0, out));
    (*out)->stamp_ns = tb__timer_take(&input->timer);
    (*out)->dropped = input->dropped;
    input->dropped = 0;
    return TB_OK;
}

tb_status tb__input_take(struct tb__input *input, const struct tb__input_look *look, tb_event **out)
{
    if (input->config->period_ns > 0) {
        return take_tick(input, out);
    }
    tb_event *event;
    TB__TRY(tb__event_create(TB_EVENT_INPUT, input->config->name, look->item.bytes, &event));
    tb_status status = fill(input, &look->item, event);
    if (status != TB_OK && status != TB_E_STALE) {
        tb_event_release(event);
        return status;
    }
    /* Only now, as the frames are leased: the sender lets go of them when it sees this. */
    tb__stream_advance(input->stream, &look->item);
    input->dropped += look->item.skipped;
    input->heard_ns = look->stamp_ns;
    input->told_silent = 0;
    if (status == TB_E_STALE) {
        input->dropped++;
        tb__a64_add_relaxed(&input->stream->page.shm->stale, 1);
        tb_event_release(event);
        return TB_AGAIN;
    }
    event->dropped = input->dropped;
    input->dropped = 0;
    *out = event;
    return TB_OK;
}

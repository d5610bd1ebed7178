/* Subscribing to an output and following it. One thread at a time. */
#define TB_LOG_TOPIC "node"
#include "node/stream.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "node/ahead.h"

/* A live service thread answers at once; one that does not is stopped. */
#define CALL_PATIENCE_NS INT64_C(5000000000)
#define CLOSE_ATTEMPTS 20

static tb_status take_reply(struct tb__stream *stream, struct tb__reply *reply, uint32_t queue_size)
{
    struct tb__stream_opened_wire body;
    TB__TRY(tb__reply_body(reply, TB__MSG_STREAM, &body, sizeof body, 2));
    stream->id = body.stream_id;
    stream->missed = body.missed;
    TB__TRY(tb__ring_map(&stream->ring, queue_size, reply->fds[0]));
    TB__TRY(tb__page_map(&stream->page, tb__page_shift(stream->id), reply->fds[1]));
    tb__a64_add_relaxed(&stream->page.shm->missed, body.missed);
    return TB_OK;
}

static tb_status ask(const struct tb__stream *stream, uint16_t type, const void *body,
                     uint32_t body_bytes, struct tb__reply *out)
{
    struct tb__packet question = {.type = type, .body = body, .body_bytes = body_bytes};
    return tb__lifeline_call(stream->line, &question, tb__deadline_ns(CALL_PATIENCE_NS), out);
}

/* The page is mapped: the sender may seal it. */
static tb_status say_mapped(struct tb__stream *stream)
{
    struct tb__stream_wire body = {stream->id};
    struct tb__reply reply;
    tb_status status = ask(stream, TB__MSG_STREAM_MAPPED, &body, sizeof body, &reply);
    if (status == TB_OK && reply.type != TB__MSG_OK) {
        status = TB__FAIL(TB_E_PROTOCOL, "a request about a stream was answered with type %u",
                          reply.type);
    }
    tb__reply_fini(&reply);
    return status == TB_AGAIN ? TB__FAIL(TB_E_NOT_FOUND, "process `%s` does not answer",
                                         tb__lifeline_peer_name(stream->line))
                              : status;
}

/* The hand-over of descriptors; open lock held. */
static tb_status hand_over(struct tb__stream *stream, const struct tb__stream_options *options)
{
    struct tb__stream_open_wire open = {.queue_size = options->queue_size,
                                        .policy = options->policy};
    tb__name_copy(open.output, options->output);
    tb__name_copy(open.input, options->input);
    struct tb__reply reply;
    tb_status status = ask(stream, TB__MSG_STREAM_OPEN, &open, sizeof open, &reply);
    if (status == TB_AGAIN) {
        status =
            TB__FAIL(TB_E_NOT_FOUND, "process `%s` does not answer: is it stopped?", options->node);
    }
    if (status == TB_OK) {
        status = take_reply(stream, &reply, options->queue_size);
    }
    tb__reply_fini(&reply);
    TB__TRY(status);
    tb__bus_life_attach(stream->bus, &stream->page, &stream->page.shm->reader_life);
    return say_mapped(stream);
}

tb_status tb__stream_open(tb_bus *bus, const struct tb__stream_options *options,
                          int64_t deadline_ns, struct tb__stream **out)
{
    struct tb__stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a stream");
    }
    stream->bus = bus;
    tb_status status = tb__bus_connect(bus, options->node, 0, deadline_ns, &stream->line);
    if (status == TB_OK) {
        tb__lifeline_open_lock(stream->line);
        status = hand_over(stream, options);
        tb__lifeline_open_unlock(stream->line);
    }
    if (status != TB_OK) {
        tb__stream_close(stream);
        return status;
    }
    *out = stream;
    return TB_OK;
}

void tb__stream_open_pools(struct tb__stream *stream)
{
    struct tb__stream_wire body = {stream->id};
    struct tb__stream_pools_wire list = {0};
    struct tb__reply reply;
    tb_error kept;
    tb_last_error(&kept);
    tb_status status = ask(stream, TB__MSG_STREAM_POOLS, &body, sizeof body, &reply);
    if (status == TB_OK) {
        status = tb__reply_body(&reply, TB__MSG_STREAM_POOL_LIST, &list, sizeof list, 0);
    }
    tb__reply_fini(&reply);
    if (status != TB_OK) {
        tb_log_debug("the pools behind a stream are not known: %s", tb_last_error_text());
        tb__error_restore(&kept);
        return;
    }
    for (uint32_t i = 0; i < list.count && i < TB__STREAM_POOLS; i++) {
        tb__ahead_attach(stream->bus, &list.pools[i]);
    }
}

/* Without waiting: the sender may be dead or stopped. If its socket is full for long, it finds out
 * when the lifeline closes. */
static void say_close(struct tb__stream *stream)
{
    struct tb__stream_wire body = {stream->id};
    struct timespec pause = {.tv_nsec = 1000000};
    for (int i = 0; i < CLOSE_ATTEMPTS; i++) {
        if (tb__lifeline_send(stream->line, TB__MSG_STREAM_CLOSE, &body, sizeof body) != TB_AGAIN) {
            return;
        }
        nanosleep(&pause, NULL);
    }
}

void tb__stream_close(struct tb__stream *stream)
{
    if (stream == NULL) {
        return;
    }
    if (stream->page.base != NULL) {
        tb__bus_life_detach(stream->bus, &stream->page, &stream->page.shm->reader_life);
        tb__page_unmap(&stream->page);
    }
    tb__ring_unmap(&stream->ring);
    if (stream->line != NULL) {
        if (stream->id != 0) {
            say_close(stream);
        }
        tb__lifeline_unref(stream->line);
    }
    free(stream);
}

int tb__stream_ended(struct tb__stream *stream, int64_t now_ns, int64_t *out_wake_ns)
{
    /* Acquire: pairs with the release in tb__output_close(); all messages before it are seen. */
    uint32_t state = tb__a32_load_acquire(&stream->page.shm->state);
    uint32_t life = tb__a32_load_acquire(&stream->page.shm->owner_life);
    if (state != TB__PAGE_OPEN || life == 0 || tb__lifeline_is_dead(stream->line)) {
        return 1;
    }
    if (!tb__life_died(life)) {
        return 0;
    }
    if (stream->died_ns == 0) {
        stream->died_ns = now_ns;
    }
    int64_t settled_ns = stream->died_ns + TB__DEATH_SETTLE_NS;
    if (out_wake_ns != NULL && now_ns < settled_ns) {
        *out_wake_ns = settled_ns;
    }
    return now_ns >= settled_ns;
}

void tb__stream_arm(struct tb__stream *stream)
{
    /* The caller's full fence behind it pairs with the one in a sender's deliver(). */
    tb__a32_store_relaxed(&stream->page.shm->armed, TB__ARMED_SLEEP);
}

void tb__stream_disarm(struct tb__stream *stream)
{
    if (tb__a32_load_relaxed(&stream->page.shm->armed) != 0) {
        tb__a32_store_relaxed(&stream->page.shm->armed, 0);
    }
}

void tb__stream_advance(struct tb__stream *stream, const struct tb__ring_item *item)
{
    struct tb__page_shm *page = stream->page.shm;
    stream->cursor = item->sequence;
    tb__a64_add_relaxed(&page->frames, 1);
    if (item->skipped != 0) {
        tb__a64_add_relaxed(&page->missed, item->skipped);
    }
    /* Release: our lease of the message's frame is seen by a sender that sees this. */
    tb__a64_store_release(&page->taken, item->sequence);
    /* Pairs with the fence in begin_wait() of room.c. */
    tb__fence_full();
    uint32_t waiting = tb__a32_load_relaxed(&page->waiting);
    if (__builtin_expect(waiting == 0, 1)) {
        return;
    }
    if (waiting & TB__WAITS_FOR_HOLDS) {
        struct tb__stream_wire body = {stream->id};
        /* A full socket: the sender lets go at its next send. */
        tb_status ignored =
            tb__lifeline_send(stream->line, TB__MSG_STREAM_TAKEN, &body, sizeof body);
        (void)ignored;
    }
    if (waiting & TB__WAITS_FOR_ROOM) {
        tb__lifeline_ring(stream->line);
    }
}

/* Attaching to pools, and what is not on the way of every frame. Users' threads. */
#define TB_LOG_TOPIC "pool"
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "pool/gate.h"
#include "pool/segment_map.h"
#include "pool/trouble.h"

/* ---- opening ---- */

static tb_status make_frames(tb_reader *reader)
{
    const struct tb__doradma_view *view = &reader->segment.view;
    tb_device device = reader->device != NULL ? tb__device_id(reader->device) : TB_CPU;
    reader->frames = calloc(reader->max_leases, sizeof reader->frames[0]);
    if (reader->frames == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a reader");
    }
    for (uint32_t i = 0; i < reader->max_leases; i++) {
        tb_frame *frame = &reader->frames[i];
        frame->reader = reader;
        frame->index = i;
        frame->tensor = (tb_tensor){.device = device, .dtype = view->dtype, .ndim = view->ndim};
        memcpy(frame->tensor.shape, view->shape, sizeof view->shape);
    }
    return TB_OK;
}

static void reader_destroy(tb_reader *reader)
{
    if (reader->page.shm != NULL) {
        tb__bus_life_detach(reader->bus, &reader->page, &reader->page.shm->reader_life);
    }
    tb__mapped_end(&reader->page_mapped);
    tb__mapped_end(&reader->gates_mapped);
    tb__mapped_end(&reader->segment_mapped);
    tb__gates_unmap(&reader->gates);
    tb__page_unmap(&reader->page);
    if (!tb__bus_keeps_mapped(reader->bus)) {
        tb__segment_unmap(&reader->segment);
        tb__device_share_close(reader->device);
    }
    pthread_mutex_destroy(&reader->map_mutex);
    tb__poke_close(&reader->poke_fd);
    tb__lifeline_unref(reader->line);
    free(reader->frames);
    free(reader);
}

/* How many descriptors an answer comes with, as its flags say. */
static uint32_t descriptors_of(const struct tb__reply *reply)
{
    struct tb__pool_wire answer = {0};
    if (reply->body_bytes == sizeof answer) {
        memcpy(&answer, reply->body, sizeof answer);
    }
    return 2 + ((answer.flags & TB__POOL_GATED) != 0) + ((answer.flags & TB__POOL_DEVICE_FD) != 0);
}

/* The segment, the page, and what a GPU needs. */
static tb_status map_parts(tb_reader *reader, const struct tb__reply *reply,
                           const struct tb__pool_wire *answer)
{
    int device_fd = answer->flags & TB__POOL_DEVICE_FD ? reply->fds[reply->fd_count - 1] : -1;
    TB__TRY(tb__segment_map(&reader->segment, reply->fds[0], answer, !reader->no_prefault));
    TB__TRY(tb__page_map(&reader->page, tb__page_shift(answer->reader_id), reply->fds[1]));
    tb__bus_life_attach(reader->bus, &reader->page, &reader->page.shm->reader_life);
    if (answer->flags & TB__POOL_GATED) {
        TB__TRY(tb__gates_map(reply->fds[2], &reader->gates));
    }
    if (reader->segment.view.device_kind == TB__PLACE_MEMFD) {
        TB__TRY(tb__slots_map(&reader->segment, device_fd, answer->name, !reader->no_prefault));
    } else if (reader->segment.view.device_kind != TB__PLACE_SEGMENT) {
        TB__TRY(tb__device_share_open(&reader->segment.view, reader->wanted_device, device_fd,
                                      &reader->device));
    }
    return TB_OK;
}

static tb_status take_answer(tb_reader *reader, struct tb__reply *reply)
{
    struct tb__pool_wire answer;
    TB__TRY(tb__reply_body(reply, TB__MSG_POOL, &answer, sizeof answer, descriptors_of(reply)));
    if (!tb__wire_name_ok(answer.name, sizeof answer.name, 0) || answer.max_leases == 0 ||
        answer.max_leases > TB_MAX_LEASES || answer.reader_id == 0) {
        return TB__FAIL(TB_E_PROTOCOL, "malformed answer about a pool");
    }
    tb__name_copy(reader->name, answer.name);
    memcpy(reader->uid, answer.uid, sizeof reader->uid);
    reader->reader_id = answer.reader_id;
    reader->max_leases = answer.max_leases;
    TB__TRY(map_parts(reader, reply, &answer));
    TB__TRY(make_frames(reader));
    if (answer.flags & TB__POOL_DRY) {
        tb_log_info("pool `%s`: its readers' leases could hold all %u slots at once", reader->name,
                    reader->segment.view.slot_count);
    }
    return TB_OK;
}

static int64_t patience(const struct tb__pool_open_wire *wire)
{
    return wire->flags & TB__OPEN_BY_UID ? TB__STRANGER_PATIENCE_NS : TB__ANSWER_PATIENCE_NS;
}

/* The first answer: to what went along with the greeting, or to a question that waits for the pool.
 * TB_AGAIN: there is none. Without the lock, which others need meanwhile: the owner queues
 * hand-overs anyway. */
static tb_status first_answer(tb_reader *reader, const struct tb__pool_open_wire *wire,
                              struct tb__question *question, int64_t deadline_ns)
{
    int waits = (wire->flags & TB__OPEN_WAIT) != 0;
    if (question->asked) {
        return tb__call_end(reader->line, &question->call,
                            waits ? deadline_ns : tb__deadline_ns(patience(wire)));
    }
    return waits ? tb__lifeline_call(reader->line, &question->packet, deadline_ns, question->reply)
                 : TB_AGAIN;
}

/* How a hand-over ended: without an answer, that is said. */
static tb_status unanswered(const tb_reader *reader, const struct tb__pool_open_wire *wire,
                            tb_status status)
{
    const char *owner = tb__lifeline_peer_name(reader->line);
    uint32_t pid = tb__lifeline_peer_pid(reader->line);
    if (status == TB_AGAIN) {
        int named = wire->name[0] != '\0';
        return TB__FAIL(TB_E_NOT_FOUND,
                        "process `%s` (pid %u) did not answer about %s%s%s in time: is it stopped?",
                        owner, pid, named ? "pool `" : "the pool of a handle", wire->name,
                        named ? "`" : "");
    }
    if (status == TB_CLOSED || status == TB_E_OWNER_DIED) {
        return TB__FAIL(TB_E_NOT_FOUND, "process `%s` (pid %u) ended while it was asked for a pool",
                        owner, pid);
    }
    return status;
}

/* One hand-over: ask, map, say so. */
static tb_status attach(tb_reader *reader, const struct tb__pool_open_wire *wire,
                        struct tb__question *question, int64_t deadline_ns)
{
    struct tb__reply *reply = question->reply;
    tb_status status = first_answer(reader, wire, question, deadline_ns);
    int locked = status == TB_AGAIN && (!question->asked || (wire->flags & TB__OPEN_WAIT) != 0);
    if (locked) {
        /* Not to wait, or in vain (the owner holds the question until the pool exists, or is slow):
         * ask for a plain answer. */
        struct tb__pool_open_wire now = *wire;
        struct tb__packet plain = {
            .type = TB__MSG_POOL_OPEN, .body = &now, .body_bytes = sizeof now};
        tb__lifeline_open_lock(reader->line);
        now.flags &= ~TB__OPEN_WAIT;
        status = tb__lifeline_call(reader->line, &plain, tb__deadline_ns(patience(wire)), reply);
    }
    if (status == TB_OK) {
        status = take_answer(reader, reply);
        if (status != TB_OK) {
            tb__trouble_tell(reader);
        }
        struct tb__reader_wire mapped = {.reader_id = reader->reader_id};
        tb_status ignored =
            tb__lifeline_send(reader->line, TB__MSG_POOL_MAPPED, &mapped, sizeof mapped);
        if (status != TB_OK && mapped.reader_id != 0) {
            ignored = tb__lifeline_send(reader->line, TB__MSG_READER_CLOSE, &mapped, sizeof mapped);
        }
        (void)ignored;
    }
    tb__reply_fini(reply);
    if (locked) {
        tb__lifeline_open_unlock(reader->line);
    }
    return unanswered(reader, wire, status);
}

static tb_reader *reader_create(tb_bus *bus, const tb_reader_options *options)
{
    tb_reader *reader = calloc(1, sizeof *reader);
    if (reader != NULL) {
        reader->bus = bus;
        reader->layer = tb__pool_layer_of(bus);
        atomic_init(&reader->poke_fd, -1);
        reader->ack = options->ack;
        reader->spin_ns = (int64_t)options->spin_us * 1000;
        reader->wanted_device = options->device;
        reader->no_prefault = options->no_prefault;
        pthread_mutex_init(&reader->map_mutex, NULL);
    }
    return reader;
}

static tb_status check_options(const tb_reader_options *options)
{
    if (options->max_leases > TB_MAX_LEASES) {
        return TB__FAIL(TB_E_LIMIT, "max_leases %u, at most %d are possible", options->max_leases,
                        TB_MAX_LEASES);
    }
    return TB_OK;
}

static uint32_t wire_flags(const tb_reader_options *options)
{
    return (options->every ? TB__OPEN_EVERY : 0) | (options->ack ? TB__OPEN_ACK : 0) |
           (options->start_next ? TB__OPEN_START_NEXT : 0) |
           (options->stream_ordered ? TB__OPEN_GATED : 0) |
           (options->wait_ns != 0 ? TB__OPEN_WAIT : 0);
}

/* A process that ends while we ask may come back under its name: ask again until the deadline. */
static tb_status open_reader(tb_bus *bus, const char *owner, uint64_t owner_id,
                             const struct tb__pool_open_wire *wire,
                             const tb_reader_options *options, tb_reader **out)
{
    int64_t deadline = tb__deadline_ns(options->wait_ns);
    tb_error kept;
    tb_last_error(&kept);
    for (;;) {
        tb_reader *reader = reader_create(bus, options);
        if (reader == NULL) {
            return TB__FAIL(TB_E_NOMEM, "no memory for a reader");
        }
        struct tb__reply reply = {0};
        struct tb__question question = {
            .packet = {.type = TB__MSG_POOL_OPEN, .body = wire, .body_bytes = sizeof *wire},
            .reply = &reply};
        tb_status status = wire->flags & TB__OPEN_GATED ? tb__watch_start(reader->layer) : TB_OK;
        if (status == TB_OK) {
            status =
                tb__bus_connect_asking(bus, owner, owner_id, deadline, &question, &reader->line);
        }
        if (status == TB_OK) {
            status = attach(reader, wire, &question, deadline);
        }
        if (status == TB_OK) {
            tb__bus_lock(bus);
            reader->next = reader->layer->readers;
            reader->layer->readers = reader;
            tb__bus_unlock(bus);
            if (reader->gates != NULL) {
                tb__watch_changed(reader->layer);
            }
            tb__error_restore(&kept); /* attempts before this one may have failed */
            *out = reader;
            return TB_OK;
        }
        int gone = reader->line != NULL && tb__lifeline_is_dead(reader->line);
        reader_destroy(reader);
        if (!gone || owner == NULL || tb__left_ns(deadline) == 0) {
            return status;
        }
    }
}

tb_status tb_reader_open(tb_bus *bus, const char *path, const tb_reader_options *given,
                         tb_reader **out)
{
    TB__TRY(tb__bus_check(bus));
    tb_reader_options options;
    TB__OPTIONS(tb_reader_options, given, &options);
    TB__TRY(check_options(&options));
    char owner[TB__NAME_SIZE];
    struct tb__pool_open_wire wire = {.flags = TB__OPEN_BY_NAME | wire_flags(&options),
                                      .max_leases = options.max_leases};
    TB__TRY(tb__name_split(path, owner, wire.name));
    return open_reader(bus, owner, 0, &wire, &options, out);
}

tb_status tb_reader_open_handle(tb_bus *bus, const tb_handle *handle,
                                const tb_reader_options *given, tb_reader **out)
{
    TB__TRY(tb__bus_check(bus));
    if (handle == NULL) {
        return TB__FAIL(TB_E_INVALID, "handle is NULL");
    }
    tb_reader_options options;
    TB__OPTIONS(tb_reader_options, given, &options);
    TB__TRY(check_options(&options));
    struct tb__pool_open_wire wire = {
        .flags = (TB__OPEN_BY_UID | wire_flags(&options)) & ~TB__OPEN_WAIT,
        .max_leases = options.max_leases,
    };
    memcpy(wire.uid, handle->pool_uid, sizeof wire.uid);
    uint64_t owner_id;
    memcpy(&owner_id, handle->pool_uid, sizeof owner_id);
    return open_reader(bus, NULL, owner_id, &wire, &options, out);
}

static void unlink_reader(tb_reader *reader)
{
    tb__bus_lock(reader->bus);
    tb_reader **at = &reader->layer->readers;
    while (*at != reader) {
        at = &(*at)->next;
    }
    *at = reader->next;
    tb__bus_unlock(reader->bus);
    if (atomic_load_explicit(&reader->poke_fd, memory_order_relaxed) >= 0 ||
        reader->gates != NULL) {
        tb__watch_changed(reader->layer);
    }
}

/* Tell the owner, without waiting for it. */
static void say_close(tb_reader *reader)
{
    struct tb__reader_wire wire = {.reader_id = reader->reader_id};
    if (tb__lifeline_send(reader->line, TB__MSG_READER_CLOSE, &wire, sizeof wire) == TB_AGAIN) {
        /* The owner is stopped and its socket full: our page says that its reader is no more. */
        tb__bus_life_detach(reader->bus, &reader->page, &reader->page.shm->reader_life);
        /* Pairs with the acquire load in tb__attached_void(). */
        tb__a32_store_release(&reader->page.shm->reader_life, TB__LIFE_DIED);
        tb__page_unmap(&reader->page);
        tb__lifeline_ring(reader->line);
    }
}

void tb_reader_close(tb_reader *reader)
{
    if (reader == NULL || tb__bus_check(reader->bus) != TB_OK) {
        return;
    }
    for (uint32_t i = 0; i < reader->max_leases; i++) {
        if (tb__a32_load_acquire(&reader->frames[i].busy) != TB__FRAME_ON_STREAM) {
            tb__a64_store_seq(tb__page_entry(reader->page.shm, i), 0);
        }
    }
    /* While it is still watched: its owner may die, and its streams wait for that owner. */
    int ended = tb__reader_streams_end(reader);
    if (!ended && !reader->layer->readers_end) {
        return; /* a stream may still use it: it stays attached until the bus is closed */
    }
    unlink_reader(reader);
    if (ended) {
        say_close(reader);
        reader_destroy(reader);
    }
}

/* ---- beside the frames ---- */

tb_status tb__reader_check(const tb_reader *reader)
{
    if (__builtin_expect(reader == NULL, 0)) {
        return TB__FAIL(TB_E_INVALID, "reader is NULL");
    }
    return tb__bus_check(reader->bus);
}

int tb__reader_owner_gone(tb_reader *reader)
{
    /* Pairs with the kernel's mark. */
    uint32_t life = tb__a32_load_acquire(&reader->page.shm->owner_life);
    if (!tb__life_died(life) && !tb__lifeline_is_dead(reader->line)) {
        return 0;
    }
    /* Sibling threads of the dead one may still write for a moment. */
    uint64_t since = 0;
    int64_t now = tb__now_ns();
    if (tb__a64_cas(&reader->gone_since_ns, &since, (uint64_t)now)) {
        return 0;
    }
    return now - (int64_t)since >= TB__DEATH_SETTLE_NS;
}

tb_status tb__reader_look(const tb_reader *reader)
{
    /* Pairs with the owner's release store: frames published before are seen first. */
    uint32_t state = tb__a32_load_acquire(&reader->page.shm->state);
    if (state == TB__PAGE_FREED) {
        return TB_E_FREED;
    }
    if (state == TB__PAGE_GOODBYE || tb__lifeline_said_goodbye(reader->line)) {
        return TB_CLOSED;
    }
    if (tb__life_died(tb__a32_load_acquire(&reader->page.shm->owner_life)) ||
        tb__lifeline_is_dead(reader->line)) {
        return TB_E_OWNER_DIED;
    }
    return TB_OK;
}

tb_status tb__reader_fail(const tb_reader *reader, tb_status ended)
{
    const char *owner = tb__lifeline_peer_name(reader->line);
    uint32_t pid = tb__lifeline_peer_pid(reader->line);
    switch ((int)ended) {
    case TB_E_FREED:
        return TB__FAIL(ended,
                        "pool `%s/%s` was freed: it cannot be read any more; open the pool that "
                        "replaces it",
                        owner, reader->name);
    case TB_CLOSED:
        return TB__FAIL(ended, "process `%s` (pid %u), owner of pool `%s`, said goodbye", owner,
                        pid, reader->name);
    case TB_E_OWNER_DIED:
        return TB__FAIL(ended, "process `%s` (pid %u), owner of pool `%s`, has died", owner, pid,
                        reader->name);
    default:
        return ended;
    }
}

void tb__reader_ring_owner(tb_reader *reader)
{
    /* seq_cst: after the caller's store; pairs with the fence in tb__wait_begin(). */
    if (__builtin_expect(tb__a32_load_seq(&reader->page.shm->waiting) != 0, 0)) {
        tb__lifeline_ring(reader->line);
    }
}

tb_status tb__reader_fail_silent(const tb_reader *reader)
{
    return TB__FAIL(TB_E_NOT_FOUND,
                    "process `%s` (pid %u), owner of pool `%s`, does not answer: is it stopped?",
                    tb__lifeline_peer_name(reader->line), tb__lifeline_peer_pid(reader->line),
                    reader->name);
}

tb_status tb_reader_ack(tb_reader *reader, const tb_frame *frame)
{
    TB__TRY(tb__reader_check(reader));
    if (frame == NULL || memcmp(frame->reader->uid, reader->uid, sizeof reader->uid) != 0) {
        return TB__FAIL(TB_E_INVALID, "pool `%s`: %s", reader->name,
                        frame == NULL ? "frame is NULL" : "the frame is of another pool");
    }
    if (!reader->ack) {
        return TB__FAIL(TB_E_INVALID, "the reader of pool `%s` was not opened with `ack`",
                        reader->name);
    }
    struct tb__a64 *acked = &reader->page.shm->acked;
    uint64_t seen = tb__a64_load_relaxed(acked);
    while (tb__gen_distance(seen, frame->generation) > 0 &&
           !tb__a64_cas(acked, &seen, frame->generation)) {
    }
    tb__reader_ring_owner(reader);
    return TB_OK;
}

tb_status tb_reader_free_pool(tb_reader *reader)
{
    TB__TRY(tb__reader_check(reader));
    struct tb__pool_open_wire wire = {.flags = TB__OPEN_BY_UID};
    memcpy(wire.uid, reader->uid, sizeof wire.uid);
    struct tb__packet question = {
        .type = TB__MSG_POOL_FREE, .body = &wire, .body_bytes = sizeof wire};
    struct tb__reply reply;
    tb_status status =
        tb__lifeline_call(reader->line, &question, tb__deadline_ns(TB__ANSWER_PATIENCE_NS), &reply);
    tb__reply_fini(&reply);
    if (status == TB_E_FREED) {
        tb_log_warn("pool `%s/%s` was freed before", tb__lifeline_peer_name(reader->line),
                    reader->name);
    }
    return status == TB_AGAIN ? tb__reader_fail_silent(reader) : status;
}

/* A frame that a stream has given back is none any more. */
static uint32_t is_held(tb_frame *frame)
{
    const struct tb__a64 *entry = tb__page_entry(frame->reader->page.shm, frame->index);
    /* Acquire: who sees none held may close the reader; pairs with tb__frame_unreserve(). */
    uint32_t use = tb__a32_load_acquire(&frame->busy);
    if (use == TB__FRAME_ON_STREAM && tb__a64_load_acquire(entry) == 0 &&
        tb__a32_cas(&frame->busy, &use, TB__FRAME_HELD)) {
        tb__frame_passed(frame);
        tb__frame_unreserve(frame);
        return 0;
    }
    return use != TB__FRAME_IDLE;
}

tb_status tb_reader_get_stats(tb_reader *reader, tb_reader_stats *out)
{
    TB__TRY(tb__reader_check(reader));
    struct tb__page_shm *page = reader->page.shm;
    tb_reader_stats stats = {
        .frames = tb__a64_load_relaxed(&page->frames),
        .missed = tb__a64_load_relaxed(&page->missed),
        .stale = tb__a64_load_relaxed(&page->stale),
        .waits = tb__a64_load_relaxed(&page->waits),
        .max_leases = reader->max_leases,
        .lane = tb__reader_lane(reader),
    };
    for (uint32_t i = 0; i < reader->max_leases; i++) {
        stats.held += is_held(&reader->frames[i]);
    }
    stats.incomplete = tb__a64_load_relaxed(&page->incomplete);
    return TB__INFO(tb_reader_stats, out, &stats);
}

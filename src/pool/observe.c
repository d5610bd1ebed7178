/* Observers: tools' view of a pool. A user's thread. */
#include "pool/observe.h"
#include "pool/segment_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "pool/state.h"

/* Names of all pools of a process: some 250,000 of the longest. */
#define NAMES_MOST (16 << 20)

struct tb__observer {
    struct tb__lifeline *line;
    struct tb__segment segment;
    char name[TB__NAME_SIZE];
};

static tb_status fail_silent(const char *owner)
{
    return TB__FAIL(TB_E_NOT_FOUND, "process `%s` does not answer: is it stopped?", owner);
}

/* ---- the pools of a process ---- */

struct names {
    char *text; /* heap */
    size_t bytes;
    size_t count;
};

/* Take a reply's names; *before is the number to ask on with, 0 at the end. */
static tb_status add_names(struct names *names, const struct tb__reply *reply, uint64_t *before)
{
    struct tb__pool_list_wire wire = {0};
    size_t bytes = reply->body_bytes - sizeof wire;
    if (reply->type != TB__MSG_POOL_NAMES || reply->body_bytes < sizeof wire) {
        return TB__FAIL(TB_E_PROTOCOL, "a list of pools as type %u with %u bytes", reply->type,
                        reply->body_bytes);
    }
    memcpy(&wire, reply->body, sizeof wire);
    const char *text = (const char *)reply->body + sizeof wire;
    if (bytes > 0 && text[bytes - 1] != '\0') {
        return TB__FAIL(TB_E_PROTOCOL, "a list of pools that is cut off");
    }
    if (wire.before != 0 && (bytes == 0 || (*before != 0 && wire.before >= *before))) {
        return TB__FAIL(TB_E_PROTOCOL, "a list of pools that does not go on");
    }
    if (bytes > NAMES_MOST - names->bytes) {
        return TB__FAIL(TB_E_LIMIT, "a list of pools of more than %d bytes", NAMES_MOST);
    }
    char *grown = realloc(names->text, names->bytes + bytes + 1);
    if (grown == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a list of pools");
    }
    memcpy(grown + names->bytes, text, bytes);
    names->text = grown;
    names->bytes += bytes;
    for (size_t i = 0; i < bytes; i++) {
        names->count += text[i] == '\0';
    }
    *before = wire.before;
    return TB_OK;
}

static tb_status list_all(struct tb__lifeline *line, struct names *names)
{
    struct tb__pool_list_wire wire = {0};
    struct tb__packet question = {
        .type = TB__MSG_POOL_LIST, .body = &wire, .body_bytes = sizeof wire};
    do {
        struct tb__reply reply;
        tb_status status =
            tb__lifeline_call(line, &question, tb__deadline_ns(TB__ANSWER_PATIENCE_NS), &reply);
        if (status == TB_OK) {
            status = add_names(names, &reply, &wire.before);
        }
        tb__reply_fini(&reply);
        TB__TRY(status);
    } while (wire.before != 0);
    return TB_OK;
}

tb_status tb__pools_list(tb_bus *bus, const char *owner, char **out, size_t *count)
{
    TB__TRY(tb__bus_check(bus));
    struct tb__lifeline *line;
    TB__TRY(tb__bus_connect(bus, owner, 0, tb__now_ns(), &line));
    struct names names = {0};
    tb_status status = list_all(line, &names);
    tb__lifeline_unref(line);
    if (status != TB_OK) {
        free(names.text);
        return status == TB_AGAIN ? fail_silent(owner) : status;
    }
    *out = names.text;
    *count = names.count;
    return TB_OK;
}

/* ---- one pool ---- */

static tb_status map_observed(tb__observer *observer, const struct tb__reply *reply)
{
    struct tb__pool_wire answer;
    TB__TRY(tb__reply_body(reply, TB__MSG_POOL, &answer, sizeof answer, 1));
    if (!tb__wire_name_ok(answer.name, sizeof answer.name, 0)) {
        return TB__FAIL(TB_E_PROTOCOL, "malformed answer about a pool");
    }
    tb__name_copy(observer->name, answer.name);
    return tb__segment_map(&observer->segment, reply->fds[0], &answer, 0);
}

tb_status tb__observer_open(tb_bus *bus, const char *path, tb__observer **out)
{
    TB__TRY(tb__bus_check(bus));
    char owner[TB__NAME_SIZE];
    struct tb__pool_open_wire wire = {.flags = TB__OPEN_BY_NAME};
    TB__TRY(tb__name_split(path, owner, wire.name));
    tb__observer *observer = calloc(1, sizeof *observer);
    if (observer == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for an observer");
    }
    tb_status status = tb__bus_connect(bus, owner, 0, tb__now_ns(), &observer->line);
    if (status == TB_OK) {
        struct tb__packet question = {
            .type = TB__MSG_POOL_OBSERVE, .body = &wire, .body_bytes = sizeof wire};
        struct tb__reply reply;
        tb__lifeline_open_lock(observer->line);
        status = tb__lifeline_call(observer->line, &question,
                                   tb__deadline_ns(TB__ANSWER_PATIENCE_NS), &reply);
        tb__lifeline_open_unlock(observer->line);
        if (status == TB_OK) {
            status = map_observed(observer, &reply);
        }
        tb__reply_fini(&reply);
    }
    if (status != TB_OK) {
        tb__observer_close(observer);
        return status == TB_AGAIN ? fail_silent(owner) : status;
    }
    *out = observer;
    return TB_OK;
}

void tb__observer_close(tb__observer *observer)
{
    if (observer == NULL) {
        return;
    }
    tb__segment_unmap(&observer->segment);
    tb__lifeline_unref(observer->line);
    free(observer);
}

void tb__observer_look(const tb__observer *observer, struct tb__observation *out)
{
    const struct tb__segment *segment = &observer->segment;
    const struct tb__doradma_view *view = &segment->view;
    const struct tb__counters_shm *counters = segment->counters;
    *out = (struct tb__observation){
        .slots = view->slot_count,
        .max_leases = view->max_leases,
        .policy = (tb_policy)view->policy,
        .varying = (view->flags & TB__GEOMETRY_VARYING) != 0,
        .exported = (view->flags & TB__GEOMETRY_EXPORT) != 0,
        .live = (view->flags & TB__GEOMETRY_LIVE) != 0,
        .adopted = (view->flags & TB__GEOMETRY_ADOPTED) != 0,
        .slot_bytes = view->slot_bytes,
        .segment_bytes = view->segment_bytes,
        .registered_ns = tb__a64_load_relaxed(&counters->registered_ns),
        .lane = (tb_lane)tb__a64_load_relaxed(&counters->lane),
        .place = (enum tb__doradma_place)view->device_kind,
        .device_bytes = view->device_bytes,
    };
    tb__name_copy(out->name, observer->name);
    if (tb__place_is_gpu(out->place)) {
        /* Whether it is an instance of a divided GPU is known to its driver alone. */
        char uuid[TB__UUID_TEXT];
        tb__gpu_uuid_text(view->device_uuid, 0, uuid);
        snprintf(out->device_uuid, sizeof out->device_uuid, "%s", strchr(uuid, '-') + 1);
    }
    tb_tensor tensor = {.dtype = view->dtype, .ndim = view->ndim};
    memcpy(tensor.shape, view->shape, sizeof tensor.shape);
    tb_tensor_describe(&tensor, out->tensor, sizeof out->tensor);
    /* Head and generation pair with the publisher's release stores. */
    uint64_t head = tb__a64_load_acquire(segment->head);
    out->sequence = head >> 1;
    for (uint32_t s = 0; head != 0 && s < view->slot_count; s++) {
        if (tb__a64_load_acquire(&segment->gens[s]) == head) {
            out->newest_stamp_ns = tb__a64_load_relaxed(&segment->records[s].stamp_ns);
        }
    }
    out->stats = tb__stats_read(segment);
}

static tb_status take_readers(const struct tb__reply *reply, struct tb__observed_readers *out)
{
    struct tb__reader_names_wire head = {0};
    if (reply->type != TB__MSG_READER_NAMES || reply->body_bytes < sizeof head) {
        return TB__FAIL(TB_E_PROTOCOL, "a list of readers as type %u with %u bytes", reply->type,
                        reply->body_bytes);
    }
    memcpy(&head, reply->body, sizeof head);
    struct tb__reader_name_wire wire;
    if (head.listed > head.count || head.listed > TB__READERS_LISTED ||
        reply->body_bytes != sizeof head + head.listed * sizeof wire) {
        return TB__FAIL(TB_E_PROTOCOL, "a list of %u of %u readers with %u bytes", head.listed,
                        head.count, reply->body_bytes);
    }
    struct tb__observed_reader *readers = calloc(head.listed + 1, sizeof *readers);
    if (readers == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a list of readers");
    }
    for (uint32_t i = 0; i < head.listed; i++) {
        memcpy(&wire, reply->body + sizeof head + i * sizeof wire, sizeof wire);
        if (!tb__wire_name_ok(wire.name, sizeof wire.name, 1)) {
            free(readers);
            return TB__FAIL(TB_E_PROTOCOL, "a list of readers with an invalid name");
        }
        readers[i].pid = wire.pid;
        tb__name_copy(readers[i].process, wire.name);
    }
    *out = (struct tb__observed_readers){readers, head.listed, head.count};
    return TB_OK;
}

tb_status tb__pool_readers(tb_bus *bus, const char *path, struct tb__observed_readers *out)
{
    char owner[TB__NAME_SIZE];
    struct tb__pool_open_wire wire = {.flags = TB__OPEN_BY_NAME};
    struct tb__packet question = {
        .type = TB__MSG_POOL_READERS, .body = &wire, .body_bytes = sizeof wire};
    struct tb__reply reply;
    struct tb__lifeline *line;
    TB__TRY(tb__bus_check(bus));
    TB__TRY(tb__name_split(path, owner, wire.name));
    TB__TRY(tb__bus_connect(bus, owner, 0, tb__now_ns(), &line));
    tb_status status =
        tb__lifeline_call(line, &question, tb__deadline_ns(TB__ANSWER_PATIENCE_NS), &reply);
    tb__lifeline_unref(line);
    if (status == TB_OK) {
        status = take_readers(&reply, out);
    }
    tb__reply_fini(&reply);
    return status == TB_AGAIN ? fail_silent(owner) : status;
}

int tb__observer_ended(const tb__observer *observer)
{
    return tb__lifeline_is_dead(observer->line) || tb__lifeline_said_goodbye(observer->line);
}

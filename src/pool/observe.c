/* Observers: tools' view of a pool. A user's thread. */
#include "pool/observe.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "pool/state.h"

struct tb__observer {
    struct tb__lifeline *line;
    struct tb__segment segment;
    char name[TB__NAME_SIZE];
};

tb_status tb__pools_list(tb_bus *bus, const char *owner, char **out, size_t *count)
{
    TB__TRY(tb__bus_check(bus));
    struct tb__lifeline *line;
    TB__TRY(tb__bus_connect(bus, owner, 0, tb__now_ns(), &line));
    struct tb__packet question = {.type = TB__MSG_POOL_LIST};
    struct tb__reply reply;
    tb_status status =
        tb__lifeline_call(line, &question, tb__deadline_ns(TB__ANSWER_PATIENCE_NS), &reply);
    if (status == TB_OK) {
        int terminated = reply.body_bytes == 0 || reply.body[reply.body_bytes - 1] == '\0';
        if (reply.type != TB__MSG_POOL_NAMES || !terminated) {
            status = TB__FAIL(TB_E_PROTOCOL, "malformed list of pools from `%s`", owner);
        } else {
            *count = 0;
            for (uint32_t i = 0; i < reply.body_bytes; i++) {
                *count += reply.body[i] == '\0';
            }
            *out = (char *)reply.body;
            reply.body = NULL;
        }
    }
    tb__reply_fini(&reply);
    tb__lifeline_unref(line);
    return status == TB_AGAIN
               ? TB__FAIL(TB_E_NOT_FOUND, "process `%s` does not answer: is it stopped?", owner)
               : status;
}

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
        return status == TB_AGAIN
                   ? TB__FAIL(TB_E_NOT_FOUND, "process `%s` does not answer: is it stopped?", owner)
                   : status;
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
        .slot_bytes = view->slot_bytes,
        .segment_bytes = view->segment_bytes,
        .registered_ns = tb__a64_load_relaxed(&counters->registered_ns),
        .lane = (tb_lane)tb__a64_load_relaxed(&counters->lane),
    };
    tb__name_copy(out->name, observer->name);
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

int tb__observer_ended(const tb__observer *observer)
{
    return tb__lifeline_is_dead(observer->line) || tb__lifeline_said_goodbye(observer->line);
}

/* Serving the extension channel.
 *
 * Dropped keys go out as they come, in messages of as many as fit, one at a time per node: the node
 * says when it has taken it. So a node that stands still fills its queue here, which is bounded,
 * and never its socket. What a request brings about is sent before its answer, so that a node finds
 * the key that it dropped when the call returns. */
#define TB_LOG_TOPIC "flow"
#include "flow/extension_serve.h"

#include <stdlib.h>
#include <sys/resource.h>

#include "base/fd.h"
#include "base/log.h"

tb_status tb__ext_server_init(struct tb__ext_server *server, const struct tb__flow *flow,
                              struct tb__lifeline *const *lines)
{
    struct rlimit limit;
    uint64_t files = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 4 : 0;
    server->flow = flow;
    server->lines = lines;
    server->batch = malloc(sizeof *server->batch);
    if (server->batch == NULL) {
        return TB__FAIL(TB_E_NOMEM, "memory for the extension channel");
    }
    return tb__ext_table_create(flow, files, &server->table);
}

void tb__ext_server_fini(struct tb__ext_server *server)
{
    tb__ext_table_destroy(server->table);
    free(server->batch);
    server->table = NULL;
    server->batch = NULL;
}

/* Send a node what it must be told, if it can take it now. */
static void tell(struct tb__ext_server *server, uint32_t node)
{
    if (server->lines[node] == NULL || !tb__ext_batch(server->table, node, server->batch)) {
        return;
    }
    tb_status status = tb__lifeline_send(server->lines[node], TB__MSG_EXT_DROPPED,
                                         server->batch->body, server->batch->bytes);
    if (status == TB_OK) {
        tb__ext_sent(server->table, node, server->batch);
    } else if (status != TB_CLOSED) { /* tried again with its next request, or the next key */
        tb_log_warn_limited("node `%s` does not read what the runner tells it",
                            server->flow->nodes[node].id);
    }
}

static void tell_all(struct tb__ext_server *server)
{
    for (uint32_t node = 0; node < server->flow->nodes_count; node++) {
        tell(server, node);
    }
}

static void reply_ok(const struct tb__ext_server *server, uint32_t node, const struct tb__msg *msg)
{
    tb__lifeline_reply_ok(server->lines[node], msg->request);
}

static void reply_error(const struct tb__ext_server *server, uint32_t node,
                        const struct tb__msg *msg)
{
    tb__lifeline_reply_error(server->lines[node], msg->request);
}

/* The descriptor of a value is what it says to be: nobody can change it any more, nor take its
 * pages away. */
static tb_status check_carried(const struct tb__ext_request *request, const struct tb__msg *msg)
{
    uint64_t bytes;
    if (msg->fd_count != 1) {
        return TB__FAIL(TB_E_PROTOCOL, "an extension value with %u descriptors", msg->fd_count);
    }
    TB__TRY(tb__memfd_check(msg->fds[0], TB__EXT_SEALS, TB_EXTENSION_MAX, 1, &bytes));
    if (bytes != request->value_bytes) {
        return TB__FAIL(TB_E_PROTOCOL, "an extension value of %llu bytes in memory of %llu",
                        (unsigned long long)request->value_bytes, (unsigned long long)bytes);
    }
    return TB_OK;
}

static tb_status check_descriptors(const struct tb__ext_request *request, const struct tb__msg *msg,
                                   int *lost)
{
    int carried = (request->flags & TB__EXT_CARRIED) != 0;
    *lost = carried && msg->fds_lost;
    if (*lost) {
        return TB_OK;
    }
    if (carried) {
        return check_carried(request, msg);
    }
    return msg->fd_count == 0 ? TB_OK
                              : TB__FAIL(TB_E_PROTOCOL,
                                         "a request about extensions with %u "
                                         "descriptors",
                                         msg->fd_count);
}

static void serve_store(struct tb__ext_server *server, uint32_t node, struct tb__msg *msg,
                        const struct tb__ext_request *request)
{
    struct tb__ext_value *value;
    tb_status status = tb__ext_value_create(request, &msg->fds[0], &value);
    if (status == TB_OK) {
        status = tb__ext_store(server->table, node, &request->name, value);
        tb__ext_value_unref(value);
    }
    if (status == TB_OK) {
        reply_ok(server, node, msg);
    } else {
        reply_error(server, node, msg);
    }
}

static void serve_load(struct tb__ext_server *server, uint32_t node, const struct tb__msg *msg,
                       const struct tb__ext_request *request)
{
    uint8_t body[TB__EXT_VALUE_MAX];
    int remove = (request->flags & TB__EXT_REMOVE) != 0;
    struct tb__ext_value *value = tb__ext_load(server->table, node, &request->name, remove);
    struct tb__ext_reply reply = {.flags = TB__EXT_ABSENT};
    int carried = value != NULL && value->fd >= 0;
    if (value != NULL) {
        reply = (struct tb__ext_reply){.flags = carried ? TB__EXT_CARRIED : 0,
                                       .value_bytes = value->size,
                                       .value = carried ? NULL : value->bytes};
    }
    if (remove) {
        tell_all(server);
    }
    const struct tb__packet answer = {.type = TB__MSG_EXT_VALUE,
                                      .request = msg->request,
                                      .body = body,
                                      .body_bytes = tb__ext_reply_encode(&reply, body),
                                      .borrow_fds = carried ? &value->fd : NULL,
                                      .fd_count = carried ? 1 : 0};
    tb__lifeline_reply(server->lines[node], &answer);
    tb__ext_value_unref(value);
}

static void serve_drop(struct tb__ext_server *server, uint32_t node, const struct tb__msg *msg,
                       const struct tb__ext_request *request)
{
    if (tb__ext_drop(server->table, &request->name)) {
        tell_all(server);
    }
    reply_ok(server, node, msg);
}

static void serve_request(const struct tb__ext_server *server, uint32_t node,
                          const struct tb__msg *msg, const struct tb__ext_request *request)
{
    TB__FAIL(TB_E_NOT_FOUND,
             "no extension registered under \"%.*s\" on this daemon: `tensorbus run` has none",
             request->name.space_bytes, request->name.space);
    reply_error(server, node, msg);
}

static tb_status serve(struct tb__ext_server *server, uint32_t node, struct tb__msg *msg)
{
    struct tb__ext_request request;
    int lost;
    TB__TRY(tb__ext_request_decode(msg->type, msg->body, msg->body_bytes, &request));
    TB__TRY(check_descriptors(&request, msg, &lost));
    if (lost) {
        TB__FAIL(TB_E_LIMIT, "the runner has too many open files: raise its limit (ulimit -n)");
        reply_error(server, node, msg);
        return TB_OK;
    }
    switch (msg->type) {
    case TB__MSG_EXT_STORE:
        serve_store(server, node, msg, &request);
        break;
    case TB__MSG_EXT_LOAD:
        serve_load(server, node, msg, &request);
        break;
    case TB__MSG_EXT_DROP:
        serve_drop(server, node, msg, &request);
        break;
    default:
        serve_request(server, node, msg, &request);
        break;
    }
    return TB_OK;
}

tb_status tb__ext_serve(struct tb__ext_server *server, uint32_t node, struct tb__msg *msg)
{
    char nothing[1];
    if (msg->type == TB__MSG_EXT_TAKEN) {
        TB__TRY(tb__wire_body(msg, nothing, 0, 0));
        tb__ext_taken(server->table, node);
    } else {
        TB__TRY(serve(server, node, msg));
    }
    tell(server, node);
    return TB_OK;
}

void tb__ext_node_ended(struct tb__ext_server *server, uint32_t node)
{
    tb__ext_end(server->table, node);
    tell_all(server);
}

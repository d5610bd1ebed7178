/* What other processes ask of a node: subscribers of its outputs, and the runner. Service thread.
 */
#define TB_LOG_TOPIC "node"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "node/node.h"

/* ---- streams ---- */

static tb_status read_open(const struct tb__msg *msg, struct tb__stream_open_wire *open)
{
    struct tb__ring_geometry geometry;
    TB__TRY(tb__wire_body(msg, open, sizeof *open, 0));
    if (!tb__wire_name_ok(open->output, sizeof open->output, 0) ||
        !tb__wire_name_ok(open->input, sizeof open->input, 1) || open->policy > TB__BACKPRESSURE ||
        tb__ring_measure(open->queue_size, &geometry) != TB_OK) {
        return TB__FAIL(TB_E_PROTOCOL, "malformed request for a stream");
    }
    return TB_OK;
}

static void fail_no_output(const tb_node *node, const char *name)
{
    char list[300] = "";
    size_t used = 0;
    for (size_t i = 0; i < node->config.output_count && used < sizeof list; i++) {
        used += (size_t)snprintf(list + used, sizeof list - used, " `%s`",
                                 node->config.outputs[i].name);
    }
    TB__FAIL(TB_E_NOT_FOUND, "node `%s` has no output `%s`; it has:%s", node->config.node, name,
             list[0] != '\0' ? list : " none");
}

static void serve_open(tb_node *node, struct tb__lifeline *line, const struct tb__msg *msg)
{
    struct tb__stream_open_wire open;
    if (read_open(msg, &open) != TB_OK) {
        tb__lifeline_drop(line);
        return;
    }
    for (size_t i = 0; i < node->config.output_count; i++) {
        if (strcmp(node->config.outputs[i].name, open.output) == 0) {
            tb__output_attach(&node->outputs[i], line, msg->request, &open, ++node->next_stream_id);
            return;
        }
    }
    fail_no_output(node, open.output);
    tb__lifeline_reply_error(line, msg->request);
}

/* A message about one stream: find its output. */
static void serve_about(tb_node *node, struct tb__lifeline *line, const struct tb__msg *msg)
{
    struct tb__stream_wire body;
    int (*call)(struct tb__output *, struct tb__lifeline *, uint64_t) =
        msg->type == TB__MSG_STREAM_MAPPED  ? tb__output_mapped
        : msg->type == TB__MSG_STREAM_CLOSE ? tb__output_detach
                                            : tb__output_taken;
    if (tb__wire_body(msg, &body, sizeof body, 0) != TB_OK || body.stream_id == 0) {
        tb__lifeline_drop(line);
        return;
    }
    for (size_t i = 0; i < node->config.output_count; i++) {
        if (call(&node->outputs[i], line, body.stream_id)) {
            break;
        }
    }
    tb__lifeline_reply_ok(line, msg->request);
}

static void serve_pools(tb_node *node, struct tb__lifeline *line, const struct tb__msg *msg)
{
    struct tb__stream_wire body;
    struct tb__stream_pools_wire list = {0};
    if (tb__wire_body(msg, &body, sizeof body, 0) != TB_OK) {
        tb__lifeline_drop(line);
        return;
    }
    for (size_t i = 0; i < node->config.output_count; i++) {
        if (tb__output_list_pools(&node->outputs[i], line, body.stream_id, &list)) {
            break;
        }
    }
    tb__lifeline_reply(line, &(struct tb__packet){.type = TB__MSG_STREAM_POOL_LIST,
                                                  .request = msg->request,
                                                  .body = &list,
                                                  .body_bytes = sizeof list});
}

/* From a sender that we subscribe to, or somebody who can do with it no more than a sender can. */
static void serve_news_of_pool(tb_node *node, struct tb__lifeline *line, const struct tb__msg *msg)
{
    struct tb__stream_pool_wire pool;
    if (tb__wire_body(msg, &pool, sizeof pool, 0) != TB_OK) {
        tb__lifeline_drop(line);
        return;
    }
    tb__ahead_add(&node->ahead, &pool);
}

static void serve_stream(void *context, struct tb__lifeline *line, struct tb__msg *msg)
{
    tb_node *node = context;
    switch (msg->type) {
    case TB__MSG_STREAM_OPEN:
        serve_open(node, line, msg);
        break;
    case TB__MSG_STREAM_MAPPED:
    case TB__MSG_STREAM_CLOSE:
    case TB__MSG_STREAM_TAKEN:
        serve_about(node, line, msg);
        break;
    case TB__MSG_STREAM_POOLS:
        serve_pools(node, line, msg);
        break;
    case TB__MSG_STREAM_POOL:
        serve_news_of_pool(node, line, msg);
        break;
    default:
        TB__FAIL(TB_E_PROTOCOL, "message of type %u about streams", msg->type);
        tb__lifeline_drop(line);
        break;
    }
}

/* ---- the runner ---- */

static int is_neighbour(const struct tb__node_config *config, const char *name)
{
    for (size_t i = 0; i < config->input_count; i++) {
        if (config->inputs[i].period_ns == 0 && strcmp(config->inputs[i].source_node, name) == 0) {
            return 1;
        }
    }
    for (size_t i = 0; i < config->output_count; i++) {
        for (size_t j = 0; j < config->outputs[i].subscriber_count; j++) {
            if (strcmp(config->outputs[i].subscribers[j].node, name) == 0) {
                return 1;
            }
        }
    }
    return 0;
}

/* Only neighbours, and each once: anybody who may connect could fill the memory otherwise. */
static void note_gone(tb_node *node, const struct tb__msg *msg)
{
    struct tb__name_wire wire;
    if (tb__wire_body(msg, &wire, sizeof wire, 0) != TB_OK ||
        !tb__wire_name_ok(wire.name, sizeof wire.name, 0)) {
        tb_log_warn_limited("node `%s`: malformed word of a node that is gone", node->config.node);
        return;
    }
    if (!is_neighbour(&node->config, wire.name) || tb__node_is_gone(node, wire.name)) {
        return;
    }
    pthread_mutex_lock(&node->gone_mutex);
    void *grown = realloc(node->gone, (node->gone_count + 1) * sizeof node->gone[0]);
    if (grown != NULL) {
        node->gone = grown;
        tb__name_copy(node->gone[node->gone_count++], wire.name);
    }
    pthread_mutex_unlock(&node->gone_mutex);
}

/* Not only from the runner's line: whoever may connect may also send a signal. */
static void serve_runner(void *context, struct tb__lifeline *line, struct tb__msg *msg)
{
    tb_node *node = context;
    (void)line;
    if (msg->type == TB__MSG_STOP) {
        atomic_store(&node->stop, 1);
    } else {
        note_gone(node, msg);
    }
    tb__bus_ring_self(node->bus);
}

int tb__node_is_gone(tb_node *node, const char *name)
{
    int gone = 0;
    pthread_mutex_lock(&node->gone_mutex);
    for (size_t i = 0; i < node->gone_count && !gone; i++) {
        gone = strcmp(node->gone[i], name) == 0;
    }
    pthread_mutex_unlock(&node->gone_mutex);
    return gone;
}

/* ---- hooks ---- */

static void hangup(void *state, struct tb__lifeline *line)
{
    tb_node *node = state;
    for (size_t i = 0; i < node->config.output_count; i++) {
        tb__output_hangup(&node->outputs[i], line);
    }
    /* A flow does not outlive its runner. Pairs with the release store in connect_runner(). */
    if (line == atomic_load_explicit(&node->runner, memory_order_acquire)) {
        atomic_store(&node->stop, 1);
    }
}

/* Frames belong to readers of the pool layer, which closes them right after this. */
static void closing(void *state)
{
    tb_node *node = state;
    tb__ahead_stop(&node->ahead);
    for (size_t i = 0; i < node->config.output_count; i++) {
        tb__output_release(&node->outputs[i]);
    }
    tb__lender_fini(&node->lender);
    tb__carriers_fini(&node->carriers);
    /* Pairs with connect_runner() as well: whoever exchanges the line away lets it go. */
    tb__lifeline_unref(atomic_exchange_explicit(&node->runner, NULL, memory_order_acq_rel));
}

static void destroy(void *state)
{
    tb_node *node = state;
    for (size_t i = 0; node->outputs != NULL && i < node->config.output_count; i++) {
        tb__output_fini(&node->outputs[i]);
    }
    tb__ahead_fini(&node->ahead);
}

tb_status tb__node_serve(tb_node *node, tb_bus *bus)
{
    static const struct tb__bus_layer hooks = {
        .closing = closing, .destroy = destroy, .hangup = hangup};
    node->bus = bus;
    tb__ahead_init(&node->ahead, bus);
    tb__bus_set_layer(bus, TB__LAYER_NODE, &hooks, node);
    for (size_t i = 0; i < node->config.output_count; i++) {
        TB__TRY(tb__output_init(&node->outputs[i], bus, &node->config.outputs[i]));
    }
    tb__bus_handle(bus, TB__MSG_STREAM_FIRST, TB__MSG_STREAM_LAST, serve_stream, node);
    tb__bus_handle(bus, TB__MSG_STOP, TB__MSG_NODE_GONE, serve_runner, node);
    return TB_OK;
}

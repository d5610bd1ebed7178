/* Opening and closing a node. The user's thread. */
#define TB_LOG_TOPIC "node"
#include "node/node.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"

#define RUNNER_PATIENCE_NS INT64_C(5000000000)
#define REMIND_NS INT64_C(10000000000)
#define DRAIN_NS INT64_C(10000000000)

/* The node whose bus this thread is opening: its outputs are served from the bus's first moment. */
static _Thread_local tb_node *being_opened;

static tb_status opening(tb_bus *bus)
{
    return being_opened != NULL ? tb__node_serve(being_opened, bus) : TB_OK;
}

__attribute__((constructor)) static void register_layer(void)
{
    tb__bus_on_open(opening);
}

tb_status tb__node_check(const tb_node *node)
{
    if (node == NULL) {
        return TB__FAIL(TB_E_INVALID, "node is NULL");
    }
    return tb__bus_check(node->bus);
}

/* ---- opening ---- */

static tb_status node_create(tb_node **out)
{
    tb_node *node = calloc(1, sizeof *node);
    if (node == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a node");
    }
    pthread_mutex_init(&node->gone_mutex, NULL);
    tb_status status = tb__node_config_read(&node->config);
    if (status == TB_OK) {
        node->outputs = calloc(node->config.output_count + 1, sizeof *node->outputs);
        node->inputs = calloc(node->config.input_count + 1, sizeof *node->inputs);
        if (node->outputs == NULL || node->inputs == NULL) {
            status = TB__FAIL(TB_E_NOMEM, "no memory for node `%s`", node->config.node);
        }
    }
    for (size_t i = 0; status == TB_OK && i < node->config.input_count; i++) {
        node->inputs[i].node = node;
        node->inputs[i].config = &node->config.inputs[i];
    }
    const char *finish = getenv("TENSORBUS_EXIT_WHEN_NODES_FINISH");
    node->timers_keep_alive = finish == NULL || finish[0] != '1';
    *out = node;
    return status;
}

static void node_destroy(tb_node *node)
{
    tb__node_config_fini(&node->config);
    pthread_mutex_destroy(&node->gone_mutex);
    free(node->outputs);
    free(node->inputs);
    free(node->gone);
    free(node);
}

static tb_status open_bus(tb_node *node)
{
    const tb_bus_options options = {.size = sizeof options, .name = node->config.node};
    being_opened = node;
    tb_status status = tb_bus_open(&options, &node->bus);
    being_opened = NULL;
    if (status != TB_OK) {
        node->bus = NULL;
        return status;
    }
    tb__lender_init(&node->lender, node->bus);
    tb__carriers_init(&node->carriers, node->bus);
    return TB_OK;
}

static tb_status connect_runner(tb_node *node)
{
    struct tb__lifeline *runner;
    if (node->config.runner[0] == '\0') {
        return TB_OK;
    }
    TB__TRY(tb__bus_connect(node->bus, node->config.runner, 0, tb__deadline_ns(RUNNER_PATIENCE_NS),
                            &runner));
    /* Pairs with the acquire load in hangup() and the exchange in closing() of serve.c. */
    atomic_store_explicit(&node->runner, runner, memory_order_release);
    if (tb__lifeline_is_dead(runner)) {
        atomic_store(&node->stop, 1); /* its hang-up came before it was ours */
    }
    /* Before anything is waited for: only who has reported is told STOP and who has ended. */
    tb_status told = tb__lifeline_send(runner, TB__MSG_NODE_READY, NULL, 0);
    if (told < 0) {
        tb_log_warn("node `%s`: %s", node->config.node, tb_last_error_text());
    }
    return TB_OK;
}

static int gone(void *context, const char *name)
{
    return tb__node_is_gone(context, name);
}

/* The first expected subscriber that is missing; NULL when all have come or are gone. */
static const struct tb__subscriber_config *find_missing(tb_node *node, const char **output)
{
    for (size_t i = 0; i < node->config.output_count; i++) {
        int missing = tb__output_missing(&node->outputs[i], gone, node);
        if (missing >= 0) {
            *output = node->config.outputs[i].name;
            return &node->config.outputs[i].subscribers[missing];
        }
    }
    return NULL;
}

/* Why a subscriber may be missing, as far as can be seen from here. */
static const char *why_missing(tb_node *node, const char *name)
{
    struct tb__lifeline *line;
    tb_status status = tb__bus_connect(node->bus, name, 0, tb__deadline_ns(0), &line);
    if (status == TB_OK) {
        tb__lifeline_unref(line);
        return "it has opened its node, but waits for something else first";
    }
    if (node->config.runner[0] == '\0') {
        return "no process of that name has opened its node";
    }
    return "it has not ended, but has not opened its node yet";
}

static tb_status wait_for_subscribers(tb_node *node)
{
    int64_t remind_ns = tb__now_ns() + REMIND_NS;
    const char *output;
    for (;;) {
        uint32_t seen = tb__bus_bell(node->bus);
        const struct tb__subscriber_config *missing = find_missing(node, &output);
        if (missing == NULL || atomic_load(&node->stop)) {
            return TB_OK;
        }
        if (tb__interrupted()) {
            return TB__FAIL(TB_AGAIN,
                            "interrupted while waiting for `%s/%s` to subscribe to output `%s`",
                            missing->node, missing->input, output);
        }
        if (tb__now_ns() >= remind_ns) {
            tb_log_warn("node `%s` waits for `%s/%s` to subscribe to its output `%s` (%s)",
                        node->config.node, missing->node, missing->input, output,
                        why_missing(node, missing->node));
            remind_ns += REMIND_NS;
        }
        tb__bus_sleep(node->bus, seen, NULL, 0, remind_ns);
    }
}

static tb_status open_parts(tb_node *node)
{
    TB__TRY(open_bus(node));
    TB__TRY(connect_runner(node));
    for (size_t i = 0; i < node->config.input_count; i++) {
        TB__TRY(tb__input_open(&node->inputs[i]));
    }
    TB__TRY(wait_for_subscribers(node));
    /* Timers begin, and silences are counted, when the node does. */
    int64_t now_ns = tb__now_ns();
    for (size_t i = 0; i < node->config.input_count; i++) {
        struct tb__input *input = &node->inputs[i];
        input->heard_ns = now_ns;
        if (input->config->period_ns > 0) {
            tb__timer_start(&input->timer, input->config->period_ns, input->config->queue_size,
                            now_ns);
        }
    }
    return TB_OK;
}

static void close_inputs(tb_node *node)
{
    for (size_t i = 0; i < node->config.input_count; i++) {
        tb__input_close(&node->inputs[i]);
    }
}

tb_status tb_node_open(tb_node **out)
{
    tb_node *node = NULL;
    tb_status status = node_create(&node);
    if (status == TB_OK) {
        status = open_parts(node);
    }
    if (status == TB_OK) {
        tb__node_list_add(node);
        *out = node;
        return TB_OK;
    }
    if (node != NULL && node->bus != NULL) {
        close_inputs(node);
        tb_bus_close(node->bus);
    }
    if (node != NULL) {
        node_destroy(node);
    }
    return status;
}

/* ---- closing ---- */

static int all_drained(tb_node *node)
{
    int drained = 1;
    for (size_t i = 0; i < node->config.output_count; i++) {
        drained &= tb__output_drained(&node->outputs[i]);
    }
    return drained;
}

void tb__node_finish_outputs(tb_node *node)
{
    int64_t deadline_ns = tb__deadline_ns(DRAIN_NS);
    for (size_t i = 0; i < node->config.output_count; i++) {
        tb__output_close(&node->outputs[i]);
        tb__output_wait_for_takers(&node->outputs[i], 1);
    }
    for (;;) {
        uint32_t seen = tb__bus_bell(node->bus);
        if (all_drained(node) || atomic_load(&node->stop)) {
            break;
        }
        if (tb__left_ns(deadline_ns) == 0) {
            tb_log_warn("node `%s` ends although subscribers did not take all frames %s",
                        node->config.node,
                        tb__interrupted() ? "yet: the wait was interrupted" : "within 10 s");
            break;
        }
        tb__bus_sleep(node->bus, seen, NULL, 0, deadline_ns);
    }
    for (size_t i = 0; i < node->config.output_count; i++) {
        tb__output_wait_for_takers(&node->outputs[i], 0);
    }
}

void tb_node_close(tb_node *node)
{
    if (node == NULL || tb__bus_check(node->bus) != TB_OK) {
        return; /* a child leaves the parent's node alone */
    }
    tb__node_list_remove(node);
    /* First, so that two nodes of a cycle that close together do not wait for each other. */
    close_inputs(node);
    tb__node_finish_outputs(node);
    tb_bus_close(node->bus);
    node_destroy(node);
}

const char *tb_node_id(const tb_node *node)
{
    return node->config.node;
}

tb_bus *tb_node_bus(tb_node *node)
{
    return node->bus;
}

const char *tb_node_input(const tb_node *node, size_t index)
{
    return index < node->config.input_count ? node->config.inputs[index].name : NULL;
}

const char *tb_node_output(const tb_node *node, size_t index)
{
    return index < node->config.output_count ? node->config.outputs[index].name : NULL;
}

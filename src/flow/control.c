/* The runner's endpoint.
 *
 * Nodes report to it when they have opened (NODE_READY) and tell it about the pools that they
 * register and free, so that the runner can say at the end what nobody freed. It tells nodes STOP,
 * and which of their neighbours have ended for good, so that nobody waits for one that never comes.
 * Tools ask it to stop the flow. Nodes keep extension values in it (extension_serve.c).
 *
 * The handlers run on the bus's service thread, everything else on the runner's main thread; the
 * tables in between are under `mutex`. It is never held while waiting. */
#define TB_LOG_TOPIC "flow"
#include "flow/control.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "endpoint/bus.h"
#include "flow/extension_serve.h"
#include "flow/run_directory.h"
#include "flow/run_environment.h"

#define ANSWER_NS INT64_C(5000000000)

struct pool_entry {
    uint32_t node;
    char name[sizeof((struct tb__name_wire *)0)->name];
};

struct tb__control {
    tb_bus *bus;
    int event_fd;
    const struct tb__flow *flow;
    pthread_mutex_t mutex;
    /* under mutex */
    struct tb__control_news news;
    struct tb__lifeline *lines[TB__FLOW_NODES_MAX]; /* referenced; NULL: not reachable */
    uint8_t left[TB__FLOW_NODES_MAX]; /* its process has reported and hung up: it is ending */
    uint8_t gone[TB__FLOW_NODES_MAX];
    struct tb__ext_server extensions;
    struct pool_entry *pools;
    size_t pool_count;
    size_t pool_room;
    uint64_t unlisted_pools; /* beyond TB__CONTROL_MAX_POOLS */
};

static void wake(struct tb__control *control)
{
    uint64_t one = 1;
    ssize_t ignored = write(control->event_fd, &one, sizeof one);
    (void)ignored; /* a full counter wakes as well */
}

/* ---- what comes in: service thread, mutex held ---- */

static tb_status no_body(const struct tb__msg *msg)
{
    char nothing[1];
    return tb__wire_body(msg, nothing, 0, 0);
}

static int related(const struct tb__flow *flow, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < flow->nodes[a].inputs_count; i++) {
        if (flow->nodes[a].inputs[i].source_node == (int32_t)b) {
            return 1;
        }
    }
    for (uint32_t i = 0; i < flow->nodes[b].inputs_count; i++) {
        if (flow->nodes[b].inputs[i].source_node == (int32_t)a) {
            return 1;
        }
    }
    return 0;
}

static void tell_gone(struct tb__control *control, uint32_t listener, uint32_t gone)
{
    struct tb__name_wire body;
    memset(&body, 0, sizeof body);
    memcpy(body.name, control->flow->nodes[gone].id, strlen(control->flow->nodes[gone].id));
    if (tb__lifeline_send(control->lines[listener], TB__MSG_NODE_GONE, &body, sizeof body) ==
        TB_AGAIN) {
        tb_log_warn_limited("node `%s` does not read what the runner tells it",
                            control->flow->nodes[listener].id);
    }
}

static void drop_line(struct tb__control *control, uint32_t node)
{
    tb__lifeline_unref(control->lines[node]);
    control->lines[node] = NULL;
}

/* The node of the flow behind a line, -1: another process. The name is the peer's claim; it could
 * only mislead about itself, being of the same user. */
static int32_t node_of(const struct tb__control *control, const struct tb__lifeline *line)
{
    return tb__flow_find_node(control->flow, tb__lifeline_peer_name(line));
}

static void node_ready(struct tb__control *control, uint32_t node, struct tb__lifeline *line)
{
    if (control->lines[node] != line) {
        tb__ext_node_ended(&control->extensions, node);
        drop_line(control, node);
        tb__lifeline_ref(line);
        control->lines[node] = line;
    }
    control->left[node] = 0;
    control->news.reachable[node] = 1;
    for (uint32_t i = 0; i < control->flow->nodes_count; i++) {
        if (i != node && control->gone[i] && related(control->flow, node, i)) {
            tell_gone(control, node, i);
        }
    }
    wake(control);
}

static struct pool_entry *find_pool(struct tb__control *control, uint32_t node, const char *name)
{
    for (size_t i = 0; i < control->pool_count; i++) {
        if (control->pools[i].node == node && strcmp(control->pools[i].name, name) == 0) {
            return &control->pools[i];
        }
    }
    return NULL;
}

static void pool_added(struct tb__control *control, uint32_t node, const char *name)
{
    if (find_pool(control, node, name) != NULL) {
        return; /* registered anew by a restarted node */
    }
    if (control->pool_count == control->pool_room) {
        size_t room = control->pool_room == 0 ? 64 : control->pool_room * 2;
        struct pool_entry *pools =
            room <= TB__CONTROL_MAX_POOLS ? realloc(control->pools, room * sizeof *pools) : NULL;
        if (pools == NULL) {
            control->unlisted_pools++;
            return;
        }
        control->pools = pools;
        control->pool_room = room;
    }
    struct pool_entry *entry = &control->pools[control->pool_count++];
    entry->node = node;
    memcpy(entry->name, name, strlen(name) + 1);
}

static void pool_removed(struct tb__control *control, uint32_t node, const char *name)
{
    struct pool_entry *entry = find_pool(control, node, name);
    if (entry != NULL) {
        *entry = control->pools[--control->pool_count];
    } else if (control->unlisted_pools > 0) {
        control->unlisted_pools--;
    }
}

static tb_status take_pool(struct tb__control *control, uint32_t node, const struct tb__msg *msg)
{
    struct tb__name_wire body;
    TB__TRY(tb__wire_body(msg, &body, sizeof body, 0));
    if (!tb__wire_name_ok(body.name, sizeof body.name, 0)) {
        return TB__FAIL(TB_E_PROTOCOL, "malformed name of a pool");
    }
    if (msg->type == TB__MSG_POOL_ADDED) {
        pool_added(control, node, body.name);
    } else {
        pool_removed(control, node, body.name);
    }
    return TB_OK;
}

static tb_status from_node(struct tb__control *control, struct tb__lifeline *line,
                           const struct tb__msg *msg)
{
    int32_t node = node_of(control, line);
    if (node < 0) {
        return TB_OK; /* a process of the flow that is no node: its pools are its own affair */
    }
    if (msg->type == TB__MSG_NODE_READY) {
        TB__TRY(no_body(msg));
        node_ready(control, (uint32_t)node, line);
        return TB_OK;
    }
    return take_pool(control, (uint32_t)node, msg);
}

static tb_status from_tool(struct tb__control *control, struct tb__lifeline *line,
                           const struct tb__msg *msg)
{
    TB__TRY(no_body(msg));
    if (msg->type == TB__MSG_FLOW_KILL) {
        control->news.kill = 1;
    } else {
        control->news.stop = 1;
    }
    wake(control);
    tb__lifeline_reply_ok(line, msg->request);
    return TB_OK;
}

/* Values belong to nodes, and end with them: to those that have reported. */
static tb_status from_extension(struct tb__control *control, struct tb__lifeline *line,
                                struct tb__msg *msg)
{
    int32_t node = node_of(control, line);
    if (node >= 0 && control->lines[node] == line) {
        return tb__ext_serve(&control->extensions, (uint32_t)node, msg);
    }
    TB__FAIL(TB_E_DENIED,
             "process `%s` is no open node of this flow: only those have extension "
             "values",
             tb__lifeline_peer_name(line));
    tb__lifeline_reply_error(line, msg->request);
    return TB_OK;
}

static void on_message(void *context, struct tb__lifeline *line, struct tb__msg *msg)
{
    struct tb__control *control = context;
    tb_status status;
    pthread_mutex_lock(&control->mutex);
    switch (msg->type) {
    case TB__MSG_POOL_ADDED:
    case TB__MSG_POOL_REMOVED:
    case TB__MSG_NODE_READY:
        status = from_node(control, line, msg);
        break;
    case TB__MSG_FLOW_STOP:
    case TB__MSG_FLOW_KILL:
        status = from_tool(control, line, msg);
        break;
    case TB__MSG_EXT_STORE:
    case TB__MSG_EXT_LOAD:
    case TB__MSG_EXT_DROP:
    case TB__MSG_EXT_REQUEST:
    case TB__MSG_EXT_TAKEN:
        status = from_extension(control, line, msg);
        break;
    default:
        status = TB__FAIL(TB_E_PROTOCOL, "messages of type %u are not for a runner", msg->type);
        break;
    }
    pthread_mutex_unlock(&control->mutex);
    if (status != TB_OK) {
        tb__lifeline_drop(line);
    }
}

static void on_hangup(void *state, struct tb__lifeline *line)
{
    struct tb__control *control = state;
    pthread_mutex_lock(&control->mutex);
    for (uint32_t i = 0; i < TB__FLOW_NODES_MAX; i++) {
        if (control->lines[i] == line) {
            drop_line(control, i);
            control->left[i] = 1;
            tb__ext_node_ended(&control->extensions, i);
        }
    }
    pthread_mutex_unlock(&control->mutex);
}

/* ---- main thread ---- */

static void control_free(struct tb__control *control)
{
    tb__fd_close(&control->event_fd);
    tb__ext_server_fini(&control->extensions);
    pthread_mutex_destroy(&control->mutex);
    free(control->pools);
    free(control);
}

tb_status tb__control_open(const struct tb__control_options *options, struct tb__control **out)
{
    static const struct tb__bus_layer layer = {.hangup = on_hangup};
    struct tb__control *control = calloc(1, sizeof *control);
    if (control == NULL) {
        return TB__FAIL(TB_E_NOMEM, "memory for the runner's endpoint");
    }
    pthread_mutex_init(&control->mutex, NULL);
    control->flow = options->flow;
    control->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (control->event_fd < 0) {
        tb_status status = TB__FAIL_ERRNO(TB_E_LIMIT, "a descriptor for the runner's endpoint");
        control_free(control);
        return status;
    }
    tb_status status = tb__ext_server_init(&control->extensions, options->flow, control->lines);
    if (status != TB_OK) {
        control_free(control);
        return status;
    }
    const tb_bus_options bus_options = {.size = sizeof bus_options,
                                        .name = TB__RUNNER_ENDPOINT,
                                        .directory = options->runtime_directory,
                                        .flow = options->flow_id};
    status = tb_bus_open(&bus_options, &control->bus);
    if (status != TB_OK) {
        control_free(control);
        return status;
    }
    tb__bus_set_layer(control->bus, TB__LAYER_FLOW, &layer, control);
    tb__bus_handle(control->bus, TB__MSG_STOP, TB__MSG_LAST, on_message, control);
    *out = control;
    return TB_OK;
}

void tb__control_close(struct tb__control *control)
{
    if (control == NULL) {
        return;
    }
    pthread_mutex_lock(&control->mutex);
    for (uint32_t i = 0; i < TB__FLOW_NODES_MAX; i++) {
        drop_line(control, i);
    }
    pthread_mutex_unlock(&control->mutex);
    tb_bus_close(control->bus);
    control_free(control);
}

int tb__control_fd(const struct tb__control *control)
{
    return control->event_fd;
}

void tb__control_take(struct tb__control *control, struct tb__control_news *out)
{
    uint64_t count;
    ssize_t ignored = read(control->event_fd, &count, sizeof count);
    (void)ignored;
    pthread_mutex_lock(&control->mutex);
    *out = control->news;
    memset(&control->news, 0, sizeof control->news);
    pthread_mutex_unlock(&control->mutex);
}

void tb__control_started(struct tb__control *control, uint32_t node)
{
    pthread_mutex_lock(&control->mutex);
    drop_line(control, node); /* of the former process, whose hang-up may still come */
    control->left[node] = 0;
    tb__ext_node_ended(&control->extensions, node);
    pthread_mutex_unlock(&control->mutex);
}

void tb__control_ended(struct tb__control *control, uint32_t node)
{
    pthread_mutex_lock(&control->mutex);
    tb__ext_node_ended(&control->extensions, node);
    pthread_mutex_unlock(&control->mutex);
}

int tb__control_stop(struct tb__control *control, uint32_t node)
{
    pthread_mutex_lock(&control->mutex);
    tb_status status = control->lines[node] != NULL
                           ? tb__lifeline_send(control->lines[node], TB__MSG_STOP, NULL, 0)
                       : control->left[node] ? TB_CLOSED
                                             : TB_AGAIN;
    /* CLOSED: it has hung up just now, or the service thread has noticed it already. */
    int told = status == TB_OK || status == TB_CLOSED;
    pthread_mutex_unlock(&control->mutex);
    return told;
}

void tb__control_gone(struct tb__control *control, uint32_t node)
{
    pthread_mutex_lock(&control->mutex);
    control->gone[node] = 1;
    for (uint32_t i = 0; i < control->flow->nodes_count; i++) {
        if (i != node && control->lines[i] != NULL && related(control->flow, i, node)) {
            tell_gone(control, i, node);
        }
    }
    pthread_mutex_unlock(&control->mutex);
}

uint64_t tb__control_pools(struct tb__control *control)
{
    pthread_mutex_lock(&control->mutex);
    uint64_t count = control->pool_count + control->unlisted_pools;
    pthread_mutex_unlock(&control->mutex);
    return count;
}

/* ---- a tool's side ---- */

static tb_status wait_dead(tb_bus *bus, const struct tb__lifeline *line, int64_t deadline_ns)
{
    for (;;) {
        uint32_t seen = tb__bus_bell(bus);
        if (tb__lifeline_is_dead(line)) {
            return TB_OK;
        }
        if (tb__left_ns(deadline_ns) == 0) {
            return TB_AGAIN;
        }
        tb__bus_sleep(bus, seen, NULL, 0, deadline_ns);
    }
}

static tb_status ask_and_wait(tb_bus *bus, struct tb__lifeline *line, int kill, int64_t deadline_ns)
{
    struct tb__reply reply;
    struct tb__packet question = {.type = kill ? TB__MSG_FLOW_KILL : TB__MSG_FLOW_STOP};
    tb_status status = tb__lifeline_call(line, &question, tb__deadline_ns(ANSWER_NS), &reply);
    if (status == TB_AGAIN) {
        return TB__FAIL(TB_E_NOT_FOUND, "the runner (process %u) does not answer: is it stopped?",
                        tb__lifeline_peer_pid(line));
    }
    if (status == TB_CLOSED || status == TB_E_OWNER_DIED) {
        return TB_OK; /* it was just ending */
    }
    TB__TRY(status);
    tb__reply_fini(&reply);
    return wait_dead(bus, line, deadline_ns);
}

/* Opening a bus makes its flow's directory. If the flow ended just before, nobody else removes it.
 */
static void remove_if_empty(const char *flow_id)
{
    char path[TB__RUN_PATH_SIZE];
    int root_fd = -1;
    if (tb__run_root_open(0, path, &root_fd) == TB_OK) {
        (void)unlinkat(root_fd, flow_id, AT_REMOVEDIR);
        tb__fd_close(&root_fd);
    }
}

tb_status tb__control_ask_stop(const char *flow_id, int kill, int64_t timeout_ns)
{
    int64_t deadline = tb__deadline_ns(timeout_ns);
    const tb_bus_options options = {.size = sizeof options, .flow = flow_id};
    tb_bus *bus;
    TB__TRY(tb_bus_open(&options, &bus));
    struct tb__lifeline *line;
    tb_status status = tb__bus_connect(bus, TB__RUNNER_ENDPOINT, 0, tb__deadline_ns(0), &line);
    if (status == TB_OK) {
        status = ask_and_wait(bus, line, kill, deadline);
        tb__lifeline_unref(line);
    }
    tb_bus_close(bus);
    remove_if_empty(flow_id);
    return status;
}

/* A runner for the node tests: it knows each node that has reported and can tell it things. */
#ifndef TB_TESTS_NODE_RUNNER_H
#define TB_TESTS_NODE_RUNNER_H

#include <pthread.h>
#include <stdio.h>

#include "endpoint/bus.h"
#include "harness/harness.h"

#define RUNNER_NODES 16

struct test_runner {
    tb_bus *bus;
    pthread_mutex_t mutex;
    struct tb__lifeline *lines[RUNNER_NODES];
    size_t count;
};

static inline void runner_ready(void *context, struct tb__lifeline *line, struct tb__msg *msg)
{
    struct test_runner *runner = context;
    (void)msg;
    pthread_mutex_lock(&runner->mutex);
    if (runner->count < RUNNER_NODES) {
        tb__lifeline_keep(line);
        runner->lines[runner->count++] = line;
    }
    pthread_mutex_unlock(&runner->mutex);
    tb__bus_ring_self(runner->bus);
}

/* The runner whose bus is being opened: it hears its nodes from the bus's first moment. */
static struct test_runner *runner_in_opening;

static inline tb_status runner_opening(tb_bus *bus)
{
    if (runner_in_opening != NULL) {
        runner_in_opening->bus = bus;
        tb__bus_handle(bus, TB__MSG_NODE_READY, TB__MSG_NODE_READY, runner_ready,
                       runner_in_opening);
    }
    return TB_OK;
}

static inline void runner_open(struct test_runner *runner)
{
    *runner = (struct test_runner){0};
    pthread_mutex_init(&runner->mutex, NULL);
    tb_bus_options options = {.size = sizeof options, .name = "_runner"};
    tb__bus_on_open(runner_opening);
    runner_in_opening = runner;
    CHECK_OK(tb_bus_open(&options, &runner->bus));
    runner_in_opening = NULL;
}

static inline struct tb__lifeline *runner_find(struct test_runner *runner, const char *node)
{
    struct tb__lifeline *found = NULL;
    pthread_mutex_lock(&runner->mutex);
    for (size_t i = 0; i < runner->count; i++) {
        if (strcmp(tb__lifeline_peer_name(runner->lines[i]), node) == 0 &&
            !tb__lifeline_is_dead(runner->lines[i])) {
            found = runner->lines[i];
        }
    }
    pthread_mutex_unlock(&runner->mutex);
    return found;
}

static inline void runner_await(struct test_runner *runner, const char *node)
{
    CHECK_WITHIN_MS(runner_find(runner, node) != NULL, 20000);
}

static inline void runner_stop(struct test_runner *runner, const char *node)
{
    CHECK_OK(tb__lifeline_send(runner_find(runner, node), TB__MSG_STOP, NULL, 0));
}

static inline void runner_tell_gone(struct test_runner *runner, const char *node, const char *gone)
{
    struct tb__name_wire wire = {{0}};
    snprintf(wire.name, sizeof wire.name, "%s", gone);
    CHECK_OK(tb__lifeline_send(runner_find(runner, node), TB__MSG_NODE_GONE, &wire, sizeof wire));
}

static inline void runner_close(struct test_runner *runner)
{
    for (size_t i = 0; i < runner->count; i++) {
        tb__lifeline_release(runner->lines[i]);
    }
    tb_bus_close(runner->bus);
    pthread_mutex_destroy(&runner->mutex);
}

#endif

/* What the node tests share: nodes from a given environment, and events that must come. */
#ifndef TB_TESTS_NODE_SUPPORT_H
#define TB_TESTS_NODE_SUPPORT_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <tensorbus/tensorbus.h>

#include "harness/harness.h"

/* inputs and outputs as in TENSORBUS_INPUTS and TENSORBUS_OUTPUTS; runner NULL: none. */
static inline void node_environment(const char *id, const char *inputs, const char *outputs,
                                    const char *runner)
{
    setenv("TENSORBUS_NODE", id, 1);
    setenv("TENSORBUS_INPUTS", inputs, 1);
    setenv("TENSORBUS_OUTPUTS", outputs, 1);
    setenv("TENSORBUS_RUNNER", runner != NULL ? runner : "", 1);
}

static inline tb_node *open_node(const char *id, const char *inputs, const char *outputs)
{
    tb_node *node;
    node_environment(id, inputs, outputs, NULL);
    CHECK_OK(tb_node_open(&node));
    return node;
}

/* The next event, which must be of this type and input. */
static inline tb_event *next_event(tb_node *node, tb_event_type type, const char *id)
{
    tb_event *event;
    CHECK_OK(tb_node_next(node, TB_SECONDS(20), &event));
    if (tb_event_get_type(event) != type) {
        FAIL("event %d of `%s` (%s), %d of `%s` is due", (int)tb_event_get_type(event),
             tb_event_id(event), tb_event_text(event), (int)type, id);
    }
    CHECK_STR(tb_event_id(event), id);
    return event;
}

static inline void expect_event(tb_node *node, tb_event_type type, const char *id)
{
    tb_event_release(next_event(node, type, id));
}

/* Nothing more comes. */
static inline void expect_end(tb_node *node)
{
    tb_event *event;
    CHECK_STATUS(tb_node_next(node, TB_SECONDS(20), &event), TB_CLOSED);
}

/* The number that send_number() sent. */
static inline uint64_t event_number(const tb_event *event)
{
    size_t bytes;
    uint64_t number;
    const void *data = tb_event_bytes(event, &bytes);
    CHECK_EQ(bytes, sizeof number);
    memcpy(&number, data, sizeof number);
    return number;
}

static inline tb_status send_number(tb_node *node, const char *output, uint64_t number,
                                    int64_t timeout_ns)
{
    return tb_node_send(node, output, tb_bytes(&number, sizeof number), NULL, timeout_ns);
}

/* Fork past the library's fork handlers: the child keeps this process's sockets open for a while
 * after it is killed, so that only the life words tell of its death. */
static inline void leave_heir(unsigned milliseconds)
{
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
        usleep(milliseconds * 1000);
        _exit(0);
    }
}

#endif

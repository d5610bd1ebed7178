/* The runner on the bus: the endpoint `_runner`, through which nodes and tools reach it. */
#ifndef TB_FLOW_CONTROL_H
#define TB_FLOW_CONTROL_H

#include "base/error.h"
#include "flow/flow.h"
#include "wire/wire.h"

/* Tool to runner, empty body, answered with OK: stop in order; kill at once. */
#define TB__MSG_FLOW_STOP (TB__MSG_RUNNER_FIRST + 0)
#define TB__MSG_FLOW_KILL (TB__MSG_RUNNER_FIRST + 1)

#define TB__CONTROL_MAX_POOLS 65536 /* names kept; more are counted only */

struct tb__control;

struct tb__control_options {
    const struct tb__flow *flow; /* borrowed */
    const char *runtime_directory;
    const char *flow_id;
};

/* Open the endpoint. Starts the bus's service thread: what must be forked single-threaded (the
 * guard) comes before. */
tb_status tb__control_open(const struct tb__control_options *options, struct tb__control **out);
void tb__control_close(struct tb__control *control);

/* Readable when tb__control_take() has something to say. Borrowed. */
int tb__control_fd(const struct tb__control *control);

struct tb__control_news {
    int stop; /* somebody asked the flow to stop */
    int kill;
    uint8_t reachable[TB__FLOW_NODES_MAX]; /* nodes that have reported since the last time */
};
void tb__control_take(struct tb__control *control, struct tb__control_news *out);

/* A new process of a node is about to be started. */
void tb__control_started(struct tb__control *control, uint32_t node);

/* A node's process has ended, though somebody that it started may keep its line open: its extension
 * values go. */
void tb__control_ended(struct tb__control *control, uint32_t node);

/* Send STOP to a node. A node that has closed since it reported needs none: it is ending, perhaps
 * because its neighbours were told before it. 0: it has not reported, or does not read. */
int tb__control_stop(struct tb__control *control, uint32_t node);

/* A node has ended for good: tell those that it is connected with in the graph, now and when they
 * report later. */
void tb__control_gone(struct tb__control *control, uint32_t node);

/* Pools that nodes have registered and nobody has freed. */
uint64_t tb__control_pools(struct tb__control *control);

/* A tool's side: ask the runner of a flow to stop (or kill) it and wait until the runner is gone.
 * TB_E_NOT_FOUND: nobody answers. TB_AGAIN: it still runs at the end of the timeout. */
tb_status tb__control_ask_stop(const char *flow_id, int kill, int64_t timeout_ns);

#endif

/* The runner's event loop: everything that a running flow needs while its nodes run. */
#ifndef TB_FLOW_RUN_LOOP_H
#define TB_FLOW_RUN_LOOP_H

#include "flow/control.h"
#include "flow/flow.h"
#include "flow/guard.h"
#include "flow/logs.h"
#include "flow/logs_screen.h"
#include "flow/process.h"
#include "flow/run_state.h"
#include "flow/supervise.h"

struct tb__run_node {
    struct tb__process process; /* pid 0: none */
    struct tb__log log;
    char **environment;
};

/* Made and destroyed by run.c. */
struct tb__runner {
    const struct tb__flow *flow;
    struct tb__run_node *nodes; /* flow->nodes_count of each */
    struct tb__supervise_node *supervised;
    struct tb__state state; /* what tools read; state.nodes likewise */
    struct tb__supervise run;
    struct tb__supervise_ops ops;
    struct tb__screen screen;
    struct tb__control *control;
    struct tb__guard guard;
    struct tb__guard_options guard_options;
    int directory_fd; /* of the flow */
    int epoll_fd;
    int signal_fd;
    int interrupts; /* Ctrl-C so far */
    int state_changed;
    int screen_watched; /* the loop waits for room in the output */
    char *buffer;       /* for reading pipes */
};

/* Blocks the signals that end a run and makes signal_fd. Call before any thread is started. */
tb_status tb__run_loop_signals(struct tb__runner *runner);

/* Start the nodes and run until all have ended. TB_OK whatever the nodes did. */
tb_status tb__run_loop(struct tb__runner *runner, int64_t grace_ns);

#endif

/* The environment of a node's process. */
#ifndef TB_FLOW_RUN_ENVIRONMENT_H
#define TB_FLOW_RUN_ENVIRONMENT_H

#include "base/error.h"
#include "flow/flow.h"

#define TB__RUNNER_ENDPOINT "_runner"

struct tb__run_environment_options {
    const struct tb__flow *flow;
    uint32_t node;
    const char *runtime_directory; /* absolute */
    const char *flow_id;
    char *const *inherited; /* NULL-terminated: the runner's own */
};

/* Build it: what is inherited, then the flow's and the node's `env`, then what the node library
 * reads (all names begin with TENSORBUS_, and of others of that kind only the user's settings are
 * passed on, see tb__env_key_reserved()):
 *   TENSORBUS_DIR, TENSORBUS_FLOW, TENSORBUS_NODE, TENSORBUS_RUNNER
 *   TENSORBUS_FLOW_FILE absolute path of the flow's file
 *   TENSORBUS_RESTARTS  how often this node was restarted: 0 at first
 *   TENSORBUS_INPUTS    one line each:
 * NAME=SOURCE;queue=10;policy=drop_oldest;timeout_ns=0;restart=0 SOURCE is node/output or
 * tensorbus/timer/nanos/N; restart=1: the source is restarted when it ends TENSORBUS_OUTPUTS   one
 * line each: NAME=node/input,node/input (the subscribers to expect)
 *   TENSORBUS_EXIT_WHEN_NODES_FINISH=1   timers do not keep the node alive (if the flow says so)
 * Returns TB_OK and a NULL-terminated array, TB_E_LIMIT (a variable is longer than the kernel
 * takes), TB_E_NOMEM. */
tb_status tb__run_environment_create(const struct tb__run_environment_options *options,
                                     char ***out);
void tb__run_environment_destroy(char **environment);

/* Before each start: how often the node was restarted. */
void tb__run_environment_set_restarts(char **environment, uint32_t restarts);

#endif

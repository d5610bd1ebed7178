/* A node's configuration, as the runner writes it into the environment.
 *
 *   TENSORBUS_NODE     id of the node
 *   TENSORBUS_RUNNER   name of the runner's endpoint; absent: nobody supervises
 *   TENSORBUS_INPUTS   one line per input, options in any order, all of them optional:
 *                        NAME=SOURCE;queue=10;policy=drop_oldest;timeout_ns=0;restart=0
 *                      SOURCE is node/output, or tensorbus/timer/UNIT/N (or dora/timer/UNIT/N)
 *                      with secs, millis, micros, nanos or hz
 *   TENSORBUS_OUTPUTS  one line per output, with its subscribers:
 *                        NAME=nodeA/input1,nodeB/input2
 *   TENSORBUS_EXIT_WHEN_NODES_FINISH
 *                      1: timers do not keep the node alive when its other inputs are closed
 *                      (read in node.c) */
#ifndef TB_NODE_ENV_H
#define TB_NODE_ENV_H

#include <stddef.h>
#include <stdint.h>

#include "base/name.h"

#define TB__QUEUE_DEFAULT 10

enum tb__queue_policy {
    TB__DROP_OLDEST = 0,
    TB__BACKPRESSURE = 1,
};

struct tb__input_config {
    char name[TB__NAME_SIZE];
    char source_node[TB__NAME_SIZE]; /* "" for a timer */
    char source_output[TB__NAME_SIZE];
    int64_t period_ns; /* of a timer, else 0 */
    uint32_t queue_size;
    enum tb__queue_policy policy;
    int64_t timeout_ns; /* silence that becomes an ERROR event; 0: none */
    int restart;        /* 1: the sender may come back, so its end does not close */
};

struct tb__subscriber_config {
    char node[TB__NAME_SIZE];
    char input[TB__NAME_SIZE];
};

struct tb__output_config {
    char name[TB__NAME_SIZE];
    struct tb__subscriber_config *subscribers;
    size_t subscriber_count;
};

struct tb__node_config {
    char node[TB__NAME_SIZE];
    char runner[TB__NAME_SIZE]; /* "": none */
    struct tb__input_config *inputs;
    size_t input_count;
    struct tb__output_config *outputs;
    size_t output_count;
};

/* The four variables' values; NULL when absent. */
struct tb__node_env {
    const char *node;
    const char *runner;
    const char *inputs;
    const char *outputs;
};

/* TB_E_NOT_FOUND without a node id, TB_E_INVALID naming variable, line and key, TB_E_NOMEM. */
tb_status tb__node_config_parse(const struct tb__node_env *env, struct tb__node_config *out);
tb_status tb__node_config_read(struct tb__node_config *out);
void tb__node_config_fini(struct tb__node_config *config);

#endif

/* The node's own structure, shared between the files of this folder.
 *
 * Threads: users' threads send, one at a time calls tb_node_next(); the service thread serves
 * subscribers, notes STOP and nodes that are gone; a thread of its own looks for the sender of an
 * input that may come back (input.c), only while it is away. */
#ifndef TB_NODE_NODE_H
#define TB_NODE_NODE_H

#include <pthread.h>
#include <stdatomic.h>

#include <tensorbus/node.h>

#include "node/ahead.h"
#include "node/carrier.h"
#include "node/env.h"
#include "node/input.h"
#include "node/lender.h"
#include "node/output.h"

struct tb_node {
    tb_node *next; /* all nodes of the process, for its exit */
    tb_bus *bus;
    struct tb__node_config config;
    struct tb__output *outputs; /* config.output_count */
    struct tb__input *inputs;   /* config.input_count */
    struct tb__lender lender;
    struct tb__carriers carriers;
    struct tb__ahead ahead;
    _Atomic(struct tb__lifeline *) runner; /* NULL: none */
    uint64_t next_stream_id;               /* service thread */
    _Atomic int stop;                      /* asked to stop, or the runner is gone */
    int stop_delivered;                    /* thread of tb_node_next() */
    int timers_keep_alive; /* the end of all other inputs is not the end of the node */
    pthread_mutex_t gone_mutex;
    char (*gone)[TB__NAME_SIZE]; /* nodes that ended for good */
    size_t gone_count;
};

/* TB_E_INVALID for NULL, TB_E_FORKED. */
tb_status tb__node_check(const tb_node *node);

/* Whether a node is known to have ended for good. */
int tb__node_is_gone(tb_node *node, const char *name);

/* serve.c: handlers and hooks, before the endpoint can be found. */
tb_status tb__node_serve(tb_node *node, tb_bus *bus);

/* exit.c: nodes that the process does not close before it exits. */
void tb__node_list_add(tb_node *node);
void tb__node_list_remove(tb_node *node);

/* node.c: close all outputs and wait until what needs this process was taken; bounded. */
void tb__node_finish_outputs(tb_node *node);

#endif

/* The extension channel on the runner's endpoint: requests of nodes in, values and dropped keys
 * out. Called on the service thread and, when a node ends, on the main thread, always with the
 * control's mutex held; nothing waits. */
#ifndef TB_FLOW_EXTENSION_SERVE_H
#define TB_FLOW_EXTENSION_SERVE_H

#include "endpoint/bus.h"
#include "flow/extension.h"

struct tb__ext_server {
    const struct tb__flow *flow;
    struct tb__lifeline *const *lines; /* of the nodes, NULL where there is none; the control's */
    struct tb__ext_table *table;
    struct tb__ext_batch *batch; /* while it is sent */
};

tb_status tb__ext_server_init(struct tb__ext_server *server, const struct tb__flow *flow,
                              struct tb__lifeline *const *lines);
void tb__ext_server_fini(struct tb__ext_server *server);

/* A message of a node, on the line that it has reported on. Failing, it breaks the protocol. */
tb_status tb__ext_serve(struct tb__ext_server *server, uint32_t node, struct tb__msg *msg);

/* A node's process has ended, or is about to be another one. */
void tb__ext_node_ended(struct tb__ext_server *server, uint32_t node);

#endif

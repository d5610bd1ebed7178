/* Running a flow: `tensorbus run`. */
#ifndef TB_FLOW_RUN_H
#define TB_FLOW_RUN_H

#include <stdint.h>

#include "flow/flow.h"

struct tb__run_options {
    const char *name;          /* of the flow, NULL: from its file */
    const char *out_directory; /* for logs and Python environments; NULL: "out" */
    int64_t grace_ns;          /* between STOP and SIGTERM */
    int colour;                /* colour the prefixes on standard output */
};

/* Run a loaded, built and resolved flow until it has ended. Node output goes to standard output,
 * the summary to standard error. *out_exit_code is 0, 1 (a node failed) or 130 (interrupted).
 * Returns TB_OK, or why nothing could be started (directories, descriptors). Takes over the
 * process's signals; call it once, from the main thread of a process that has no other. */
tb_status tb__run_flow(const struct tb__flow *flow, const struct tb__run_options *options,
                       int *out_exit_code);

#endif

/* What is printed when a flow has ended. */
#ifndef TB_FLOW_RUN_SUMMARY_H
#define TB_FLOW_RUN_SUMMARY_H

#include <stdio.h>

#include "flow/flow.h"
#include "flow/logs.h"
#include "flow/supervise.h"

#define TB__SUMMARY_LINES 10 /* last lines of a failed node */

struct tb__summary {
    const struct tb__flow *flow;
    const char *name;
    const char *id;
    const char *log_directory;
    const struct tb__supervise *run;
    const struct tb__log *const *logs; /* by node */
    int64_t total_ns;                  /* from start to end */
};

/* One table, then the last lines of each node that failed. */
void tb__summary_print(const struct tb__summary *summary, FILE *out);

/* Text from a file or another process, made fit for a terminal. */
void tb__summary_text(const char *text, FILE *out);

/* "0.42 s", "12.3 s", "4 min 03 s", "2 h 05 min". */
const char *tb__summary_duration(int64_t ns, char *buffer, size_t size);

#endif

/* What there is instead of a flow, process or pool that was not found. Failing calls only. */
#ifndef TB_CLI_POOL_MISSING_H
#define TB_CLI_POOL_MISSING_H

#include "base/error.h"
#include "base/name.h"

/* Fail for want of a flow: what runs, and where else in the runtime directory processes are.
 * `which` may be NULL: none was named. */
tb_status tb__pool_fail_flow(int root_fd, const char *root, const char *which);

/* Say on standard error in which flow other than `flow` a process is, if in any. Keeps the last
 * error. */
void tb__pool_say_elsewhere(const char *verb, const char *process, const char *flow);

/* Say on standard error that a flow, in which so many processes answered, has no pools, and where
 * else processes are. */
void tb__pool_say_none(const char *flow, size_t processes);

#endif

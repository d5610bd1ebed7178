/* `tensorbus pool list`. */
#ifndef TB_CLI_POOL_LIST_H
#define TB_CLI_POOL_LIST_H

/* List the pools of a flow (as tb__pool_find_flow() takes it) as a table or as JSON; what could not
 * be read is said on standard error. Returns an exit code. */
int tb__pool_list(const char *which, int json);

#endif

/* Finding processes and pools of a flow for the pool verbs. */
#ifndef TB_CLI_POOL_FIND_H
#define TB_CLI_POOL_FIND_H

#include <stddef.h>

#include "base/name.h"
#include "pool/observe.h"

/* The directory name of the flow that a user means: an id or name of a running flow, or the name of
 * a directory such as `default`; NULL: the only running flow, else `default`. */
tb_status tb__pool_find_flow(const char *which, char flow[TB__NAME_SIZE]);

/* Calls `found` for every process with a name in the flow's directory, sorted by name. */
tb_status tb__pool_each_process(tb_bus *bus, void (*found)(void *context, const char *process),
                                void *context);

/* Whether a process listens under a name, be it that it does not answer. May change the last error.
 */
int tb__pool_process_listens(tb_bus *bus, const char *process);

/* A bus of this tool in a flow. */
tb_status tb__pool_tool_bus(const char *flow, tb_bus **out);

#endif

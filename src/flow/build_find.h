/* Finding programs and Python environments: shared by build.c and build_resolve.c. */
#ifndef TB_FLOW_BUILD_FIND_H
#define TB_FLOW_BUILD_FIND_H

#include "flow/flow.h"

/* Absolute path of a program. A name with a slash is taken relative to `directory` alone. A bare
 * name is looked for in `directory` (NULL: not), then in the directories of `path_list`. Memory is
 * the flow's. Returns NULL when there is none; *out_why then is a short reason ("not found in
 * PATH"). With `script`, being readable is enough. */
const char *tb__find_program(const struct tb__flow *flow, const char *name, const char *directory,
                             const char *path_list, int script, const char **out_why);

/* PATH as the node will see it: its env, else the process environment, else the system's default.
 */
const char *tb__node_path_list(const struct tb__flow_node *node);

/* The node's Python environment with `uv`: absolute, <out>/<flow name>/venv/<node id>. */
const char *tb__venv_path(const struct tb__flow *flow, const struct tb__flow_node *node,
                          const struct tb__flow_build_options *options);

/* What build steps, and interpreters that are asked something, run with: the process environment,
 * the node's env over it, then the Python environment (NULL: none). NULL: no memory. */
char **tb__step_environment(const struct tb__flow *flow, const struct tb__flow_node *node,
                            const char *venv);

/* Whether the node's program is a Python file. */
int tb__is_python(const struct tb__flow_node *node);

#endif

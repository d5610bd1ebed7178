/* Where the folder is that answers to `import dora` and `import dora_tensor_pool`, for
 * `run --dora-api`. Starts interpreters to ask them; the caller's thread waits. */
#ifndef TB_FLOW_DORA_API_H
#define TB_FLOW_DORA_API_H

#include "flow/flow.h"

/* Fill python_first and python_last of a node whose program `python` interprets. Looked at in this
 * order, the first that has it: $TENSORBUS_DORA_API (set wrongly, it is a problem); beside this
 * program, as the Python package and the build folder lay it out; the package `tensorbus` of that
 * interpreter. A node with an environment of its own (node->venv) has its interpreter asked before
 * looking beside this program. Nodes of the same interpreter share an answer. A problem names all
 * places. */
void tb__dora_api_find(struct tb__flow *flow, struct tb__flow_node *node, const char *python,
                       struct tb__flow_problems *problems);

#endif

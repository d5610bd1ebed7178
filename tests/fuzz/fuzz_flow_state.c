/* Any bytes as a flow's state file: what is accepted has valid names, ids of processes that exist,
 * and terminated texts. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "flow/run_state.h"

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require_text(const char *text, size_t size)
{
    REQUIRE(memchr(text, '\0', size) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tb__state state;
    if (tb__state_parse((const char *)data, size, &state) != TB_OK) {
        return 0;
    }
    REQUIRE(tb__name_valid(state.flow) && tb__name_valid(state.name));
    REQUIRE(state.count <= TB__FLOW_NODES_MAX && state.pid >= 0 && state.pid <= INT32_MAX);
    require_text(state.phase, sizeof state.phase);
    require_text(state.file, sizeof state.file);
    require_text(state.log_directory, sizeof state.log_directory);
    for (uint32_t i = 0; i < state.count; i++) {
        const struct tb__state_node *node = &state.nodes[i];
        REQUIRE(tb__name_valid(node->id) && node->pid >= 0 && node->pid <= INT32_MAX);
        require_text(node->state, sizeof node->state);
        require_text(node->cause, sizeof node->cause);
    }
    tb__state_fini(&state);
    return 0;
}

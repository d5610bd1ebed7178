/* Any bytes as a YAML file: either a flow that keeps its promises, or at least one problem. */
#include <stdint.h>
#include <string.h>

#include "base/name.h"
#include "flow/flow.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_input(const struct tb__flow *flow, const struct tb__flow_node *node,
                        const struct tb__flow_input *input)
{
    TB_ASSERT(tb__name_valid(input->id) && input->input_timeout_ns >= 0);
    TB_ASSERT(input->queue_size >= 1 && input->queue_size <= TB__FLOW_QUEUE_MAX);
    if (input->source_node < 0) {
        TB_ASSERT(input->period_ns >= TB__FLOW_PERIOD_MIN_NS);
        return;
    }
    const struct tb__flow_node *source = &flow->nodes[input->source_node];
    TB_ASSERT((uint32_t)input->source_node < flow->nodes_count && source != node);
    TB_ASSERT(input->period_ns == 0 && input->source_output < source->outputs_count);
}

static void check_node(const struct tb__flow *flow, uint32_t index)
{
    const struct tb__flow_node *node = &flow->nodes[index];
    TB_ASSERT(tb__name_valid(node->id) && tb__flow_find_node(flow, node->id) == (int32_t)index);
    TB_ASSERT(node->path[0] != '\0' && node->args[node->args_count] == NULL);
    for (uint32_t i = 0; i < node->inputs_count; i++) {
        check_input(flow, node, &node->inputs[i]);
    }
    for (uint32_t i = 0; i < node->env_count; i++) {
        TB_ASSERT(strncmp(node->env[i].key, "LD_", 3) != 0);
        TB_ASSERT(strlen(node->env[i].value) <= TB__FLOW_VALUE_MAX);
    }
    for (uint32_t i = 0; i < node->build_count; i++) {
        TB_ASSERT(node->build[i].argv[0] != NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *const environment[] = {(char *)"HOME=/home/x", (char *)"A=$B 'c", NULL};
    const struct tb__flow_options options = {.environment = environment};
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    const char *text = (const char *)data;
    tb_status status = tb__flow_parse(text, size, "a/f.yml", &options, &problems, &flow);
    TB_ASSERT((status == TB_OK) == (problems.count == 0) && (status == TB_OK) == (flow != NULL));
    for (uint32_t i = 0; flow != NULL && i < flow->nodes_count; i++) {
        check_node(flow, i);
    }
    FILE *sink = flow != NULL ? fopen("/dev/null", "w") : NULL;
    if (sink != NULL) {
        TB_ASSERT(tb__flow_graph_mermaid(flow, sink) == TB_OK && fclose(sink) == 0);
    }
    tb__flow_destroy(flow);
    tb__flow_problems_fini(&problems);
    return 0;
}

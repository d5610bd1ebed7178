/* Environments of nodes: built before anything starts, kept until the run ends (restarts use them
 * again). One thread. */
#include "flow/run_environment.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flow/expand.h"

#define RESTARTS "TENSORBUS_RESTARTS="
#define RESTARTS_DIGITS 10 /* of a uint32_t */

#define VARIABLE_MAX 131071 /* bytes of "KEY=value" that execve() takes */

struct builder {
    char **list;
    size_t count;
    size_t room;
    int failed; /* out of memory */
};

static size_t key_length(const char *variable)
{
    return strcspn(variable, "=");
}

/* Add "KEY=value", which is taken over; one with the same key is replaced. */
static void add_take(struct builder *builder, char *variable)
{
    if (variable == NULL) {
        builder->failed = 1;
        return;
    }
    size_t length = key_length(variable);
    for (size_t i = 0; i < builder->count; i++) {
        if (key_length(builder->list[i]) == length &&
            strncmp(builder->list[i], variable, length) == 0) {
            free(builder->list[i]);
            builder->list[i] = variable;
            return;
        }
    }
    if (builder->count + 1 >= builder->room) { /* one stays free for the NULL */
        size_t room = builder->room == 0 ? 64 : builder->room * 2;
        char **list = realloc(builder->list, room * sizeof *list);
        if (list == NULL) {
            builder->failed = 1;
            free(variable);
            return;
        }
        builder->list = list;
        builder->room = room;
    }
    builder->list[builder->count++] = variable;
    builder->list[builder->count] = NULL;
}

static void add(struct builder *builder, const char *key, const char *value)
{
    char *variable = NULL;
    if (asprintf(&variable, "%s=%s", key, value) < 0) {
        variable = NULL;
    }
    add_take(builder, variable);
}

static const char *find(const struct builder *builder, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < builder->count; i++) {
        if (key_length(builder->list[i]) == length && strncmp(builder->list[i], key, length) == 0 &&
            builder->list[i][length] == '=') {
            return builder->list[i] + length + 1;
        }
    }
    return "";
}

static void write_input(FILE *out, const struct tb__flow *flow, const struct tb__flow_input *input)
{
    int restarts = 0;
    fprintf(out, "%s=", input->id);
    if (input->source_node < 0) {
        fprintf(out, "tensorbus/timer/nanos/%" PRId64, input->period_ns);
    } else {
        const struct tb__flow_node *source = &flow->nodes[input->source_node];
        fprintf(out, "%s/%s", source->id, source->outputs[input->source_output].id);
        restarts = source->restart_policy != TB__FLOW_RESTART_NEVER;
    }
    fprintf(out, ";queue=%" PRIu32 ";policy=%s;timeout_ns=%" PRId64 ";restart=%d",
            input->queue_size, tb__flow_policy_name(input->queue_policy), input->input_timeout_ns,
            restarts);
}

static void write_inputs(FILE *out, const struct tb__flow *flow, uint32_t index)
{
    const struct tb__flow_node *node = &flow->nodes[index];
    for (uint32_t i = 0; i < node->inputs_count; i++) {
        fputs(i > 0 ? "\n" : "", out);
        write_input(out, flow, &node->inputs[i]);
    }
}

/* All inputs of all nodes that name this output. */
static void write_subscribers(FILE *out, const struct tb__flow *flow, uint32_t index,
                              uint32_t output)
{
    const char *separator = "";
    for (uint32_t n = 0; n < flow->nodes_count; n++) {
        const struct tb__flow_node *node = &flow->nodes[n];
        for (uint32_t i = 0; i < node->inputs_count; i++) {
            if (node->inputs[i].source_node == (int32_t)index &&
                node->inputs[i].source_output == output) {
                fprintf(out, "%s%s/%s", separator, node->id, node->inputs[i].id);
                separator = ",";
            }
        }
    }
}

static void write_outputs(FILE *out, const struct tb__flow *flow, uint32_t index)
{
    const struct tb__flow_node *node = &flow->nodes[index];
    for (uint32_t i = 0; i < node->outputs_count; i++) {
        fprintf(out, "%s%s=", i > 0 ? "\n" : "", node->outputs[i].id);
        write_subscribers(out, flow, index, i);
    }
}

/* Add a variable whose value a function writes. */
static void add_written(struct builder *builder, const char *key, const struct tb__flow *flow,
                        uint32_t node,
                        void (*write)(FILE *out, const struct tb__flow *flow, uint32_t node))
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (out == NULL) {
        builder->failed = 1;
        return;
    }
    fprintf(out, "%s=", key);
    write(out, flow, node);
    if (fclose(out) != 0) {
        free(text);
        text = NULL;
    }
    add_take(builder, text);
}

static void add_venv(struct builder *builder, const char *venv)
{
    char *path = NULL;
    add(builder, "VIRTUAL_ENV", venv);
    const char *before = find(builder, "PATH");
    if (asprintf(&path, "PATH=%s/bin%s%s", venv, before[0] != '\0' ? ":" : "", before) < 0) {
        path = NULL;
    }
    add_take(builder, path);
}

/* What stands in for dora comes first; the package that it uses comes last, in case there is none.
 */
static void add_python_path(struct builder *builder, const struct tb__flow_node *node)
{
    char *path = NULL;
    const char *before = find(builder, "PYTHONPATH");
    const char *last = node->python_last;
    if (node->python_first == NULL) {
        return;
    }
    if (asprintf(&path, "PYTHONPATH=%s%s%s%s%s", node->python_first, before[0] != '\0' ? ":" : "",
                 before, last != NULL ? ":" : "", last != NULL ? last : "") < 0) {
        path = NULL;
    }
    add_take(builder, path);
}

/* The file that the flow was read from, for nodes that want to know all of it. */
static void add_flow_file(struct builder *builder, const struct tb__flow *flow)
{
    char *variable = NULL;
    const char *slash = strrchr(flow->file, '/');
    const char *name = slash != NULL ? slash + 1 : flow->file;
    if (asprintf(&variable, "TENSORBUS_FLOW_FILE=%s/%s", flow->directory, name) < 0) {
        variable = NULL;
    }
    add_take(builder, variable);
}

/* With room for any number: it changes with each start. */
static void add_restarts(struct builder *builder)
{
    const size_t size = sizeof RESTARTS + RESTARTS_DIGITS;
    char *variable = malloc(size);
    if (variable != NULL) {
        snprintf(variable, size, RESTARTS "0");
    }
    add_take(builder, variable);
}

void tb__run_environment_set_restarts(char **environment, uint32_t restarts)
{
    for (char **variable = environment; *variable != NULL; variable++) {
        if (strncmp(*variable, RESTARTS, sizeof RESTARTS - 1) == 0) {
            snprintf(*variable, sizeof RESTARTS + RESTARTS_DIGITS, RESTARTS "%" PRIu32, restarts);
        }
    }
}

static void build(struct builder *builder, const struct tb__run_environment_options *options)
{
    const struct tb__flow_node *node = &options->flow->nodes[options->node];
    for (char *const *variable = options->inherited; *variable != NULL; variable++) {
        if (!tb__env_key_reserved(*variable, key_length(*variable))) {
            add_take(builder, strdup(*variable));
        }
    }
    for (uint32_t i = 0; i < node->env_count; i++) {
        add(builder, node->env[i].key, node->env[i].value);
    }
    if (node->venv != NULL) {
        add_venv(builder, node->venv);
    }
    add_python_path(builder, node);
    add(builder, "TENSORBUS_DIR", options->runtime_directory);
    add(builder, "TENSORBUS_FLOW", options->flow_id);
    add(builder, "TENSORBUS_NODE", node->id);
    add(builder, "TENSORBUS_RUNNER", TB__RUNNER_ENDPOINT);
    add_flow_file(builder, options->flow);
    add_restarts(builder);
    add_written(builder, "TENSORBUS_INPUTS", options->flow, options->node, write_inputs);
    add_written(builder, "TENSORBUS_OUTPUTS", options->flow, options->node, write_outputs);
    if (options->flow->exit_when_nodes_finish) {
        add(builder, "TENSORBUS_EXIT_WHEN_NODES_FINISH", "1");
    }
}

static tb_status check_sizes(const struct builder *builder, const char *node)
{
    for (size_t i = 0; i < builder->count; i++) {
        size_t length = strlen(builder->list[i]);
        if (length > VARIABLE_MAX) {
            return TB__FAIL(TB_E_LIMIT,
                            "node `%s`: the environment variable %.*s has %zu bytes, the system "
                            "takes %d",
                            node, (int)key_length(builder->list[i]), builder->list[i], length,
                            VARIABLE_MAX);
        }
    }
    return TB_OK;
}

tb_status tb__run_environment_create(const struct tb__run_environment_options *options, char ***out)
{
    const char *id = options->flow->nodes[options->node].id;
    struct builder builder = {.list = NULL};
    build(&builder, options);
    tb_status status = builder.failed
                           ? TB__FAIL(TB_E_NOMEM, "memory for the environment of `%s`", id)
                           : check_sizes(&builder, id);
    if (status != TB_OK) {
        tb__run_environment_destroy(builder.list);
        return status;
    }
    *out = builder.list;
    return TB_OK;
}

void tb__run_environment_destroy(char **environment)
{
    for (char **variable = environment; variable != NULL && *variable != NULL; variable++) {
        free(*variable);
    }
    free(environment);
}

/* `tensorbus validate FLOW...`: every mistake of the files, without starting anything. */
#include <string.h>

#include <tensorbus/status.h>

#include "cli/cli.h"
#include "flow/flow.h"

static const char help[] =
    "usage: tensorbus validate [OPTION...] FLOW...\n"
    "\n"
    "Check flow files: keys, values, variables, names, connections, programs. All mistakes are\n"
    "listed on standard error as `file:line:column: what`, 20 of a file at most. A program that\n"
    "is not there yet is no mistake when its node has `build` steps.\n"
    "\n"
    "  --json                one object a file on standard output:\n"
    "                        {\"file\",\"ok\",\"name\",\"nodes\",\"inputs\",\"outputs\",\n"
    "                         \"errors\":[{\"line\",\"column\",\"text\"}],\"unlisted\"}\n"
    "  --no-programs         do not look for the nodes' programs\n"
    "  --allow-loader-env    `env` may set LD_PRELOAD and other LD_ variables\n"
    "\n"
    "exit codes: 0 all files are valid, 2 at least one is not\n"
    "\n"
    "examples:\n"
    "  tensorbus validate flow.yml\n"
    "  tensorbus validate --json examples/pool/*.yml\n";

struct settings {
    struct tb__flow_options load;
    int json;
    int programs;
};

static void count_ports(const struct tb__flow *flow, unsigned *inputs, unsigned *outputs)
{
    *inputs = 0;
    *outputs = 0;
    for (uint32_t i = 0; flow != NULL && i < flow->nodes_count; i++) {
        *inputs += flow->nodes[i].inputs_count;
        *outputs += flow->nodes[i].outputs_count;
    }
}

static void print_json(const char *file, const struct tb__flow *flow,
                       const struct tb__flow_problems *problems, int ok)
{
    unsigned inputs, outputs;
    count_ports(flow, &inputs, &outputs);
    printf("{\"file\":");
    tb__cli_json_string(stdout, file);
    printf(",\"ok\":%s,\"name\":", ok ? "true" : "false");
    if (flow != NULL) {
        tb__cli_json_string(stdout, flow->name);
    } else {
        printf("null");
    }
    printf(",\"nodes\":%u,\"inputs\":%u,\"outputs\":%u,\"errors\":[",
           flow != NULL ? flow->nodes_count : 0, inputs, outputs);
    for (uint32_t i = 0; i < problems->count; i++) {
        const struct tb__flow_problem *problem = &problems->list[i];
        printf("%s{\"line\":%u,\"column\":%u,\"text\":", i > 0 ? "," : "", problem->place.line,
               problem->place.column);
        tb__cli_json_string(stdout, problem->text);
        printf("}");
    }
    printf("],\"unlisted\":%u}\n", problems->unlisted);
}

static void print_words(const char *file, const struct tb__flow *flow)
{
    unsigned inputs, outputs;
    count_ports(flow, &inputs, &outputs);
    printf("%s: ok: %u node%s, %u input%s, %u output%s\n", file, flow->nodes_count,
           flow->nodes_count == 1 ? "" : "s", inputs, inputs == 1 ? "" : "s", outputs,
           outputs == 1 ? "" : "s");
}

static int validate(const char *file, const struct settings *settings)
{
    const struct tb__flow_build_options look = {.unbuilt_allowed = 1};
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    tb_status status = tb__flow_load(file, &settings->load, &problems, &flow);
    if (status == TB_OK && settings->programs) {
        status = tb__flow_resolve(flow, &look, &problems);
    }
    if (status != TB_OK && problems.count == 0) { /* memory */
        tb__cli_failed("validate");
    }
    if (settings->json) {
        print_json(file, flow, &problems, status == TB_OK);
    } else if (status == TB_OK) {
        print_words(file, flow);
    } else {
        tb__flow_problems_print(&problems, stderr);
    }
    tb__flow_destroy(flow);
    tb__flow_problems_fini(&problems);
    return status == TB_OK ? TB__EXIT_OK : TB__EXIT_USAGE;
}

int tb__verb_validate(int argc, char **argv)
{
    struct settings settings = {.programs = 1};
    int files = 0;
    if (tb__cli_help(argc, argv, help)) {
        return TB__EXIT_OK;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            settings.json = 1;
        } else if (strcmp(argv[i], "--no-programs") == 0) {
            settings.programs = 0;
        } else if (strcmp(argv[i], "--allow-loader-env") == 0) {
            settings.load.allow_loader_env = 1;
        } else if (argv[i][0] == '-') {
            return tb__cli_unknown_option("validate", argv[i], help);
        } else {
            argv[1 + files++] = argv[i];
        }
    }
    if (files == 0) {
        return tb__cli_usage("validate", "which flow? Name at least one YAML file");
    }
    int code = TB__EXIT_OK;
    for (int i = 1; i <= files; i++) {
        int one = validate(argv[i], &settings);
        code = one != TB__EXIT_OK ? one : code;
    }
    return code;
}

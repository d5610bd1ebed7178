/* `tensorbus build FLOW`: the build steps of a flow, without running it. */
#include <string.h>

#include <tensorbus/status.h>

#include "cli/cli.h"
#include "cli/words.h"
#include "flow/flow.h"

static const char help[] =
    "usage: tensorbus build [OPTION...] FLOW\n"
    "\n"
    "Run the `build` steps of the flow's nodes, one line after the other, each in its node's\n"
    "working directory with its node's env; then check that every program is there. The steps'\n"
    "output goes to standard error. `tensorbus run` does the same by itself.\n"
    "\n"
    "  --uv                  make a Python environment for each node whose path is a .py file,\n"
    "                        and let `pip install` steps install into it\n"
    "  --out DIRECTORY       where the environments are kept (default: out)\n"
    "  --allow-loader-env    `env` may set LD_PRELOAD and other LD_ variables\n"
    "\n"
    "exit codes: 0 built, 1 a step failed, 2 wrong usage or invalid file, 130 Ctrl-C\n"
    "\n"
    "examples:\n"
    "  tensorbus build flow.yml\n"
    "  tensorbus build --uv flow.yml\n";

struct settings {
    struct tb__flow_options load;
    struct tb__flow_build_options build;
    const char *file;
};

/* Returns 0, or the exit code of wrong usage. */
static int take_words(int argc, char **argv, struct settings *out)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--uv") == 0) {
            out->build.uv = 1;
        } else if (strcmp(argv[i], "--allow-loader-env") == 0) {
            out->load.allow_loader_env = 1;
        } else if (strcmp(argv[i], "--out") == 0) {
            out->build.out_directory = tb__cli_value(argc, argv, &i);
            if (out->build.out_directory == NULL) {
                return tb__cli_usage("build", "--out needs a directory");
            }
        } else if (argv[i][0] == '-') {
            return tb__cli_unknown_option("build", argv[i], help);
        } else {
            int code = tb__cli_one_flow("build", argv[i], &out->file);
            if (code != 0) {
                return code;
            }
        }
    }
    return tb__cli_flow_named("build", out->file);
}

static int built(struct tb__flow *flow, const struct settings *settings,
                 struct tb__flow_problems *problems)
{
    tb_status status = tb__flow_build(flow, &settings->build);
    if (status == TB_CLOSED) {
        fprintf(stderr, "tensorbus build: interrupted\n");
        return TB__EXIT_INTERRUPTED;
    }
    if (status != TB_OK) {
        return tb__cli_failed("build");
    }
    if (tb__flow_resolve(flow, &settings->build, problems) != TB_OK) {
        tb__flow_problems_print(problems, stderr);
        return TB__EXIT_FAILED;
    }
    return TB__EXIT_OK;
}

int tb__verb_build(int argc, char **argv)
{
    struct settings settings = {0};
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    if (tb__cli_help(argc, argv, help)) {
        return TB__EXIT_OK;
    }
    int code = take_words(argc, argv, &settings);
    if (code != 0) {
        return code;
    }
    if (tb__flow_load(settings.file, &settings.load, &problems, &flow) == TB_OK) {
        code = built(flow, &settings, &problems);
    } else {
        code = tb__cli_flow_invalid("build", &problems);
    }
    tb__flow_destroy(flow);
    tb__flow_problems_fini(&problems);
    return code;
}

/* `tensorbus run FLOW`: build and run a flow until it ends. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tensorbus/status.h>

#include "base/name.h"
#include "cli/cli.h"
#include "cli/words.h"
#include "flow/run.h"
#include "flow/supervise.h"

static const char help[] =
    "usage: tensorbus run [OPTION...] FLOW\n"
    "\n"
    "Check the flow, run its build steps, start its nodes, and wait until they have ended. What\n"
    "the nodes print goes to standard output, each line after `node-id | `, and to\n"
    "out/<flow id>-<name>/log_<node>.txt (the newest 5 files of 10 MiB of each node). When a node\n"
    "fails, the others are stopped. Stopping is: STOP to all nodes, 10 s, SIGTERM to their\n"
    "process groups, 2 s, SIGKILL. Ctrl-C stops, a second Ctrl-C kills. A summary goes to\n"
    "standard error.\n"
    "\n"
    "  --no-build            do not run build steps\n"
    "  --uv                  each node whose path is a .py file gets a Python environment of its\n"
    "                        own\n"
    "  --dora-api            nodes whose path is a .py file import `dora` and `dora_tensor_pool`\n"
    "                        from the Python package, so that nodes written for dora run here\n"
    "  --name NAME           name of this run for `list`, `stop`, `logs` (default: the file's)\n"
    "  --grace SECONDS       from STOP to SIGTERM (default: $TENSORBUS_GRACE, else 10)\n"
    "  --out DIRECTORY       where logs and Python environments are kept (default: out)\n"
    "  --allow-loader-env    `env` may set LD_PRELOAD and other LD_ variables\n"
    "\n"
    "exit codes: 0 all nodes ended well, 1 a node or a build step failed, 2 wrong usage or\n"
    "invalid file, 130 interrupted\n"
    "\n"
    "examples:\n"
    "  tensorbus run examples/pool/cpu2cpu.yml\n"
    "  tensorbus run --no-build --name left-camera camera.yml\n"
    "  tensorbus run --dora-api examples/pool/dora_cpu2cpu.yml\n";

struct settings {
    struct tb__flow_options load;
    struct tb__flow_build_options build;
    struct tb__run_options run;
    const char *file;
    int no_build;
};

static int take_option(int argc, char **argv, int *at, struct settings *out)
{
    const char *option = argv[*at];
    const char *value;
    if (strcmp(option, "--no-build") == 0) {
        out->no_build = 1;
    } else if (strcmp(option, "--uv") == 0) {
        out->build.uv = 1;
    } else if (strcmp(option, "--dora-api") == 0) {
        out->build.dora_api = 1;
    } else if (strcmp(option, "--allow-loader-env") == 0) {
        out->load.allow_loader_env = 1;
    } else if (strcmp(option, "--name") == 0) {
        value = tb__cli_value(argc, argv, at);
        if (value == NULL || !tb__name_valid(value)) {
            return tb__cli_usage("run",
                                 "--name needs 1 to 64 letters, digits, `_`, `.` or `-`, not "
                                 "starting with a dot");
        }
        out->run.name = value;
    } else if (strcmp(option, "--grace") == 0) {
        if (!tb__cli_seconds(tb__cli_value(argc, argv, at), &out->run.grace_ns)) {
            return tb__cli_usage("run", "--grace needs seconds, 0 to 86400");
        }
    } else if (strcmp(option, "--out") == 0) {
        value = tb__cli_value(argc, argv, at);
        if (value == NULL) {
            return tb__cli_usage("run", "--out needs a directory");
        }
        out->run.out_directory = value;
        out->build.out_directory = value;
    } else {
        return tb__cli_unknown_option("run", option, help);
    }
    return 0;
}

/* Returns 0, or the exit code of wrong usage. */
static int take_words(int argc, char **argv, struct settings *out)
{
    const char *grace = getenv("TENSORBUS_GRACE");
    out->run.grace_ns = TB__GRACE_NS;
    if (grace != NULL && grace[0] != '\0' && !tb__cli_seconds(grace, &out->run.grace_ns)) {
        return tb__cli_usage(
            "run", "TENSORBUS_GRACE is `%.40s`: seconds from 0 to 86400 are needed", grace);
    }
    for (int i = 1; i < argc; i++) {
        int code = argv[i][0] == '-' ? take_option(argc, argv, &i, out)
                                     : tb__cli_one_flow("run", argv[i], &out->file);
        if (code != 0) {
            return code;
        }
    }
    return tb__cli_flow_named("run", out->file);
}

static int build(struct tb__flow *flow, const struct settings *settings)
{
    if (settings->no_build) {
        return TB__EXIT_OK;
    }
    tb_status status = tb__flow_build(flow, &settings->build);
    if (status == TB_CLOSED) {
        fprintf(stderr, "tensorbus run: interrupted while building\n");
        return TB__EXIT_INTERRUPTED;
    }
    return status == TB_OK ? TB__EXIT_OK : tb__cli_failed("run");
}

static int run(struct tb__flow *flow, const struct settings *settings,
               struct tb__flow_problems *problems)
{
    /* What no build step could bring is missed before the first one runs. The Python environments
     * are not there yet. */
    struct tb__flow_build_options before = settings->build;
    before.unbuilt_allowed = !settings->no_build;
    before.uv = 0;
    before.dora_api = 0;
    if (tb__flow_resolve(flow, &before, problems) != TB_OK) {
        return tb__cli_flow_invalid("run", problems);
    }
    int code = build(flow, settings);
    if (code != TB__EXIT_OK) {
        return code;
    }
    if (tb__flow_resolve(flow, &settings->build, problems) != TB_OK) {
        return tb__cli_flow_invalid("run", problems);
    }
    if (tb__run_flow(flow, &settings->run, &code) != TB_OK) {
        return tb__cli_failed("run");
    }
    return code;
}

/* A standard stream that is closed would give its number to the next descriptor, and nodes' output
 * or our lines would go into it. */
static void fill_standard_streams(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO) {
        close(fd);
    }
}

int tb__verb_run(int argc, char **argv)
{
    struct settings settings = {.file = NULL};
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    if (tb__cli_help(argc, argv, help)) {
        return TB__EXIT_OK;
    }
    int code = take_words(argc, argv, &settings);
    if (code != 0) {
        return code;
    }
    fill_standard_streams();
    settings.run.colour = tb__cli_colour(stdout);
    if (tb__flow_load(settings.file, &settings.load, &problems, &flow) == TB_OK) {
        code = run(flow, &settings, &problems);
    } else {
        code = tb__cli_flow_invalid("run", &problems);
    }
    tb__flow_destroy(flow);
    tb__flow_problems_fini(&problems);
    return code;
}

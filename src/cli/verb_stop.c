/* `tensorbus stop [FLOW]`: stop a running flow and wait until it is gone. */
#include <stdlib.h>
#include <string.h>

#include <tensorbus/status.h>

#include "base/fd.h"
#include "cli/cli.h"
#include "flow/control.h"
#include "flow/run_directory.h"
#include "flow/run_find.h"

static const char help[] =
    "usage: tensorbus stop [OPTION...] [FLOW]\n"
    "\n"
    "Stop a running flow, named by its id or its name (`tensorbus list`), and wait until it is "
    "gone.\n"
    "Without FLOW, the only one that runs. Nodes get STOP, 10 s later SIGTERM, 2 s later SIGKILL.\n"
    "\n"
    "  --kill                kill all nodes at once\n"
    "  --timeout SECONDS     wait at most that long (default: 60)\n"
    "\n"
    "exit codes: 0 it is gone, 1 there is none, or it still runs, 2 wrong usage\n"
    "\n"
    "examples:\n"
    "  tensorbus stop\n"
    "  tensorbus stop 1f00ba12\n";

struct settings {
    const char *flow;
    int kill;
    int64_t timeout_ns;
};

static int take_words(int argc, char **argv, struct settings *out)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--kill") == 0) {
            out->kill = 1;
        } else if (strcmp(argv[i], "--timeout") == 0) {
            char *end = NULL;
            double seconds = i + 1 < argc ? strtod(argv[++i], &end) : -1;
            if (end == NULL || end == argv[i] || *end != '\0' ||
                !(seconds >= 0 && seconds <= 86400)) {
                return tb__cli_usage("stop", "--timeout needs seconds, 0 to 86400");
            }
            out->timeout_ns = (int64_t)(seconds * 1e9);
        } else if (argv[i][0] == '-') {
            return tb__cli_unknown_option("stop", argv[i], help);
        } else if (out->flow != NULL) {
            return tb__cli_usage("stop", "one flow at a time: `%s` or `%s`", out->flow, argv[i]);
        } else {
            out->flow = argv[i];
        }
    }
    return 0;
}

static int stop(const struct settings *settings)
{
    char path[TB__RUN_PATH_SIZE];
    struct tb__state state;
    int root_fd = -1;
    tb_status status = tb__run_root_open(0, path, &root_fd);
    if (status == TB_E_NOT_FOUND) {
        status = TB__FAIL(TB_E_NOT_FOUND, "no flow is running");
    }
    if (status == TB_OK) {
        status = tb__state_find(root_fd, settings->flow, &state);
        tb__fd_close(&root_fd);
    }
    if (status != TB_OK) {
        return tb__cli_failed("stop");
    }
    status = tb__control_ask_stop(state.flow, settings->kill, settings->timeout_ns);
    if (status == TB_AGAIN) {
        status = TB__FAIL(TB_E_SYSTEM, "flow %s (%s) still runs; `--kill` kills its nodes",
                          state.flow, state.name);
    }
    if (status == TB_OK) {
        fprintf(stderr, "flow %s (%s) has ended\n", state.flow, state.name);
    }
    tb__state_fini(&state);
    return status == TB_OK ? TB__EXIT_OK : tb__cli_failed("stop");
}

int tb__verb_stop(int argc, char **argv)
{
    struct settings settings = {.timeout_ns = TB_SECONDS(60)};
    if (tb__cli_help(argc, argv, help)) {
        return TB__EXIT_OK;
    }
    int code = take_words(argc, argv, &settings);
    return code != 0 ? code : stop(&settings);
}

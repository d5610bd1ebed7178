/* `tensorbus stop [FLOW]`: stop a running flow and wait until it is gone. */
#include <string.h>

#include <tensorbus/status.h>

#include "cli/cli.h"
#include "cli/words.h"
#include "flow/control.h"
#include "flow/run_find.h"

static const char help[] =
    "usage: tensorbus stop [OPTION...] [FLOW]\n"
    "\n"
    "Stop a running flow, named by its id or its name (`tensorbus list`), and wait until it is\n"
    "gone. Without FLOW, the only one that runs. Nodes get STOP, 10 s later SIGTERM, 2 s later\n"
    "SIGKILL.\n"
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
            if (!tb__cli_seconds(tb__cli_value(argc, argv, &i), &out->timeout_ns)) {
                return tb__cli_usage("stop", "--timeout needs seconds, 0 to 86400");
            }
        } else if (argv[i][0] == '-') {
            return tb__cli_unknown_option("stop", argv[i], help);
        } else {
            int code = tb__cli_one_flow("stop", argv[i], &out->flow);
            if (code != 0) {
                return code;
            }
        }
    }
    return 0;
}

static int stop(const struct settings *settings)
{
    struct tb__state state;
    if (tb__state_find_running(settings->flow, &state) != TB_OK) {
        return tb__cli_failed("stop");
    }
    tb_status status = tb__control_ask_stop(state.flow, settings->kill, settings->timeout_ns);
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

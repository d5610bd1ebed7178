/* `tensorbus graph FLOW`: the graph as Mermaid on standard output, or as SVG through Graphviz. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/words.h"
#include "flow/flow.h"

extern char **environ;

static const char help[] =
    "usage: tensorbus graph [OPTION...] FLOW\n"
    "\n"
    "Print the flow's graph as Mermaid, which many pages and chats draw. Thick arrows are\n"
    "`backpressure` inputs, rounded boxes are timers. The programs need not be there.\n"
    "\n"
    "  --svg FILE            draw it as SVG into FILE instead (needs Graphviz's `dot`)\n"
    "  --dot                 print it in Graphviz's language instead\n"
    "  --allow-loader-env    `env` may set LD_PRELOAD and other LD_ variables\n"
    "\n"
    "exit codes: 0 ok, 1 it could not be written or drawn, 2 wrong usage or invalid file\n"
    "\n"
    "examples:\n"
    "  tensorbus graph flow.yml\n"
    "  tensorbus graph --svg flow.svg flow.yml\n";

struct settings {
    struct tb__flow_options load;
    const char *file;
    const char *svg;
    int dot;
};

static int take_words(int argc, char **argv, struct settings *out)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--dot") == 0) {
            out->dot = 1;
        } else if (strcmp(argv[i], "--allow-loader-env") == 0) {
            out->load.allow_loader_env = 1;
        } else if (strcmp(argv[i], "--svg") == 0) {
            out->svg = tb__cli_value(argc, argv, &i);
            if (out->svg == NULL) {
                return tb__cli_usage("graph", "--svg needs a file");
            }
        } else if (argv[i][0] == '-') {
            return tb__cli_unknown_option("graph", argv[i], help);
        } else {
            int code = tb__cli_one_flow("graph", argv[i], &out->file);
            if (code != 0) {
                return code;
            }
        }
    }
    return tb__cli_flow_named("graph", out->file);
}

/* Start `dot -Tsvg -oFILE` with a pipe as its input. */
static tb_status start_dot(const char *svg, int *out_take_fd, pid_t *out_pid)
{
    int ends[2];
    char target[4096];
    int length = snprintf(target, sizeof target, "-o%s", svg);
    if (length < 0 || (size_t)length >= sizeof target) {
        return TB__FAIL(TB_E_INVALID, "the name of the SVG file is too long");
    }
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "a pipe to `dot` could not be made");
    }
    char *argv[] = {(char *)"dot", (char *)"-Tsvg", target, NULL};
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error == 0) {
        error = posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
        if (error == 0) {
            error = posix_spawnp(out_pid, "dot", &actions, NULL, argv, environ);
        }
        posix_spawn_file_actions_destroy(&actions);
    }
    tb__fd_close(&ends[0]);
    if (error != 0) {
        tb__fd_close(&ends[1]);
        return TB__FAIL(TB_E_NOT_FOUND,
                        "Graphviz's `dot` could not be started (%s): install the package "
                        "`graphviz`, or leave --svg out and paste the Mermaid text",
                        strerror(error));
    }
    *out_take_fd = ends[1];
    return TB_OK;
}

static tb_status draw(const struct tb__flow *flow, const char *svg)
{
    int fd = -1;
    pid_t pid = -1;
    int status = 0;
    /* A `dot` that ends early is told by its exit code, not by a signal to us. */
    signal(SIGPIPE, SIG_IGN);
    TB__TRY(start_dot(svg, &fd, &pid));
    FILE *pipe = fdopen(fd, "w");
    tb_status drawn = TB_OK;
    if (pipe == NULL) {
        drawn = TB__FAIL_ERRNO(TB_E_SYSTEM, "the pipe to `dot` could not be used");
        tb__fd_close(&fd);
    } else {
        drawn = tb__flow_graph_dot(flow, pipe);
        fclose(pipe);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return TB__FAIL(TB_E_SYSTEM, "`dot` could not draw %s", svg);
    }
    return drawn;
}

static int show(const struct tb__flow *flow, const struct settings *settings)
{
    tb_status status = settings->svg != NULL ? draw(flow, settings->svg)
                       : settings->dot       ? tb__flow_graph_dot(flow, stdout)
                                             : tb__flow_graph_mermaid(flow, stdout);
    return status == TB_OK ? TB__EXIT_OK : tb__cli_failed("graph");
}

int tb__verb_graph(int argc, char **argv)
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
        code = show(flow, &settings);
    } else {
        code = tb__cli_flow_invalid("graph", &problems);
    }
    tb__flow_destroy(flow);
    tb__flow_problems_fini(&problems);
    return code;
}

/* `tensorbus logs [FLOW] [NODE]`: what nodes of a running or ended flow printed. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tensorbus/status.h>

#include "base/fd.h"
#include "base/name.h"
#include "cli/cli.h"
#include "cli/words.h"
#include "flow/logs.h"
#include "flow/logs_read.h"
#include "flow/run_directory.h"
#include "flow/run_find.h"

static const char help[] =
    "usage: tensorbus logs [OPTION...] [FLOW] [NODE]\n"
    "\n"
    "Show what nodes printed, from the files that a run keeps. FLOW is the id or name of a\n"
    "running flow, or of an ended one whose logs are still in the `out` directory; without it,\n"
    "the only one that runs, else the newest that ended. Without NODE, all nodes, one after the\n"
    "other, each line after `node-id | `.\n"
    "\n"
    "  -n N, --lines N       the last N lines of each node (default: all; with -f: 10)\n"
    "  -f, --follow          go on until the flow ends\n"
    "  --out DIRECTORY       where ended flows are looked for (default: out)\n"
    "\n"
    "exit codes: 0 ok, 1 there is no such flow or node, 2 wrong usage\n"
    "\n"
    "examples:\n"
    "  tensorbus logs\n"
    "  tensorbus logs camera motion -n 20\n"
    "  tensorbus logs -f\n";

struct settings {
    const char *words[2]; /* FLOW, NODE */
    int word_count;
    const char *out_directory;
    uint64_t lines;
    int lines_given;
    int follow;
};

static int take_lines(const char *text, struct settings *out)
{
    char *end;
    if (text == NULL || text[0] < '0' || text[0] > '9') {
        return 0;
    }
    out->lines = strtoull(text, &end, 10);
    out->lines_given = 1;
    return *end == '\0';
}

static int take_words(int argc, char **argv, struct settings *out)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-f") == 0 || strcmp(argv[i], "--follow") == 0) {
            out->follow = 1;
        } else if (strcmp(argv[i], "-n") == 0 || strcmp(argv[i], "--lines") == 0) {
            const char *option = argv[i];
            if (!take_lines(tb__cli_value(argc, argv, &i), out)) {
                return tb__cli_usage("logs", "%s needs a number of lines", option);
            }
        } else if (strcmp(argv[i], "--out") == 0) {
            out->out_directory = tb__cli_value(argc, argv, &i);
            if (out->out_directory == NULL) {
                return tb__cli_usage("logs", "--out needs a directory");
            }
        } else if (argv[i][0] == '-') {
            return tb__cli_unknown_option("logs", argv[i], help);
        } else if (out->word_count == 2) {
            return tb__cli_usage("logs", "unexpected word `%s`", argv[i]);
        } else {
            out->words[out->word_count++] = argv[i];
        }
    }
    return 0;
}

/* The running flow that is meant. One word alone may also name a node of the only flow. */
static tb_status find_running(const struct settings *settings, int root_fd, struct tb__state *out,
                              const char **out_node)
{
    tb_status status = tb__state_find(root_fd, settings->words[0], out);
    *out_node = settings->words[1];
    if (status != TB_E_NOT_FOUND || settings->word_count != 1) {
        return status;
    }
    tb_error first;
    tb_last_error(&first);
    if (tb__state_find(root_fd, NULL, out) == TB_OK) {
        for (uint32_t i = 0; i < out->count; i++) {
            if (strcmp(out->nodes[i].id, settings->words[0]) == 0) {
                *out_node = settings->words[0];
                return TB_OK;
            }
        }
        tb__state_fini(out);
    }
    return TB__FAIL(status, "%s", first.text);
}

static int print_running(const struct settings *settings, int root_fd,
                         const struct tb__state *state, const char *node)
{
    const struct tb__logs_read_options options = {
        .directory = state->log_directory,
        .node = node,
        .lines = settings->lines,
        .root_fd = root_fd,
        .flow = settings->follow ? state->flow : NULL,
        .terminal = isatty(STDOUT_FILENO),
    };
    return tb__logs_print(&options, stdout) == TB_OK ? TB__EXIT_OK : tb__cli_failed("logs");
}

/* The word is no flow: say so, and whether the newest run that ended has a node of that name. */
static int unknown_flow(const struct settings *settings)
{
    char path[TB__STATE_PATH_SIZE];
    char file[TB__STATE_PATH_SIZE + TB__NAME_SIZE + 32];
    char name[TB__NAME_SIZE + 32];
    const char *word = settings->words[0];
    int code = tb__cli_failed("logs");
    if (word != NULL && tb__name_valid(word) &&
        tb__logs_find(settings->out_directory, NULL, path, sizeof path) == TB_OK) {
        const char *run = strrchr(path, '/') + 1; /* "<id>-<name>" */
        tb__log_file_name(word, 0, name, sizeof name);
        snprintf(file, sizeof file, "%s/%s", path, name);
        if (access(file, F_OK) == 0) {
            fprintf(stderr,
                    "`%s` is a node of the newest flow that ended: tensorbus logs %.*s %s\n", word,
                    (int)strcspn(run, "-"), run, word);
        }
    }
    return code;
}

static int print_ended(const struct settings *settings)
{
    char path[TB__STATE_PATH_SIZE];
    if (tb__logs_find(settings->out_directory, settings->words[0], path, sizeof path) != TB_OK) {
        return unknown_flow(settings);
    }
    const struct tb__logs_read_options options = {
        .directory = path,
        .node = settings->words[1],
        .lines = settings->lines,
        .root_fd = -1,
        .terminal = isatty(STDOUT_FILENO),
    };
    return tb__logs_print(&options, stdout) == TB_OK ? TB__EXIT_OK : tb__cli_failed("logs");
}

int tb__verb_logs(int argc, char **argv)
{
    struct settings settings = {.out_directory = "out", .lines = UINT64_MAX};
    if (tb__cli_help(argc, argv, help)) {
        return TB__EXIT_OK;
    }
    int code = take_words(argc, argv, &settings);
    if (code != 0) {
        return code;
    }
    if (settings.follow && !settings.lines_given) {
        settings.lines = 10;
    }
    char path[TB__RUN_PATH_SIZE];
    struct tb__state state;
    const char *node = NULL;
    int root_fd = -1;
    tb_status status = tb__run_root_open(0, path, &root_fd);
    if (status == TB_OK) {
        status = find_running(&settings, root_fd, &state, &node);
    }
    if (status == TB_OK) {
        code = print_running(&settings, root_fd, &state, node);
        tb__state_fini(&state);
    } else if (status == TB_E_NOT_FOUND) {
        code = print_ended(&settings);
    } else {
        code = tb__cli_failed("logs");
    }
    tb__fd_close(&root_fd);
    return code;
}

/* The tensorbus command: picks the verb. Each verb is a file of its own, linked when it is there.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tensorbus/status.h>

#include "cli/cli.h"
#include "flow/problems.h"
#include "flow/yaml_tree.h"

#pragma weak tb__verb_run
#pragma weak tb__verb_build
#pragma weak tb__verb_validate
#pragma weak tb__verb_graph
#pragma weak tb__verb_list
#pragma weak tb__verb_stop
#pragma weak tb__verb_logs
#pragma weak tb__verb_node
#pragma weak tb__verb_pool
#pragma weak tb__verb_clean
#pragma weak tb__verb_bench
#pragma weak tb__verb_version

static const struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *arguments;
    const char *help;
} verbs[] = {
    {"run", tb__verb_run, "FLOW", "build and run a flow until it ends"},
    {"build", tb__verb_build, "FLOW", "run the build steps of a flow's nodes"},
    {"validate", tb__verb_validate, "FLOW...", "check flow files, listing every mistake"},
    {"graph", tb__verb_graph, "FLOW", "print the graph as Mermaid, or draw it as SVG"},
    {"list", tb__verb_list, "", "list the flows that run"},
    {"stop", tb__verb_stop, "[FLOW]", "stop a running flow"},
    {"logs", tb__verb_logs, "[FLOW] [NODE]", "show what nodes printed"},
    {"node", tb__verb_node, "list [FLOW]", "list the nodes of a running flow"},
    {"pool", tb__verb_pool, "list|info|watch", "pools, their readers and counters"},
    {"clean", tb__verb_clean, "", "remove what killed flows left behind"},
    {"bench", tb__verb_bench, "local|gpu|dora", "measure this machine, its GPU, dora beside us"},
    {"version", tb__verb_version, "", "print the version"},
};
#define VERBS (sizeof verbs / sizeof verbs[0])

#define OPTIONS_MAX 32
#define OPTION_SIZE 32

static void print_help(FILE *out)
{
    fprintf(out, "tensorbus %s: tensors between processes by handle, not by copy\n\n",
            tb_version());
    fprintf(out, "usage: tensorbus VERB [OPTION...] [ARGUMENT...]\n\n");
    for (size_t i = 0; i < VERBS; i++) {
        if (verbs[i].run != NULL) {
            char head[64];
            snprintf(head, sizeof head, "%s %s", verbs[i].name, verbs[i].arguments);
            fprintf(out, "  %-24s %s\n", head, verbs[i].help);
        }
    }
    fprintf(
        out,
        "\n`tensorbus VERB --help` explains a verb, with examples; -V, --version: as `version`.\n"
        "exit codes: 0 ok, 1 failed, 2 wrong usage or invalid file, 130 interrupted\n");
}

static int unknown_verb(const char *name)
{
    const char *known[VERBS];
    size_t count = 0;
    for (size_t i = 0; i < VERBS; i++) {
        if (verbs[i].run != NULL) {
            known[count++] = verbs[i].name;
        }
    }
    const char *nearest = tb__nearest(name, known, count);
    if (nearest != NULL) {
        fprintf(stderr, "tensorbus: unknown verb `%.60s`; did you mean `%s`?\n", name, nearest);
    } else {
        fprintf(stderr, "tensorbus: unknown verb `%.60s`; `tensorbus --help` lists them\n", name);
    }
    return TB__EXIT_USAGE;
}

int tb__cli_help(int argc, char **argv, const char *text)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(text, stdout);
            return 1;
        }
    }
    return 0;
}

int tb__cli_usage(const char *verb, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "tensorbus %s: ", verb);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n`tensorbus %s --help` explains it\n", verb);
    return TB__EXIT_USAGE;
}

int tb__cli_unknown_option(const char *verb, const char *option, const char *help)
{
    char names[OPTIONS_MAX][OPTION_SIZE];
    const char *known[OPTIONS_MAX];
    size_t count = 0;
    for (const char *at = strstr(help, "--"); at != NULL && count < OPTIONS_MAX;
         at = strstr(at, "--")) {
        at += 2;
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz-");
        if (length > 0 && length < OPTION_SIZE) {
            memcpy(names[count], at, length);
            names[count][length] = '\0';
            known[count] = names[count];
            count++;
        }
    }
    /* Without the dashes, which all have in common. */
    const char *nearest = tb__nearest(option + strspn(option, "-"), known, count);
    return nearest != NULL
               ? tb__cli_usage(verb, "unknown option `%s`; did you mean `--%s`?", option, nearest)
               : tb__cli_usage(verb, "unknown option `%s`", option);
}

int tb__cli_failed(const char *verb)
{
    fprintf(stderr, "tensorbus %s: %s\n", verb, tb_last_error_text());
    return TB__EXIT_FAILED;
}

void tb__cli_json_string(FILE *out, const char *text)
{
    size_t left = strlen(text);
    fputc('"', out);
    while (left > 0) {
        size_t step = tb__utf8_length(text, left);
        if (step == 0) {
            fputs("\\ufffd", out);
            step = 1;
        } else if ((unsigned char)*text < 0x20 || *text == 0x7f) {
            fprintf(out, "\\u%04x", (unsigned char)*text);
        } else {
            if (*text == '"' || *text == '\\') {
                fputc('\\', out);
            }
            fwrite(text, 1, step, out);
        }
        text += step;
        left -= step;
    }
    fputc('"', out);
}

int tb__cli_colour(FILE *stream)
{
    const char *no = getenv("NO_COLOR");
    const char *terminal = getenv("TERM");
    return (no == NULL || no[0] == '\0') && isatty(fileno(stream)) &&
           !(terminal != NULL && strcmp(terminal, "dumb") == 0);
}

/* Standard output may be a full disk: what could not be written is a failure. */
static int finish(int code)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "tensorbus: standard output could not be written\n");
        return code == TB__EXIT_OK ? TB__EXIT_FAILED : code;
    }
    return code;
}

static int run_verb(int argc, char **argv)
{
    int version = strcmp(argv[0], "--version") == 0 || strcmp(argv[0], "-V") == 0;
    const char *name = version ? "version" : argv[0];
    for (size_t i = 0; i < VERBS; i++) {
        if (verbs[i].run != NULL && strcmp(name, verbs[i].name) == 0) {
            return finish(verbs[i].run(argc, argv));
        }
    }
    return unknown_verb(name);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "help") == 0 && argc > 2) {
        /* `help VERB` is `VERB --help`. */
        char *words[] = {argv[2], (char[]){"--help"}, NULL};
        return run_verb(2, words);
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return finish(TB__EXIT_OK);
    }
    if (name[0] == '\0') {
        print_help(stderr);
        return TB__EXIT_USAGE;
    }
    return run_verb(argc - 1, argv + 1);
}

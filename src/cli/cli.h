/* The tensorbus command: one file per verb, `verb_NAME.c`, with one function each.
 *
 * A verb gets its own words: argv[0] is the verb's name, then its options and arguments. It writes
 * data to standard output and words to standard error, and returns one of the exit codes below.
 * It begins with `if (tb__cli_help(argc, argv, help_text)) { return TB__EXIT_OK; }`. */
#ifndef TB_CLI_CLI_H
#define TB_CLI_CLI_H

#include <stdio.h>

enum tb__exit {
    TB__EXIT_OK = 0,
    TB__EXIT_FAILED = 1,       /* what was asked for did not work, a node failed */
    TB__EXIT_USAGE = 2,        /* wrong words on the command line, or an invalid flow file */
    TB__EXIT_INTERRUPTED = 130 /* Ctrl-C */
};

/* The verbs. main() declares them weak: one that is not linked in is neither shown nor known. */
int tb__verb_run(int argc, char **argv);
int tb__verb_build(int argc, char **argv);
int tb__verb_validate(int argc, char **argv);
int tb__verb_graph(int argc, char **argv);
int tb__verb_list(int argc, char **argv);
int tb__verb_stop(int argc, char **argv);
int tb__verb_logs(int argc, char **argv);
int tb__verb_node(int argc, char **argv);
int tb__verb_pool(int argc, char **argv);
int tb__verb_clean(int argc, char **argv);
int tb__verb_bench(int argc, char **argv);
int tb__verb_version(int argc, char **argv);

/* When `--help` or `-h` is among the words (before a `--`), write the verb's help to standard
 * output and return 1. The text: usage, what it does, options, exit codes, examples. */
int tb__cli_help(int argc, char **argv, const char *text);

/* Say what is wrong with the command line ("tensorbus VERB: ...", then where help is) on standard
 * error. Returns TB__EXIT_USAGE, so that a verb can `return tb__cli_usage("run", ...)`. */
int tb__cli_usage(const char *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for an option that the verb does not have: names the one of its help that was probably
 * meant. */
int tb__cli_unknown_option(const char *verb, const char *option, const char *help);

/* Report the thread's last error as "tensorbus VERB: text" on standard error and return
 * TB__EXIT_FAILED. */
int tb__cli_failed(const char *verb);

/* Write a string as a JSON string, with quotes; bytes that are not UTF-8 become U+FFFD. */
void tb__cli_json_string(FILE *out, const char *text);

/* Whether colours belong on this stream: it is a terminal, NO_COLOR is not set to anything, and
 * TERM is not "dumb". */
int tb__cli_colour(FILE *stream);

#endif

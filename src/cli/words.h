/* Words of the command line that several verbs take, and flow files that cannot be used. */
#ifndef TB_CLI_WORDS_H
#define TB_CLI_WORDS_H

#include <stdint.h>

#include "flow/flow.h"

/* The value of the option at argv[*at], which is then passed over; NULL: there is none, or it is
 * empty. */
const char *tb__cli_value(int argc, char **argv, int *at);

/* Seconds as a decimal number, up to a day. Returns 0 for anything else, NULL included. */
int tb__cli_seconds(const char *text, int64_t *out_ns);

/* A word that names a flow, of which a verb takes one. Returns 0, or the exit code of wrong usage.
 */
int tb__cli_one_flow(const char *verb, const char *word, const char **flow);

/* The same for the end of the words, where a verb cannot do without a file. */
int tb__cli_flow_named(const char *verb, const char *file);

/* A flow file could not be loaded or resolved: say why. Returns the verb's exit code. */
int tb__cli_flow_invalid(const char *verb, const struct tb__flow_problems *problems);

#endif

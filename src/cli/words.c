/* Words that several verbs take. */
#include "cli/words.h"

#include <errno.h>
#include <stdlib.h>

#include "cli/cli.h"

const char *tb__cli_value(int argc, char **argv, int *at)
{
    return *at + 1 < argc && argv[*at + 1][0] != '\0' ? argv[++*at] : NULL;
}

int tb__cli_seconds(const char *text, int64_t *out_ns)
{
    if (text == NULL) {
        return 0;
    }
    char *end;
    errno = 0;
    double seconds = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(seconds >= 0 && seconds <= 86400)) {
        return 0;
    }
    *out_ns = (int64_t)(seconds * 1e9);
    return 1;
}

int tb__cli_one_flow(const char *verb, const char *word, const char **flow)
{
    if (*flow != NULL) {
        return tb__cli_usage(verb, "one flow at a time: `%s` or `%s`", *flow, word);
    }
    *flow = word;
    return 0;
}

int tb__cli_flow_named(const char *verb, const char *file)
{
    return file != NULL ? 0 : tb__cli_usage(verb, "which flow? Name a YAML file");
}

int tb__cli_flow_invalid(const char *verb, const struct tb__flow_problems *problems)
{
    if (problems->count == 0) { /* memory */
        return tb__cli_failed(verb);
    }
    tb__flow_problems_print(problems, stderr);
    return TB__EXIT_USAGE;
}

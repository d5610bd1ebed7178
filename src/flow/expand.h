/* `$VAR` and `${VAR}` in the values of a flow, and splitting a line into words.
 *
 * Looked up in order: the node's env, the root env, the process environment. What a variable stands
 * for is not looked at again: no recursion, and its spaces do not split words. `$$` is a dollar
 * sign; any other use of `$` is a mistake, so that a typing error never becomes an empty text. */
#ifndef TB_FLOW_EXPAND_H
#define TB_FLOW_EXPAND_H

#include "flow/arena.h"
#include "flow/flow.h"

/* Where variables come from, and where problems and memory go. */
struct tb__scope {
    struct tb__flow_arena *arena;
    struct tb__flow_problems *problems;
    char *const *environment;       /* of the process */
    const struct tb__flow_env *env; /* root and node env so far, merged */
    uint32_t env_count;
    const char *owner; /* "node `camera`" or "the root": for messages */
};

/* Expand one value. `what` names it ("`path`"). Returns NULL after a problem or without memory. */
char *tb__expand(const struct tb__scope *scope, const char *what, struct tb__flow_place place,
                 const char *text);

enum tb__words_for {
    TB__WORDS_ARGS = 0,
    TB__WORDS_BUILD = 1, /* characters that only a shell understands are a mistake */
};

/* Split like a shell and expand: blanks separate; '...' is literal; within "..." variables are
 * expanded and a backslash quotes `"`, `\` and `$`; elsewhere a backslash quotes the next
 * character. Returns a NULL-terminated array, or NULL after a problem or without memory. */
char **tb__expand_words(const struct tb__scope *scope, const char *what,
                        struct tb__flow_place place, const char *text,
                        enum tb__words_for words_for);

/* Whether `key` can be an environment variable's name. */
int tb__env_key_valid(const char *key);

/* Whether `key` (of `length` bytes) is reserved: a TENSORBUS_ variable through which the runner
 * reaches its nodes, or one that nobody reads. The settings of the library are the user's: nodes
 * get them, and a flow's `env` may set them. */
int tb__env_key_reserved(const char *key, size_t length);

/* "KEY=value" of an environment array: the value, NULL when it is not there. */
const char *tb__environment_get(char *const *environment, const char *key, size_t key_length);

#endif

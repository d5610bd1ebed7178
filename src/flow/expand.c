/* Variables and words: pure functions over one text. Growth is bounded by TB__FLOW_VALUE_MAX for a
 * value and by TB__FLOW_TEXT_MAX for a flow (ten lines that double each other would fill memory).
 */
#include "flow/expand.h"

#include <stdlib.h>
#include <string.h>

#include "flow/problems.h"

/* A text that grows while it is made. */
struct builder {
    char *bytes;
    size_t used;
    size_t size;
    int failed; /* a problem has been reported, or memory is short */
};

struct work {
    const struct tb__scope *scope;
    const char *what;
    struct tb__flow_place place;
    struct builder out;
};

static void put(struct work *work, const char *bytes, size_t count)
{
    struct builder *out = &work->out;
    if (out->failed) {
        return;
    }
    if (count > TB__FLOW_VALUE_MAX - out->used) {
        tb__problem(work->scope->problems, work->place,
                    "%s of %s is longer than %u bytes when expanded", work->what,
                    work->scope->owner, TB__FLOW_VALUE_MAX);
        out->failed = 1;
        return;
    }
    if (count > out->size - out->used) {
        size_t size = (out->used + count) * 2 + 64;
        char *bytes_new = realloc(out->bytes, size);
        if (bytes_new == NULL) {
            work->scope->arena->failed = 1;
            out->failed = 1;
            return;
        }
        out->bytes = bytes_new;
        out->size = size;
    }
    if (count > 0) {
        memcpy(out->bytes + out->used, bytes, count);
        out->used += count;
    }
}

/* Move what was built into the arena and begin anew. */
static char *finish(struct work *work)
{
    struct tb__flow_arena *arena = work->scope->arena;
    if (work->out.failed) {
        return NULL;
    }
    arena->expanded_bytes += work->out.used + 1;
    if (arena->expanded_bytes > TB__FLOW_TEXT_MAX) {
        tb__problem(work->scope->problems, work->place,
                    "%s of %s: the values of this flow are longer than %u MiB when expanded",
                    work->what, work->scope->owner, TB__FLOW_TEXT_MAX >> 20);
        work->out.failed = 1;
        return NULL;
    }
    char *copy = tb__arena_copy(arena, work->out.bytes, work->out.used);
    work->out.used = 0;
    work->out.failed = copy == NULL;
    return copy;
}

static int is_key_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static size_t key_length(const char *text)
{
    size_t length = 0;
    if (is_key_start(text[0])) {
        while (is_key_start(text[length]) || (text[length] >= '0' && text[length] <= '9')) {
            length++;
        }
    }
    return length;
}

int tb__env_key_reserved(const char *key, size_t length)
{
    /* By their whole names, so that one that is misspelt is told of. */
    static const char *const settings[] = {"TENSORBUS_LOG", "TENSORBUS_GPU_ORDER",
                                           "TENSORBUS_GPU_PEERS", "TENSORBUS_GPU_PIN_MIN"};
    static const char prefix[] = "TENSORBUS_";
    if (length < sizeof prefix - 1 || memcmp(key, prefix, sizeof prefix - 1) != 0) {
        return 0;
    }
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (strlen(settings[i]) == length && memcmp(key, settings[i], length) == 0) {
            return 0;
        }
    }
    return 1;
}

int tb__env_key_valid(const char *key)
{
    size_t length = key_length(key);
    return length > 0 && key[length] == '\0';
}

const char *tb__environment_get(char *const *environment, const char *key, size_t length)
{
    for (; environment != NULL && *environment != NULL; environment++) {
        if (strncmp(*environment, key, length) == 0 && (*environment)[length] == '=') {
            return *environment + length + 1;
        }
    }
    return NULL;
}

static const char *look_up(const struct tb__scope *scope, const char *key, size_t length)
{
    for (uint32_t i = 0; i < scope->env_count; i++) {
        const char *candidate = scope->env[i].key;
        if (strncmp(candidate, key, length) == 0 && candidate[length] == '\0') {
            return scope->env[i].value;
        }
    }
    return tb__environment_get(scope->environment, key, length);
}

static size_t bad_dollar(struct work *work, const char *at)
{
    const char *hint = "write `$$` for a dollar sign";
    if (at[1] == '{' && key_length(at + 2) > 0) {
        hint = "only `${NAME}` is known here: close the brace after the name, give no default";
    } else if (at[1] == '(') {
        hint = "commands are not run here: write `$$` for a dollar sign";
    }
    tb__problem(work->scope->problems, work->place, "%s of %s: `%.12s` is no variable; %s",
                work->what, work->scope->owner, at, hint);
    work->out.failed = 1;
    return strlen(at);
}

/* Handle the `$` at `at`; returns how many characters of the text it takes. */
static size_t take_variable(struct work *work, const char *at)
{
    if (at[1] == '$') {
        put(work, "$", 1);
        return 2;
    }
    size_t braces = at[1] == '{';
    const char *key = at + 1 + braces;
    size_t length = key_length(key);
    if (length == 0 || (braces && key[length] != '}')) {
        return bad_dollar(work, at);
    }
    const char *value = look_up(work->scope, key, length);
    if (value == NULL) {
        tb__problem(work->scope->problems, work->place,
                    "%s of %s: variable `%.*s` is not defined above, nor in the environment",
                    work->what, work->scope->owner, (int)(length < 60 ? length : 60), key);
        work->out.failed = 1;
        return strlen(at);
    }
    put(work, value, strlen(value));
    return 1 + length + 2 * braces;
}

static void expand_into(struct work *work, const char *text)
{
    while (*text != '\0' && !work->out.failed) {
        size_t plain = strcspn(text, "$");
        put(work, text, plain);
        text += plain;
        if (*text == '$' && !work->out.failed) {
            text += take_variable(work, text);
        }
    }
}

char *tb__expand(const struct tb__scope *scope, const char *what, struct tb__flow_place place,
                 const char *text)
{
    struct work work = {.scope = scope, .what = what, .place = place};
    expand_into(&work, text);
    char *out = finish(&work);
    free(work.out.bytes);
    return out;
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t unclosed(struct work *work, char quote, const char *at)
{
    tb__problem(work->scope->problems, work->place, "%s of %s: a %c that is never closed: %.24s",
                work->what, work->scope->owner, quote, at);
    work->out.failed = 1;
    return strlen(at);
}

static size_t take_single_quotes(struct work *work, const char *at)
{
    size_t length = strcspn(at + 1, "'");
    if (at[1 + length] == '\0') {
        return unclosed(work, '\'', at);
    }
    put(work, at + 1, length);
    return length + 2;
}

static size_t take_double_quotes(struct work *work, const char *at)
{
    const char *start = at++;
    while (*at != '"' && *at != '\0' && !work->out.failed) {
        if (*at == '$') {
            at += take_variable(work, at);
        } else if (*at == '\\' && at[1] != '\0' && strchr("\"\\$", at[1]) != NULL) {
            put(work, at + 1, 1);
            at += 2;
        } else {
            put(work, at++, 1);
        }
    }
    if (*at != '"') {
        return work->out.failed ? strlen(start) : unclosed(work, '"', start);
    }
    return (size_t)(at - start) + 1;
}

/* One piece of a word: a quoted part, a variable, or one character. */
static size_t take_piece(struct work *work, const char *at, enum tb__words_for words_for)
{
    switch (*at) {
    case '\'':
        return take_single_quotes(work, at);
    case '"':
        return take_double_quotes(work, at);
    case '$':
        return take_variable(work, at);
    case '\\':
        if (at[1] == '\0') {
            return unclosed(work, '\\', at);
        }
        put(work, at + 1, 1);
        return 2;
    default:
        break;
    }
    if (words_for == TB__WORDS_BUILD && strchr("|&;<>()`", *at) != NULL) {
        tb__problem(work->scope->problems, work->place,
                    "%s of %s: `%c` needs a shell, and build steps run without one: one command "
                    "a line, or sh -c '...'",
                    work->what, work->scope->owner, *at);
        work->out.failed = 1;
        return strlen(at);
    }
    put(work, at, 1);
    return 1;
}

static size_t take_word(struct work *work, const char *at, enum tb__words_for words_for)
{
    const char *start = at;
    while (*at != '\0' && !is_blank(*at) && !work->out.failed) {
        at += take_piece(work, at, words_for);
    }
    return (size_t)(at - start);
}

/* An upper bound for the number of words: one per run of characters between blanks. */
static size_t count_runs(const char *text)
{
    size_t runs = 0;
    for (int inside = 0; *text != '\0'; text++) {
        runs += !inside && !is_blank(*text);
        inside = !is_blank(*text);
    }
    return runs;
}

char **tb__expand_words(const struct tb__scope *scope, const char *what,
                        struct tb__flow_place place, const char *text, enum tb__words_for words_for)
{
    struct work work = {.scope = scope, .what = what, .place = place};
    char **words = tb__arena_array(scope->arena, count_runs(text) + 1, sizeof *words);
    size_t count = 0;
    while (words != NULL && !work.out.failed) {
        while (is_blank(*text)) {
            text++;
        }
        if (*text == '\0') {
            break;
        }
        text += take_word(&work, text, words_for);
        char *word = finish(&work);
        if (word != NULL && count == TB__FLOW_ARGS_MAX) {
            tb__problem(scope->problems, place, "%s of %s has more than %d words", what,
                        scope->owner, TB__FLOW_ARGS_MAX);
            work.out.failed = 1;
        } else if (word != NULL) {
            words[count++] = word;
        }
    }
    free(work.out.bytes);
    return work.out.failed ? NULL : words;
}

/* Single values: texts, numbers, choices; and the walk over the keys of a map. */
#include "flow/validate.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/name.h"

#define BILLION 1000000000u

/* Keys of dora's that have no meaning here: whoever brings a file from there is told so. */
static int is_doras(const char *key)
{
    static const char keys[] =
        " branch cpu_affinity debug distribute finish_grace_secs git health_check_interval "
        "health_check_timeout hub input_types labels max_log_size max_restart_delay "
        "max_rotated_files min_log_level module operator operators output_framing output_metadata "
        "output_types params path_sha256 pattern restart_window rev ros2 send_logs_as "
        "send_stdout_as shared_memory_pool_size strict_types tag type_rules ";
    char word[64];
    int length = snprintf(word, sizeof word, " %s ", key);
    return length < (int)sizeof word && strstr(keys, word) != NULL;
}

static void unknown_key(struct tb__checker *checker, const struct tb__yaml *key, const char *where,
                        const struct tb__key *keys, size_t count)
{
    const char *names[32];
    for (size_t i = 0; i < count && i < 32; i++) {
        names[i] = keys[i].name;
    }
    int doras = is_doras(key->text);
    const char *nearest = doras ? NULL : tb__nearest(key->text, names, count);
    if (nearest != NULL) {
        tb__problem(checker->problems, key->place, "unknown key `%.60s` in %s; did you mean `%s`?",
                    key->text, where, nearest);
    } else {
        tb__problem(checker->problems, key->place, "unknown key `%.60s` in %s; its keys are: %s%s",
                    key->text, where, tb__list_names(checker, names, sizeof names[0], count),
                    doras ? " (this one is dora's: leave it out)" : "");
    }
}

void tb__check_keys(struct tb__checker *checker, const struct tb__yaml *map, const char *where,
                    const struct tb__key *keys, size_t count, void *target)
{
    TB_ASSERT(count <= 32);
    /* Unknown keys first: they explain what is missing below, and must not fall off the list. */
    for (const struct tb__yaml *value = map->first; value != NULL; value = value->next) {
        size_t i = 0;
        while (i < count && strcmp(value->key->text, keys[i].name) != 0) {
            i++;
        }
        /* A key that is no text was reported by the parser. */
        if (i == count && value->key->kind == TB__YAML_SCALAR) {
            unknown_key(checker, value->key, where, keys, count);
        }
    }
    for (size_t i = 0; i < count; i++) {
        const struct tb__yaml *value = tb__yaml_get(map, keys[i].name);
        if (value != NULL) {
            keys[i].take(checker, target, value);
        }
    }
}

int tb__check_text(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                   const char **out)
{
    if (value->kind != TB__YAML_SCALAR) {
        tb__problem(checker->problems, value->place, "%s of %s must be a text, this is %s", what,
                    checker->scope.owner, tb__yaml_kind_name(value));
        return 0;
    }
    if (tb__yaml_is_null(value)) {
        tb__problem(checker->problems, value->place, "%s of %s is empty", what,
                    checker->scope.owner);
        return 0;
    }
    *out = value->text;
    return 1;
}

int tb__check_expanded(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                       const char **out)
{
    const char *text;
    if (!tb__check_text(checker, what, value, &text)) {
        return 0;
    }
    const char *expanded = tb__expand(&checker->scope, what, value->place, text);
    if (expanded == NULL) {
        return 0;
    }
    *out = expanded;
    return 1;
}

int tb__parse_decimal(const char *text, uint64_t *out_whole, uint32_t *out_billionths)
{
    uint64_t whole = 0;
    uint32_t billionths = 0;
    size_t digits = 0;
    for (; *text >= '0' && *text <= '9'; text++, digits++) {
        uint64_t ten;
        if (!tb__mul(whole, 10, &ten) || !tb__add(ten, (uint64_t)(*text - '0'), &whole)) {
            return 0;
        }
    }
    if (*text == '.') {
        text++;
        /* Digits beyond the ninth are below the resolution of every use. */
        for (uint32_t unit = BILLION / 10; *text >= '0' && *text <= '9'; text++, digits++) {
            billionths += unit * (uint32_t)(*text - '0');
            unit /= 10;
        }
    }
    if (*text != '\0' || digits == 0) {
        return 0;
    }
    *out_whole = whole;
    *out_billionths = billionths;
    return 1;
}

int tb__check_integer(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                      uint32_t least, uint32_t most, uint32_t *out)
{
    const char *text;
    uint64_t whole;
    uint32_t billionths;
    if (!tb__check_text(checker, what, value, &text)) {
        return 0;
    }
    if (strchr(text, '.') != NULL || !tb__parse_decimal(text, &whole, &billionths) ||
        whole < least || whole > most) {
        tb__problem(checker->problems, value->place,
                    "%s of %s must be a whole number from %u to %u, this is `%.40s`", what,
                    checker->scope.owner, least, most, text);
        return 0;
    }
    *out = (uint32_t)whole;
    return 1;
}

int tb__check_seconds(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                      int64_t *out_ns)
{
    const char *text;
    uint64_t whole;
    uint32_t billionths;
    if (!tb__check_text(checker, what, value, &text)) {
        return 0;
    }
    if (!tb__parse_decimal(text, &whole, &billionths) || whole >= TB__FLOW_SECONDS_MAX) {
        tb__problem(checker->problems, value->place,
                    "%s of %s must be seconds, such as 0.5, less than %d; this is `%.40s`", what,
                    checker->scope.owner, TB__FLOW_SECONDS_MAX, text);
        return 0;
    }
    *out_ns = (int64_t)whole * BILLION + billionths;
    return 1;
}

int tb__check_bool(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                   int *out)
{
    static const char *const choices[] = {"false", "true"};
    uint32_t chosen;
    if (!tb__check_choice(checker, what, value, choices, 2, &chosen)) {
        return 0;
    }
    *out = (int)chosen;
    return 1;
}

int tb__check_choice(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                     const char *const *choices, size_t count, uint32_t *out)
{
    const char *text;
    if (!tb__check_text(checker, what, value, &text)) {
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, choices[i]) == 0) {
            *out = (uint32_t)i;
            return 1;
        }
    }
    tb__problem(checker->problems, value->place, "%s of %s cannot be `%.40s`%s; it is one of: %s",
                what, checker->scope.owner, text, tb__did_you_mean(checker, text, choices, count),
                tb__list_names(checker, choices, sizeof choices[0], count));
    return 0;
}

int tb__check_name(struct tb__checker *checker, const char *what, struct tb__flow_place place,
                   const char *text)
{
    if (tb__name_valid(text)) {
        return 1;
    }
    tb__problem(checker->problems, place,
                "%s `%.80s` is not a valid name: use 1 to 64 letters, digits, `_`, `.` or `-`, not "
                "starting with a dot",
                what, text);
    return 0;
}

int tb__check_kind(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                   enum tb__yaml_kind kind, const char *example)
{
    if (value->kind == kind) {
        return 1;
    }
    if (!tb__yaml_is_null(value)) {
        tb__problem(checker->problems, value->place, "%s of %s must be %s (%s), this is %s", what,
                    checker->scope.owner, kind == TB__YAML_MAP ? "a map" : "a list", example,
                    tb__yaml_kind_name(value));
    }
    return 0;
}

const char *tb__list_names(struct tb__checker *checker, const void *first_name, size_t stride,
                           size_t count)
{
    char text[320] = "";
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const char *name;
        memcpy(&name, (const char *)first_name + i * stride, sizeof name);
        size_t length = strlen(name);
        if (used + length > 240) {
            snprintf(text + used, sizeof text - used, " and %zu more", count - i);
            break;
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? ", " : "", name);
    }
    const char *out = tb__arena_copy(checker->arena, text, strlen(text));
    return out != NULL && count > 0 ? out : "none";
}

const char *tb__did_you_mean(struct tb__checker *checker, const char *word,
                             const char *const *candidates, size_t count)
{
    const char *nearest = tb__nearest(word, candidates, count);
    const char *out =
        nearest != NULL ? tb__arena_format(checker->arena, "; did you mean `%s`?", nearest) : NULL;
    return out != NULL ? out : "";
}

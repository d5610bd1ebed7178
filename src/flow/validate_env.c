/* `env` of the root and of nodes. The values are expanded in the order of the file, each with what
 * stands above it, so that `PATH: $HOME/bin:$PATH` means the PATH from outside. */
#include "flow/validate.h"

#include <string.h>

static int starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Keys that a file may not set: those through which the runner reaches its nodes, and those that
 * make the loader run other code in a node before its main(). */
static int check_key(struct tb__checker *checker, const struct tb__yaml *key)
{
    const char *owner = checker->scope.owner;
    if (!tb__env_key_valid(key->text)) {
        tb__problem(checker->problems, key->place,
                    "`env` of %s: `%.60s` is no variable name: use letters, digits and `_`, not "
                    "starting with a digit",
                    owner, key->text);
        return 0;
    }
    if (tb__env_key_reserved(key->text, strlen(key->text))) {
        tb__problem(checker->problems, key->place,
                    "`env` of %s may not set `%.60s`: the runner itself uses TENSORBUS_ variables "
                    "to reach its nodes (settings are TENSORBUS_LOG, TENSORBUS_GPU_ORDER, "
                    "TENSORBUS_GPU_PEERS and TENSORBUS_GPU_PIN_MIN)",
                    owner, key->text);
        return 0;
    }
    if (starts_with(key->text, "LD_") && !checker->options->allow_loader_env) {
        tb__problem(
            checker->problems, key->place,
            "`env` of %s may not set `%.60s`, which changes the code that a node loads: set "
            "it where tensorbus is started, or allow it with --allow-loader-env",
            owner, key->text);
        return 0;
    }
    return 1;
}

/* The new value is made before the old one goes: it may be built from it. */
static void put(struct tb__checker *checker, struct tb__flow_env entry)
{
    struct tb__flow_env *env = (struct tb__flow_env *)checker->scope.env; /* this checker's own */
    for (uint32_t i = 0; i < checker->scope.env_count; i++) {
        if (strcmp(env[i].key, entry.key) == 0) {
            env[i] = entry;
            return;
        }
    }
    env[checker->scope.env_count++] = entry;
}

static void take_entry(struct tb__checker *checker, const struct tb__yaml *value)
{
    const struct tb__yaml *key = value->key;
    if (key->kind != TB__YAML_SCALAR || !check_key(checker, key)) {
        return;
    }
    char what[96];
    snprintf(what, sizeof what, "`env: %.60s`", key->text);
    if (value->kind == TB__YAML_SCALAR && tb__yaml_is_null(value)) {
        tb__problem(checker->problems, value->place,
                    "%s of %s has no value: write \"\" for an empty one", what,
                    checker->scope.owner);
        return;
    }
    /* After a problem the key is there with an empty value: what uses it is not reported as well.
     */
    const char *expanded = "";
    if (tb__check_expanded(checker, what, value, &expanded) &&
        strlen(key->text) + 1 + strlen(expanded) > TB__FLOW_VALUE_MAX) {
        tb__problem(checker->problems, value->place,
                    "%s of %s is longer than %u bytes with its name", what, checker->scope.owner,
                    TB__FLOW_VALUE_MAX);
    }
    put(checker, (struct tb__flow_env){.key = key->text, .value = expanded, .place = key->place});
}

void tb__check_env(struct tb__checker *checker, const struct tb__yaml *map)
{
    if (!tb__check_kind(checker, "`env`", map, TB__YAML_MAP, "`KEY: value`")) {
        return;
    }
    if (map->count > TB__FLOW_ENV_MAX) {
        tb__problem(checker->problems, map->place, "`env` of %s has %u keys, %d are allowed",
                    checker->scope.owner, map->count, TB__FLOW_ENV_MAX);
        return;
    }
    struct tb__flow_env *grown =
        tb__arena_array(checker->arena, checker->scope.env_count + map->count, sizeof *grown);
    if (grown == NULL) {
        return;
    }
    for (uint32_t i = 0; i < checker->scope.env_count; i++) {
        grown[i] = checker->scope.env[i];
    }
    checker->scope.env = grown;
    for (const struct tb__yaml *value = map->first; value != NULL; value = value->next) {
        take_entry(checker, value);
    }
}

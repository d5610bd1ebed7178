/* One node of the list: every key but `env` and `inputs`, which have files of their own. */
#include "flow/validate.h"

#include <string.h>

#define NO_ID "(no id)"

static void take_nothing(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    (void)checker, (void)target, (void)value; /* `id` is read before the others */
}

static void take_env(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow_node *node = target;
    tb__check_env(checker, value);
    node->env = (struct tb__flow_env *)checker->scope.env; /* the arena's, made for this node */
    node->env_count = checker->scope.env_count;
}

static void take_name(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow_node *node = target;
    tb__check_text(checker, "`name`", value, &node->name);
}

static void take_description(struct tb__checker *checker, void *target,
                             const struct tb__yaml *value)
{
    struct tb__flow_node *node = target;
    if (!(value->kind == TB__YAML_SCALAR && tb__yaml_is_null(value))) {
        tb__check_text(checker, "`description`", value, &node->description);
    }
}

static void take_path(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow_node *node = target;
    const char *path;
    node->path_place = value->place;
    if (!tb__check_expanded(checker, "`path`", value, &path)) {
        return;
    }
    const char *wrong = NULL;
    if (path[0] == '\0') {
        wrong = "is empty";
    } else if (strcmp(path, "dynamic") == 0 || strcmp(path, "shell") == 0) {
        wrong = "stands for a kind of node that tensorbus does not have: name a program";
    } else if (path[0] == '~') {
        wrong = "begins with `~`, which is not expanded: write $HOME";
    } else if (strncmp(path, "http://", 7) == 0 || strncmp(path, "https://", 8) == 0) {
        wrong = "is an address, and nothing is downloaded: fetch it with a `build` step";
    } else if (path[strlen(path) - 1] == '/') {
        wrong = "is a directory: name a program";
    }
    if (wrong != NULL) {
        tb__problem(checker->problems, value->place, "`path` of %s: `%.80s` %s",
                    checker->scope.owner, path, wrong);
    }
    node->path = path;
}

static void take_args_list(struct tb__checker *checker, struct tb__flow_node *node,
                           const struct tb__yaml *list)
{
    node->args = tb__arena_array(checker->arena, (size_t)list->count + 1, sizeof *node->args);
    for (const struct tb__yaml *item = list->first; item != NULL && node->args != NULL;
         item = item->next) {
        const char *expanded;
        if (tb__check_expanded(checker, "`args`", item, &expanded)) {
            node->args[node->args_count++] = (char *)expanded; /* the arena's */
        }
    }
}

static void take_args(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow_node *node = target;
    const char *text;
    if (value->kind == TB__YAML_LIST) {
        take_args_list(checker, node, value);
        return;
    }
    if (value->kind == TB__YAML_SCALAR && tb__yaml_is_null(value)) {
        return;
    }
    if (!tb__check_text(checker, "`args`", value, &text)) {
        return;
    }
    char **words = tb__expand_words(&checker->scope, "`args`", value->place, text, TB__WORDS_ARGS);
    while (words != NULL && words[node->args_count] != NULL) {
        node->args_count++;
    }
    node->args = words;
}

static void take_step(struct tb__checker *checker, struct tb__flow_node *node, const char *text,
                      struct tb__flow_place place)
{
    if (node->build_count == TB__FLOW_BUILD_MAX) {
        tb__problem(checker->problems, place, "`build` of %s has more than %d lines",
                    checker->scope.owner, TB__FLOW_BUILD_MAX);
        return;
    }
    for (const char *at = text; *at != '\0'; at++) {
        if (((unsigned char)*at < 0x20 && *at != '\t') || *at == 0x7f) { /* it will be printed */
            tb__problem(checker->problems, place, "`build` of %s has a control character: %.60s",
                        checker->scope.owner, text);
            return;
        }
    }
    char **argv = tb__expand_words(&checker->scope, "`build`", place, text, TB__WORDS_BUILD);
    if (argv != NULL && argv[0] != NULL) {
        node->build[node->build_count++] =
            (struct tb__flow_step){.text = text, .argv = argv, .place = place};
    }
}

/* Line by line; empty lines and lines that begin with `#` are skipped. */
static void take_build_text(struct tb__checker *checker, struct tb__flow_node *node,
                            const struct tb__yaml *value)
{
    const char *text;
    if (!tb__check_text(checker, "`build`", value, &text)) {
        return;
    }
    struct tb__flow_place place = value->place;
    for (unsigned line = 0; *text != '\0' && node->build_count <= TB__FLOW_BUILD_MAX; line++) {
        size_t length = strcspn(text, "\n");
        const char *end = text + length;
        while (*text == ' ' || *text == '\t') {
            text++;
        }
        if (value->style == TB__YAML_LITERAL) {
            place = (struct tb__flow_place){.line = value->place.line + 1 + line, .column = 1};
        }
        if (text < end && *text != '#') {
            const char *copy = tb__arena_copy(checker->arena, text, (size_t)(end - text));
            if (copy == NULL) {
                return;
            }
            take_step(checker, node, copy, place);
        }
        text = *end == '\n' ? end + 1 : end;
    }
}

static void take_build(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow_node *node = target;
    if (value->kind == TB__YAML_SCALAR && tb__yaml_is_null(value)) {
        return;
    }
    node->build = tb__arena_array(checker->arena, TB__FLOW_BUILD_MAX, sizeof *node->build);
    if (node->build == NULL) {
        return;
    }
    if (value->kind != TB__YAML_LIST) {
        take_build_text(checker, node, value);
        return;
    }
    for (const struct tb__yaml *item = value->first; item != NULL; item = item->next) {
        take_build_text(checker, node, item);
    }
}

static void take_inputs(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    tb__check_inputs(checker, target, value);
}

static void take_output(struct tb__checker *checker, struct tb__flow_node *node,
                        const struct tb__yaml *item)
{
    const char *text;
    char what[96];
    snprintf(what, sizeof what, "output of %.80s", checker->scope.owner);
    if (!tb__check_text(checker, "an output", item, &text) ||
        !tb__check_name(checker, what, item->place, text)) {
        return;
    }
    for (uint32_t i = 0; i < node->outputs_count; i++) {
        if (strcmp(node->outputs[i].id, text) == 0) {
            tb__problem(checker->problems, item->place, "output `%s` of %s twice: first in line %u",
                        text, checker->scope.owner, node->outputs[i].place.line);
            return;
        }
    }
    node->outputs[node->outputs_count++] =
        (struct tb__flow_output){.id = text, .place = item->place};
}

static void take_outputs(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow_node *node = target;
    uint32_t before = tb__problems_total(checker->problems);
    if (value->count > TB__FLOW_PORTS_MAX) {
        tb__problem(checker->problems, value->place, "%s has %u outputs, %d are allowed",
                    checker->scope.owner, value->count, TB__FLOW_PORTS_MAX);
    } else if (tb__check_kind(checker, "`outputs`", value, TB__YAML_LIST, "`- name`")) {
        node->outputs = tb__arena_array(checker->arena, value->count, sizeof *node->outputs);
        for (const struct tb__yaml *item = value->first; item != NULL && node->outputs != NULL;
             item = item->next) {
            take_output(checker, node, item);
        }
    }
    checker->outputs_broken[node - checker->flow->nodes] =
        tb__problems_total(checker->problems) != before;
}

static void take_restart_policy(struct tb__checker *checker, void *target,
                                const struct tb__yaml *value)
{
    static const char *const choices[] = {"never", "on-failure", "always"};
    struct tb__flow_node *node = target;
    uint32_t chosen;
    if (tb__check_choice(checker, "`restart_policy`", value, choices, 3, &chosen)) {
        node->restart_policy = (enum tb__flow_restart)chosen;
    }
}

static void take_max_restarts(struct tb__checker *checker, void *target,
                              const struct tb__yaml *value)
{
    struct tb__flow_node *node = target;
    tb__check_integer(checker, "`max_restarts`", value, 0, TB__FLOW_RESTARTS_MAX,
                      &node->max_restarts);
}

static void take_restart_delay(struct tb__checker *checker, void *target,
                               const struct tb__yaml *value)
{
    struct tb__flow_node *node = target;
    tb__check_seconds(checker, "`restart_delay`", value, &node->restart_delay_ns);
}

/* Other machines come with the daemon; until then a flow that names one must not half run. */
static void take_machine(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow_node *node = target;
    const char *machine;
    if ((value->kind == TB__YAML_SCALAR && tb__yaml_is_null(value)) ||
        !tb__check_text(checker, "`deploy: machine`", value, &machine)) {
        return;
    }
    node->machine = machine;
    const char *here = checker->options->machine;
    int local = machine[0] == '\0' || strcmp(machine, "local") == 0 ||
                (here != NULL && strcmp(machine, here) == 0);
    if (!local) {
        tb__problem(checker->problems, value->place,
                    "%s is to run on machine `%.60s`, and another machine is not supported yet: "
                    "remove `deploy: machine` or set it to `local`",
                    checker->scope.owner, machine);
    }
}

static void take_working_dir(struct tb__checker *checker, void *target,
                             const struct tb__yaml *value)
{
    struct tb__flow_node *node = target;
    const char *path;
    if (!tb__check_expanded(checker, "`deploy: working_dir`", value, &path)) {
        return;
    }
    if (path[0] == '~') {
        tb__problem(checker->problems, value->place,
                    "`deploy: working_dir` of %s begins with `~`, which is not expanded: write "
                    "$HOME",
                    checker->scope.owner);
        return;
    }
    const char *joined = tb__join_path(checker->arena, checker->flow->directory, path);
    if (joined != NULL) {
        node->working_dir = joined;
    }
}

static void take_deploy(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    static const struct tb__key keys[] = {
        {"machine", take_machine},
        {"working_dir", take_working_dir},
    };
    const char *where = tb__arena_format(checker->arena, "`deploy` of %s", checker->scope.owner);
    if (where != NULL &&
        tb__check_kind(checker, "`deploy`", value, TB__YAML_MAP, "`working_dir: ...`")) {
        tb__check_keys(checker, value, where, keys, sizeof keys / sizeof keys[0], target);
    }
}

/* In the order in which they are taken: env before everything that it expands. */
static const struct tb__key node_keys[] = {
    {"id", take_nothing},
    {"env", take_env},
    {"name", take_name},
    {"description", take_description},
    {"path", take_path},
    {"args", take_args},
    {"build", take_build},
    {"inputs", take_inputs},
    {"outputs", take_outputs},
    {"restart_policy", take_restart_policy},
    {"max_restarts", take_max_restarts},
    {"restart_delay", take_restart_delay},
    {"deploy", take_deploy},
};

static void take_id(struct tb__checker *checker, struct tb__flow_node *node, uint32_t index,
                    const struct tb__yaml *map)
{
    static const char *const reserved[] = {"tensorbus", "dora", "_runner"};
    const struct tb__yaml *value = tb__yaml_get(map, "id");
    const char *id;
    if (value == NULL) {
        tb__problem(checker->problems, map->place, "node %u has no `id`", index + 1);
        return;
    }
    if (!tb__check_text(checker, "`id`", value, &id) ||
        !tb__check_name(checker, "node id", value->place, id)) {
        return;
    }
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++) {
        if (strcmp(id, reserved[i]) == 0) {
            tb__problem(checker->problems, value->place, "node id `%s` is reserved: take another",
                        id);
        }
    }
    int32_t first = tb__flow_find_node(checker->flow, id);
    if (first >= 0 && (uint32_t)first != index) {
        tb__problem(checker->problems, value->place,
                    "node id `%s` twice: first in line %u; each node has an id of its own", id,
                    checker->flow->nodes[first].place.line);
    }
    node->id = id;
}

void tb__check_node(struct tb__checker *checker, uint32_t index, const struct tb__yaml *map)
{
    struct tb__flow *flow = checker->flow;
    struct tb__flow_node *node = &flow->nodes[index];
    static char *no_words[] = {NULL};
    *node = (struct tb__flow_node){.id = NO_ID,
                                   .description = "",
                                   .path = "",
                                   .working_dir = flow->directory,
                                   .args = no_words,
                                   .env = flow->env,
                                   .env_count = flow->env_count,
                                   .machine = "",
                                   .place = map->place,
                                   .path_place = map->place};
    flow->nodes_count = index + 1;
    checker->scope.env = flow->env;
    checker->scope.env_count = flow->env_count;
    const char *owner = tb__arena_format(checker->arena, "node %u", index + 1);
    checker->scope.owner = owner != NULL ? owner : "a node";
    if (map->kind != TB__YAML_MAP) {
        tb__problem(checker->problems, map->place, "node %u must be a map (`id: ...`), this is %s",
                    index + 1, tb__yaml_kind_name(map));
        return;
    }
    take_id(checker, node, index, map);
    if (strcmp(node->id, NO_ID) != 0) {
        owner = tb__arena_format(checker->arena, "node `%s`", node->id);
        checker->scope.owner = owner != NULL ? owner : "a node";
    }
    tb__check_keys(checker, map, checker->scope.owner, node_keys,
                   sizeof node_keys / sizeof node_keys[0], node);
    if (tb__yaml_get(map, "path") == NULL) {
        tb__problem(checker->problems, map->place, "%s has no `path`: name its program",
                    checker->scope.owner);
    }
    node->name = node->name != NULL ? node->name : node->id;
    node->args = node->args != NULL ? node->args : no_words;
}

/* From the tree of a YAML file to a flow: shared by the validate_*.c files.
 *
 * Each map of the format has a table of its keys. What is not in the table is reported, then the
 * keys are taken in the order of the table (env before what it expands). A function that takes a
 * value reports what is wrong with it and leaves the target at its default, so that checking goes
 * on. */
#ifndef TB_FLOW_VALIDATE_H
#define TB_FLOW_VALIDATE_H

#include "flow/arena.h"
#include "flow/expand.h"
#include "flow/flow.h"
#include "flow/problems.h"
#include "flow/yaml_tree.h"

struct tb__checker {
    struct tb__flow *flow;
    struct tb__flow_arena *arena;
    struct tb__flow_problems *problems;
    const struct tb__flow_options *options; /* never NULL */
    struct tb__scope scope;                 /* for the node in hand; its env grows as it is read */
    /* Nodes whose `outputs` were wrong: inputs that name them are not complained about again. */
    unsigned char outputs_broken[TB__FLOW_NODES_MAX];
};

struct tb__key {
    const char *name;
    void (*take)(struct tb__checker *checker, void *target, const struct tb__yaml *value);
};

/* `where` is the map's name for messages: "node `camera`". A value that is no map is reported. */
void tb__check_keys(struct tb__checker *checker, const struct tb__yaml *map, const char *where,
                    const struct tb__key *keys, size_t count, void *target);

/* Values (validate_value.c). `what` is the key's name for messages. Each returns 1 and sets *out,
 * or reports and returns 0. */
int tb__check_text(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                   const char **out);
int tb__check_expanded(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                       const char **out);
int tb__check_integer(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                      uint32_t least, uint32_t most, uint32_t *out);
int tb__check_seconds(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                      int64_t *out_ns);
int tb__check_bool(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                   int *out);
int tb__check_choice(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                     const char *const *choices, size_t count, uint32_t *out);
int tb__check_name(struct tb__checker *checker, const char *what, struct tb__flow_place place,
                   const char *text);

/* Whether a map or list is there: an empty value counts as absent, another kind is reported. */
int tb__check_kind(struct tb__checker *checker, const char *what, const struct tb__yaml *value,
                   enum tb__yaml_kind kind, const char *example);

/* A plain decimal number "12" or "0.25": whole part and billionths. */
int tb__parse_decimal(const char *text, uint64_t *out_whole, uint32_t *out_billionths);

/* "a, b, c and 4 more", "none": for messages. `stride` is the distance of two name pointers. */
const char *tb__list_names(struct tb__checker *checker, const void *first_name, size_t stride,
                           size_t count);

/* "; did you mean `x`?" for messages, "" when nothing is near. */
const char *tb__did_you_mean(struct tb__checker *checker, const char *word,
                             const char *const *candidates, size_t count);

/* `env` (validate_env.c): appends to the scope's env; a key that is there already is replaced. */
void tb__check_env(struct tb__checker *checker, const struct tb__yaml *map);

/* A node of the list (validate_node.c), its inputs and their other ends (validate_input.c). */
void tb__check_node(struct tb__checker *checker, uint32_t index, const struct tb__yaml *map);
void tb__check_inputs(struct tb__checker *checker, struct tb__flow_node *node,
                      const struct tb__yaml *map);
void tb__check_wiring(struct tb__checker *checker);

/* directory/path, or path when it is absolute; arena memory. */
char *tb__join_path(struct tb__flow_arena *arena, const char *directory, const char *path);

#endif

/* A YAML text as a tree in which every value knows its line and column.
 *
 * The subset: one document of maps, lists and scalars. Refused: anchors, aliases and tags (no
 * "billion laughs"), NUL and bytes that are not UTF-8, more than one document, nesting deeper than
 * TB__FLOW_DEPTH_MAX, maps and lists of more than TB__YAML_ENTRIES_MAX, a key twice in one map. */
#ifndef TB_FLOW_YAML_TREE_H
#define TB_FLOW_YAML_TREE_H

#include "flow/arena.h"
#include "flow/flow.h"

#define TB__YAML_ENTRIES_MAX 1024 /* of one map or list */
#define TB__YAML_VALUES_MAX 65536 /* of one file */

enum tb__yaml_kind {
    TB__YAML_SCALAR = 1,
    TB__YAML_MAP = 2,
    TB__YAML_LIST = 3,
};

enum tb__yaml_style {
    TB__YAML_PLAIN = 0,
    TB__YAML_QUOTED = 1,  /* "..." or '...' */
    TB__YAML_LITERAL = 2, /* `|`: line i of the text stands i + 1 lines below the mark */
    TB__YAML_FOLDED = 3,  /* `>` */
};

struct tb__yaml {
    enum tb__yaml_kind kind;
    enum tb__yaml_style style;   /* of a scalar */
    const char *text;            /* of a scalar; without NUL; "" otherwise */
    struct tb__flow_place place; /* where it begins */
    struct tb__yaml *key;        /* of a value in a map: a scalar */
    struct tb__yaml *first;      /* values of a map or list, in order */
    struct tb__yaml *last;
    struct tb__yaml *next;
    uint32_t count;
};

/* Build the tree. Returns NULL when there is none (a problem, or memory is short: arena->failed).
 * Some problems (a key twice) leave a tree, so that the rest can be checked too. */
struct tb__yaml *tb__yaml_parse(struct tb__flow_arena *arena, const char *text, size_t length,
                                struct tb__flow_problems *problems);

/* Length of the UTF-8 sequence at `at`, 0 when it is none (overlong, surrogate, past U+10FFFF). */
size_t tb__utf8_length(const char *at, size_t left);

/* The value of a key, NULL when the map (or NULL) has none. */
struct tb__yaml *tb__yaml_get(const struct tb__yaml *map, const char *key);

/* An empty value: nothing, `~` or `null`, not quoted. */
int tb__yaml_is_null(const struct tb__yaml *value);

/* "a map", "a list", "text", "empty": for messages. */
const char *tb__yaml_kind_name(const struct tb__yaml *value);

#endif

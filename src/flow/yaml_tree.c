/* libyaml's events, turned into a tree. The text is checked before libyaml sees it; the recursion
 * is bounded by TB__FLOW_DEPTH_MAX and the memory by TB__YAML_VALUES_MAX. One thread at a time. */
#include "flow/yaml_tree.h"

#include <string.h>
#include <yaml.h>

#include "flow/problems.h"

struct reader {
    yaml_parser_t parser;
    yaml_event_t event;
    struct tb__flow_arena *arena;
    struct tb__flow_problems *problems;
    const char *text;
    size_t length;
    uint32_t values;
    int stopped; /* 1: a problem after which there is no tree */
};

static struct tb__flow_place place_of(yaml_mark_t mark)
{
    return (struct tb__flow_place){.line = (uint32_t)mark.line + 1,
                                   .column = (uint32_t)mark.column + 1};
}

size_t tb__utf8_length(const char *text, size_t left)
{
    const unsigned char *at = (const unsigned char *)text;
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {{0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    if (at[0] < 0x80) {
        return 1;
    }
    for (size_t form = 0; form < 3; form++) {
        size_t length = form + 2;
        if ((at[0] & forms[form].mask) != forms[form].lead || length > left) {
            continue;
        }
        uint32_t code = at[0] & (unsigned char)~forms[form].mask;
        for (size_t i = 1; i < length; i++) {
            if ((at[i] & 0xc0) != 0x80) {
                return 0;
            }
            code = code << 6 | (at[i] & 0x3f);
        }
        int bad = code < forms[form].least || code > 0x10ffff || (code >= 0xd800 && code < 0xe000);
        return bad ? 0 : length;
    }
    return 0;
}

static int check_bytes(struct tb__flow_problems *problems, const char *text, size_t length)
{
    struct tb__flow_place place = {.line = 1, .column = 1};
    for (size_t i = 0; i < length;) {
        size_t step = tb__utf8_length(text + i, length - i);
        unsigned char byte = (unsigned char)text[i];
        if (step == 0) {
            tb__problem(problems, place, "byte 0x%02x is not UTF-8: save the file as UTF-8", byte);
            return 0;
        }
        if (byte == 0x7f || (byte < 0x20 && strchr("\t\n\r", byte) == NULL) || byte == 0) {
            tb__problem(problems, place, "byte 0x%02x has no place in a text file", byte);
            return 0;
        }
        place.column++;
        if (byte == '\n') {
            place.line++;
            place.column = 1;
        }
        i += step;
    }
    return 1;
}

static size_t line_offset(const char *text, size_t length, uint32_t line)
{
    size_t at = 0;
    for (uint32_t now = 1; now < line && at < length; at++) {
        now += text[at] == '\n';
    }
    return at;
}

/* Column of a tab in a line's indentation, 0 when there is none. */
static uint32_t tab_column(const char *text, size_t length, uint32_t line)
{
    size_t at = line_offset(text, length, line);
    for (uint32_t column = 1; at < length && (text[at] == ' ' || text[at] == '\t'); at++) {
        if (text[at] == '\t') {
            return column;
        }
        column++;
    }
    return 0;
}

/* Whether a line has a `${`: inside {...} YAML takes its brace for a map of its own. */
static int has_variable(const char *text, size_t length, uint32_t line)
{
    size_t at = line_offset(text, length, line);
    for (; at + 1 < length && text[at] != '\n'; at++) {
        if (text[at] == '$' && text[at + 1] == '{') {
            return 1;
        }
    }
    return 0;
}

static struct tb__flow_place place_at(const struct reader *reader, size_t offset)
{
    struct tb__flow_place place = {.line = 1, .column = 1};
    for (size_t i = 0; i < offset && i < reader->length; i++) {
        unsigned char byte = (unsigned char)reader->text[i];
        place.column += (byte & 0xc0) != 0x80; /* UTF-8 continuation bytes do not count */
        if (byte == '\n') {
            place.line++;
            place.column = 1;
        }
    }
    return place;
}

static void syntax_problem(struct reader *reader)
{
    const yaml_parser_t *parser = &reader->parser;
    reader->stopped = 1;
    if (parser->error == YAML_MEMORY_ERROR) {
        reader->arena->failed = 1;
        return;
    }
    struct tb__flow_place place = place_of(parser->problem_mark);
    uint32_t tab = tab_column(reader->text, reader->length, place.line);
    const char *problem = parser->problem != NULL ? parser->problem : "not YAML";
    if (tab != 0) {
        place.column = tab;
        tb__problem(reader->problems, place, "a tab as indentation: YAML wants spaces");
    } else if (parser->error == YAML_READER_ERROR) {
        /* A character that the reader refuses: it has no mark yet, only an offset. */
        tb__problem(reader->problems, place_at(reader, parser->problem_offset),
                    "not valid YAML: %s", problem);
    } else if (has_variable(reader->text, reader->length, place.line)) {
        tb__problem(reader->problems, place,
                    "not valid YAML: %s; a value with `${` in a {...} wants quotes: \"${NAME}\"",
                    problem);
    } else if (parser->context != NULL) {
        tb__problem(reader->problems, place, "not valid YAML: %s %s that begins in line %zu",
                    problem, parser->context, parser->context_mark.line + 1);
    } else {
        tb__problem(reader->problems, place, "not valid YAML: %s", problem);
    }
}

/* Next event into reader->event; the one before is freed. */
static int next_event(struct reader *reader)
{
    yaml_event_delete(&reader->event);
    if (!yaml_parser_parse(&reader->parser, &reader->event)) {
        syntax_problem(reader);
        return 0;
    }
    return 1;
}

static struct tb__yaml *stop(struct reader *reader)
{
    reader->stopped = 1;
    return NULL;
}

static struct tb__yaml *new_value(struct reader *reader, enum tb__yaml_kind kind,
                                  const unsigned char *anchor, const unsigned char *tag)
{
    struct tb__flow_place place = place_of(reader->event.start_mark);
    if (anchor != NULL) {
        tb__problem(reader->problems, place,
                    "anchors (`&%.40s`) are not supported: write the value where it is used",
                    (const char *)anchor);
    }
    if (tag != NULL) {
        tb__problem(reader->problems, place, "tags (`%.40s`) are not supported: leave it out",
                    (const char *)tag);
    }
    if (++reader->values > TB__YAML_VALUES_MAX) {
        tb__problem(reader->problems, place, "more than %d values in one file",
                    TB__YAML_VALUES_MAX);
        return stop(reader);
    }
    struct tb__yaml *value = tb__arena_alloc(reader->arena, sizeof *value);
    if (value == NULL) {
        return stop(reader);
    }
    value->kind = kind;
    value->text = "";
    value->place = place;
    return value;
}

static struct tb__yaml *take_scalar(struct reader *reader)
{
    const unsigned char *text = reader->event.data.scalar.value;
    size_t length = reader->event.data.scalar.length;
    struct tb__yaml *value = new_value(reader, TB__YAML_SCALAR, reader->event.data.scalar.anchor,
                                       reader->event.data.scalar.tag);
    if (value == NULL) {
        return NULL;
    }
    if (memchr(text, 0, length) != NULL) {
        tb__problem(reader->problems, value->place, "`\\0` in a text: no text may hold a NUL");
        return stop(reader);
    }
    switch (reader->event.data.scalar.style) {
    case YAML_SINGLE_QUOTED_SCALAR_STYLE:
    case YAML_DOUBLE_QUOTED_SCALAR_STYLE:
        value->style = TB__YAML_QUOTED;
        break;
    case YAML_LITERAL_SCALAR_STYLE:
        value->style = TB__YAML_LITERAL;
        break;
    case YAML_FOLDED_SCALAR_STYLE:
        value->style = TB__YAML_FOLDED;
        break;
    default:
        value->style = TB__YAML_PLAIN;
        break;
    }
    value->text = tb__arena_copy(reader->arena, (const char *)text, length);
    return value->text != NULL ? value : stop(reader);
}

static int append(struct reader *reader, struct tb__yaml *parent, struct tb__yaml *value)
{
    if (parent->count == TB__YAML_ENTRIES_MAX) {
        tb__problem(reader->problems, value->place, "more than %d entries in one %s",
                    TB__YAML_ENTRIES_MAX, parent->kind == TB__YAML_MAP ? "map" : "list");
        reader->stopped = 1;
        return 0;
    }
    if (parent->last != NULL) {
        parent->last->next = value;
    } else {
        parent->first = value;
    }
    parent->last = value;
    parent->count++;
    return 1;
}

static struct tb__yaml *take_value(struct reader *reader, unsigned depth);

static struct tb__yaml *take_list(struct reader *reader, unsigned depth)
{
    struct tb__yaml *list =
        new_value(reader, TB__YAML_LIST, reader->event.data.sequence_start.anchor,
                  reader->event.data.sequence_start.tag);
    while (list != NULL && next_event(reader) && reader->event.type != YAML_SEQUENCE_END_EVENT) {
        struct tb__yaml *value = take_value(reader, depth + 1);
        if (value == NULL || !append(reader, list, value)) {
            return NULL;
        }
    }
    return reader->stopped ? NULL : list;
}

/* A key must be a scalar that the map does not have yet. */
static void check_key(struct reader *reader, const struct tb__yaml *map, const struct tb__yaml *key)
{
    const struct tb__yaml *before = tb__yaml_get(map, key->text);
    if (key->kind != TB__YAML_SCALAR) {
        tb__problem(reader->problems, key->place, "%s as a key: a key is a text",
                    tb__yaml_kind_name(key));
    } else if (before != NULL) {
        tb__problem(reader->problems, key->place, "key `%.60s` twice in one map: first in line %u",
                    key->text, before->key->place.line);
    }
}

static struct tb__yaml *take_map(struct reader *reader, unsigned depth)
{
    struct tb__yaml *map = new_value(reader, TB__YAML_MAP, reader->event.data.mapping_start.anchor,
                                     reader->event.data.mapping_start.tag);
    while (map != NULL && next_event(reader) && reader->event.type != YAML_MAPPING_END_EVENT) {
        struct tb__yaml *key = take_value(reader, depth + 1);
        if (key == NULL || !next_event(reader)) {
            return NULL;
        }
        struct tb__yaml *value = take_value(reader, depth + 1);
        if (value == NULL) {
            return NULL;
        }
        check_key(reader, map, key);
        value->key = key;
        if (!append(reader, map, value)) {
            return NULL;
        }
    }
    return reader->stopped ? NULL : map;
}

static struct tb__yaml *take_value(struct reader *reader, unsigned depth)
{
    struct tb__flow_place place = place_of(reader->event.start_mark);
    if (depth > TB__FLOW_DEPTH_MAX) {
        tb__problem(reader->problems, place, "nested deeper than %d levels", TB__FLOW_DEPTH_MAX);
        return stop(reader);
    }
    switch (reader->event.type) {
    case YAML_SCALAR_EVENT:
        return take_scalar(reader);
    case YAML_SEQUENCE_START_EVENT:
        return take_list(reader, depth);
    case YAML_MAPPING_START_EVENT:
        return take_map(reader, depth);
    case YAML_ALIAS_EVENT:
        tb__problem(reader->problems, place,
                    "aliases (`*%.40s`) are not supported: write the value where it is used",
                    (const char *)reader->event.data.alias.anchor);
        return stop(reader);
    default:
        tb__problem(reader->problems, place, "not valid YAML: a value is missing");
        return stop(reader);
    }
}

static struct tb__yaml *take_document(struct reader *reader)
{
    const struct tb__flow_place whole = {.line = 1, .column = 1};
    if (!next_event(reader) || !next_event(reader)) { /* stream start, document start */
        return NULL;
    }
    if (reader->event.type == YAML_STREAM_END_EVENT) {
        tb__problem(reader->problems, whole, "the file is empty: a flow has at least `nodes:`");
        return NULL;
    }
    struct tb__yaml *root = next_event(reader) ? take_value(reader, 1) : NULL;
    if (root == NULL || !next_event(reader) || !next_event(reader)) { /* document end, stream end */
        return NULL;
    }
    if (reader->event.type != YAML_STREAM_END_EVENT) {
        tb__problem(reader->problems, place_of(reader->event.start_mark),
                    "a second document (`---`): one file is one flow");
        return NULL;
    }
    return root;
}

struct tb__yaml *tb__yaml_parse(struct tb__flow_arena *arena, const char *text, size_t length,
                                struct tb__flow_problems *problems)
{
    if (!check_bytes(problems, text, length)) {
        return NULL;
    }
    struct reader reader = {.arena = arena, .problems = problems, .text = text, .length = length};
    if (!yaml_parser_initialize(&reader.parser)) {
        arena->failed = 1;
        return NULL;
    }
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, length);
    struct tb__yaml *root = take_document(&reader);
    yaml_event_delete(&reader.event);
    yaml_parser_delete(&reader.parser);
    return arena->failed ? NULL : root;
}

struct tb__yaml *tb__yaml_get(const struct tb__yaml *map, const char *key)
{
    if (map == NULL || map->kind != TB__YAML_MAP) {
        return NULL;
    }
    for (struct tb__yaml *value = map->first; value != NULL; value = value->next) {
        if (value->key->kind == TB__YAML_SCALAR && strcmp(value->key->text, key) == 0) {
            return value;
        }
    }
    return NULL;
}

int tb__yaml_is_null(const struct tb__yaml *value)
{
    return value->kind == TB__YAML_SCALAR && value->style == TB__YAML_PLAIN &&
           (value->text[0] == '\0' || strcmp(value->text, "~") == 0 ||
            strcmp(value->text, "null") == 0);
}

const char *tb__yaml_kind_name(const struct tb__yaml *value)
{
    switch (value->kind) {
    case TB__YAML_MAP:
        return "a map";
    case TB__YAML_LIST:
        return "a list";
    default:
        return tb__yaml_is_null(value) ? "empty" : "text";
    }
}

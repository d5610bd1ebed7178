/* YAML text to a tree: structure, places and styles. The refusals are in test_flow_validate.c. */
#include "flow/yaml_tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct tb__flow_arena *arena;
static struct tb__flow_problems problems;

static int setup(void **state)
{
    (void)state;
    arena = tb__arena_create();
    return arena == NULL;
}

static int teardown(void **state)
{
    (void)state;
    tb__arena_destroy(arena);
    tb__flow_problems_fini(&problems);
    return 0;
}

static struct tb__yaml *parse(const char *text)
{
    struct tb__yaml *root = tb__yaml_parse(arena, text, strlen(text), &problems);
    assert_int_equal(problems.count, 0);
    assert_non_null(root);
    return root;
}

static void values_know_their_places(void **state)
{
    (void)state;
    struct tb__yaml *root = parse("a: 1\nb:\n  - x\n  - {c: \"\xc3\xa9\", d: 'q'}\ne: |\n  l\n");
    assert_int_equal(root->kind, TB__YAML_MAP);
    assert_int_equal(root->count, 3);
    struct tb__yaml *a = tb__yaml_get(root, "a");
    assert_string_equal(a->text, "1");
    assert_int_equal(a->place.line, 1);
    assert_int_equal(a->place.column, 4);
    assert_int_equal(a->key->place.column, 1);
    struct tb__yaml *b = tb__yaml_get(root, "b");
    assert_int_equal(b->kind, TB__YAML_LIST);
    assert_int_equal(b->count, 2);
    assert_int_equal(b->first->place.line, 3);
    assert_int_equal(b->first->place.column, 5);
    struct tb__yaml *d = tb__yaml_get(b->first->next, "d");
    assert_int_equal(d->style, TB__YAML_QUOTED);
    assert_int_equal(d->place.line, 4);
    assert_int_equal(d->place.column, 17); /* characters, not bytes */
    struct tb__yaml *e = tb__yaml_get(root, "e");
    assert_int_equal(e->style, TB__YAML_LITERAL);
    assert_string_equal(e->text, "l\n");
    assert_int_equal(e->place.line, 5);
    assert_null(tb__yaml_get(root, "f"));
    assert_null(tb__yaml_get(a, "a"));
    assert_null(tb__yaml_get(NULL, "a"));
}

static void only_unquoted_nothing_is_null(void **state)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    static const int null[] = {1, 1, 1, 0, 0, 0};
    (void)state;
    struct tb__yaml *root = parse("{a: , b: ~, c: null, d: \"\", e: 'null', f: 0}");
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(tb__yaml_is_null(tb__yaml_get(root, names[i])), null[i]);
    }
    assert_string_equal(tb__yaml_kind_name(tb__yaml_get(root, "a")), "empty");
    assert_string_equal(tb__yaml_kind_name(tb__yaml_get(root, "f")), "text");
}

static void depth_ends_at_its_limit(void **state)
{
    char text[64] = "";
    (void)state;
    for (int i = 0; i < TB__FLOW_DEPTH_MAX; i++) {
        strcat(text, "[");
    }
    for (int i = 0; i < TB__FLOW_DEPTH_MAX; i++) {
        strcat(text, "]");
    }
    parse(text);
}

/* Wide files end at a documented number of values, not in the machine's memory. */
static void values_end_at_their_limit(void **state)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    (void)state;
    for (int i = 0; i < 70; i++) {
        for (int j = 0; j < 1000; j++) {
            fputs(j == 0 ? "- [a" : ",a", out);
        }
        fputs("]\n", out);
    }
    fclose(out);
    assert_null(tb__yaml_parse(arena, text, size, &problems));
    assert_non_null(strstr(problems.list[0].text, "more than 65536 values"));
    free(text);
}

static void utf8_is_told_from_the_rest(void **state)
{
    static const struct {
        const char *bytes;
        size_t length;
    } cases[] = {
        {"a", 1},
        {"\xc3\xa9", 2},
        {"\xe2\x82\xac", 3},
        {"\xf0\x9f\x98\x80", 4},
        {"\x80", 0},
        {"\xc0\x80", 0},
        {"\xc1\xbf", 0},
        {"\xe0\x80\x80", 0},
        {"\xed\xa0\x80", 0},
        {"\xf4\x90\x80\x80", 0},
        {"\xf8\x88\x80\x80\x80", 0},
        {"\xc3", 0},
        {"\xe2\x82", 0},
        {"\xc3(", 0},
        {"\xff", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(tb__utf8_length(cases[i].bytes, strlen(cases[i].bytes)), cases[i].length);
    }
    assert_int_equal(tb__utf8_length("\xe2\x82\xac", 2), 0); /* cut */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(values_know_their_places, setup, teardown),
        cmocka_unit_test_setup_teardown(only_unquoted_nothing_is_null, setup, teardown),
        cmocka_unit_test_setup_teardown(depth_ends_at_its_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(values_end_at_their_limit, setup, teardown),
        cmocka_unit_test(utf8_is_told_from_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

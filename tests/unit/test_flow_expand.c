/* Variables and words: what each text becomes (F09). */
#include "flow/expand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *const environment[] = {(char *)"HOME=/home/ada", (char *)"X=outer",   (char *)"AB=2",
                                    (char *)"EMPTY=",         (char *)"DOLLAR=$X", NULL};
static const struct tb__flow_env env[] = {{.key = "A_LONGER", .value = "no"},
                                          {.key = "X", .value = "inner 'q' $HOME"},
                                          {.key = "A", .value = "1"}};

struct fixture {
    struct tb__flow_problems problems;
    struct tb__scope scope;
};

static int setup(void **state)
{
    static struct fixture fixture;
    fixture = (struct fixture){0};
    fixture.scope = (struct tb__scope){.arena = tb__arena_create(),
                                       .problems = &fixture.problems,
                                       .environment = environment,
                                       .env = env,
                                       .env_count = 3,
                                       .owner = "node `n`"};
    *state = &fixture;
    return fixture.scope.arena == NULL;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    tb__arena_destroy(fixture->scope.arena);
    tb__flow_problems_fini(&fixture->problems);
    return 0;
}

static void values_are_expanded_once(void **state)
{
    static const struct {
        const char *text, *becomes;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"$HOME", "/home/ada"},
        {"${HOME}", "/home/ada"},
        {"$HOME/x", "/home/ada/x"},
        {"a${A}b", "a1b"},
        {"$A$AB", "12"},           /* the longest name, not the first that fits */
        {"$X", "inner 'q' $HOME"}, /* env before the environment; not expanded again */
        {"$DOLLAR", "$X"},
        {"[$EMPTY]", "[]"},
        {"$$", "$"},
        {"$$HOME", "$HOME"},
        {"$$$A", "$1"},
        {"'$A' \"$A\" \\$A", "'1' \"1\" \\1"}, /* quotes mean nothing in a value */
        {"\xe2\x82\xac$A", "\xe2\x82\xac"
                           "1"},
    };
    struct fixture *fixture = *state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *out =
            tb__expand(&fixture->scope, "`path`", (struct tb__flow_place){1, 1}, cases[i].text);
        assert_non_null(out);
        assert_string_equal(out, cases[i].becomes);
    }
    assert_int_equal(fixture->problems.count, 0);
}

static void words_are_split_like_a_shell(void **state)
{
    static const struct {
        const char *text;
        const char *words[6];
    } cases[] = {
        {"", {NULL}},
        {" \t\n ", {NULL}},
        {"a", {"a"}},
        {"  a \t b\nc  ", {"a", "b", "c"}},
        {"'a b' c", {"a b", "c"}},
        {"\"a b\" c", {"a b", "c"}},
        {"a' 'b\" \"c", {"a b c"}},
        {"'' \"\"", {"", ""}},
        {"a\\ b", {"a b"}},
        {"\\'a\\'", {"'a'"}},
        {"'$A' \"$A\" $A", {"$A", "1", "1"}},
        {"\\$A \"\\$A\" $$A", {"$A", "$A", "$A"}},
        {"'a\\' b", {"a\\", "b"}},
        {"\"a\\\"b\" \"a\\\\b\" \"a\\nb\"", {"a\"b", "a\\b", "a\\nb"}},
        {"$X", {"inner 'q' $HOME"}}, /* neither split nor unquoted nor expanded again */
        {"$EMPTY", {""}},
        {"--x=$HOME/'$y z'", {"--x=/home/ada/$y z"}},
        {"a|b>c;(d)&`e`", {"a|b>c;(d)&`e`"}}, /* there is no shell to understand them */
        {"*.c ~ #x", {"*.c", "~", "#x"}},
    };
    struct fixture *fixture = *state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char **words = tb__expand_words(&fixture->scope, "`args`", (struct tb__flow_place){1, 1},
                                        cases[i].text, TB__WORDS_ARGS);
        assert_non_null(words);
        size_t count = 0;
        for (; cases[i].words[count] != NULL; count++) {
            if (words[count] == NULL || strcmp(words[count], cases[i].words[count]) != 0) {
                fail_msg("word %zu of %s is %s", count, cases[i].text,
                         words[count] != NULL ? words[count] : "missing");
            }
        }
        assert_null(words[count]);
    }
    assert_int_equal(fixture->problems.count, 0);
}

static void build_lines_know_no_shell(void **state)
{
    struct fixture *fixture = *state;
    const struct tb__flow_place place = {3, 7};
    uint32_t told = 0;
    for (const char *at = "|&;<>()`"; *at != '\0'; at++) {
        char text[16];
        snprintf(text, sizeof text, "a %c b", *at);
        assert_null(tb__expand_words(&fixture->scope, "`build`", place, text, TB__WORDS_BUILD));
        assert_int_equal(fixture->problems.count, ++told);
        snprintf(text, sizeof text, "a '%c' b", *at); /* quoted, it is a character as any other */
        assert_non_null(tb__expand_words(&fixture->scope, "`build`", place, text, TB__WORDS_BUILD));
        assert_int_equal(fixture->problems.count, told);
    }
    assert_int_equal(fixture->problems.list[0].place.line, 3);
    assert_int_equal(fixture->problems.list[0].place.column, 7);
}

/* The last byte that fits, and the first that does not. */
static void a_value_ends_at_its_limit(void **state)
{
    struct fixture *fixture = *state;
    const struct tb__flow_place place = {1, 1};
    char *text = malloc(TB__FLOW_VALUE_MAX + 2);
    memset(text, 'x', TB__FLOW_VALUE_MAX + 1);
    text[TB__FLOW_VALUE_MAX] = '\0';
    const char *out = tb__expand(&fixture->scope, "`path`", place, text);
    assert_non_null(out);
    assert_int_equal(strlen(out), TB__FLOW_VALUE_MAX);
    text[TB__FLOW_VALUE_MAX] = 'x';
    text[TB__FLOW_VALUE_MAX + 1] = '\0';
    assert_null(tb__expand(&fixture->scope, "`path`", place, text));
    assert_int_equal(fixture->problems.count, 1);
    free(text);
}

static void keys_of_an_environment(void **state)
{
    (void)state;
    assert_true(tb__env_key_valid("A") && tb__env_key_valid("_a1"));
    assert_false(tb__env_key_valid("") || tb__env_key_valid("1A") || tb__env_key_valid("A-B"));
    assert_string_equal(tb__environment_get(environment, "HOMER", 4), "/home/ada");
    assert_null(tb__environment_get(environment, "HOM", 3));
    assert_null(tb__environment_get(NULL, "HOME", 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(values_are_expanded_once, setup, teardown),
        cmocka_unit_test_setup_teardown(words_are_split_like_a_shell, setup, teardown),
        cmocka_unit_test_setup_teardown(build_lines_know_no_shell, setup, teardown),
        cmocka_unit_test_setup_teardown(a_value_ends_at_its_limit, setup, teardown),
        cmocka_unit_test(keys_of_an_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

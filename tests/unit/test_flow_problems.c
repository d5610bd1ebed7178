/* What is guessed for a mistyped word, and how problems are kept. */
#include "flow/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void slips_of_the_fingers_are_guessed(void **state)
{
    static const char *const keys[] = {"id",     "path",    "args",           "env", "build",
                                       "inputs", "outputs", "restart_policy", "name"};
    static const struct {
        const char *word, *means;
    } cases[] = {
        {"ouputs", "outputs"},
        {"output", "outputs"},
        {"input", "inputs"},
        {"restart-policy", "restart_policy"},
        {"ptah", "path"},
        {"arg", "args"},
        {"ID", NULL},
        {"i", "id"},
        {"bulid", "build"},
        {"nmae", "name"},
        {"operators", NULL},
        {"git", NULL},
        {"", NULL},
        {"zzzzzzzzzzzzzzzzzzzz", NULL},
        {"nev", "env"},
        {"di", "id"},
        {"env_", "env"},
        {"ev", "env"},
        {"restartpolicy", "restart_policy"},
        {"restrt_polcy", "restart_policy"},
        {"restart", NULL},
        {"outptus_", "outputs"},
        {"note", NULL},
        {"park", NULL},
        {"child", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *guess = tb__nearest(cases[i].word, keys, sizeof keys / sizeof keys[0]);
        if ((guess == NULL) != (cases[i].means == NULL) ||
            (guess != NULL && strcmp(guess, cases[i].means) != 0)) {
            fail_msg("`%s` is taken for %s", cases[i].word, guess != NULL ? guess : "nothing");
        }
    }
    char longest[128];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    const char *const own[] = {longest};
    assert_null(tb__nearest(longest, own, 1)); /* too long to guess at, and nothing overflows */
    assert_null(tb__nearest("aaa", own, 1));
    const char *const forty[] = {longest + sizeof longest - 1 - 40};
    assert_ptr_equal(tb__nearest(forty[0] + 1, forty, 1), forty[0]);
    assert_null(tb__nearest(forty[0] - 1, forty, 1));
    assert_null(tb__nearest("a", NULL, 0));
}

static void order_is_kept_for_equal_places(void **state)
{
    static const struct tb__flow_place places[] = {{3, 1}, {1, 9}, {1, 2}, {0, 0}, {1, 2}};
    static const char *const sorted[] = {"3", "2", "4", "1", "0"};
    struct tb__flow_problems problems = {0};
    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        tb__problem(&problems, places[i], "%u", i);
    }
    tb__problems_sort(&problems);
    for (unsigned i = 0; i < 5; i++) {
        assert_string_equal(problems.list[i].text, sorted[i]);
    }
    tb__problems_name(&problems, "first");
    tb__problems_name(&problems, "second");
    assert_int_equal(tb__problems_fail(&problems, TB_E_INVALID, "here"), TB_E_INVALID);
    assert_string_equal(tb_last_error_text(), "first: 3 (and 4 more)");
    tb__flow_problems_fini(&problems);
    assert_int_equal(problems.count, 0);
    tb__flow_problems_fini(&problems);
    tb__problems_name(&problems, "");
    assert_string_equal(problems.file, "``");
    tb__flow_problems_fini(&problems);
    tb__problems_name(&problems, "a\x1b[31m.yml");
    assert_string_equal(problems.file, "a?[31m.yml");
    tb__flow_problems_fini(&problems);
}

static void texts_are_cut_and_clean(void **state)
{
    struct tb__flow_problems problems = {0};
    char *text = malloc(5000);
    (void)state;
    memset(text, 'x', 4999);
    text[4999] = '\0';
    tb__problem(&problems, (struct tb__flow_place){1, 1}, "%s", text);
    assert_true(strlen(problems.list[0].text) < 1024);
    tb__problem(&problems, (struct tb__flow_place){1, 1}, "%.2s|%s", "\xe2\x82\xac",
                "\x1b[0m\n\xc2\x85\x7f\xe2\x82\xac");
    assert_string_equal(problems.list[1].text, "??|?[0m?\?\?\?\xe2\x82\xac");
    tb__flow_problems_fini(&problems);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slips_of_the_fingers_are_guessed),
        cmocka_unit_test(order_is_kept_for_equal_places),
        cmocka_unit_test(texts_are_cut_and_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Names to offer: order, bounds, and what is left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/near.h"

static const char *text_of(const char *wanted, const char *const *names, size_t count)
{
    static char text[TB__NEAR_TEXT];
    struct tb__near near;
    tb__near_begin(&near, wanted);
    for (size_t i = 0; i < count; i++) {
        tb__near_offer(&near, names[i]);
    }
    return tb__near_text(&near, text);
}

static void the_nearest_come_first_then_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *wanted;
        const char *names[8];
        size_t count;
        const char *text;
    } cases[] = {
        {"frnt", {NULL}, 0, ""},
        {"frnt", {"front"}, 1, "`front`"},
        {"frnt", {"rear", "side", "front"}, 3, "`front`, `rear`, `side`"},
        {"x", {"c", "b", "a"}, 3, "`a`, `b`, `c`"},
        {"kam", {"detector", "cam", "kamera", "ham"}, 4, "`cam`, `ham`, `kamera`, `detector`"},
        {"a1",
         {"a9", "a8", "a7", "a6", "a5", "a4", "a3"},
         7,
         "`a3`, `a4`, `a5`, `a6`, `a7` and 2 more"},
        {"frnt", {"_own", "no name", "", ".dot", "front"}, 5, "`front`"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(text_of(cases[i].wanted, cases[i].names, cases[i].count),
                            cases[i].text);
    }
}

static void no_name_is_cut(void **state)
{
    (void)state;
    char names[5][TB__NAME_SIZE];
    const char *offered[5];
    for (int i = 0; i < 5; i++) {
        memset(names[i], 'n', 64);
        names[i][63] = (char)('0' + i);
        names[i][64] = '\0';
        offered[i] = names[i];
    }
    const char *text = text_of(names[0], offered, 5);
    assert_true(strlen(text) < TB__NEAR_TEXT);
    char wanted[TB__NEAR_TEXT];
    snprintf(wanted, sizeof wanted, "`%s`, `%s`, `%s` and 2 more", names[0], names[1], names[2]);
    assert_string_equal(text, wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_nearest_come_first_then_by_name),
        cmocka_unit_test(no_name_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

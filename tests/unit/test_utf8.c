/* UTF-8: every length at its limits, and what is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"

static void characters(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length; /* 0: none */
    } cases[] = {
        {"\x01", 1},
        {"\x7f", 1},
        {"\xc2\x80", 2},
        {"\xdf\xbf", 2},
        {"\xe0\xa0\x80", 3},
        {"\xed\x9f\xbf", 3},
        {"\xee\x80\x80", 3},
        {"\xef\xbf\xbf", 3},
        {"\xf0\x90\x80\x80", 4},
        {"\xf4\x8f\xbf\xbf", 4},
        {"\x80", 0},
        {"\xbf", 0},
        {"\xc0\x80", 0},
        {"\xc1\xbf", 0},
        {"\xe0\x9f\xbf", 0},
        {"\xed\xa0\x80", 0},
        {"\xed\xbf\xbf", 0},
        {"\xf0\x8f\xbf\xbf", 0},
        {"\xf4\x90\x80\x80", 0},
        {"\xf8\x88\x80\x80\x80", 0},
        {"\xfe", 0},
        {"\xff", 0},
        {"\xc2\x20", 0},
        {"\xe1\x80\x20", 0},
        {"\xf1\x80\x80\x20", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes = strlen(cases[i].bytes);
        assert_int_equal(tb__utf8_step(cases[i].bytes, bytes), cases[i].length);
        assert_int_equal(tb__utf8_text(cases[i].bytes, bytes), cases[i].length != 0);
        for (size_t cut = 1; cut < cases[i].length; cut++) {
            assert_int_equal(tb__utf8_step(cases[i].bytes, cut), 0);
            assert_int_equal(tb__utf8_text(cases[i].bytes, cut), 0);
        }
    }
}

static void control_characters(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        int control;
    } cases[] = {
        {"\x1b", 1},     {"\n", 1},       {"\x7f", 1},         {" ", 0},
        {"~", 0},        {"\xc2\x80", 1}, {"\xc2\x9b", 1},     {"\xc2\x9f", 1},
        {"\xc2\xa0", 0}, {"\xc3\x9f", 0}, {"\xe2\x82\xac", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(tb__utf8_control(cases[i].bytes, strlen(cases[i].bytes)),
                         cases[i].control);
    }
}

static void texts(void **state)
{
    (void)state;
    assert_true(tb__utf8_text("", 0));
    assert_true(tb__utf8_text(NULL, 0));
    assert_true(tb__utf8_text("gr\xc3\xbc\xc3\x9f \xe6\x97\xa5\xe6\x9c\xac", 13));
    assert_false(tb__utf8_text("a\0b", 3)); /* no text goes on behind NUL */
    assert_false(tb__utf8_text("ab\xff", 3));
    assert_true(tb__utf8_text("ab\xff", 2));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters),
        cmocka_unit_test(control_characters),
        cmocka_unit_test(texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

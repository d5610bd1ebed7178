/* Structs that grow: callers and libraries of different releases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/options.h"

/* One struct in three releases; the library knows the middle one. */
struct older {
    size_t size;
    uint64_t a;
};
struct thing {
    size_t size;
    uint64_t a;
    uint64_t b;
};
struct newer {
    size_t size;
    uint64_t a;
    uint64_t b;
    uint64_t c;
};

static void options_of_any_release(void **state)
{
    (void)state;
    struct thing out = {1, 2, 3};
    assert_int_equal(tb__options_read("thing", NULL, &out, sizeof out), TB_OK);
    assert_true(out.size == 0 && out.a == 0 && out.b == 0);

    struct older old = {sizeof old, 7};
    out.b = 9;
    assert_int_equal(tb__options_read("thing", &old, &out, sizeof out), TB_OK);
    assert_true(out.a == 7 && out.b == 0);

    struct newer fresh = {sizeof fresh, 7, 8, 0};
    assert_int_equal(tb__options_read("thing", &fresh, &out, sizeof out), TB_OK);
    assert_true(out.a == 7 && out.b == 8);
    fresh.c = UINT64_C(1) << 56; /* its last byte alone */
    assert_int_equal(tb__options_read("thing", &fresh, &out, sizeof out), TB_E_UNSUPPORTED);
    assert_non_null(strstr(tb_last_error_text(), "at byte 31"));
}

static void infos_of_any_release(void **state)
{
    (void)state;
    const struct thing known = {0, 7, 8};
    struct older old[2] = {{sizeof old[0], 0}, {5, 6}};
    assert_int_equal(tb__info_write("thing", old, &known, sizeof known), TB_OK);
    assert_true(old[0].size == sizeof old[0] && old[0].a == 7);
    assert_true(old[1].size == 5 && old[1].a == 6); /* nothing behind it */

    struct newer fresh = {sizeof fresh, 1, 2, 3};
    assert_int_equal(tb__info_write("thing", &fresh, &known, sizeof known), TB_OK);
    assert_true(fresh.size == sizeof fresh && fresh.a == 7 && fresh.b == 8 && fresh.c == 0);
}

static void a_size_that_was_not_set(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, sizeof(size_t) - 1, TB__STRUCT_MAX + 1, SIZE_MAX};
    const struct thing known = {0, 7, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct thing thing = {sizes[i], 1, 2};
        struct thing out = {0, 0, 0};
        assert_int_equal(tb__options_read("thing", &thing, &out, sizeof out), TB_E_INVALID);
        assert_non_null(strstr(tb_last_error_text(), "set it to sizeof(thing)"));
        assert_int_equal(tb__info_write("thing", &thing, &known, sizeof known), TB_E_INVALID);
        assert_true(thing.size == sizes[i] && thing.a == 1 && thing.b == 2);
    }
    assert_int_equal(tb__info_write("thing", NULL, &known, sizeof known), TB_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_any_release),
        cmocka_unit_test(infos_of_any_release),
        cmocka_unit_test(a_size_that_was_not_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

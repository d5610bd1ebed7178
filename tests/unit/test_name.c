/* Names: the alphabet byte by byte, lengths, splitting; random ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/name.h"

static const char name64[] = "n234567890123456789012345678901234567890123456789012345678901234";
static const char name65[] = "n2345678901234567890123456789012345678901234567890123456789012345";

static void every_byte_in_every_place(void **state)
{
    (void)state;
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    for (int byte = 1; byte < 256; byte++) {
        int good = strchr(allowed, byte) != NULL;
        char alone[2] = {(char)byte};
        char first[] = "?bc";
        char middle[] = "a?c";
        char last[] = "ab?";
        first[0] = middle[1] = last[2] = (char)byte;
        assert_int_equal(tb__name_valid(alone), good && byte != '.');
        assert_int_equal(tb__name_valid(first), good && byte != '.');
        assert_int_equal(tb__name_valid(middle), good);
        assert_int_equal(tb__name_valid(last), good);
    }
}

static void lengths(void **state)
{
    (void)state;
    assert_int_equal(sizeof name64, TB__NAME_SIZE);
    assert_true(tb__name_valid(name64));
    assert_false(tb__name_valid(name65));
    assert_false(tb__name_valid(""));
    assert_false(tb__name_valid(NULL));
    assert_int_equal(tb__name_check("pool", name64), TB_OK);
    assert_int_equal(tb__name_check("pool", name65), TB_E_INVALID);
    assert_int_equal(tb__name_check("pool", NULL), TB_E_INVALID);
    assert_int_equal(tb__name_check("pool", "a b"), TB_E_INVALID);
    assert_non_null(strstr(tb_last_error_text(), "pool `a b` is not a valid name"));
}

static void splitting(void **state)
{
    (void)state;
    static const char *const bad[] = {"",      "/",    "a",    "a/",    "/b",
                                      "a/b/c", "../b", "a/..", "a b/c", "a/b "};
    char owner[TB__NAME_SIZE] = "unchanged";
    char thing[TB__NAME_SIZE] = "unchanged";
    char path[256];
    assert_int_equal(tb__name_split(NULL, owner, thing), TB_E_INVALID);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(tb__name_split(bad[i], owner, thing), TB_E_INVALID);
    }
    snprintf(path, sizeof path, "%s/b", name65);
    assert_int_equal(tb__name_split(path, owner, thing), TB_E_INVALID);
    snprintf(path, sizeof path, "a/%s", name65);
    assert_int_equal(tb__name_split(path, owner, thing), TB_E_INVALID);
    assert_string_equal(owner, "unchanged");
    assert_string_equal(thing, "unchanged");
    assert_int_equal(tb__name_split("cam/front.left", owner, thing), TB_OK);
    assert_string_equal(owner, "cam");
    assert_string_equal(thing, "front.left");
    snprintf(path, sizeof path, "%s/%s", name64, name64);
    assert_int_equal(tb__name_split(path, owner, thing), TB_OK);
    assert_string_equal(owner, name64);
    assert_string_equal(thing, name64);
}

static void random_ids_differ_and_are_never_zero(void **state)
{
    (void)state;
    uint64_t seen[64];
    uint64_t any = 0;
    uint64_t all = UINT64_MAX;
    for (int i = 0; i < 64; i++) {
        seen[i] = tb__random64();
        assert_true(seen[i] != 0);
        any |= seen[i];
        all &= seen[i];
        for (int k = 0; k < i; k++) {
            assert_true(seen[i] != seen[k]);
        }
    }
    /* Each bit was 0 once and 1 once: a stuck one passes by chance once in 2^57 runs. */
    assert_true(any == UINT64_MAX && all == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_in_every_place),
        cmocka_unit_test(lengths),
        cmocka_unit_test(splitting),
        cmocka_unit_test(random_ids_differ_and_are_never_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

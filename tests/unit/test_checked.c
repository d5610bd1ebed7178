/* Checked arithmetic at its edges, and time arithmetic at the clock's end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tensorbus/status.h>

#include "base/checked.h"
#include "base/clock.h"

static void sums_and_products(void **state)
{
    (void)state;
    uint64_t out = 99;
    assert_true(tb__add(UINT64_MAX - 1, 1, &out) && out == UINT64_MAX);
    assert_false(tb__add(UINT64_MAX, 1, &out));
    assert_true(tb__mul(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &out));
    assert_true(out == UINT64_MAX - UINT32_MAX);
    assert_false(tb__mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &out));
    assert_true(tb__mul(UINT64_MAX, 0, &out) && out == 0);
}

static void rounding_up(void **state)
{
    (void)state;
    static const struct {
        uint64_t value;
        uint64_t unit;
        uint64_t result; /* 0 with value > 0: overflow */
    } rows[] = {
        {0, 4096, 0},
        {1, 4096, 4096},
        {4095, 4096, 4096},
        {4096, 4096, 4096},
        {4097, 4096, 8192},
        {7, 1, 7},
        {UINT64_MAX, 1, UINT64_MAX},
        {UINT64_MAX - 4095, 4096, UINT64_MAX - 4095},
        {UINT64_MAX - 4094, 4096, 0},
        {UINT64_MAX, 4096, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t out = 99;
        int fits = tb__round_up(rows[i].value, rows[i].unit, &out);
        int overflow = rows[i].result == 0 && rows[i].value > 0;
        assert_int_equal(fits, !overflow);
        assert_true(out == (overflow ? 99 : rows[i].result));
    }
}

static void ranges(void **state)
{
    (void)state;
    assert_true(tb__range_fits(0, 0, 0));
    assert_true(tb__range_fits(10, 0, 10));
    assert_true(tb__range_fits(3, 7, 10));
    assert_false(tb__range_fits(3, 8, 10));
    assert_false(tb__range_fits(11, 0, 10));
    assert_false(tb__range_fits(UINT64_MAX, 2, 10));
    assert_false(tb__range_fits(5, UINT64_MAX, 10));
    assert_true(tb__range_fits(0, UINT64_MAX, UINT64_MAX));
}

static void deadlines(void **state)
{
    (void)state;
    int64_t before = tb__now_ns();
    int64_t deadline = tb__deadline_ns(TB_SECONDS(100));
    int64_t after = tb__now_ns();
    assert_true(before > 0 && after >= before);
    assert_true(deadline >= before + TB_SECONDS(100) && deadline <= after + TB_SECONDS(100));
    assert_true(tb__deadline_ns(TB_FOREVER) == TB__NO_DEADLINE);
    assert_true(tb__deadline_ns(INT64_MIN) == TB__NO_DEADLINE);
    assert_true(tb__deadline_ns(INT64_MAX) == TB__NO_DEADLINE);
    assert_true(tb__left_ns(TB__NO_DEADLINE) == INT64_MAX);
    assert_true(tb__left_ns(before) == 0);
    assert_true(tb__left_ns(0) == 0);
    int64_t left = tb__left_ns(deadline);
    assert_true(left > TB_SECONDS(99) && left <= TB_SECONDS(100));
    struct timespec spec = tb__timespec(TB_SECONDS(7) + 5);
    assert_int_equal(spec.tv_sec, 7);
    assert_int_equal(spec.tv_nsec, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_products),
        cmocka_unit_test(rounding_up),
        cmocka_unit_test(ranges),
        cmocka_unit_test(deadlines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Time stamps counted from the last look at the clock: a counter that runs evenly is believed, one
 * that jumps is not, and the real one never leaves the clock. */
#include "base/stamp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define MS INT64_C(1000000)

/* A counter of 2.5 GHz that began at `ticks` when the clock was at 0. */
static uint64_t ticks_at(int64_t ns)
{
    return UINT64_C(1000000) + (uint64_t)ns * 5 / 2;
}

static int64_t counted(const struct tb__stamper *stamper, uint64_t ticks)
{
    return stamper->ns + (int64_t)((ticks - stamper->ticks) * stamper->scale >> 32);
}

static void even_counter_is_counted_after_10_ms(void **state)
{
    (void)state;
    struct tb__stamper stamper = {0};
    for (int64_t ns = 0; ns < 10 * MS; ns += MS) {
        tb__stamper_look(&stamper, ticks_at(ns), ns);
        assert_int_equal(stamper.valid, 0);
    }
    tb__stamper_look(&stamper, ticks_at(10 * MS), 10 * MS);
    assert_in_range(stamper.valid, 2499990, 2500010); /* 1 ms */
    for (int64_t ns = 10 * MS; ns <= 11 * MS; ns += 1000) {
        assert_in_range(counted(&stamper, ticks_at(ns)), ns - 2, ns + 2);
    }
    assert_int_equal(stamper.surprises, 0);
}

/* Looks are never exact, and the kernel adjusts its clock. */
static void small_errors_are_no_surprise(void **state)
{
    (void)state;
    struct tb__stamper stamper = {0};
    for (int64_t i = 0; i < 1000; i++) {
        int64_t ns = i * MS;
        tb__stamper_look(&stamper, ticks_at(ns), ns + ns / 2000 + i % 3 * 50);
    }
    assert_int_equal(stamper.surprises, 0);
    assert_int_not_equal(stamper.valid, 0);
    assert_in_range(counted(&stamper, stamper.ticks + 2500), stamper.ns + 999, stamper.ns + 1001);
}

static void looks_far_apart_do_no_harm(void **state)
{
    (void)state;
    struct tb__stamper stamper = {0};
    for (int64_t i = 0; i < 20; i++) {
        int64_t ns = i * INT64_C(3600000000000) * 24;
        tb__stamper_look(&stamper, ticks_at(ns), ns);
    }
    assert_int_equal(stamper.surprises, 0);
    assert_in_range(stamper.valid, 2499990, 2500010);
}

/* A machine that is moved to another one, or that slept: begun anew. */
static void jump_is_measured_anew(void **state)
{
    (void)state;
    static const int64_t jumps[] = {-200 * MS, 200 * MS, 20000};
    for (size_t j = 0; j < sizeof jumps / sizeof jumps[0]; j++) {
        struct tb__stamper stamper = {0};
        for (int64_t ns = 0; ns < 300 * MS; ns += MS) {
            tb__stamper_look(&stamper, ticks_at(ns), ns);
        }
        assert_int_not_equal(stamper.valid, 0);
        uint64_t shift = (uint64_t)(jumps[j] * 5 / 2);
        tb__stamper_look(&stamper, ticks_at(300 * MS) + shift, 300 * MS);
        assert_int_equal(stamper.valid, 0);
        assert_int_equal(stamper.surprises, 1);
        for (int64_t ns = 301 * MS; ns <= 311 * MS; ns += MS) {
            tb__stamper_look(&stamper, ticks_at(ns) + shift, ns);
        }
        assert_int_not_equal(stamper.valid, 0);
        assert_int_equal(stamper.surprises, 1);
    }
}

static void counter_that_keeps_jumping_is_given_up(void **state)
{
    (void)state;
    struct tb__stamper stamper = {0};
    uint64_t shift = 0;
    for (int64_t ns = 0; ns < 1000 * MS; ns += MS) {
        shift += ns % (50 * MS) == 0 ? 2500000 : 0;
        tb__stamper_look(&stamper, ticks_at(ns) + shift, ns);
    }
    assert_int_equal(stamper.valid, 0);
}

static void coarse_counter_is_not_used(void **state)
{
    (void)state;
    struct tb__stamper stamper = {0};
    for (int64_t ns = 0; ns < 1000 * MS; ns += MS) {
        tb__stamper_look(&stamper, 1 + (uint64_t)ns / 100, ns);
        assert_int_equal(stamper.valid, 0);
    }
}

/* The real thing: always between two looks at the clock, give or take its exactness. */
static void stamps_stay_with_the_clock(void **state)
{
    (void)state;
    int64_t end_ns = tb__now_ns() + 300 * MS;
    int64_t before_ns;
    do {
        before_ns = tb__now_ns();
        int64_t stamp_ns = tb__stamp_ns();
        int64_t after_ns = tb__now_ns();
        assert_in_range(stamp_ns, before_ns - 1000, after_ns + 1000);
    } while (before_ns < end_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even_counter_is_counted_after_10_ms),
        cmocka_unit_test(small_errors_are_no_surprise),
        cmocka_unit_test(looks_far_apart_do_no_harm),
        cmocka_unit_test(jump_is_measured_anew),
        cmocka_unit_test(counter_that_keeps_jumping_is_given_up),
        cmocka_unit_test(coarse_counter_is_not_used),
        cmocka_unit_test(stamps_stay_with_the_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

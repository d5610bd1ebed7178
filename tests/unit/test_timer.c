/* Timers against a clock that the test moves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "node/timer.h"

static void the_schedule_is_absolute(void **state)
{
    (void)state;
    struct tb__timer timer;
    tb__timer_start(&timer, 10, 5, 1000);
    assert_false(tb__timer_due(&timer, 1009));
    assert_true(tb__timer_due(&timer, 1010));
    /* Taken late: the next ones keep their places. */
    assert_int_equal(tb__timer_take(&timer), 1010);
    assert_true(tb__timer_due(&timer, 1027));
    assert_int_equal(tb__timer_take(&timer), 1020);
    assert_false(tb__timer_due(&timer, 1027));
    assert_int_equal(timer.next_ns, 1030);
}

static void the_newest_ticks_are_kept(void **state)
{
    (void)state;
    static const struct {
        uint32_t queue;
        int64_t now;
        uint64_t lost;
        int64_t first;
    } cases[] = {
        {1, 1010, 0, 1010}, {1, 1019, 0, 1010},   {1, 1020, 1, 1020},    {3, 1030, 0, 1010},
        {3, 1040, 1, 1020}, {3, 4000, 297, 3980}, {10, 4000, 290, 3910},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tb__timer timer;
        tb__timer_start(&timer, 10, cases[i].queue, 1000);
        assert_int_equal(tb__timer_expire(&timer, cases[i].now), cases[i].lost);
        assert_int_equal(tb__timer_expire(&timer, cases[i].now), 0);
        uint32_t taken = 0;
        for (int64_t expected = cases[i].first; tb__timer_due(&timer, cases[i].now); taken++) {
            assert_int_equal(tb__timer_take(&timer), expected);
            expected += 10;
        }
        assert_true(taken >= 1 && taken <= cases[i].queue);
        assert_int_equal(taken + cases[i].lost, (uint64_t)(cases[i].now - 1000) / 10);
    }
}

static void nothing_overflows(void **state)
{
    (void)state;
    struct tb__timer timer;
    tb__timer_start(&timer, INT64_MAX / 4, 1, INT64_MAX - 5);
    assert_int_equal(timer.next_ns, INT64_MAX);
    assert_false(tb__timer_due(&timer, INT64_MAX - 1));
    tb__timer_take(&timer);
    assert_int_equal(timer.next_ns, INT64_MAX);
    tb__timer_start(&timer, 1, 1, 0);
    assert_int_equal(tb__timer_expire(&timer, INT64_MAX), INT64_MAX - 1);
    assert_int_equal(tb__timer_take(&timer), INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_schedule_is_absolute),
        cmocka_unit_test(the_newest_ticks_are_kept),
        cmocka_unit_test(nothing_overflows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

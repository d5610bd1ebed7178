/* Medians, percentiles and blocks of the bench, on numbers worked out by hand. */
#include "bench/stats.c" /* NOLINT: the bench is no library */

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static void percentile_takes_the_nearest_rank(void **state)
{
    (void)state;
    double ten[] = {10, 3, 1, 7, 5, 9, 2, 8, 6, 4};
    assert_true(tb__percentile(ten, 10, 0.5) == 5.5);
    assert_true(tb__percentile(ten, 10, 0.99) == 10);
    assert_true(tb__percentile(ten, 10, 0.9) == 9);
    assert_true(tb__percentile(ten, 10, 0.1) == 1);
    assert_true(tb__percentile(ten, 10, 0) == 1);
    assert_true(tb__percentile(ten, 10, 1) == 10);
    double three[] = {30, 10, 20};
    assert_true(tb__percentile(three, 3, 0.5) == 20);
    assert_true(isnan(tb__percentile(three, 0, 0.5)));
}

static void block_figures_are_medians_of_medians(void **state)
{
    (void)state;
    static const double samples[3][3] = {{1, 2, 100}, {5, 4, 6}, {9, 9, 9}};
    struct tb__series series;
    struct tb__figure figure;
    assert_int_equal(tb__series_init(&series, 9), TB_OK);
    for (int block = 0; block < 3; block++) {
        for (int i = 0; i < 3; i++) {
            assert_int_equal(tb__series_add(&series, samples[block][i]), TB_OK);
        }
        tb__series_end_block(&series);
    }
    assert_int_equal(tb__series_add(&series, 1), TB_E_LIMIT);
    assert_int_equal(tb__series_blocks(&series, 0.5, 1, &figure), TB_OK);
    assert_true(figure.value == 5 && figure.min == 2 && figure.max == 9 && figure.blocks == 3);
    assert_true(figure.block[0] == 2 && figure.block[1] == 5 && figure.block[2] == 9);
    /* Pooled: the largest of nine, not the median of the blocks' largest. */
    assert_int_equal(tb__series_pooled(&series, 0.99, 0.001, &figure), TB_OK);
    assert_true(figure.value == 0.1 && figure.blocks == 3);
    assert_true(series.values[2] == 100); /* samples keep their order */
    tb__series_fini(&series);
}

/* In the slow rounds both are slow: the medians differ by a third, the rounds by a twentieth. */
static void rounds_leave_out_what_slows_both(void **state)
{
    (void)state;
    const double one[] = {2.0, 3.0, 2.0, 3.0, 3.0}, other[] = {2.1, 3.15, 2.1, 3.15, 2.0};
    struct tb__figure figure, baseline;
    tb__figure_of(other, 5, &figure);
    tb__figure_of(one, 5, &baseline);
    assert_float_equal(figure.value / baseline.value, 0.7, 1e-9);
    assert_float_equal(tb__figure_over(&figure, &baseline), 1.05, 1e-9);
    tb__figure_of(one, 2, &baseline);
    assert_float_equal(tb__figure_over(&figure, &baseline), 1.05, 1e-9);
    tb__figure_of(NULL, 0, &baseline);
    assert_true(isnan(tb__figure_over(&figure, &baseline)));
}

static void figure_of_nothing_is_no_number(void **state)
{
    (void)state;
    struct tb__figure figure;
    tb__figure_of(NULL, 0, &figure);
    assert_true(isnan(figure.value) && isnan(figure.min) && isnan(figure.max));
    assert_int_equal(figure.blocks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentile_takes_the_nearest_rank),
        cmocka_unit_test(block_figures_are_medians_of_medians),
        cmocka_unit_test(rounds_leave_out_what_slows_both),
        cmocka_unit_test(figure_of_nothing_is_no_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The camera example's histogram of durations, against sorted durations. */
#include "examples/camera/latency.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static int ascending(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void quantiles_are_within_two_percent(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    static struct latency latency;
    int64_t *values = malloc(COUNT * sizeof(*values));
    uint64_t random = 1;
    for (int i = 0; i < COUNT; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        values[i] = (int64_t)(random >> 33) >> (random >> 59); /* many orders of size */
        latency_add(&latency, values[i]);
    }
    qsort(values, COUNT, sizeof(*values), ascending);
    static const double shares[] = {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1};
    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
        const double truth = (double)values[(int)ceil(shares[i] * COUNT) - 1];
        const double found = (double)latency_quantile(&latency, shares[i]);
        assert_true(found >= truth);
        assert_true(found <= truth * 1.02 + 0.5);
    }
    free(values);
}

static void every_duration_has_a_bucket(void **state)
{
    (void)state;
    static const int64_t values[] = {0, 1, 63, 64, 65, 127, 128, 1000000, INT64_MAX};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        static struct latency latency;
        latency = (struct latency){0};
        latency_add(&latency, values[i]);
        assert_int_equal(latency_quantile(&latency, 0.5), values[i]); /* the maximum bounds it */
    }
    assert_true(bucket_of(UINT64_MAX) < LATENCY_BUCKETS);
    assert_true(bucket_end(bucket_of(UINT64_MAX)) == UINT64_MAX);
    for (int i = 1; i < LATENCY_BUCKETS; i++) {
        assert_int_equal(bucket_of(bucket_end(i - 1) + 1), i); /* no gap, no overlap */
    }
}

static void nothing_and_negative_are_zero(void **state)
{
    (void)state;
    static struct latency latency;
    assert_int_equal(latency_quantile(&latency, 0.99), 0);
    latency_add(&latency, -5);
    assert_int_equal(latency.count, 1);
    assert_int_equal(latency_quantile(&latency, 0.99), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_within_two_percent),
        cmocka_unit_test(every_duration_has_a_bucket),
        cmocka_unit_test(nothing_and_negative_are_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* See latency.h. Durations below 64 ns have a bucket each; above, a bucket is as wide as 1/64 of
 * the power of two below it. */
#include "latency.h"

#include <math.h>

static int bucket_of(uint64_t value)
{
    if (value < LATENCY_STEPS) {
        return (int)value;
    }
    const int shift = 63 - __builtin_clzll(value) - LATENCY_STEP_BITS;
    return (shift + 1) * LATENCY_STEPS + (int)(value >> shift) - LATENCY_STEPS;
}

/* Largest duration that falls into a bucket. */
static uint64_t bucket_end(int bucket)
{
    if (bucket < LATENCY_STEPS) {
        return (uint64_t)bucket;
    }
    const int shift = bucket / LATENCY_STEPS - 1;
    const uint64_t step = (uint64_t)(bucket % LATENCY_STEPS) + LATENCY_STEPS;
    return (step << shift) + ((UINT64_C(1) << shift) - 1);
}

void latency_add(struct latency *latency, int64_t duration_ns)
{
    const uint64_t value = duration_ns > 0 ? (uint64_t)duration_ns : 0;
    latency->buckets[bucket_of(value)]++;
    latency->count++;
    latency->max_ns = value > latency->max_ns ? value : latency->max_ns;
}

uint64_t latency_quantile(const struct latency *latency, double share)
{
    const double wanted = ceil(share * (double)latency->count);
    uint64_t seen = 0;
    for (int i = 0; i < LATENCY_BUCKETS; i++) {
        seen += latency->buckets[i];
        if (latency->buckets[i] && (double)seen >= wanted) {
            const uint64_t end = bucket_end(i);
            return end < latency->max_ns ? end : latency->max_ns;
        }
    }
    return 0;
}

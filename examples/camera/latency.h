/* A histogram of durations: fixed memory however long it runs, percentiles to within 2 %.
 * Plain data; zero-initialise it. One thread at a time. */
#ifndef EXAMPLES_CAMERA_LATENCY_H
#define EXAMPLES_CAMERA_LATENCY_H

#include <stdint.h>

enum {
    LATENCY_STEP_BITS = 6, /* 64 steps to each doubling */
    LATENCY_STEPS = 1 << LATENCY_STEP_BITS,
    LATENCY_BUCKETS = LATENCY_STEPS * (64 - LATENCY_STEP_BITS + 1)
};

struct latency {
    uint64_t count;
    uint64_t max_ns;
    uint32_t buckets[LATENCY_BUCKETS];
};

/* Count one duration; negative ones (no clock of ours makes them) count as 0. */
void latency_add(struct latency *latency, int64_t duration_ns);

/* The duration that `share` (0 to 1) of all do not exceed, in ns; 0 when there are none. */
uint64_t latency_quantile(const struct latency *latency, double share);

#endif

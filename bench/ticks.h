/* The clock of the rows: the processor's time-stamp counter where it is constant, else
 * CLOCK_MONOTONIC. Both sides of a hand-over read the same one. */
#ifndef TB_BENCH_TICKS_H
#define TB_BENCH_TICKS_H

#include <stdint.h>

#include "base/clock.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/* Nanoseconds per tick: found by tb__ticks_calibrate() before processes are started. */
extern double tb__ticks_ns;
extern int tb__ticks_use_tsc;

/* Takes 20 ms. */
void tb__ticks_calibrate(void);
const char *tb__ticks_source(void);

/* Now. All earlier instructions are done when it is read (lfence), so a time stamp before a publish
 * does not slip ahead of what was to be done first, and one after an acquire does not come early.
 */
static inline uint64_t tb__ticks(void)
{
#if defined(__x86_64__)
    if (tb__ticks_use_tsc) {
        _mm_lfence();
        return __rdtsc();
    }
#endif
    return (uint64_t)tb__now_ns();
}

static inline double tb__ticks_to_ns(uint64_t from, uint64_t to)
{
    return (double)(int64_t)(to - from) * tb__ticks_ns;
}

/* Busy for so long. */
static inline void tb__ticks_spin_ns(double ns)
{
    uint64_t start = tb__ticks();
    while (tb__ticks_to_ns(start, tb__ticks()) < ns) {
    }
}

#endif

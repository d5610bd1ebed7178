/* Time stamps: CLOCK_MONOTONIC in a third of the time.
 *
 * clock_gettime() takes 20 ns and more, half of them because it waits for every earlier
 * instruction; between publishing a frame and a spinning reader's taking it 50 ns pass. Here the
 * processor's time-stamp counter is read as it is and counted from the last look at the clock,
 * which is at most a millisecond old. Two stamps of two threads may differ by 0.1 us from what
 * clock_gettime() would have said. Where the kernel does not trust the counter, neither do we. */
#ifndef TB_BASE_STAMP_H
#define TB_BASE_STAMP_H

#include <stdint.h>

#include "base/clock.h"

/* The state of one thread: its last look at the clock, and how fast the counter runs. */
struct tb__stamper {
    uint64_t ticks; /* of the last look */
    int64_t ns;
    uint64_t scale; /* ns per tick, times 2^32; 0: not known yet */
    uint64_t valid; /* ticks after the last look for which counting will do; 0: look each time */
    uint64_t base_ticks; /* where the measurement of `scale` began; 0: nowhere */
    int64_t base_ns;
    uint32_t surprises; /* looks at which the counter was wrong; enough of them end its use */
};

/* A look at the clock: it said `ns` when the counter said `ticks`, give or take 50 ns. */
void tb__stamper_look(struct tb__stamper *stamper, uint64_t ticks, int64_t ns);

#if defined(__x86_64__)
extern _Thread_local struct tb__stamper tb__stamper __attribute__((tls_model("initial-exec")));

int64_t tb__stamp_slowly(struct tb__stamper *stamper);

/* Now, in ns on CLOCK_MONOTONIC. Any thread. */
static inline int64_t tb__stamp_ns(void)
{
    struct tb__stamper *stamper = &tb__stamper;
    uint64_t passed = __builtin_ia32_rdtsc() - stamper->ticks;
    if (__builtin_expect(passed < stamper->valid, 1)) {
        return stamper->ns + (int64_t)(passed * stamper->scale >> 32);
    }
    return tb__stamp_slowly(stamper);
}
#else
static inline int64_t tb__stamp_ns(void)
{
    return tb__now_ns();
}
#endif

#endif

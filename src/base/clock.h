/* Time: nanoseconds on CLOCK_MONOTONIC, and deadlines. */
#ifndef TB_BASE_CLOCK_H
#define TB_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#include "base/interrupt.h"

static inline int64_t tb__now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#define TB__NO_DEADLINE INT64_MAX

/* Deadline of a timeout that starts now: TB_FOREVER and anything past the clock's end never ends.
 */
static inline int64_t tb__deadline_ns(int64_t timeout_ns)
{
    if (timeout_ns < 0) {
        return TB__NO_DEADLINE;
    }
    int64_t now = tb__now_ns();
    return timeout_ns > INT64_MAX - now ? TB__NO_DEADLINE : now + timeout_ns;
}

/* What is left of a deadline, never negative; nothing for a thread that is interrupted. */
static inline int64_t tb__left_ns(int64_t deadline_ns)
{
    if (tb__interrupted()) {
        return 0;
    }
    if (deadline_ns == TB__NO_DEADLINE) {
        return INT64_MAX;
    }
    int64_t left = deadline_ns - tb__now_ns();
    return left > 0 ? left : 0;
}

static inline struct timespec tb__timespec(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

#endif

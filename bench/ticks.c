/* Finding out whether the time-stamp counter can be trusted, and how fast it runs. */
#include "bench/ticks.h"

#include <string.h>

#include "base/fd.h"

double tb__ticks_ns = 1.0;
int tb__ticks_use_tsc;

#if defined(__x86_64__)
/* Constant in rate and running in all sleep states: then it is the same on all cores of a socket.
 */
static int tsc_is_constant(void)
{
    static char text[65536];
    if (tb__file_read("/proc/cpuinfo", text, sizeof text) <= 0) {
        return 0;
    }
    return strstr(text, " constant_tsc") != NULL && strstr(text, " nonstop_tsc") != NULL;
}
#endif

void tb__ticks_calibrate(void)
{
#if defined(__x86_64__)
    if (!tsc_is_constant()) {
        return;
    }
    tb__ticks_use_tsc = 1;
    int64_t start_ns = tb__now_ns();
    uint64_t start = tb__ticks();
    int64_t end_ns = start_ns;
    while (end_ns - start_ns < 20000000) {
        end_ns = tb__now_ns();
    }
    uint64_t end = tb__ticks();
    tb__ticks_ns = (double)(end_ns - start_ns) / (double)(end - start);
#endif
}

const char *tb__ticks_source(void)
{
    return tb__ticks_use_tsc ? "time-stamp counter" : "CLOCK_MONOTONIC";
}

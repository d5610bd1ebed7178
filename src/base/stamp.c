/* See stamp.h. Users' threads; each has its own state. */
#include "base/stamp.h"

#include <pthread.h>
#include <string.h>

#include "base/fd.h"

#define VALID_NS UINT64_C(1000000)
#define MEASURE_NS INT64_C(10000000)
/* The kernel speeds its clock up or down by at most 0.05 %, and a look is exact to 50 ns. */
#define SURPRISE_PER_NS 1000
#define SURPRISE_NS INT64_C(1000)
#define SURPRISES_MAX 3

static void begin(struct tb__stamper *stamper, uint64_t ticks, int64_t ns)
{
    stamper->scale = 0;
    stamper->valid = 0;
    stamper->base_ticks = ticks;
    stamper->base_ns = ns;
}

/* Whether the clock is where counting would have put it. */
static int as_expected(const struct tb__stamper *stamper, uint64_t ticks, int64_t ns)
{
    double passed_ns = (double)(ticks - stamper->ticks) * (double)stamper->scale / 4294967296.0;
    double off_ns = (double)(ns - stamper->ns) - passed_ns;
    double allowed_ns = (double)(ns - stamper->ns) / SURPRISE_PER_NS + (double)SURPRISE_NS;
    return off_ns <= allowed_ns && off_ns >= -allowed_ns;
}

void tb__stamper_look(struct tb__stamper *stamper, uint64_t ticks, int64_t ns)
{
    if (stamper->surprises >= SURPRISES_MAX) {
        return;
    }
    int back = ticks <= stamper->base_ticks || ns < stamper->base_ns;
    if (stamper->base_ticks == 0) {
        begin(stamper, ticks, ns);
    } else if (back || (stamper->scale != 0 && !as_expected(stamper, ticks, ns))) {
        /* The machine was moved or woken up, or the counter is no good. */
        stamper->surprises++;
        begin(stamper, ticks, ns);
    } else if (ns - stamper->base_ns >= MEASURE_NS) {
        double scale =
            (double)(ns - stamper->base_ns) * 4294967296.0 / (double)(ticks - stamper->base_ticks);
        if (scale >= 4294967296.0 * 16 || scale < 1) {
            begin(stamper, ticks, ns); /* slower than 62 MHz: too coarse */
        } else {
            stamper->scale = (uint64_t)scale;
            stamper->valid = (VALID_NS << 32) / stamper->scale;
            stamper->base_ticks = ticks;
            stamper->base_ns = ns;
        }
    }
    stamper->ticks = ticks;
    stamper->ns = ns;
}

#if defined(__x86_64__)
/* Interrupted between the readings of counter and clock: the pair is worth nothing. */
#define WIDE_TICKS 5000

_Thread_local struct tb__stamper tb__stamper;

static int trusted; /* set once */
static pthread_once_t trusted_once = PTHREAD_ONCE_INIT;

/* The kernel uses the counter for its own clock: it runs evenly, and alike on all processors. */
static void find_trusted(void)
{
    char name[32];
    trusted = tb__file_read("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                            name, sizeof name) > 0 &&
              strcmp(name, "tsc\n") == 0;
}

int64_t tb__stamp_slowly(struct tb__stamper *stamper)
{
    pthread_once(&trusted_once, find_trusted);
    uint64_t before = __builtin_ia32_rdtsc();
    int64_t ns = tb__now_ns();
    uint64_t passed = __builtin_ia32_rdtsc() - before;
    if (trusted && passed < WIDE_TICKS) {
        tb__stamper_look(stamper, before + passed / 2, ns);
    }
    return ns;
}
#endif

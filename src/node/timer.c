/* Arithmetic of timers: no clock, no thread. */
#include "node/timer.h"

void tb__timer_start(struct tb__timer *timer, int64_t period_ns, uint32_t queue_size,
                     int64_t now_ns)
{
    *timer = (struct tb__timer){
        .period_ns = period_ns,
        .next_ns = now_ns > INT64_MAX - period_ns ? INT64_MAX : now_ns + period_ns,
        .queue_size = queue_size,
    };
}

int tb__timer_due(const struct tb__timer *timer, int64_t now_ns)
{
    return now_ns >= timer->next_ns;
}

uint64_t tb__timer_expire(struct tb__timer *timer, int64_t now_ns)
{
    if (!tb__timer_due(timer, now_ns)) {
        return 0;
    }
    /* As a tick is due, the multiplication stays below now_ns. */
    int64_t due = (now_ns - timer->next_ns) / timer->period_ns + 1;
    if (due <= (int64_t)timer->queue_size) {
        return 0;
    }
    int64_t lost = due - (int64_t)timer->queue_size;
    timer->next_ns += lost * timer->period_ns;
    return (uint64_t)lost;
}

int64_t tb__timer_take(struct tb__timer *timer)
{
    int64_t due_ns = timer->next_ns;
    timer->next_ns = due_ns > INT64_MAX - timer->period_ns ? INT64_MAX : due_ns + timer->period_ns;
    return due_ns;
}

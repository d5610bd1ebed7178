/* A timer input: ticks on an absolute schedule, queued like messages of a drop_oldest input. Time
 * is passed in, so that tests drive it. */
#ifndef TB_NODE_TIMER_H
#define TB_NODE_TIMER_H

#include <stdint.h>

struct tb__timer {
    int64_t period_ns;   /* above 0 */
    int64_t next_ns;     /* when the oldest tick that was not taken is or was due */
    uint32_t queue_size; /* ticks that are kept for a node that does not come for them */
};

/* The first tick is due one period after `now_ns`. */
void tb__timer_start(struct tb__timer *timer, int64_t period_ns, uint32_t queue_size,
                     int64_t now_ns);

/* Forget the oldest due ticks beyond the queue. Returns how many. */
uint64_t tb__timer_expire(struct tb__timer *timer, int64_t now_ns);

/* Whether a tick is due. */
int tb__timer_due(const struct tb__timer *timer, int64_t now_ns);

/* Take the oldest due tick; returns when it was due. */
int64_t tb__timer_take(struct tb__timer *timer);

#endif

/* Interrupting the waits of a thread: for runtimes that have signals of their own. What sleeps asks
 * after each sleep; what looks at a deadline sees it as passed. Service threads have no check. */
#ifndef TB_BASE_INTERRUPT_H
#define TB_BASE_INTERRUPT_H

#include <stdint.h>

/* How long a thread with a check sleeps at most: a signal that came just before the sleep is seen
 * after it. */
#define TB__INTERRUPT_SLICE_NS INT64_C(50000000)

/* The end of a sleep that begins now: `until_ns`, or earlier when this thread has a check. */
int64_t tb__interrupt_slice(int64_t now_ns, int64_t until_ns);

/* After a sleep: ask, unless this was done a moment ago and no signal came. */
void tb__interrupt_ask(int signalled);

/* Whether this thread's waits shall end. */
int tb__interrupted(void);

#endif

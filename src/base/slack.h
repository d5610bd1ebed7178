/* Short sleeps that end when they should: by default the kernel lets a timer run fifty microseconds
 * late, to wake for several at once. For the calling thread, around such a sleep. */
#ifndef TB_BASE_SLACK_H
#define TB_BASE_SLACK_H

#include <sys/prctl.h>

#define TB__SLACK_NS 1000ul

static inline unsigned long tb__slack_begin(void)
{
    int before = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, TB__SLACK_NS, 0, 0, 0);
    return before > 0 ? (unsigned long)before : 0; /* 0: back to the thread's default */
}

static inline void tb__slack_end(unsigned long before)
{
    prctl(PR_SET_TIMERSLACK, before, 0, 0, 0);
}

#endif

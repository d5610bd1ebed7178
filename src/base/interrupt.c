/* One check per thread, set by whoever embeds the library around a call that may wait. */
#include "base/interrupt.h"

#include <tensorbus/embed.h>

#include "base/clock.h"

static _Thread_local struct {
    tb_interrupt_check *check;
    void *context;
    int64_t asked_ns;
    int hit;
} interrupt;

void tb_set_interrupt(tb_interrupt_check *check, void *context)
{
    interrupt.check = check;
    interrupt.context = context;
    interrupt.asked_ns = 0;
    interrupt.hit = 0;
}

int64_t tb__interrupt_slice(int64_t now_ns, int64_t until_ns)
{
    if (interrupt.check == NULL || until_ns - now_ns <= TB__INTERRUPT_SLICE_NS) {
        return until_ns;
    }
    return now_ns + TB__INTERRUPT_SLICE_NS;
}

/* The check may take a lock that others hold long: a thread that is woken often does not ask each
 * time. */
void tb__interrupt_ask(int signalled)
{
    if (interrupt.check == NULL || interrupt.hit) {
        return;
    }
    int64_t now = tb__now_ns();
    if (interrupt.asked_ns == 0) {
        interrupt.asked_ns = now - TB__INTERRUPT_SLICE_NS / 2; /* the first sleep has just ended */
    }
    if (signalled || now - interrupt.asked_ns >= TB__INTERRUPT_SLICE_NS / 2) {
        interrupt.asked_ns = now;
        interrupt.hit = interrupt.check(interrupt.context) != 0;
    }
}

int tb__interrupted(void)
{
    return interrupt.hit;
}

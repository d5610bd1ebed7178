/* Waking readers. */
#ifndef TB_POOL_WAKE_H
#define TB_POOL_WAKE_H

#include "pool/state.h"

/* Whom to ring: readers that order themselves on a GPU, the others, or all. */
enum tb__wake_whom {
    TB__WAKE_UNGATED = 1,
    TB__WAKE_GATED = 2,
    TB__WAKE_ALL = 3,
};
/* Those that are armed, after something that they wait for. */
void tb__wake(tb_pool *pool, enum tb__wake_whom whom);
/* The same on a list that the caller has entered, with the full fence made. */
void tb__wake_listed(tb_pool *pool, const struct tb__page_set *set, enum tb__wake_whom whom);
/* Those that sleep in a call, for a frame that will be there in a moment: waking a thread takes
 * that long. No more than a guess, so without a fence: whoever is asleep when the frame is there is
 * rung then. Not event loops: they would come to look once, find nothing, and have to be woken
 * again. */
void tb__wake_early(tb_pool *pool, enum tb__wake_whom whom);
/* How long who was rung looks for what is not there yet. */
#define TB__RUNG_SPIN_NS INT64_C(80000)

#endif

/* Copying a large block with several threads: one processor's loads and stores do not fill what
 * the memory can do.
 *
 * A team is made with the pool whose writes it helps with, and its threads (tensorbus-copy) sleep
 * until a write hands them a copy. Handing over neither allocates nor waits: who wakes late finds
 * less to do, or nothing. Of several writers one gets the team, the others copy alone. */
#ifndef TB_BASE_COPY_TEAM_H
#define TB_BASE_COPY_TEAM_H

#include <stddef.h>

#include "base/error.h"

/* Below, waking a thread takes longer than what it saves. */
#define TB__COPY_TEAM_MIN_BYTES ((size_t)4 << 20)

struct tb__copy_team;

/* Whom to tell when a copy is nearly done, so that what takes as long begins meanwhile. */
struct tb__copy_near {
    void (*tell)(void *context); /* on the caller's thread, once at most, and never too soon */
    void *context;
};
#define TB__COPY_NEAR_NS                                                                           \
    INT64_C(60000) /* at most so long before the end, going by the pace so far */

/* A team of `threads` with the caller, so threads - 1 are started; 0 or 1: none is needed, and *out
 * becomes NULL. TB_E_NOMEM, TB_E_SYSTEM (a thread could not be started). */
tb_status tb__copy_team_create(unsigned threads, struct tb__copy_team **out);

/* End and join the threads; no copy is under way. NULL is allowed. Not in a forked child, which
 * has no such threads. */
void tb__copy_team_destroy(struct tb__copy_team *team);

/* As tb__copy_store(), with the team's help when that pays; `team` and `near` may be NULL. The
 * stores of all threads are ordered before every later store of the caller. Any thread, several at
 * once. */
void tb__copy_team_store(struct tb__copy_team *team, void *dst, const void *src, size_t bytes,
                         size_t working_set_bytes, const struct tb__copy_near *near);

/* Let the helpers begin while the caller does something else. Returns 0 when that does not pay or
 * another copy has the team; else the caller, alone, ends it by one of the next two. */
int tb__copy_team_begin(struct tb__copy_team *team, void *dst, const void *src, size_t bytes,
                        size_t working_set_bytes);
/* Take part in what is left, and wait for the helpers. `near` may be NULL. */
void tb__copy_team_finish(struct tb__copy_team *team, const struct tb__copy_near *near);
/* Leave it unfinished: nobody reads or writes the blocks any more when it returns. */
void tb__copy_team_abandon(struct tb__copy_team *team);

/* Blocks that the helpers have copied since the team was made, for tests and measurements. */
unsigned long tb__copy_team_helped(const struct tb__copy_team *team);

#endif

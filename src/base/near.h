/* Names to offer when one was not found: the nearest few of all that there are, for a message. */
#ifndef TB_BASE_NEAR_H
#define TB_BASE_NEAR_H

#include "base/name.h"

#define TB__NEAR_NAMES 5
#define TB__NEAR_TEXT 256 /* what a message has room for beside its own words */

struct tb__near {
    char wanted[TB__NAME_SIZE];
    char names[TB__NEAR_NAMES][TB__NAME_SIZE]; /* nearest first, equally near ones by name */
    unsigned away[TB__NEAR_NAMES];
    unsigned count;
    unsigned more; /* offered, and farther than these */
};

void tb__near_begin(struct tb__near *near, const char *wanted);
/* What is no valid name, and what begins with `_` (the library's own), is left out. */
void tb__near_offer(struct tb__near *near, const char *name);
/* "`front`, `rear` and 3 more", "" when there is none. Returns `text`. */
const char *tb__near_text(const struct tb__near *near, char text[TB__NEAR_TEXT]);

#endif

/* The names nearest to one that was not found. Any thread; failing calls only. */
#include "base/near.h"

#include <stdio.h>
#include <string.h>

/* Letters to change, add or leave out. Rows of the usual table, one kept; names are short. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[TB__NAME_SIZE];
    size_t length = strlen(b);
    for (size_t j = 0; j <= length; j++) {
        row[j] = (unsigned)j;
    }
    for (size_t i = 0; a[i] != '\0'; i++) {
        unsigned corner = row[0];
        row[0] = (unsigned)i + 1;
        for (size_t j = 0; j < length; j++) {
            unsigned above = row[j + 1];
            unsigned best = corner + (a[i] != b[j]);
            best = above + 1 < best ? above + 1 : best;
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j + 1] = best;
            corner = above;
        }
    }
    return row[length];
}

void tb__near_begin(struct tb__near *near, const char *wanted)
{
    *near = (struct tb__near){.count = 0};
    tb__name_copy(near->wanted, wanted);
}

void tb__near_offer(struct tb__near *near, const char *name)
{
    if (!tb__name_valid(name) || name[0] == '_') {
        return;
    }
    unsigned away = distance(near->wanted, name);
    unsigned at = near->count;
    while (at > 0 && (away < near->away[at - 1] ||
                      (away == near->away[at - 1] && strcmp(name, near->names[at - 1]) < 0))) {
        at--;
    }
    if (near->count < TB__NEAR_NAMES) {
        near->count++;
    } else {
        near->more++;
    }
    if (at == TB__NEAR_NAMES) {
        return;
    }
    for (unsigned i = near->count - 1; i > at; i--) {
        memcpy(near->names[i], near->names[i - 1], TB__NAME_SIZE);
        near->away[i] = near->away[i - 1];
    }
    tb__name_copy(near->names[at], name);
    near->away[at] = away;
}

const char *tb__near_text(const struct tb__near *near, char text[TB__NEAR_TEXT])
{
    size_t used = 0;
    unsigned shown = 0;
    text[0] = '\0';
    /* Long names are fewer: a cut one would help nobody. Room is left for " and N more". */
    while (shown < near->count &&
           used + strlen(near->names[shown]) + 4 + sizeof " and 4294967295 more" < TB__NEAR_TEXT) {
        used += (size_t)snprintf(text + used, TB__NEAR_TEXT - used, "%s`%s`", shown > 0 ? ", " : "",
                                 near->names[shown]);
        shown++;
    }
    unsigned more = near->more + near->count - shown;
    if (more > 0) {
        snprintf(text + used, TB__NEAR_TEXT - used, " and %u more", more);
    }
    return text;
}

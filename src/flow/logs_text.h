/* Text of nodes made fit for a terminal. Pure functions. */
#ifndef TB_FLOW_LOGS_TEXT_H
#define TB_FLOW_LOGS_TEXT_H

#include <stddef.h>

/* Room that `length` bytes may need: every byte as \xNN, and the colour reset. */
#define TB__LOG_TEXT_ROOM(length) (4 * (length) + 4)

/* Copy `length` bytes to `out` (TB__LOG_TEXT_ROOM bytes, not terminated): UTF-8, tabs and colour
 * sequences stay, whatever else could move the cursor or is no text becomes \xNN. A line that set a
 * colour ends with a reset. Returns the bytes written. */
size_t tb__log_text(const char *text, size_t length, char *out);

/* Where the last `lines` lines of a text begin. A newline at the very end closes the last line. */
size_t tb__log_last_lines(const char *text, size_t length, unsigned lines);

#endif

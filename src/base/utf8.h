/* UTF-8: one character, a whole text. Pure functions; any thread. */
#ifndef TB_BASE_UTF8_H
#define TB_BASE_UTF8_H

#include <stddef.h>

/* Bytes of the character at `at`, of which `left` bytes (at least 1) are there; 0 when it is none:
 * overlong, a surrogate, beyond the last one, cut off. NUL is one. */
size_t tb__utf8_step(const char *at, size_t left);

/* Whether a character of `step` bytes is one that a terminal obeys: C0, DEL, or C1, whose U+009B is
 * ESC [ in one. */
int tb__utf8_control(const char *at, size_t step);

/* Whether `bytes` bytes are UTF-8 without NUL. */
int tb__utf8_text(const char *text, size_t bytes);

#endif

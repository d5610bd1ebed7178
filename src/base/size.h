/* Sizes in messages: what a reader grasps, and the exact number. */
#ifndef TB_BASE_SIZE_H
#define TB_BASE_SIZE_H

#include <stdint.h>

#define TB__SIZE_TEXT 48

/* "12.0 GiB (12884901888 bytes)"; below 1 KiB "512 bytes" alone. Returns `text`. */
const char *tb__size_text(uint64_t bytes, char text[TB__SIZE_TEXT]);

#endif

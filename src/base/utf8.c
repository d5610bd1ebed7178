/* Checking UTF-8. */
#include "base/utf8.h"

#include <stdint.h>

size_t tb__utf8_step(const char *text, size_t left)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t *at = (const uint8_t *)text;
    size_t length = at[0] < 0x80 ? 1 : at[0] >> 5 == 6 ? 2 : at[0] >> 4 == 14 ? 3 : 4;
    if (length == 1) {
        return 1;
    }
    if (length > left || (length == 4 && at[0] >> 3 != 30)) {
        return 0;
    }
    uint32_t code = at[0] & (0x7fU >> length);
    for (size_t i = 1; i < length; i++) {
        if (at[i] >> 6 != 2) {
            return 0;
        }
        code = code << 6 | (at[i] & 0x3fU);
    }
    if (code < smallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        return 0;
    }
    return length;
}

int tb__utf8_control(const char *at, size_t step)
{
    const uint8_t *byte = (const uint8_t *)at;
    return step == 1 ? byte[0] < 0x20 || byte[0] == 0x7f
                     : step == 2 && byte[0] == 0xc2 && byte[1] < 0xa0;
}

int tb__utf8_text(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t step = text[at] != '\0' ? tb__utf8_step(text + at, bytes - at) : 0;
        if (step == 0) {
            return 0;
        }
        at += step;
    }
    return 1;
}

/* What nodes print is bytes from another program: on a terminal it could hide, forge or overwrite
 * the lines of others, so everything but text and colours is escaped. Pure functions. */
#include "flow/logs_text.h"

#include <stdint.h>
#include <string.h>

/* Length of the UTF-8 character at `text`, 0 if it is none or a control character (C1). */
static size_t utf8_length(const unsigned char *text, size_t left)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char first = text[0];
    size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || length > left) {
        return 0;
    }
    uint32_t code = first & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (text[i] & 0x3f);
    }
    int allowed = code >= smallest[length] && code >= 0xa0 && code <= 0x10ffff &&
                  (code < 0xd800 || code > 0xdfff) &&
                  (code < 0x202a || code > 0x202e); /* these reverse what follows */
    return allowed ? length : 0;
}

/* Length of a colour sequence ESC [ digits ; ... m, 0 if it is none. */
static size_t colour_length(const unsigned char *text, size_t left)
{
    if (left < 3 || text[0] != 0x1b || text[1] != '[') {
        return 0;
    }
    size_t i = 2;
    while (i < left && i < 32 && ((text[i] >= '0' && text[i] <= '9') || text[i] == ';')) {
        i++;
    }
    return i < left && text[i] == 'm' ? i + 1 : 0;
}

static size_t plain_length(const unsigned char *text, size_t left)
{
    size_t i = 0;
    while (i < left && ((text[i] >= 0x20 && text[i] < 0x7f) || text[i] == '\t')) {
        i++;
    }
    return i;
}

size_t tb__log_text(const char *text, size_t length, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *in = (const unsigned char *)text;
    size_t used = 0;
    int coloured = 0;
    for (size_t at = 0; at < length;) {
        size_t whole = plain_length(in + at, length - at);
        if (whole == 0) {
            whole = colour_length(in + at, length - at);
            coloured |= whole != 0;
        }
        if (whole == 0) {
            whole = utf8_length(in + at, length - at);
        }
        if (whole == 0) {
            const char escape[4] = {'\\', 'x', digits[in[at] >> 4], digits[in[at] & 15]};
            memcpy(out + used, escape, sizeof escape);
            used += sizeof escape;
            at++;
        } else {
            memcpy(out + used, in + at, whole);
            used += whole;
            at += whole;
        }
    }
    if (coloured) {
        static const char reset[4] = {0x1b, '[', '0', 'm'};
        memcpy(out + used, reset, sizeof reset);
        used += sizeof reset;
    }
    return used;
}

size_t tb__log_last_lines(const char *text, size_t length, unsigned lines)
{
    size_t at = length;
    if (at > 0 && text[at - 1] == '\n') {
        at--;
    }
    for (unsigned found = 0; at > 0; at--) {
        if (text[at - 1] == '\n' && ++found == lines) {
            break;
        }
    }
    return lines == 0 ? length : at;
}

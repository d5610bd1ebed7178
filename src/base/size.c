/* Sizes as text. Any thread. */
#include "base/size.h"

#include <inttypes.h>
#include <stdio.h>

const char *tb__size_text(uint64_t bytes, char text[TB__SIZE_TEXT])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(text, TB__SIZE_TEXT, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
        return text;
    }
    double value = (double)bytes / 1024;
    unsigned unit = 0;
    /* From 1023.95 on one digit behind the point would read 1024.0. */
    while (value >= 1023.95 && unit < sizeof units / sizeof units[0] - 1) {
        value /= 1024;
        unit++;
    }
    snprintf(text, TB__SIZE_TEXT, "%.1f %s (%" PRIu64 " bytes)", value, units[unit], bytes);
    return text;
}

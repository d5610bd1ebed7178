/* Names and random ids. */
#include "base/name.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static int is_name_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

int tb__name_valid(const char *name)
{
    if (name == NULL || name[0] == '.') {
        return 0;
    }
    size_t length = 0;
    while (name[length] != '\0') {
        if (length == TB__NAME_SIZE - 1 || !is_name_character(name[length])) {
            return 0;
        }
        length++;
    }
    return length > 0;
}

tb_status tb__name_check(const char *what, const char *name)
{
    if (tb__name_valid(name)) {
        return TB_OK;
    }
    return TB__FAIL(TB_E_INVALID,
                    "%s `%.80s` is not a valid name: use 1 to 64 letters, digits, `_`, `.` or `-`, "
                    "not starting with a dot",
                    what, name != NULL ? name : "(null)");
}

tb_status tb__name_split(const char *path, char owner[TB__NAME_SIZE], char thing[TB__NAME_SIZE])
{
    const char *slash = path != NULL ? strchr(path, '/') : NULL;
    if (slash == NULL || slash - path >= TB__NAME_SIZE) {
        return TB__FAIL(TB_E_INVALID, "`%.140s` is not of the form `process/name`",
                        path != NULL ? path : "(null)");
    }
    char first[TB__NAME_SIZE];
    memcpy(first, path, (size_t)(slash - path));
    first[slash - path] = '\0';
    TB__TRY(tb__name_check("process", first));
    TB__TRY(tb__name_check("name", slash + 1));
    tb__name_copy(owner, first);
    tb__name_copy(thing, slash + 1);
    return TB_OK;
}

uint64_t tb__random64(void)
{
    uint64_t value = 0;
    while (value == 0) {
        ssize_t got = getrandom(&value, sizeof value, 0);
        if (got != (ssize_t)sizeof value) {
            value = 0;
        }
    }
    return value;
}

void tb__name_copy(char out[TB__NAME_SIZE], const char *name)
{
    snprintf(out, TB__NAME_SIZE, "%s", name);
}

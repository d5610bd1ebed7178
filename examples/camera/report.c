/* See report.h. */
#include "report.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

FILE *report_open(const char *node)
{
    char path[PATH_MAX];
    const char *directory = getenv("CAMERA_REPORT");
    if (!directory || !*directory) {
        return NULL;
    }
    if (snprintf(path, sizeof(path), "%s/%s.txt", directory, node) >= (int)sizeof(path)) {
        fprintf(stderr, "CAMERA_REPORT is too long\n");
        return NULL;
    }
    FILE *file = fopen(path, "we");
    if (!file) {
        fprintf(stderr, "cannot write `%s`: %s\n", path, strerror(errno));
    }
    return file;
}

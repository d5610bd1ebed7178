/* Where the memory of a descriptor is mapped in this process. A user's thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/checked.h"
#include "pool/adopt.h"

/* One line of /proc/self/maps. */
struct mapping {
    uint64_t begin, end, offset, inode;
    unsigned major, minor;
    char access[8]; /* "rw-s" */
};

static int read_line(const char *line, struct mapping *out)
{
    return sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %x:%x %" SCNu64, &out->begin,
                  &out->end, out->access, &out->offset, &out->major, &out->minor, &out->inode) == 7;
}

/* Why the part of a mapping from `at` on is not the file's from `offset` on; NULL: it is. */
static const char *what_is_wrong(const struct mapping *here, uint64_t at, const struct stat *file,
                                 uint64_t offset)
{
    if (here->inode != file->st_ino || here->major != major(file->st_dev) ||
        here->minor != minor(file->st_dev)) {
        return "something else is mapped there";
    }
    if (here->offset + (at - here->begin) != offset) {
        return "another part of it is mapped there";
    }
    if (here->access[1] != 'w') {
        return "it is mapped read-only there";
    }
    return here->access[3] != 's' ? "it is mapped as a private copy there" : NULL;
}

tb_status tb__mapping_check(const void *data, uint64_t bytes, int borrow_fd, uint64_t offset)
{
    uint64_t at = (uint64_t)(uintptr_t)data;
    uint64_t end;
    struct stat file;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL || fstat(borrow_fd, &file) != 0) {
        tb_status status =
            TB__FAIL_ERRNO(TB_E_SYSTEM, "looking where descriptor %d is mapped", borrow_fd);
        if (maps != NULL) {
            fclose(maps);
        }
        return status;
    }
    char *line = NULL;
    size_t size = 0;
    static const char *const too_little = "nothing is mapped there, or not so much";
    const char *wrong = tb__add(at, bytes, &end) ? NULL : too_little; /* the user's address */
    while (wrong == NULL && at < end && getline(&line, &size, maps) > 0) {
        struct mapping here;
        if (!read_line(line, &here) || here.end <= at) {
            continue;
        }
        if (here.begin > at) {
            break;
        }
        wrong = what_is_wrong(&here, at, &file, offset);
        offset += here.end - at;
        at = here.end;
    }
    free(line);
    fclose(maps);
    if (wrong == NULL && at < end) {
        wrong = too_little;
    }
    return wrong == NULL ? TB_OK
                         : TB__FAIL(TB_E_INVALID,
                                    "%p is not where descriptor %d is mapped: %s: leave data NULL, "
                                    "or map it there shared and writable",
                                    data, borrow_fd, wrong);
}

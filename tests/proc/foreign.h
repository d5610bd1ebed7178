/* A reader of dora's tensor pool, as another library would be one: it knows a file in /dev/shm and
 * the layout in its header, and nothing of ours. */
#ifndef TB_TESTS_FOREIGN_H
#define TB_TESTS_FOREIGN_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/harness.h"

#define FOREIGN_PATH_SIZE 320

struct foreign {
    const uint8_t *base;
    size_t bytes;
};

/* A name that no other run has; until the next one is made. */
static inline const char *foreign_name(const char *what)
{
    static char name[96];
    snprintf(name, sizeof name, "dora_pool_test_%s_%d", what, (int)getpid());
    return name;
}

static inline const char *foreign_path(const char *name, char path[FOREIGN_PATH_SIZE])
{
    snprintf(path, FOREIGN_PATH_SIZE, "/dev/shm/%s", name);
    return path;
}

static inline int foreign_is_there(const char *name)
{
    char path[FOREIGN_PATH_SIZE];
    struct stat info;
    return stat(foreign_path(name, path), &info) == 0;
}

static inline struct foreign foreign_open(const char *name)
{
    char path[FOREIGN_PATH_SIZE];
    struct stat info;
    int fd = open(foreign_path(name, path), O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ(fstat(fd, &info), 0);
    CHECK_EQ(info.st_mode & 07777, 0600);
    struct foreign foreign = {.bytes = (size_t)info.st_size};
    foreign.base = mmap(NULL, foreign.bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK((const void *)foreign.base != MAP_FAILED);
    close(fd);
    return foreign;
}

static inline void foreign_close(struct foreign *foreign)
{
    munmap((void *)(uintptr_t)foreign->base, foreign->bytes);
}

static inline uint64_t foreign_word(const struct foreign *foreign, size_t offset)
{
    return __atomic_load_n((const uint64_t *)(const void *)(foreign->base + offset),
                           __ATOMIC_ACQUIRE);
}

#endif

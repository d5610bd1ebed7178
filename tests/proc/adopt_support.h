/* Memory of a user's that becomes a pool's slots, and the word that he is given when nobody uses it
 * any more. */
#ifndef TB_TESTS_ADOPT_SUPPORT_H
#define TB_TESTS_ADOPT_SUPPORT_H

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proc/pool_support.h"

/* A memfd, mapped. */
struct memory {
    int fd;
    size_t bytes;
    uint8_t *base;
    uint64_t inode;
};

static inline void memory_make(struct memory *memory, size_t bytes)
{
    struct stat info;
    memory->bytes = bytes;
    memory->fd = memfd_create("adopted", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(memory->fd >= 0 && ftruncate(memory->fd, (off_t)bytes) == 0);
    CHECK(fstat(memory->fd, &info) == 0);
    memory->inode = info.st_ino;
    memory->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    CHECK(memory->base != MAP_FAILED);
}

static inline void memory_close_fd(struct memory *memory)
{
    if (memory->fd >= 0) {
        close(memory->fd);
        memory->fd = -1;
    }
}

static inline void memory_drop(struct memory *memory)
{
    munmap(memory->base, memory->bytes);
    memory_close_fd(memory);
}

/* What the callback has noted. */
struct releases {
    _Atomic int count;
    pthread_t thread;
    pid_t process;
    struct memory *spoil; /* not NULL: overwritten, every word with another value */
};

static inline void on_release(void *context)
{
    struct releases *releases = context;
    releases->thread = pthread_self();
    releases->process = getpid();
    if (releases->spoil != NULL) {
        int64_t *words = (int64_t *)(void *)releases->spoil->base;
        for (size_t i = 0; i < releases->spoil->bytes / sizeof *words; i++) {
            words[i] = -1 - (int64_t)i;
        }
    }
    releases->count++;
}

static inline tb_adoption memory_adoption(const struct memory *memory, uint64_t offset,
                                          uint64_t stride, struct releases *releases)
{
    return (tb_adoption){.size = sizeof(tb_adoption),
                         .by = TB_ADOPT_MEMFD,
                         .fd = memory->fd,
                         .offset = offset,
                         .stride_bytes = stride,
                         .release = on_release,
                         .context = releases};
}

static inline tb_status register_adopted(tb_bus *bus, const char *name, int64_t words,
                                         uint32_t slots, const tb_adoption *adoption, tb_pool **out)
{
    tb_pool_options options = words_options(name, words, slots);
    options.adopt = adoption;
    return tb_pool_register(bus, &options, out);
}

/* Which file's byte an address is, in this process. */
static inline void where_it_lies(const void *address, uint64_t *inode, uint64_t *offset)
{
    char line[512];
    uint64_t at = (uint64_t)(uintptr_t)address;
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL);
    while (!found && fgets(line, sizeof line, maps) != NULL) {
        uint64_t begin, end, from;
        found = sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64, &begin, &end,
                       &from, inode) == 4 &&
                begin <= at && at < end;
        *offset = found ? from + (at - begin) : 0;
    }
    fclose(maps);
    CHECK(found);
}

#endif

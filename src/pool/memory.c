/* The data segment's memory: checked against what the machine and its control groups have left,
 * allocated and touched at once, sealed so that others can only read it. */
#define TB_LOG_TOPIC "pool"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/size.h"
#include "pool/memory.h"
#include "pool/observe.h"
#include "segment/dora_name.h"

#define EXPORT_PATH_SIZE 160
#define ALLOCATE_BYTES (UINT64_C(1) << 20)

/* ---- what is left ---- */

static uint64_t number_after(const char *text, const char *key, uint64_t unit)
{
    const char *at = strstr(text, key);
    return at != NULL ? strtoull(at + strlen(key), NULL, 10) * unit : UINT64_MAX;
}

static uint64_t read_number(const char *directory, const char *file)
{
    char path[512];
    char text[64];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    if (tb__file_read(path, text, sizeof text) <= 0 || text[0] < '0' || text[0] > '9') {
        return UINT64_MAX; /* missing, or "max" */
    }
    return strtoull(text, NULL, 10);
}

/* What a group uses counts files that it once read: the kernel gives those up when asked for
 * memory, as MemAvailable knows. */
static uint64_t without_cache(const char *directory, const char *key, uint64_t used)
{
    char path[512];
    char text[8192];
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    uint64_t cache = 0;
    if (used != UINT64_MAX && tb__file_read(path, text, sizeof text) > 0) {
        cache = number_after(text, key, 1);
    }
    return cache < used ? used - cache : used;
}

/* The least that any control group above this process leaves (version 2 and version 1 layouts). */
static uint64_t control_group_left(void)
{
    char groups[4096];
    if (tb__file_read("/proc/self/cgroup", groups, sizeof groups) <= 0) {
        return UINT64_MAX;
    }
    static const struct {
        const char *mark, *root, *limit, *used, *cache;
    } kinds[] = {
        {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "\ninactive_file "},
        {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
         "\ntotal_inactive_file "},
    };
    uint64_t left = UINT64_MAX;
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(groups, kinds[i].mark);
        if (at == NULL) {
            continue;
        }
        at += strlen(kinds[i].mark);
        char path[400];
        snprintf(path, sizeof path, "%s%.*s", kinds[i].root, (int)strcspn(at, "\n"), at);
        for (;;) {
            uint64_t limit = read_number(path, kinds[i].limit);
            uint64_t used = without_cache(path, kinds[i].cache, read_number(path, kinds[i].used));
            if (limit != UINT64_MAX && used != UINT64_MAX) {
                uint64_t here = limit > used ? limit - used : 0;
                left = here < left ? here : left;
            }
            char *slash = strrchr(path, '/');
            if (strlen(path) <= strlen(kinds[i].root) || slash == NULL) {
                break;
            }
            *slash = '\0';
        }
    }
    return left;
}

static uint64_t memory_available(void)
{
    char text[4096];
    uint64_t left = UINT64_MAX;
    if (tb__file_read("/proc/meminfo", text, sizeof text) > 0) {
        left = number_after(text, "MemAvailable:", 1024);
    }
    uint64_t group = control_group_left();
    return group < left ? group : left;
}

static tb_status check_room(const tb_pool *pool, uint64_t bytes)
{
    uint64_t left = memory_available();
    if (bytes <= left) {
        return TB_OK;
    }
    char wanted[TB__SIZE_TEXT], available[TB__SIZE_TEXT];
    return TB__FAIL(TB_E_NOMEM,
                    "pool `%s`: %s in %u slots do not fit: %s are available; use fewer slots or a "
                    "smaller shape",
                    pool->name, tb__size_text(bytes, wanted), pool->slots,
                    tb__size_text(left, available));
}

/* ---- files for foreign readers ---- */

/* Whether the name still stands for the file: another sweeper may have removed it, and a new owner
 * may have taken the name. */
static int is_still(int at_fd, const char *name, int borrow_fd)
{
    struct stat by_name;
    struct stat by_fd;
    return fstatat(at_fd, name, &by_name, AT_SYMLINK_NOFOLLOW) == 0 &&
           fstat(borrow_fd, &by_fd) == 0 && by_name.st_ino == by_fd.st_ino;
}

unsigned tb__exports_sweep(void (*report)(const char *what, const char *name))
{
    unsigned removed = 0;
    DIR *entries = opendir("/dev/shm");
    struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        if (strncmp(entry->d_name, "dora_pool_", 10) != 0) {
            continue;
        }
        /* Anybody may make files there: a pipe must not hold us up. */
        int fd =
            openat(dirfd(entries), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        struct tb__doradma_header header;
        if (fd >= 0 && read(fd, &header, sizeof header) == (ssize_t)sizeof header &&
            memcmp(header.geometry_magic, TB__GEOMETRY_MAGIC, 8) == 0 &&
            flock(fd, LOCK_EX | LOCK_NB) == 0 && is_still(dirfd(entries), entry->d_name, fd) &&
            unlinkat(dirfd(entries), entry->d_name, 0) == 0) {
            tb_log_info("removed `/dev/shm/%s`, whose owner is gone", entry->d_name);
            removed++;
            if (report != NULL) {
                report("export", entry->d_name);
            }
        }
        tb__fd_close(&fd);
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return removed;
}

static tb_status export_create(tb_pool *pool, const char *name, uint64_t bytes)
{
    TB__TRY(tb__file_size_check(name, bytes));
    tb__exports_sweep(NULL);
    char path[EXPORT_PATH_SIZE];
    snprintf(path, sizeof path, "/dev/shm/%s", name);
    if (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        errno = EEXIST; /* told before the work; what counts is the linking */
        return TB__FAIL_ERRNO(TB_E_EXISTS, "creating `%s`", path);
    }
    /* Without a name until it is complete: who is killed meanwhile leaves nothing behind. */
    int fd = open("/dev/shm", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (fd < 0) {
        return TB__FAIL_ERRNO(tb__fd_failure(errno), "creating `%s`", path);
    }
    pool->segment_fd = fd;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || ftruncate(fd, (off_t)bytes) != 0) {
        char text[TB__SIZE_TEXT];
        return TB__FAIL_ERRNO(TB_E_NOMEM, "sizing `%s` to %s", path, tb__size_text(bytes, text));
    }
    return TB_OK;
}

/* Give the complete file its name. */
static tb_status export_name(tb_pool *pool, const char *name)
{
    char path[EXPORT_PATH_SIZE];
    char from[40];
    snprintf(path, sizeof path, "/dev/shm/%s", name);
    snprintf(from, sizeof from, "/proc/self/fd/%d", pool->segment_fd);
    char *kept = strdup(path);
    if (kept == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a pool");
    }
    if (linkat(AT_FDCWD, from, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0) {
        tb_status status = TB__FAIL_ERRNO(errno == EEXIST ? TB_E_EXISTS : tb__fd_failure(errno),
                                          "creating `%s`", path);
        free(kept);
        return status;
    }
    pool->export_path = kept;
    return TB_OK;
}

/* ---- the segment ---- */

/* In pieces: a signal makes the kernel give up one that is under way, so a program with a fast
 * timer would never come to the end of a large one. */
static tb_status allocate(const tb_pool *pool, uint64_t bytes)
{
    int failed = 0;
    uint64_t done = 0;
    while (done < bytes && (failed == 0 || failed == EINTR)) {
        uint64_t piece = bytes - done < ALLOCATE_BYTES ? bytes - done : ALLOCATE_BYTES;
        failed = posix_fallocate(pool->segment_fd, (off_t)done, (off_t)piece);
        done += failed == 0 ? piece : 0;
    }
    if (done == bytes) {
        return TB_OK;
    }
    char wanted[TB__SIZE_TEXT], available[TB__SIZE_TEXT];
    tb__size_text(memory_available(), available);
    errno = failed;
    return TB__FAIL_ERRNO(TB_E_NOMEM,
                          "pool `%s`: allocating %s (%s are available; use fewer slots or a "
                          "smaller shape)",
                          pool->name, tb__size_text(bytes, wanted), available);
}

static tb_status map_segment(tb_pool *pool, const tb_pool_options *options, uint64_t bytes)
{
    int flags = MAP_SHARED | (options->no_prefault ? 0 : MAP_POPULATE);
    uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, pool->segment_fd, 0);
    if (base == MAP_FAILED) {
        char text[TB__SIZE_TEXT];
        return TB__FAIL_ERRNO(TB_E_NOMEM, "pool `%s`: mapping %s", pool->name,
                              tb__size_text(bytes, text));
    }
    pool->segment.base = base;
    pool->segment.view.segment_bytes = bytes;
    madvise(base, bytes, MADV_DONTFORK);
    madvise(base, bytes, MADV_DONTDUMP);
    if (options->lock_memory && mlock(base, bytes) != 0) {
        char text[TB__SIZE_TEXT];
        return TB__FAIL_ERRNO(errno == ENOMEM || errno == EPERM ? TB_E_LIMIT : TB_E_SYSTEM,
                              "pool `%s`: locking %s (raise the limit: ulimit -l)", pool->name,
                              tb__size_text(bytes, text));
    }
    return TB_OK;
}

tb_status tb__segment_create(tb_pool *pool, const tb_pool_options *options,
                             const struct tb__doradma_spec *spec,
                             const struct tb__doradma_layout *layout)
{
    uint64_t bytes = layout->segment_bytes;
    if (!options->no_prefault) {
        TB__TRY(check_room(pool, bytes));
    }
    if (options->doradma_name != NULL) {
        TB__TRY(export_create(pool, options->doradma_name, bytes));
    } else {
        TB__TRY(tb__memfd_create("tensorbus-pool", bytes, &pool->segment_fd));
    }
    TB__TRY(allocate(pool, options->no_prefault ? layout->data_offset : bytes));
    TB__TRY(map_segment(pool, options, bytes));
    TB__TRY(tb__doradma_init(pool->segment.base, spec));
    if (options->doradma_name == NULL) {
        /* This mapping stays writable; every other one that can ever be made is read-only. */
        TB__TRY(tb__memfd_seal(pool->segment_fd, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL));
    }
    TB__TRY(tb__doradma_check(pool->segment.base, bytes, &pool->segment.view));
    tb__segment_bind(&pool->segment);
    return options->doradma_name != NULL ? export_name(pool, options->doradma_name) : TB_OK;
}

void tb__segment_destroy(tb_pool *pool)
{
    if (pool->segment.base != NULL && !tb__bus_keeps_mapped(pool->bus)) {
        munmap(pool->segment.base, pool->segment.view.segment_bytes);
        pool->segment.base = NULL;
    }
    if (pool->export_path != NULL) {
        unlink(pool->export_path);
        free(pool->export_path);
        pool->export_path = NULL;
    }
    tb__fd_close(&pool->segment_fd);
}

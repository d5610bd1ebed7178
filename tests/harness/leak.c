/* What must not be left: descriptors, threads, memfd mappings, files of the runtime directory,
 * dora_pool_* files. */
#include "harness/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int sockets_allowed_here;
static int driver_allowed_here;

void harness_allow_driver(void)
{
    driver_allowed_here = 1;
}

/* A GPU's driver keeps what it has opened until the process ends: with it, only what is surely ours
 * counts. */
static int is_ours(const char *target)
{
    return !driver_allowed_here || strstr(target, "memfd:tensorbus") != NULL;
}

void harness_allow_sockets(void)
{
    if (!sockets_allowed_here) {
        sockets_allowed_here = 1;
        result_write(RESULT_SOCKETS);
    }
}

/* Call `seen` for each number that names an entry of a /proc directory. */
static unsigned count_entries(const char *path, unsigned char *seen, unsigned seen_size)
{
    DIR *directory = opendir(path);
    if (directory == NULL) {
        FAIL("%s: %s", path, strerror(errno));
    }
    unsigned count = 0;
    int own = dirfd(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        int number = atoi(entry->d_name);
        if (seen != NULL && number == own) {
            continue;
        }
        count++;
        if (seen != NULL && (unsigned)number < seen_size) {
            seen[number] = 1;
        }
    }
    closedir(directory);
    return count;
}

unsigned harness_fd_count(void)
{
    unsigned char seen[1];
    return count_entries("/proc/self/fd", seen, 0);
}

unsigned harness_thread_count(void)
{
    return count_entries("/proc/self/task", NULL, 0);
}

int harness_thread_named(const char *name)
{
    char command[200];
    snprintf(command, sizeof command, "cat /proc/%d/task/*/comm | grep -qx '%s'", (int)getpid(),
             name);
    return system(command) == 0;
}

unsigned long harness_rss_kib(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    unsigned long value = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "VmRSS: %lu", &value) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return value;
}

static unsigned memfd_maps(char *first, size_t size)
{
    FILE *file = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned count = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *name = strstr(line, "/memfd:");
        if (name != NULL && is_ours(name) && count++ == 0) {
            snprintf(first, size, "%.*s", (int)strcspn(name, "\n"), name);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return count;
}

unsigned harness_memfd_count(void)
{
    char ignored[8];
    return memfd_maps(ignored, sizeof ignored);
}

void leak_snapshot_take(struct leak_snapshot *snapshot)
{
    memset(snapshot, 0, sizeof *snapshot);
    count_entries("/proc/self/fd", snapshot->open_fds, sizeof snapshot->open_fds);
    snapshot->threads = harness_thread_count();
    snapshot->memfd_maps = harness_memfd_count();
#if defined(__SANITIZE_THREAD__)
    snapshot->threads += 2; /* ThreadSanitizer's own, which start when they like */
#endif
}

static void compare_fds(const struct leak_snapshot *snapshot)
{
    unsigned char now[sizeof snapshot->open_fds] = {0};
    char text[512];
    int length = 0;
    unsigned extra = 0;
    count_entries("/proc/self/fd", now, sizeof now);
    for (unsigned fd = 0; fd < sizeof now; fd++) {
        char link[64];
        char target[128];
        if (!now[fd] || snapshot->open_fds[fd]) {
            continue;
        }
        snprintf(link, sizeof link, "/proc/self/fd/%u", fd);
        ssize_t got = readlink(link, target, sizeof target - 1);
        target[got > 0 ? got : 0] = '\0';
        if (is_ours(target) && extra++ < 3) {
            length += snprintf(text + length, sizeof text - (size_t)length, " %u=%s", fd, target);
        }
    }
    if (extra != 0) {
        FAIL("%u descriptors left open:%s", extra, text);
    }
}

void leak_snapshot_compare(const struct leak_snapshot *snapshot)
{
    if (harness.started != 0) {
        FAIL("%u children were not awaited", harness.started);
    }
    for (int i = 0; !driver_allowed_here && harness_thread_count() > snapshot->threads && i < 200;
         i++) {
        harness_sleep_us(1000); /* a joined thread leaves /proc a little later */
    }
    if (!driver_allowed_here && harness_thread_count() > snapshot->threads) {
        FAIL("%u threads left, %u at the beginning", harness_thread_count(), snapshot->threads);
    }
    compare_fds(snapshot);
    char first[128] = "";
    unsigned maps = memfd_maps(first, sizeof first);
    if (maps > snapshot->memfd_maps) {
        FAIL("%u memfd mappings left, %u at the beginning; first: %s", maps, snapshot->memfd_maps,
             first);
    }
}

/* Walk a tree; returns the number of sockets and puts the first that is neither directory, socket,
 * link to a socket nor lock file into `odd`. */
static unsigned walk(const char *path, unsigned depth, char *odd, size_t size)
{
    DIR *directory = opendir(path);
    unsigned sockets = 0;
    if (directory == NULL) {
        return 0;
    }
    for (struct dirent *entry; depth < 8 && (entry = readdir(directory)) != NULL;) {
        char name[512];
        struct stat status;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (lstat(name, &status) != 0) {
            continue;
        }
        if (S_ISDIR(status.st_mode)) {
            sockets += walk(name, depth + 1, odd, size);
        } else if (S_ISSOCK(status.st_mode) || S_ISLNK(status.st_mode)) {
            sockets++;
        } else if (!S_ISREG(status.st_mode) || status.st_size != 0) {
            snprintf(odd, size, "%s", name);
        }
    }
    closedir(directory);
    return sockets;
}

unsigned harness_socket_count(void)
{
    char odd[512] = "";
    return walk(harness.directory, 0, odd, sizeof odd);
}

int leak_directory(const char *directory, int sockets_allowed, char *text, size_t size)
{
    char odd[400] = "";
    unsigned sockets = walk(directory, 0, odd, sizeof odd);
    if (odd[0] != '\0') {
        snprintf(text, size, "left in the runtime directory: %s", odd);
        return 1;
    }
    if (sockets != 0 && !sockets_allowed) {
        snprintf(text, size, "%u sockets or links left in the runtime directory", sockets);
        return 1;
    }
    return 0;
}

static int is_pool_file(const char *name)
{
    return strncmp(name, "dora_pool_", 10) == 0;
}

/* Tests name their files after their process. */
static int is_orphan(const char *name)
{
    const char *number = strrchr(name, '_');
    int ours = strncmp(name, "dora_pool_test_", strlen("dora_pool_test_")) == 0;
    long pid = ours && number != NULL ? strtol(number + 1, NULL, 10) : 0;
    return pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

void leak_shm_sweep(void)
{
    DIR *directory = opendir("/dev/shm");
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (is_orphan(entry->d_name)) {
            unlinkat(dirfd(directory), entry->d_name, 0);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
}

void leak_shm_take(struct leak_shm *before)
{
    DIR *directory = opendir("/dev/shm");
    before->count = 0;
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (is_pool_file(entry->d_name) && before->count < 64) {
            snprintf(before->names[before->count++], 80, "%.79s", entry->d_name);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
}

/* Whether the file belongs to another test run: a living process maps it, or it goes by itself. */
static int is_in_use(const char *name)
{
    char command[400];
    snprintf(command, sizeof command,
             "for i in 1 2 3 4; do [ -e '/dev/shm/%s' ] || exit 0; "
             "grep -qs '/dev/shm/%s' /proc/[0-9]*/maps && exit 0; sleep 0.3; done; exit 1",
             name, name);
    return system(command) == 0;
}

int leak_shm_compare(const struct leak_shm *before, char *text, size_t size)
{
    struct leak_shm now;
    leak_shm_take(&now);
    for (unsigned i = 0; i < now.count; i++) {
        int known = 0;
        for (unsigned j = 0; j < before->count; j++) {
            known = known || strcmp(now.names[i], before->names[j]) == 0;
        }
        if (!known && !is_in_use(now.names[i])) {
            snprintf(text, size, "left in /dev/shm: %s", now.names[i]);
            return 1;
        }
    }
    return 0;
}

/* Directories of flows. All work goes through directory descriptors, so neither long paths nor a
 * directory that is replaced under its name do harm. Any thread; nothing is kept. */
#include "flow/run_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "endpoint/directory.h"

#define OPEN_DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define CREATE_PATIENCE_NS TB_SECONDS(2)
#define REMOVE_ATTEMPTS 5

/* $TENSORBUS_DIR, else $XDG_RUNTIME_DIR/tensorbus, else /tmp/tensorbus-<uid>; made absolute. */
static tb_status root_path(char path[TB__RUN_PATH_SIZE])
{
    char chosen[TB__PATH_SIZE];
    TB__TRY(tb__directory_runtime_path(NULL, chosen));
    if (chosen[0] == '/') {
        snprintf(path, TB__RUN_PATH_SIZE, "%s", chosen);
        return TB_OK;
    }
    /* Nodes have other working directories than the runner, so they get an absolute path. */
    char here[TB__PATH_SIZE];
    if (getcwd(here, sizeof here) == NULL) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM,
                              "finding the current directory, to which TENSORBUS_DIR "
                              "`%.200s` is relative",
                              chosen);
    }
    if (strlen(here) + 1 + strlen(chosen) >= TB__PATH_SIZE) {
        return TB__FAIL(TB_E_LIMIT,
                        "TENSORBUS_DIR `%.200s`: the absolute path is longer than %d "
                        "bytes",
                        chosen, TB__PATH_SIZE - 1);
    }
    snprintf(path, TB__RUN_PATH_SIZE, "%s/%s", here, chosen);
    return TB_OK;
}

tb_status tb__run_root_open(int create, char path[TB__RUN_PATH_SIZE], int *out_take_fd)
{
    TB__TRY(root_path(path));
    if (create && mkdir(path, 0700) != 0 && errno != EEXIST) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM,
                              "creating the runtime directory `%s` (TENSORBUS_DIR chooses another)",
                              path);
    }
    int fd = open(path, OPEN_DIRECTORY);
    if (fd < 0) {
        return TB__FAIL_ERRNO(errno == ENOENT ? TB_E_NOT_FOUND : TB_E_DENIED,
                              "opening the runtime directory `%s`", path);
    }
    struct stat info;
    if (fstat(fd, &info) != 0) {
        memset(&info, 0, sizeof info);
    }
    unsigned mode = (unsigned)info.st_mode & 07777;
    if (info.st_uid != geteuid() || (mode & 0777 & ~0770u) != 0 || (mode & 0700) != 0700) {
        tb__fd_close(&fd);
        return TB__FAIL(TB_E_DENIED,
                        "the runtime directory `%s` is not safe: owner %u, mode %04o; it must be "
                        "user %u's and closed to others (chmod 700)",
                        path, (unsigned)info.st_uid, mode, (unsigned)geteuid());
    }
    *out_take_fd = fd;
    return TB_OK;
}

/* Open and lock a flow's directory. TB_AGAIN: it was removed meanwhile, or (`wait` 0) somebody
 * holds the lock. */
static tb_status open_locked(int root_fd, const char *name, int wait, int *out_take_fd)
{
    int fd = openat(root_fd, name, OPEN_DIRECTORY);
    if (fd < 0) {
        return errno == ENOENT ? TB_AGAIN
                               : TB__FAIL_ERRNO(TB_E_SYSTEM, "opening flow directory `%s`", name);
    }
    int locked;
    do {
        locked = flock(fd, wait ? LOCK_EX : LOCK_EX | LOCK_NB);
    } while (locked != 0 && errno == EINTR);
    struct stat info;
    if (locked != 0 || fstat(fd, &info) != 0 || info.st_nlink == 0) {
        tb__fd_close(&fd);
        return TB_AGAIN;
    }
    *out_take_fd = fd;
    return TB_OK;
}

/* TB_AGAIN: the directory was removed meanwhile. */
static tb_status take_runner_lock(int directory_fd, const char *name, int *out_take_fd)
{
    int fd = openat(directory_fd, TB__RUN_LOCK_FILE,
                    O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 && errno == ENOENT) {
        return TB_AGAIN;
    }
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int taken = errno == EEXIST || errno == EWOULDBLOCK;
        tb_status status = TB__FAIL_ERRNO(taken ? TB_E_EXISTS : tb__fd_failure(errno),
                                          "taking the lock of flow `%s`", name);
        tb__fd_close(&fd);
        return status;
    }
    *out_take_fd = fd;
    return TB_OK;
}

static tb_status create_once(int root_fd, const char *name, int *out_take_fd, int *out_take_lock_fd)
{
    int fd = -1;
    if (mkdirat(root_fd, name, 0700) != 0) {
        return TB__FAIL_ERRNO(errno == EEXIST ? TB_E_EXISTS : TB_E_SYSTEM,
                              "creating the directory of flow `%s`", name);
    }
    tb_status status = open_locked(root_fd, name, 1, &fd);
    if (status == TB_OK) {
        status = take_runner_lock(fd, name, out_take_lock_fd);
    }
    if (status != TB_OK) {
        tb__fd_close(&fd);
        (void)unlinkat(root_fd, name, AT_REMOVEDIR); /* refused if somebody is in it */
        return status;
    }
    (void)flock(fd, LOCK_UN);
    *out_take_fd = fd;
    return TB_OK;
}

tb_status tb__run_directory_create(int root_fd, const char *name, int *out_take_fd,
                                   int *out_take_lock_fd)
{
    /* A sweep may remove the directory while it is still empty: then once more. */
    int64_t deadline_ns = tb__deadline_ns(CREATE_PATIENCE_NS);
    do {
        tb_status status = create_once(root_fd, name, out_take_fd, out_take_lock_fd);
        if (status != TB_AGAIN) {
            return status;
        }
    } while (tb__left_ns(deadline_ns) != 0);
    return TB__FAIL(TB_E_SYSTEM, "the directory of flow `%s` is removed as often as it is made",
                    name);
}

/* The names in a directory, one after the other; "" at the end. `stream` starts as NULL. */
static const char *next_name(int directory_fd, DIR **stream)
{
    if (*stream == NULL) {
        int copy = openat(directory_fd, ".", OPEN_DIRECTORY);
        *stream = copy >= 0 ? fdopendir(copy) : NULL;
        if (*stream == NULL) {
            tb__fd_close(&copy);
            return "";
        }
    }
    struct dirent *entry;
    while ((entry = readdir(*stream)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            return entry->d_name;
        }
    }
    closedir(*stream);
    *stream = NULL;
    return "";
}

/* Unlink all entries and then the directory, if it still has its name. A directory of that name
 * that somebody has made meanwhile is another one: if it is empty, its maker makes it again. */
static int remove_opened(int root_fd, const char *name, int fd)
{
    DIR *stream = NULL;
    for (const char *entry; *(entry = next_name(fd, &stream)) != '\0';) {
        (void)unlinkat(fd, entry, 0);
    }
    return unlinkat(root_fd, name, AT_REMOVEDIR);
}

void tb__run_directory_remove(int root_fd, const char *name)
{
    int fd = openat(root_fd, name, OPEN_DIRECTORY);
    if (fd < 0) {
        return;
    }
    /* A process that is just starting may add a name meanwhile: then once more. */
    for (int i = 0; i < REMOVE_ATTEMPTS; i++) {
        if (remove_opened(root_fd, name, fd) == 0 || errno != ENOTEMPTY) {
            break;
        }
    }
    tb__fd_close(&fd);
}

int tb__run_directory_locked(int directory_fd)
{
    int fd =
        openat(directory_fd, TB__RUN_LOCK_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    int locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    tb__fd_close(&fd);
    return locked;
}

/* Whether an endpoint answers. When in doubt it does. */
static int socket_accepts(int directory_fd, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s",
                          directory_fd, name);
    if (length < 0 || (size_t)length >= sizeof address.sun_path) {
        return 1;
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return 1;
    }
    int refused =
        connect(fd, (struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED;
    tb__fd_close(&fd);
    return !refused;
}

/* Remove sockets that refuse connections, then links that lead nowhere. Returns how many sockets
 * are left. */
static unsigned sweep_sockets(int directory_fd, void (*report)(const char *, const char *),
                              struct tb__sweep *sum)
{
    unsigned left = 0;
    struct stat info;
    DIR *stream = NULL;
    for (const char *name; *(name = next_name(directory_fd, &stream)) != '\0';) {
        if (fstatat(directory_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISSOCK(info.st_mode)) {
            continue;
        }
        if (socket_accepts(directory_fd, name)) {
            left++;
        } else if (unlinkat(directory_fd, name, 0) == 0) {
            sum->sockets++;
            if (report != NULL) {
                report("socket", name);
            }
        } else {
            sum->failed++;
        }
    }
    for (const char *name; *(name = next_name(directory_fd, &stream)) != '\0';) {
        if (fstatat(directory_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode) &&
            fstatat(directory_fd, name, &info, 0) != 0 && errno == ENOENT) {
            (void)unlinkat(directory_fd, name, 0);
        }
    }
    return left;
}

static void sweep_flow(int root_fd, const char *name, void (*report)(const char *, const char *),
                       struct tb__sweep *sum)
{
    int fd = -1;
    if (open_locked(root_fd, name, 0, &fd) != TB_OK) {
        sum->live++; /* somebody starts up in it, or it went away */
        return;
    }
    unsigned sockets_left = sweep_sockets(fd, report, sum);
    if (sockets_left > 0 || tb__run_directory_locked(fd)) {
        sum->live++;
    } else {
        struct stat info;
        if (remove_opened(root_fd, name, fd) != 0 && fstat(fd, &info) == 0 && info.st_nlink > 0) {
            sum->failed++;
        } else {
            sum->directories++;
            if (report != NULL) {
                report("directory", name);
            }
        }
    }
    tb__fd_close(&fd);
}

tb_status tb__run_root_sweep(int root_fd, void (*report)(const char *what, const char *name),
                             struct tb__sweep *out)
{
    struct tb__sweep sum = {0, 0, 0, 0};
    struct stat info;
    DIR *stream = NULL;
    for (const char *name; *(name = next_name(root_fd, &stream)) != '\0';) {
        if (tb__name_valid(name) && fstatat(root_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISDIR(info.st_mode)) {
            sweep_flow(root_fd, name, report, &sum);
        }
    }
    *out = sum;
    return TB_OK;
}

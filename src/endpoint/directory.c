/* The runtime directory and a flow's directory in it: found, made, checked, locked. Any thread;
 * only the lock waits. */
#include "endpoint/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

#define LOCK_PATIENCE_NS INT64_C(10000000000)

tb_status tb__directory_runtime_path(const char *directory, char path[TB__PATH_SIZE])
{
    const char *own = directory != NULL ? directory : getenv("TENSORBUS_DIR");
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    int length;
    if (own != NULL && own[0] != '\0') {
        length = snprintf(path, TB__PATH_SIZE, "%s", own);
    } else if (xdg != NULL && xdg[0] == '/') {
        length = snprintf(path, TB__PATH_SIZE, "%s/tensorbus", xdg);
    } else {
        length = snprintf(path, TB__PATH_SIZE, "/tmp/tensorbus-%u", (unsigned)geteuid());
    }
    if (length >= TB__PATH_SIZE - TB__NAME_SIZE - 1) {
        return TB__FAIL(TB_E_INVALID,
                        "the runtime directory's path has %d characters, at most %d "
                        "are possible: set TENSORBUS_DIR to a shorter one",
                        length, TB__PATH_SIZE - TB__NAME_SIZE - 2);
    }
    /* A slash at the end would make the system follow a symbolic link. */
    while (length > 1 && path[length - 1] == '/') {
        path[--length] = '\0';
    }
    return TB_OK;
}

/* `fd` is a directory that only this uid (and the allowed group) can enter. */
static tb_status check_safe(int borrow_fd, const char *path, uint32_t allow_gid)
{
    struct stat info;
    if (fstat(borrow_fd, &info) != 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "looking at runtime directory `%s`", path);
    }
    if (info.st_uid != geteuid()) {
        return TB__FAIL(TB_E_DENIED,
                        "runtime directory `%s` belongs to uid %u, not %u: remove it or set "
                        "TENSORBUS_DIR",
                        path, (unsigned)info.st_uid, (unsigned)geteuid());
    }
    mode_t mode = info.st_mode & 07777;
    int group_ok = allow_gid != 0 && info.st_gid == allow_gid && mode == 0770;
    if (mode != 0700 && !group_ok) {
        return TB__FAIL(TB_E_DENIED,
                        "runtime directory `%s` has mode %04o, 0700 is needed: run `chmod 700` on "
                        "it or set TENSORBUS_DIR",
                        path, (unsigned)mode);
    }
    return TB_OK;
}

/* Create one directory level if it is missing and open it without following a link. */
static tb_status open_level(int at_fd, const char *name, const char *path, uint32_t allow_gid,
                            int *out_take_fd)
{
    mode_t mode = allow_gid != 0 ? 0770 : 0700;
    int created = mkdirat(at_fd, name, mode) == 0;
    if (!created && errno != EEXIST) {
        return TB__FAIL_ERRNO(errno == ENOSPC || errno == EDQUOT ? TB_E_NOMEM : TB_E_DENIED,
                              "creating runtime directory `%s` (TENSORBUS_DIR chooses another)",
                              path);
    }
    int fd = openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && tb__fd_failure(errno) == TB_E_LIMIT) {
        return TB__FAIL_ERRNO(TB_E_LIMIT, "opening runtime directory `%s`", path);
    }
    if (fd < 0) {
        return TB__FAIL_ERRNO(errno == ENOENT ? TB_E_NOT_FOUND : TB_E_DENIED,
                              "runtime directory `%s` must be a real directory", path);
    }
    if (created) {
        /* Whatever the umask said. */
        int ignored = allow_gid != 0 ? fchown(fd, (uid_t)-1, allow_gid) : 0;
        ignored |= fchmod(fd, mode);
        (void)ignored;
    }
    tb_status status = check_safe(fd, path, allow_gid);
    if (status != TB_OK) {
        tb__fd_close(&fd);
        return status;
    }
    *out_take_fd = fd;
    return TB_OK;
}

tb_status tb__directory_open(struct tb__directory *dir, const char *directory, const char *flow,
                             uint32_t allow_gid)
{
    char path[TB__PATH_SIZE];
    TB__TRY(tb__directory_runtime_path(directory, path));
    const char *name = flow != NULL ? flow : getenv("TENSORBUS_FLOW");
    if (name == NULL || name[0] == '\0') {
        name = "default";
    }
    TB__TRY(tb__name_check("flow", name));
    int runtime_fd = -1;
    TB__TRY(open_level(AT_FDCWD, path, path, allow_gid, &runtime_fd));
    snprintf(dir->path, sizeof dir->path, "%.*s/%s", TB__PATH_SIZE - TB__NAME_SIZE - 2, path, name);
    tb_status status = open_level(runtime_fd, name, dir->path, allow_gid, &dir->flow_fd);
    tb__fd_close(&runtime_fd);
    return status;
}

void tb__directory_close(struct tb__directory *dir)
{
    tb__fd_close(&dir->flow_fd);
}

tb_status tb__directory_lock(const struct tb__directory *dir, int *out_take_fd)
{
    int fd = openat(dir->flow_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return TB__FAIL_ERRNO(errno == ENOENT ? TB_E_NOT_FOUND : tb__fd_failure(errno),
                              "opening flow directory `%s`", dir->path);
    }
    int64_t deadline = tb__deadline_ns(LOCK_PATIENCE_NS);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            tb_status status =
                TB__FAIL_ERRNO(TB_E_SYSTEM, "locking flow directory `%s`", dir->path);
            tb__fd_close(&fd);
            return status;
        }
        if (tb__left_ns(deadline) == 0) {
            tb__fd_close(&fd);
            return TB__FAIL(TB_E_SYSTEM,
                            "flow directory `%s` has been locked by another process for 10 s",
                            dir->path);
        }
        struct timespec pause = {.tv_nsec = 500000};
        nanosleep(&pause, NULL);
    }
    struct stat info;
    if (fstat(fd, &info) == 0 && info.st_nlink == 0) {
        tb__fd_close(&fd);
        return TB__FAIL(TB_E_NOT_FOUND, "flow directory `%s` was removed: its flow has ended",
                        dir->path);
    }
    *out_take_fd = fd;
    return TB_OK;
}

void tb__directory_unlock(int *take_fd)
{
    flock(*take_fd, LOCK_UN);
    tb__fd_close(take_fd);
}

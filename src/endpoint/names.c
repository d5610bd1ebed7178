/* Sockets by name. Paths never meet the length limit of socket addresses: they go through
 * /proc/self/fd/N of the directory. Names change only under the directory's lock, so there are
 * never two owners and never a moment in which a live owner's name leads nowhere. */
#include "endpoint/names.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/near.h"

#define SWEEP_MOST 64
#define EXPLAIN_MOST 4096

static void socket_name(uint64_t id, char name[32])
{
    snprintf(name, 32, "%016" PRIx64 ".sock", id);
}

static struct sockaddr_un address_of(const struct tb__directory *dir, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    /* The longest name has 64 characters and ".sock". */
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%.70s", dir->flow_fd,
             name);
    return address;
}

/* 0, or errno: says nothing, so that a probe leaves the last error alone. */
static int try_connect(const struct tb__directory *dir, const char *name, int *out_take_fd)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return errno;
    }
    struct sockaddr_un address = address_of(dir, name);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        int reason = errno;
        tb__fd_close(&fd);
        return reason;
    }
    *out_take_fd = fd;
    return 0;
}

/* A socket whose process is gone refuses, and a link may lead nowhere; anything else counts as
 * alive. What is there and cannot be found all the same is out of this process's reach: it has no
 * /proc. */
static int is_dead(const struct tb__directory *dir, const char *name)
{
    int fd = -1;
    struct stat info;
    int reason = try_connect(dir, name, &fd);
    tb__fd_close(&fd);
    return reason == ECONNREFUSED ||
           (reason == ENOENT && fstatat(dir->flow_fd, name, &info, 0) != 0);
}

/* ".<id>.tmp" or ".<id>.link": only who has the lock makes them, so others are left by the dead. */
static int is_temporary(const char *name)
{
    return name[0] == '.' && strspn(name + 1, "0123456789abcdef") == 16 &&
           (strcmp(name + 17, ".tmp") == 0 || strcmp(name + 17, ".link") == 0);
}

/* Under the lock: remove sockets of the dead, links that lead nowhere, and half-made names. */
static void sweep(const struct tb__directory *dir)
{
    int fd = openat(dir->flow_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (entries == NULL) {
        tb__fd_close(&fd);
        return;
    }
    int looked = 0;
    struct dirent *entry;
    while (looked < SWEEP_MOST && (entry = readdir(entries)) != NULL) {
        size_t length = strlen(entry->d_name);
        if (is_temporary(entry->d_name)) {
            unlinkat(dir->flow_fd, entry->d_name, 0);
        } else if (length > 5 && strcmp(entry->d_name + length - 5, ".sock") == 0) {
            looked++;
            if (is_dead(dir, entry->d_name)) {
                unlinkat(dir->flow_fd, entry->d_name, 0);
            }
        }
    }
    closedir(entries);
}

/* Under the lock: point <name>.sock at <id>.sock unless a live process has the name. */
static tb_status take_name(const struct tb__directory *dir, uint64_t id, const char *name)
{
    char link_name[TB__NAME_SIZE + 8];
    char temporary[40];
    char target[32];
    snprintf(link_name, sizeof link_name, "%s.sock", name);
    snprintf(temporary, sizeof temporary, ".%016" PRIx64 ".link", id);
    socket_name(id, target);
    struct stat info;
    if (fstatat(dir->flow_fd, link_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        !is_dead(dir, link_name)) {
        return TB__FAIL(TB_E_EXISTS,
                        "the name `%s` is in use by a running process in `%s`: choose another name "
                        "or stop that process",
                        name, dir->path);
    }
    if (symlinkat(target, dir->flow_fd, temporary) != 0 ||
        renameat(dir->flow_fd, temporary, dir->flow_fd, link_name) != 0) {
        tb_status status = TB__FAIL_ERRNO(errno == ENOSPC ? TB_E_NOMEM : TB_E_SYSTEM,
                                          "creating `%s/%s`", dir->path, link_name);
        unlinkat(dir->flow_fd, temporary, 0);
        return status;
    }
    return TB_OK;
}

/* A listening socket under a temporary name, with its final mode. */
static tb_status listen_temporary(const struct tb__directory *dir, const char *temporary,
                                  uint32_t allow_gid, int *out_take_fd)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return TB__FAIL_ERRNO(tb__fd_failure(errno), "making a socket");
    }
    struct sockaddr_un address = address_of(dir, temporary);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 1024) != 0) {
        tb_status status =
            TB__FAIL_ERRNO(errno == ENOSPC || errno == EDQUOT ? TB_E_NOMEM : TB_E_SYSTEM,
                           "creating a socket in `%s`", dir->path);
        tb__fd_close(&fd);
        return status;
    }
    if (allow_gid != 0) {
        int ignored = fchownat(dir->flow_fd, temporary, (uid_t)-1, allow_gid, 0);
        ignored |= fchmodat(dir->flow_fd, temporary, 0660, 0);
        (void)ignored;
    }
    *out_take_fd = fd;
    return TB_OK;
}

tb_status tb__names_publish(const struct tb__directory *dir, uint64_t id, const char *name,
                            uint32_t allow_gid, int *out_take_listen_fd)
{
    char temporary[40];
    char final[32];
    snprintf(temporary, sizeof temporary, ".%016" PRIx64 ".tmp", id);
    socket_name(id, final);
    int lock_fd = -1;
    TB__TRY(tb__directory_lock(dir, &lock_fd));
    sweep(dir);
    int fd = -1;
    tb_status status = listen_temporary(dir, temporary, allow_gid, &fd);
    if (status == TB_OK && renameat(dir->flow_fd, temporary, dir->flow_fd, final) != 0) {
        status = TB__FAIL_ERRNO(TB_E_SYSTEM, "creating `%s/%s`", dir->path, final);
    }
    if (status == TB_OK && name[0] != '\0') {
        status = take_name(dir, id, name);
    }
    if (status != TB_OK) {
        unlinkat(dir->flow_fd, temporary, 0);
        unlinkat(dir->flow_fd, final, 0);
        tb__fd_close(&fd);
    }
    tb__directory_unlock(&lock_fd);
    if (status == TB_OK) {
        *out_take_listen_fd = fd;
    }
    return status;
}

void tb__names_withdraw(const struct tb__directory *dir, uint64_t id, const char *name)
{
    int lock_fd = -1;
    char final[32];
    uint64_t holder;
    tb_error kept;
    tb_last_error(&kept);
    /* Without the lock, for want of a descriptor, it is as safe: the name leads to our socket,
     * which still listens, so no starter takes it; and the socket's name is nobody else's. */
    tb_status locked = tb__directory_lock(dir, &lock_fd);
    socket_name(id, final);
    if (name[0] != '\0' && tb__names_resolve(dir, name, &holder) == TB_OK && holder == id) {
        char link_name[TB__NAME_SIZE + 8];
        snprintf(link_name, sizeof link_name, "%s.sock", name);
        unlinkat(dir->flow_fd, link_name, 0);
    }
    unlinkat(dir->flow_fd, final, 0);
    if (locked == TB_OK) {
        tb__directory_unlock(&lock_fd);
    }
    /* A directory that is gone already is none of the closing caller's failures. */
    tb__error_restore(&kept);
}

/* ---- why a process could not be reached ---- */

/* Calls `look` for each entry of a directory until it returns 1. Returns whether one did, -1 when
 * the directory could not be read. */
static int find_entry(int at_fd, const char *path, int (*look)(int fd, const char *file, void *),
                      void *context)
{
    int fd = openat(at_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (entries == NULL) {
        tb__fd_close(&fd);
        return -1;
    }
    int found = 0;
    struct dirent *entry;
    for (int i = 0; !found && i < EXPLAIN_MOST && (entry = readdir(entries)) != NULL; i++) {
        found = look(dirfd(entries), entry->d_name, context);
    }
    closedir(entries);
    return found;
}

/* The name of a process by its link `<name>.sock`; 0: it is none. */
static int name_of_link(const char *file, char name[TB__NAME_SIZE])
{
    size_t length = strlen(file);
    if (length <= 5 || length - 5 >= TB__NAME_SIZE || strcmp(file + length - 5, ".sock") != 0) {
        return 0;
    }
    snprintf(name, TB__NAME_SIZE, "%.*s", (int)(length - 5), file);
    return 1;
}

static int offer_link(int fd, const char *file, void *context)
{
    struct stat info;
    char name[TB__NAME_SIZE];
    if (name_of_link(file, name) && fstatat(fd, file, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISLNK(info.st_mode)) {
        tb__near_offer(context, name);
    }
    return 0;
}

/* What tb__names_connect() has just found: there is no such socket, or its process is gone. */
static int nobody_listened(int *out_killed)
{
    tb_error last;
    tb_last_error(&last);
    *out_killed = last.errno_value == ECONNREFUSED;
    return last.status == TB_E_NOT_FOUND && (*out_killed || last.errno_value == ENOENT);
}

void tb__names_explain(const struct tb__directory *dir, const char *name)
{
    char file[TB__NAME_SIZE + 8];
    struct stat info;
    int killed;
    snprintf(file, sizeof file, "%s.sock", name);
    if (fstatat(dir->flow_fd, file, &info, AT_SYMLINK_NOFOLLOW) == 0) {
        if (nobody_listened(&killed)) {
            TB__FAIL(TB_E_NOT_FOUND,
                     "process `%s` has ended%s: start it again; its name is left in `%s`", name,
                     killed ? " without closing its bus (killed, or crashed)" : "", dir->path);
        }
        return; /* there is one, and the failure was another */
    }
    struct tb__near near;
    tb__near_begin(&near, name);
    if (find_entry(dir->flow_fd, ".", offer_link, &near) < 0) {
        return;
    }
    char text[TB__NEAR_TEXT];
    tb__near_text(&near, text);
    if (near.count == 0) {
        TB__FAIL(TB_E_NOT_FOUND,
                 "no process named `%s`: start it, or use its TENSORBUS_DIR and flow; nobody is in "
                 "`%s`",
                 name, dir->path);
    } else {
        TB__FAIL(TB_E_NOT_FOUND, "no process named `%s`: there %s %s in `%s`", name,
                 near.count == 1 ? "is" : "are", text, dir->path);
    }
}

/* ---- by endpoint id, which is all that a handle knows of its owner ---- */

struct owner_search {
    char socket[32];
    char found[TB__NAME_SIZE];
};

/* A link `<name>.sock` that leads to the socket. */
static int look_for_name(int fd, const char *file, void *context)
{
    struct owner_search *search = context;
    char target[32];
    ssize_t bytes = readlinkat(fd, file, target, sizeof target);
    return bytes == (ssize_t)strlen(search->socket) &&
           memcmp(target, search->socket, (size_t)bytes) == 0 && name_of_link(file, search->found);
}

/* A flow's directory that has the socket. */
static int look_for_flow(int fd, const char *file, void *context)
{
    struct owner_search *search = context;
    char path[TB__NAME_SIZE + sizeof search->socket];
    struct stat info;
    if (!tb__name_valid(file)) {
        return 0;
    }
    snprintf(path, sizeof path, "%s/%s", file, search->socket);
    tb__name_copy(search->found, file);
    return fstatat(fd, path, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

void tb__names_explain_owner(const struct tb__directory *dir, uint64_t id)
{
    struct owner_search search = {.found = ""};
    int killed;
    if (!nobody_listened(&killed)) {
        return;
    }
    socket_name(id, search.socket);
    if (killed) {
        int named = find_entry(dir->flow_fd, ".", look_for_name, &search) > 0;
        TB__FAIL(
            TB_E_NOT_FOUND,
            "%s%s%s with id %016" PRIx64 ", which this handle names, has ended without "
            "closing its bus (killed, or crashed), and its frames are gone: start it again and "
            "open its new handles; its socket is left in `%s`",
            named ? "process `" : "the process", named ? search.found : "", named ? "`" : "", id,
            dir->path);
    } else if (find_entry(dir->flow_fd, "..", look_for_flow, &search) > 0) {
        TB__FAIL(TB_E_NOT_FOUND,
                 "the process with id %016" PRIx64 ", which this handle names, is in flow `%s`: "
                 "open a bus of that flow (TENSORBUS_FLOW, or the option `flow`) for its handles; "
                 "this bus is in `%s`",
                 id, search.found, dir->path);
    } else {
        TB__FAIL(TB_E_NOT_FOUND,
                 "no process with id %016" PRIx64 ", which this handle names: it has closed its "
                 "bus or ended, and its frames are gone, or it uses another TENSORBUS_DIR; a "
                 "handle is to be opened while its process runs; this bus is in `%s`",
                 id, dir->path);
    }
}

tb_status tb__names_resolve(const struct tb__directory *dir, const char *name, uint64_t *out)
{
    char link_name[TB__NAME_SIZE + 8];
    char target[64];
    snprintf(link_name, sizeof link_name, "%s.sock", name);
    ssize_t length = readlinkat(dir->flow_fd, link_name, target, sizeof target - 1);
    if (length < 0) {
        return TB__FAIL(TB_E_NOT_FOUND, "no process named `%s` in `%s`", name, dir->path);
    }
    target[length] = '\0';
    char *end;
    errno = 0;
    uint64_t id = strtoull(target, &end, 16);
    if (errno != 0 || end != target + 16 || strcmp(end, ".sock") != 0 || id == 0) {
        return TB__FAIL(TB_E_NOT_FOUND, "`%s/%s` does not lead to a process", dir->path, link_name);
    }
    *out = id;
    return TB_OK;
}

tb_status tb__names_connect(const struct tb__directory *dir, uint64_t id, int *out_take_fd)
{
    char name[32];
    socket_name(id, name);
    int reason = try_connect(dir, name, out_take_fd);
    if (reason == 0) {
        return TB_OK;
    }
    if (reason == EAGAIN) {
        return TB_AGAIN;
    }
    errno = reason;
    if (tb__fd_failure(reason) == TB_E_LIMIT) {
        return TB__FAIL_ERRNO(TB_E_LIMIT, "making a socket");
    }
    if (reason == ENOENT || reason == ECONNREFUSED) {
        return TB__FAIL_ERRNO(TB_E_NOT_FOUND, "nobody listens at `%s/%s`", dir->path, name);
    }
    return TB__FAIL_ERRNO(reason == EACCES || reason == EPERM ? TB_E_DENIED : TB_E_SYSTEM,
                          "connecting to `%s/%s`", dir->path, name);
}

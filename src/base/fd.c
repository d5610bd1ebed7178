/* Descriptors and memfds. */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/size.h"

void tb__fd_close(int *fd)
{
    int kept = errno;
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    errno = kept;
}

tb_status tb__file_size_check(const char *name, uint64_t size)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        size > limit.rlim_cur) {
        char wanted[TB__SIZE_TEXT], most[TB__SIZE_TEXT];
        return TB__FAIL(TB_E_LIMIT,
                        "shared memory `%s` of %s: this process may make files of %s: raise its "
                        "limit (ulimit -f)",
                        name, tb__size_text(size, wanted), tb__size_text(limit.rlim_cur, most));
    }
    return TB_OK;
}

tb_status tb__memfd_create(const char *name, uint64_t size, int *out_take_fd)
{
    TB__TRY(tb__file_size_check(name, size));
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return TB__FAIL_ERRNO(tb__fd_failure(errno), "creating shared memory `%s`", name);
    }
    if (ftruncate(fd, (off_t)size) != 0) {
        char text[TB__SIZE_TEXT];
        tb_status status = TB__FAIL_ERRNO(TB_E_NOMEM, "sizing shared memory `%s` to %s", name,
                                          tb__size_text(size, text));
        tb__fd_close(&fd);
        return status;
    }
    tb_status status = tb__memfd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW);
    if (status != TB_OK) {
        tb__fd_close(&fd);
        return status;
    }
    *out_take_fd = fd;
    return TB_OK;
}

tb_status tb__memfd_seal(int borrow_fd, int seals)
{
    if (fcntl(borrow_fd, F_ADD_SEALS, seals) != 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM,
                              "sealing shared memory (seals 0x%x; needs Linux 5.1 or newer)",
                              (unsigned)seals);
    }
    return TB_OK;
}

tb_status tb__memfd_check(int borrow_fd, int seals, uint64_t max_bytes, int allocated,
                          uint64_t *out_bytes)
{
    int found = fcntl(borrow_fd, F_GET_SEALS);
    if (found < 0) {
        return TB__FAIL_ERRNO(TB_E_PROTOCOL, "a peer sent a descriptor that is no sealed memory");
    }
    if ((found & seals) != seals) {
        return TB__FAIL(TB_E_PROTOCOL, "a peer sent memory with seals 0x%x, 0x%x are needed",
                        (unsigned)found, (unsigned)seals);
    }
    struct stat info;
    if (fstat(borrow_fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return TB__FAIL(TB_E_PROTOCOL, "a peer sent a descriptor that is no memory file");
    }
    uint64_t bytes = (uint64_t)info.st_size;
    if (info.st_size <= 0 || bytes > max_bytes) {
        return TB__FAIL(TB_E_PROTOCOL, "a peer sent memory of %lld bytes, 1 to %llu are allowed",
                        (long long)info.st_size, (unsigned long long)max_bytes);
    }
    if (allocated && (uint64_t)info.st_blocks * 512 < bytes) {
        return TB__FAIL(TB_E_PROTOCOL, "a peer sent sparse memory: %lld of %llu bytes allocated",
                        (long long)info.st_blocks * 512, (unsigned long long)bytes);
    }
    *out_bytes = bytes;
    return TB_OK;
}

long tb__file_read(const char *path, char *buffer, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    size_t used = 0;
    ssize_t got = 1;
    while (used < size - 1 && got != 0) {
        got = read(fd, buffer + used, size - 1 - used);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            break;
        }
        used += (size_t)got;
    }
    buffer[used] = '\0';
    tb__fd_close(&fd);
    return got < 0 ? -1 : (long)used;
}

/* Descriptors: all close-on-exec, -1 when absent. */
#ifndef TB_BASE_FD_H
#define TB_BASE_FD_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Linux 5.1; older headers lack it. */
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Close *fd unless it is -1, and set it to -1. errno is kept. */
void tb__fd_close(int *fd);

/* Whether this process may make a file, or shared memory, of `size` bytes: making one beyond the
 * limit (ulimit -f) would end it by a signal. TB_E_LIMIT. */
tb_status tb__file_size_check(const char *name, uint64_t size);

/* What it means that a descriptor could not be made: too many are open, or something else. */
static inline tb_status tb__fd_failure(int reason)
{
    return reason == EMFILE || reason == ENFILE ? TB_E_LIMIT : TB_E_SYSTEM;
}

/* A memfd of `size` bytes that allows seals; SHRINK and GROW are set already. */
tb_status tb__memfd_create(const char *name, uint64_t size, int *out_take_fd);

/* Add seals (F_SEAL_*). */
tb_status tb__memfd_seal(int borrow_fd, int seals);

/* Check a descriptor that a peer sent before it is mapped: a memfd with at least `seals`, of at
 * least 1 and at most `max_bytes` bytes, whose blocks are allocated if `allocated` (a sparse giant
 * is refused). *out_bytes is its size. */
tb_status tb__memfd_check(int borrow_fd, int seals, uint64_t max_bytes, int allocated,
                          uint64_t *out_bytes);

/* Read a small file (a /proc or cgroup file) whole, or its first size - 1 bytes; terminated.
 * Returns its length, or -1 (errno) when it cannot be opened or read. */
long tb__file_read(const char *path, char *buffer, size_t size);

#endif

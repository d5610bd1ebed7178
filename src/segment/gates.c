/* Creating, mapping and sealing gates. Called by the service thread and by opening threads. */
#include "segment/gates.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "base/fd.h"

static tb_status map(int borrow_fd, struct tb__gates_shm **out)
{
    void *shm = mmap(NULL, TB__GATES_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                     borrow_fd, 0);
    if (shm == MAP_FAILED) {
        return TB__FAIL_ERRNO(TB_E_NOMEM, "mapping a reader's gates");
    }
    madvise(shm, TB__GATES_BYTES, MADV_DONTFORK);
    madvise(shm, TB__GATES_BYTES, MADV_DONTDUMP);
    *out = shm;
    return TB_OK;
}

tb_status tb__gates_create(struct tb__gates_shm **out, int *out_take_fd)
{
    int fd = -1;
    TB__TRY(tb__memfd_create("tensorbus-gates", TB__GATES_BYTES, &fd));
    tb_status status = map(fd, out);
    if (status != TB_OK) {
        tb__fd_close(&fd);
        return status;
    }
    *out_take_fd = fd;
    return TB_OK;
}

tb_status tb__gates_map(int borrow_fd, struct tb__gates_shm **out)
{
    uint64_t bytes;
    TB__TRY(tb__memfd_check(borrow_fd, F_SEAL_SHRINK | F_SEAL_GROW, TB__GATES_BYTES, 0, &bytes));
    if (bytes != TB__GATES_BYTES) {
        return TB__FAIL(TB_E_PROTOCOL, "a peer sent gates of %llu bytes, %d are needed",
                        (unsigned long long)bytes, TB__GATES_BYTES);
    }
    return map(borrow_fd, out);
}

tb_status tb__gates_seal(int borrow_fd)
{
    return tb__memfd_seal(borrow_fd, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
}

void tb__gates_unmap(struct tb__gates_shm **gates)
{
    if (*gates != NULL) {
        munmap(*gates, TB__GATES_BYTES);
        *gates = NULL;
    }
}

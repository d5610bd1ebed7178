/* Creating, mapping and sealing pages. Called by the service thread and by opening threads. */
#include "segment/page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "base/fd.h"

/* Reserve two pages: private memory in front, the shared page behind it. */
static tb_status map_behind_private(struct tb__page_map *map, uint32_t shift, int borrow_fd)
{
    uint8_t *base =
        mmap(NULL, 2 * TB__PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return TB__FAIL_ERRNO(TB_E_NOMEM, "mapping a reader's page");
    }
    void *shared = mmap(base + TB__PAGE_BYTES, TB__PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED | MAP_POPULATE, borrow_fd, 0);
    if (shared == MAP_FAILED) {
        tb_status status = TB__FAIL_ERRNO(TB_E_NOMEM, "mapping a reader's page");
        munmap(base, 2 * TB__PAGE_BYTES);
        return status;
    }
    /* A child must not hold the parent's page, nor its robust nodes. */
    madvise(base, 2 * TB__PAGE_BYTES, MADV_DONTFORK);
    madvise(base, 2 * TB__PAGE_BYTES, MADV_DONTDUMP);
    map->base = base;
    map->shm = (struct tb__page_shm *)(base + TB__PAGE_BYTES + shift);
    return TB_OK;
}

tb_status tb__page_create(struct tb__page_map *map, uint32_t shift, int *out_take_fd)
{
    int fd = -1;
    TB__TRY(tb__memfd_create("tensorbus-page", TB__PAGE_BYTES, &fd));
    tb_status status = map_behind_private(map, shift, fd);
    if (status != TB_OK) {
        tb__fd_close(&fd);
        return status;
    }
    *out_take_fd = fd;
    return TB_OK;
}

tb_status tb__page_map(struct tb__page_map *map, uint32_t shift, int borrow_fd)
{
    uint64_t bytes;
    TB__TRY(tb__memfd_check(borrow_fd, F_SEAL_SHRINK | F_SEAL_GROW, TB__PAGE_BYTES, 0, &bytes));
    if (bytes != TB__PAGE_BYTES) {
        return TB__FAIL(TB_E_PROTOCOL, "a peer sent a page of %llu bytes, %d are needed",
                        (unsigned long long)bytes, TB__PAGE_BYTES);
    }
    return map_behind_private(map, shift, borrow_fd);
}

tb_status tb__page_seal(int borrow_fd)
{
    return tb__memfd_seal(borrow_fd, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
}

void tb__page_unmap(struct tb__page_map *map)
{
    if (map->base != NULL) {
        munmap(map->base, 2 * TB__PAGE_BYTES);
        *map = (struct tb__page_map){0};
    }
}

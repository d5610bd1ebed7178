/* Mapping another process's data segment, for readers and observers. Nothing of it is believed
 * before it is checked. Users' threads. */
#include <sys/mman.h>
#include <sys/stat.h>

#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/fd.h"
#include "base/size.h"
#include "pool/segment_map.h"

#define MAX_SEGMENT_BYTES (UINT64_C(1) << 46)

/* An export is a file, which cannot be sealed; everything else is. Known weakness: an owner that
 * says that its segment is one, and cuts it short, makes its readers fault (SIGBUS). */
static tb_status check_descriptor(int borrow_fd, const struct tb__pool_wire *answer,
                                  uint64_t *out_bytes)
{
    if (answer->flags & TB__POOL_EXPORTED) {
        struct stat info;
        if (fstat(borrow_fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0 ||
            (uint64_t)info.st_size > MAX_SEGMENT_BYTES) {
            return TB__FAIL(TB_E_PROTOCOL,
                            "pool `%s`: its segment is no file of a size that is "
                            "possible",
                            answer->name);
        }
        *out_bytes = (uint64_t)info.st_size;
        return TB_OK;
    }
    return tb__memfd_check(borrow_fd,
                           F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL,
                           MAX_SEGMENT_BYTES, 0, out_bytes);
}

/* A sparse file is not populated, so a hostile owner cannot make us allocate its giant. */
static int is_allocated(int borrow_fd, uint64_t bytes)
{
    struct stat info;
    return fstat(borrow_fd, &info) == 0 && (uint64_t)info.st_blocks * 512 >= bytes;
}

/* Fault every page in, so that a later read never does. The kernel maps 64 KiB around a fault, so
 * one touch per 64 KiB and then one per page takes half the time of MAP_POPULATE (123 MB: 5.4 ms
 * instead of 8.6 to 14). Only what is sealed against shrinking and holes: nothing can be missing.
 */
static void touch_all(const uint8_t *base, uint64_t bytes)
{
    static const uint64_t strides[] = {65536, 4096};
    for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++) {
        for (uint64_t at = 0; at < bytes; at += strides[i]) {
            (void)*(const volatile uint8_t *)(base + at);
        }
    }
}

tb_status tb__segment_map(struct tb__segment *segment, int borrow_fd,
                          const struct tb__pool_wire *answer, int populate)
{
    uint64_t bytes;
    TB__TRY(check_descriptor(borrow_fd, answer, &bytes));
    if (bytes != answer->segment_bytes) {
        return TB__FAIL(TB_E_CORRUPT, "pool `%s`: segment of %llu bytes, %llu announced",
                        answer->name, (unsigned long long)bytes,
                        (unsigned long long)answer->segment_bytes);
    }
    populate = populate && is_allocated(borrow_fd, bytes);
    int exported = (answer->flags & TB__POOL_EXPORTED) != 0;
    int flags = MAP_SHARED | (populate && exported ? MAP_POPULATE : 0);
    uint8_t *base = mmap(NULL, bytes, PROT_READ, flags, borrow_fd, 0);
    if (base == MAP_FAILED) {
        char text[TB__SIZE_TEXT];
        return TB__FAIL_ERRNO(TB_E_NOMEM, "pool `%s`: mapping %s", answer->name,
                              tb__size_text(bytes, text));
    }
    madvise(base, bytes, MADV_DONTDUMP);
    segment->base = base;
    segment->view.segment_bytes = bytes;
    struct tb__doradma_view view;
    TB__TRY(tb__doradma_check(base, bytes, &view));
    if (memcmp(view.uid, answer->uid, sizeof view.uid) != 0) {
        return TB__FAIL(TB_E_CORRUPT, "pool `%s`: its segment carries another pool's uid",
                        answer->name);
    }
    if (view.segment_bytes != bytes) {
        return TB__FAIL(TB_E_CORRUPT, "pool `%s`: segment_bytes %llu in the header, %llu mapped",
                        answer->name, (unsigned long long)view.segment_bytes,
                        (unsigned long long)bytes);
    }
    segment->view = view;
    tb__segment_bind(segment);
    if (populate && !exported) {
        touch_all(base, bytes);
    }
    return TB_OK;
}

tb_status tb__window_of(int borrow_fd, uint64_t offset, uint64_t bytes, struct tb__window *out)
{
    struct stat info;
    if (fstat(borrow_fd, &info) != 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "looking at descriptor %d", borrow_fd);
    }
    /* Of huge pages, the size of one; else at least the kernel's. */
    uint64_t page = info.st_blksize > TB__SEGMENT_PAGE ? (uint64_t)info.st_blksize : 0;
    long kernel = sysconf(_SC_PAGESIZE);
    if (page == 0 || page % (uint64_t)kernel != 0) {
        page = (uint64_t)kernel;
    }
    out->skip = offset % page;
    out->offset = offset - out->skip;
    out->bytes = (out->skip + bytes + page - 1) / page * page;
    return TB_OK;
}

tb_status tb__slots_map(struct tb__segment *segment, int borrow_fd, const char *name, int populate)
{
    const struct tb__doradma_view *view = &segment->view;
    struct tb__window window;
    uint64_t extent, found;
    TB__TRY(tb__memfd_check(borrow_fd, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE, INT64_MAX, 0, &found));
    if (!tb__doradma_extent(view->slot_stride, view->slot_count, view->slot_bytes, &extent) ||
        !tb__range_fits(view->device_offset, extent, found)) {
        return TB__FAIL(TB_E_CORRUPT, "pool `%s`: slots of %llu bytes in memory of %llu", name,
                        (unsigned long long)extent, (unsigned long long)found);
    }
    /* What is not used of it may be sparse, the slots may not. */
    struct stat info;
    if (fstat(borrow_fd, &info) != 0 || (uint64_t)info.st_blocks * 512 < extent) {
        return TB__FAIL(TB_E_PROTOCOL, "pool `%s`: its owner sent sparse memory", name);
    }
    TB__TRY(tb__window_of(borrow_fd, view->device_offset, extent, &window));
    int flags = MAP_SHARED | (populate ? MAP_POPULATE : 0);
    void *map = mmap(NULL, window.bytes, PROT_READ, flags, borrow_fd, (off_t)window.offset);
    if (map == MAP_FAILED) {
        char text[TB__SIZE_TEXT];
        return TB__FAIL_ERRNO(TB_E_NOMEM, "pool `%s`: mapping %s", name,
                              tb__size_text(window.bytes, text));
    }
    madvise(map, window.bytes, MADV_DONTDUMP);
    segment->slots_map = map;
    segment->slots_map_bytes = window.bytes;
    segment->data = (uint8_t *)map + window.skip;
    return TB_OK;
}

void tb__segment_unmap(struct tb__segment *segment)
{
    if (segment->slots_map != NULL) {
        munmap(segment->slots_map, segment->slots_map_bytes);
        segment->slots_map = NULL;
    }
    if (segment->base != NULL) {
        munmap(segment->base, segment->view.segment_bytes);
        segment->base = NULL;
    }
}

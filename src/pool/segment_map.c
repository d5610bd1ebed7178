/* Mapping another process's data segment, for readers and observers. Nothing of it is believed
 * before it is checked. Users' threads. */
#include <sys/mman.h>
#include <sys/stat.h>

#include <string.h>

#include "base/fd.h"
#include "base/size.h"
#include "pool/state.h"

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

/* Who reads frames maps populated if the owner has allocated all of it: then a later read never
 * faults. A sparse file is not populated, so a hostile owner cannot make us allocate its giant. */
static int map_flags(int borrow_fd, uint64_t bytes, int populate)
{
    struct stat info;
    int allocated = fstat(borrow_fd, &info) == 0 && (uint64_t)info.st_blocks * 512 >= bytes;
    return MAP_SHARED | (populate && allocated ? MAP_POPULATE : 0);
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
    uint8_t *base =
        mmap(NULL, bytes, PROT_READ, map_flags(borrow_fd, bytes, populate), borrow_fd, 0);
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
    return TB_OK;
}

void tb__segment_unmap(struct tb__segment *segment)
{
    if (segment->base != NULL) {
        munmap(segment->base, segment->view.segment_bytes);
        segment->base = NULL;
    }
}

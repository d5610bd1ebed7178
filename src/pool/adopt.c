/* Adopting: what is given is looked at, made such that readers can do no harm with it, and
 * described to them. Users' threads. See tensorbus/adopt.h. */
#define TB_LOG_TOPIC "pool"
#include "pool/adopt.h"
#include "pool/segment_map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/size.h"
#include "cuda/driver.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

/* What is being adopted. */
struct adopting {
    tb_pool *pool;
    const tb_pool_options *options;
    tb_adoption given;
    struct tb__doradma_spec *spec;
    uint64_t extent; /* bytes from slot 0 to the end of the last slot */
};

/* ---- what is given ---- */

static tb_status check_slots(struct adopting *it)
{
    const char *name = it->pool->name;
    struct tb__doradma_spec *spec = it->spec;
    uint64_t unit = (spec->dtype >> 8 & 255) / 8; /* a lane's */
    unit = unit > 0 ? unit : 1;
    spec->slot_stride = it->given.stride_bytes != 0 ? it->given.stride_bytes : spec->slot_bytes;
    if (spec->slot_bytes == 0) {
        return TB__FAIL(
            TB_E_INVALID,
            "pool `%s`: slots of 0 bytes: there is nothing to adopt: give it a shape with "
            "elements, or leave adopt NULL",
            name);
    }
    if (spec->slot_stride < spec->slot_bytes) {
        return TB__FAIL(TB_E_INVALID,
                        "pool `%s`: slots of %" PRIu64 " bytes would overlap, %" PRIu64
                        " bytes apart: make stride_bytes larger, or 0",
                        name, spec->slot_bytes, spec->slot_stride);
    }
    if (!tb__doradma_extent(spec->slot_stride, spec->slots, spec->slot_bytes, &it->extent) ||
        it->extent > INT64_MAX) {
        return TB__FAIL(TB_E_LIMIT,
                        "pool `%s`: %u slots, %" PRIu64
                        " bytes apart: that overflows: make stride_bytes smaller",
                        name, spec->slots, spec->slot_stride);
    }
    if (it->given.bytes != 0 && it->extent > it->given.bytes) {
        return TB__FAIL(TB_E_INVALID,
                        "pool `%s`: %u slots of %" PRIu64 " bytes, %" PRIu64
                        " bytes apart, take %" PRIu64 " bytes, and %" PRIu64 " are there: use "
                        "fewer slots",
                        name, spec->slots, spec->slot_bytes, spec->slot_stride, it->extent,
                        it->given.bytes);
    }
    uint64_t first =
        it->given.by == TB_ADOPT_ADDRESS ? (uint64_t)(uintptr_t)it->given.data : it->given.offset;
    if (first % unit != 0 || spec->slot_stride % unit != 0) {
        return TB__FAIL(TB_E_INVALID,
                        "pool `%s`: slots from byte %" PRIu64 " on, %" PRIu64 " bytes apart: both "
                        "must be multiples of an element's %" PRIu64 " bytes",
                        name, first, spec->slot_stride, unit);
    }
    return TB_OK;
}

static tb_status check_given(struct adopting *it)
{
    const tb_adoption *given = &it->given;
    const tb_pool_options *options = it->options;
    const char *name = it->pool->name;
    if ((int)given->by < TB_ADOPT_ADDRESS || given->by > TB_ADOPT_DMABUF) {
        return TB__FAIL(TB_E_INVALID,
                        "pool `%s`: adopting by %d is not known: say TB_ADOPT_ADDRESS, "
                        "TB_ADOPT_MEMFD or TB_ADOPT_DMABUF",
                        name, (int)given->by);
    }
    if (given->by == TB_ADOPT_ADDRESS ? given->data == NULL || given->offset != 0
                                      : given->fd < 0 || fcntl(given->fd, F_GETFD) < 0) {
        return TB__FAIL(TB_E_INVALID,
                        given->by == TB_ADOPT_ADDRESS
                            ? "pool `%s`: an adoption by address has `data`, and no offset: say in "
                              "data where slot 0 lies"
                            : "pool `%s`: an adoption by descriptor needs one that is open",
                        name);
    }
    if (given->by == TB_ADOPT_DMABUF && given->data != NULL) {
        return TB__FAIL(
            TB_E_INVALID,
            "pool `%s`: where a DMA-BUF lies for a GPU says its driver: leave data NULL", name);
    }
    if (options->lock_memory) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool `%s`: lock_memory is for a pool's own memory: lock adopted memory "
                        "before, with mlock()",
                        name);
    }
    return check_slots(it);
}

/* ---- a GPU's memory ---- */

static tb_status check_gpu(const struct adopting *it, const struct tb__gpu *gpu)
{
    const tb_pool_options *options = it->options;
    const struct tb__gpu *wanted = gpu;
    if (options->device != TB_CPU) {
        TB__TRY(tb__gpu_of_device(options->device, &wanted));
    }
    if (wanted != gpu) {
        return TB__FAIL(
            TB_E_MISMATCH,
            "pool `%s` on cuda:%d: the memory to adopt lies on cuda:%d: say that one, or "
            "leave the device 0",
            it->pool->name, wanted->ordinal, gpu->ordinal);
    }
    if (options->pinned || options->copy_threads > 1) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool `%s`: pinned and copy_threads are for host memory, and the memory to "
                        "adopt is a GPU's",
                        it->pool->name);
    }
    return TB_OK;
}

static tb_status on_gpu(struct adopting *it)
{
    it->spec->flags |= TB__GEOMETRY_ADOPTED | TB__GEOMETRY_DEVICE;
    it->pool->proto.device = tb__device_id(it->pool->device);
    return TB_OK;
}

/* dora's readers take an IPC handle for slot 0. */
static tb_status check_export(const struct adopting *it, const struct tb__adopted *adopted)
{
    if (it->options->doradma_name == NULL ||
        (adopted->memory.kind == TB__DEVICE_IPC && adopted->offset == 0)) {
        return TB_OK;
    }
    return TB__FAIL(
        TB_E_UNSUPPORTED,
        "pool `%s`: foreign readers (doradma_name) take plain memory from its beginning "
        "on, by a legacy IPC handle; this is %s, from byte %" PRIu64 " on: use memory of "
        "cudaMalloc(), or a pool's own",
        it->pool->name, tb__device_kind_name(adopted->memory.kind), adopted->offset);
}

static tb_status adopt_device(struct adopting *it, struct tb__adopted *adopted)
{
    tb_status status = check_gpu(it, adopted->gpu);
    if (status == TB_OK) {
        status = check_export(it, adopted);
    }
    if (status != TB_OK) {
        tb__adopted_release(adopted);
        return status;
    }
    TB__TRY(tb__device_share_adopt(adopted, it->spec, &it->pool->device, &it->pool->device_fd));
    return on_gpu(it);
}

static tb_status adopt_dmabuf(struct adopting *it)
{
    tb_pool *pool = it->pool;
    uint64_t bytes;
    if (it->options->device == TB_CPU) {
        return TB__FAIL(TB_E_INVALID,
                        "pool `%s`: a DMA-BUF is adopted for a GPU: name one in the options (or "
                        "copy what the CPU has mapped of it into a pool)",
                        pool->name);
    }
    if (it->options->doradma_name != NULL) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool `%s`: foreign readers (doradma_name) know no DMA-BUF: use a pool's "
                        "own memory",
                        pool->name);
    }
    off_t end = lseek(it->given.fd, 0, SEEK_END);
    if (!tb__add(it->given.offset, it->extent, &bytes) || bytes > INT64_MAX ||
        (end >= 0 && bytes > (uint64_t)end)) {
        return TB__FAIL(TB_E_INVALID,
                        "pool `%s`: slots of %" PRIu64 " bytes in all, from byte %" PRIu64
                        " of a DMA-BUF of %lld bytes on",
                        pool->name, it->extent, it->given.offset, (long long)end);
    }
    /* All of it, where its size is known: drivers import whole buffers. */
    bytes = end > 0 ? (uint64_t)end : bytes;
    it->spec->device_offset = it->given.offset;
    TB__TRY(tb__device_share_dmabuf(it->options->device, it->given.fd, bytes, it->spec,
                                    &pool->device, &pool->device_fd));
    const struct tb__gpu *gpu = tb__device_gpu(pool->device);
    TB__TRY(check_gpu(it, gpu));
    return on_gpu(it);
}

/* ---- host memory ---- */

static const char *seal_names(int seals, char text[64])
{
    snprintf(text, 64, "%s%s%s%s", seals & F_SEAL_SHRINK ? " SHRINK" : "",
             seals & F_SEAL_GROW ? " GROW" : "", seals & F_SEAL_FUTURE_WRITE ? " FUTURE_WRITE" : "",
             seals & F_SEAL_SEAL ? " SEAL" : "");
    return text;
}

/* Whether a descriptor has, or can get, what keeps readers from doing harm. */
static tb_status check_seals(const struct adopting *it, int fd)
{
    const char *name = it->pool->name;
    int found = fcntl(fd, F_GET_SEALS);
    if (found < 0) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool `%s`: descriptor %d is no memfd, so nothing could keep a reader from "
                        "writing it, nor from faulting when it is cut short: use memory of "
                        "memfd_create(..., MFD_ALLOW_SEALING), or a pool's own",
                        name, fd);
    }
    if (found & F_SEAL_WRITE) {
        return TB__FAIL(
            TB_E_UNSUPPORTED,
            "pool `%s`: descriptor %d is sealed against writing, and slots are written: "
            "leave F_SEAL_WRITE away",
            name, fd);
    }
    int missing = SEALS & ~found;
    if (missing != 0 && (found & F_SEAL_SEAL)) {
        char text[64];
        return TB__FAIL(
            TB_E_UNSUPPORTED,
            "pool `%s`: descriptor %d lacks the seals%s and takes no more: without them "
            "a reader could write it, or fault: make it with MFD_ALLOW_SEALING, or use "
            "a pool's own memory",
            name, fd, seal_names(missing, text));
    }
    return TB_OK;
}

/* *out is the file's size. */
static tb_status check_file(const struct adopting *it, int fd, uint64_t offset, uint64_t *out)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "pool `%s`: looking at descriptor %d", it->pool->name,
                              fd);
    }
    *out = (uint64_t)info.st_size;
    if (info.st_size <= 0 || !tb__range_fits(offset, it->extent, *out)) {
        return TB__FAIL(TB_E_INVALID,
                        "pool `%s`: slots of %" PRIu64 " bytes in all, from byte %" PRIu64
                        " of memory of %lld bytes on: make it larger, or use fewer slots",
                        it->pool->name, it->extent, offset, (long long)info.st_size);
    }
    return TB_OK;
}

/* Allocated now, so that no loan's first touch can fail. */
static tb_status allocate(const struct adopting *it, int fd, uint64_t offset)
{
    int failed;
    do {
        failed = posix_fallocate(fd, (off_t)offset, (off_t)it->extent);
    } while (failed == EINTR);
    if (failed != 0) {
        char size[TB__SIZE_TEXT];
        errno = failed;
        return TB__FAIL_ERRNO(TB_E_NOMEM, "pool `%s`: allocating %s of descriptor %d",
                              it->pool->name, tb__size_text(it->extent, size), fd);
    }
    return TB_OK;
}

static tb_status map_here(struct adopting *it, int fd, uint64_t offset)
{
    struct tb__adoption *adoption = &it->pool->adoption;
    struct tb__window window;
    TB__TRY(tb__window_of(fd, offset, it->extent, &window));
    void *map = mmap(NULL, window.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                     (off_t)window.offset);
    if (map == MAP_FAILED) {
        int seals = fcntl(fd, F_GET_SEALS);
        return errno == EPERM && seals > 0 && (seals & F_SEAL_FUTURE_WRITE)
                   ? TB__FAIL_ERRNO(TB_E_UNSUPPORTED,
                                    "pool `%s`: descriptor %d is sealed with FUTURE_WRITE: it "
                                    "cannot be mapped writable any more; say in `data` where it "
                                    "was before",
                                    it->pool->name, fd)
                   : TB__FAIL_ERRNO(TB_E_NOMEM, "pool `%s`: mapping descriptor %d", it->pool->name,
                                    fd);
    }
    madvise(map, window.bytes, MADV_DONTFORK);
    madvise(map, window.bytes, MADV_DONTDUMP);
    adoption->map = map;
    adoption->map_bytes = window.bytes;
    adoption->slots = (uint8_t *)map + window.skip;
    return TB_OK;
}

static tb_status adopt_memfd(struct adopting *it, int fd, uint64_t offset, void *data)
{
    tb_pool *pool = it->pool;
    if (it->options->device != TB_CPU) {
        return TB__FAIL(TB_E_MISMATCH,
                        "pool `%s`: the memory to adopt is the host's: leave the device TB_CPU",
                        pool->name);
    }
    if (it->options->doradma_name != NULL) {
        return TB__FAIL(
            TB_E_UNSUPPORTED,
            "pool `%s`: foreign readers (doradma_name) look for slots behind the header "
            "of a file in /dev/shm: use a pool's own memory",
            pool->name);
    }
    TB__TRY(check_file(it, fd, offset, &it->spec->device_bytes));
    TB__TRY(check_seals(it, fd));
    if (data != NULL) {
        TB__TRY(tb__mapping_check(data, it->extent, fd, offset));
    }
    TB__TRY(allocate(it, fd, offset));
    if (data != NULL) {
        pool->adoption.slots = data;
    } else {
        TB__TRY(map_here(it, fd, offset));
    }
    pool->device_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (pool->device_fd < 0) {
        return TB__FAIL_ERRNO(tb__fd_failure(errno), "pool `%s`: keeping descriptor %d", pool->name,
                              fd);
    }
    if ((fcntl(fd, F_GET_SEALS) & SEALS) != SEALS) {
        TB__TRY(tb__memfd_seal(fd, SEALS));
    }
    it->spec->device_kind = TB__PLACE_MEMFD;
    it->spec->device_offset = offset;
    it->spec->flags |= TB__GEOMETRY_ADOPTED;
    return TB_OK;
}

/* ---- any ---- */

static tb_status adopt_address(struct adopting *it)
{
    struct tb__adopted adopted;
    tb_memory *own = NULL;
    tb_error kept;
    tb_last_error(&kept);
    /* Another library may have opened the driver and allocated this: without asking it every
     * address is the CPU's. Where there is none, it is. */
    if (tb_memory_find(it->given.data, &own) != TB_OK && tb__cuda_need() == TB_E_FORKED) {
        return TB_E_FORKED;
    }
    tb__error_restore(&kept);
    TB__TRY(tb__adopt(it->given.data, it->extent, &adopted));
    if (adopted.kind != TB_MEMORY_SHARED_PINNED) {
        return adopt_device(it, &adopted);
    }
    int fd = adopted.borrow_fd;
    uint64_t offset = adopted.offset;
    tb__adopted_release(&adopted);
    return adopt_memfd(it, fd, offset, it->given.data);
}

tb_status tb__pool_adopt(tb_pool *pool, const tb_pool_options *options,
                         struct tb__doradma_spec *spec)
{
    struct adopting it = {.pool = pool, .options = options, .spec = spec};
    TB__OPTIONS(tb_adoption, options->adopt, &it.given);
    TB__TRY(check_given(&it));
    TB__TRY(tb__watch_start(pool->layer)); /* it tells the user when the memory is free */
    tb_status status = it.given.by == TB_ADOPT_ADDRESS ? adopt_address(&it)
                       : it.given.by == TB_ADOPT_MEMFD
                           ? adopt_memfd(&it, it.given.fd, it.given.offset, it.given.data)
                           : adopt_dmabuf(&it);
    TB__TRY(status);
    pool->adoption.on = 1;
    pool->adoption.release = it.given.release;
    pool->adoption.context = it.given.context;
    return TB_OK;
}

void tb__adoption_fini(tb_pool *pool)
{
    struct tb__adoption *adoption = &pool->adoption;
    if (adoption->map != NULL && !tb__bus_keeps_mapped(pool->bus)) {
        munmap(adoption->map, adoption->map_bytes);
        adoption->map = NULL;
    }
}

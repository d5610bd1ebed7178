/* Pools of dora's own nodes, as its readers see them: a file, a seqlock at byte 96, and, for a
 * GPU's, a legacy IPC handle. Nothing of the file is believed before it is checked. Users' threads.
 */
#include <tensorbus/dora_pool.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cuda/device_memory.h"
#include "segment/atomics.h"
#include "segment/doradma.h"

#define PREFIX "dora_pool_"
#define NAME_MOST 255
#define LOOK_NS INT64_C(1000000)
#define HEAD_BYTES (TB__DORADMA_HEADER_BYTES + TB__DORADMA_JSON_MAX)

struct tb_dora_pool {
    char name[NAME_MOST + 1];
    int fd;
    uint8_t *base; /* mapped read-only; NULL: not yet */
    uint64_t bytes;
    struct tb__doradma_view view;
    struct tb__device_memory memory; /* of a GPU's pool */
    tb_tensor tensor;
};

/* ---- the file ---- */

static tb_status check_name(const char *name)
{
    size_t length = strlen(name);
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0 || strchr(name, '/') != NULL ||
        length > NAME_MOST) {
        return TB__FAIL(TB_E_INVALID,
                        "`%.100s` names no pool of dora's: those begin with `" PREFIX "`, have no "
                        "`/`, and %d characters at most",
                        name, NAME_MOST);
    }
    return TB_OK;
}

/* The head is read, not mapped: a page that its maker has not written yet is not allocated by that
 * (in a full /dev/shm the fault would kill us), nor is one missed that is cut off just now. */
static tb_status check_head(tb_dora_pool *pool, const char *path)
{
    _Alignas(struct tb__doradma_header) uint8_t head[HEAD_BYTES] = {0};
    ssize_t got;
    do {
        got = pread(pool->fd, head, sizeof head, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "pool of dora's: reading `%s`", path);
    }
    if (memcmp(head, (uint8_t[8]){0}, 8) == 0) {
        return TB__FAIL(TB_E_NOT_FOUND, "pool of dora's: `%s` is not filled yet", path);
    }
    return tb__doradma_check_any(head, pool->bytes, &pool->view);
}

static tb_status map_file(tb_dora_pool *pool)
{
    char path[NAME_MOST + 16];
    struct stat info;
    snprintf(path, sizeof path, "/dev/shm/%s", pool->name);
    /* Anybody may make files there: a pipe must not hold us up. */
    pool->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (pool->fd < 0) {
        return TB__FAIL_ERRNO(errno == ENOENT   ? TB_E_NOT_FOUND
                              : errno == EACCES ? TB_E_DENIED
                                                : tb__fd_failure(errno),
                              "pool of dora's: opening `%s`", path);
    }
    if (fstat(pool->fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return TB__FAIL(TB_E_CORRUPT, "pool of dora's: `%s` is no file", path);
    }
    if (info.st_size < TB__DORADMA_HEADER_BYTES) {
        return TB__FAIL(TB_E_NOT_FOUND, "pool of dora's: `%s` has %lld bytes: it is not filled yet",
                        path, (long long)info.st_size);
    }
    pool->bytes = (uint64_t)info.st_size;
    TB__TRY(check_head(pool, path));
    void *base = mmap(NULL, pool->bytes, PROT_READ, MAP_SHARED, pool->fd, 0);
    if (base == MAP_FAILED) {
        return TB__FAIL_ERRNO(TB_E_NOMEM, "pool of dora's: mapping `%s`", path);
    }
    pool->base = base;
    madvise(base, pool->bytes, MADV_DONTDUMP);
    return TB_OK;
}

static void unmap_file(tb_dora_pool *pool)
{
    if (pool->base != NULL) {
        munmap(pool->base, pool->bytes);
        pool->base = NULL;
    }
    tb__fd_close(&pool->fd);
}

/* The pool that a mirror was made of, if it is here. */
static void follow_mirror(tb_dora_pool *pool)
{
    const char *origin = pool->view.sender_shmem;
    if (origin[0] == '\0' || strcmp(origin, pool->name) == 0) {
        return;
    }
    tb_error kept;
    tb_last_error(&kept);
    tb_dora_pool other = {.fd = -1};
    snprintf(other.name, sizeof other.name, "%s", origin);
    if (check_name(origin) == TB_OK && map_file(&other) == TB_OK &&
        other.view.sender_shmem[0] == '\0') {
        unmap_file(pool);
        *pool = other;
    } else {
        unmap_file(&other);
    }
    tb__error_restore(&kept);
}

/* ---- a GPU's memory ---- */

static tb_status import_on(tb_dora_pool *pool, const struct tb__gpu *gpu)
{
    return tb__device_import_ipc(gpu, pool->view.ipc_handle, pool->view.tensor_bytes,
                                 &pool->memory);
}

/* The handle does not say on which GPU its memory lies: the current one, or one that can. */
static tb_status import_anywhere(tb_dora_pool *pool)
{
    const struct tb__gpu *first;
    int count = 0;
    TB__TRY(tb__gpu_current(&first));
    TB__TRY(tb__gpu_count(&count));
    tb_status status = import_on(pool, first);
    tb_error error;
    tb_last_error(&error);
    for (int i = 0; i < count && status != TB_OK; i++) {
        const struct tb__gpu *gpu = NULL;
        if (i != first->ordinal && tb__gpu_get(i, &gpu) == TB_OK) {
            status = import_on(pool, gpu);
        }
    }
    if (status != TB_OK) {
        tb__error_restore(&error); /* what the current one said tells most */
        return error.status;
    }
    return TB_OK;
}

static tb_status import(tb_dora_pool *pool, tb_device device)
{
    const struct tb__gpu *gpu;
    tb_error kept;
    tb_last_error(&kept);
    TB__TRY(tb__cuda_need());
    if (device != TB_CPU) {
        TB__TRY(tb__gpu_of_device(device, &gpu));
        TB__TRY(import_on(pool, gpu));
    } else {
        TB__TRY(import_anywhere(pool));
        tb__error_restore(&kept); /* one that could not is no failure */
    }
    pool->tensor.device = TB_CUDA(pool->memory.gpu->ordinal);
    pool->tensor.data = (void *)(uintptr_t)pool->memory.ptr;
    return TB_OK;
}

/* ---- life ---- */

static tb_status locate(tb_dora_pool *pool, tb_device device)
{
    const struct tb__doradma_view *view = &pool->view;
    uint64_t unit = (view->dtype >> 8 & 255) / 8;
    pool->tensor = (tb_tensor){.dtype = view->dtype, .ndim = view->ndim};
    memcpy(pool->tensor.shape, view->shape, sizeof pool->tensor.shape);
    if (view->ipc_present) {
        return import(pool, device);
    }
    if (!view->foreign && (view->slot_count != 1 || view->device_kind != TB__PLACE_SEGMENT)) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "`%s` is a pool of this library's that was not made for foreign readers: "
                        "open it with tb_reader_open()",
                        pool->name);
    }
    if (device != TB_CPU) {
        return TB__FAIL(TB_E_MISMATCH,
                        "pool of dora's `%s` lies in host memory: say TB_CPU, and copy to the GPU",
                        pool->name);
    }
    if (view->data_offset % (unit > 0 ? unit : 1) != 0) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool of dora's `%s`: its tensor begins at byte %" PRIu64
                        ", which is not aligned to elements of %" PRIu64
                        " bytes (mirrors are made so): read it where it was made",
                        pool->name, view->data_offset, unit);
    }
    pool->tensor.data = pool->base + view->data_offset;
    return TB_OK;
}

tb_status tb_dora_pool_open(const char *name, tb_device device, tb_dora_pool **out)
{
    if (name == NULL || out == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_dora_pool_open() with NULL");
    }
    TB__TRY(check_name(name));
    tb_dora_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a pool of dora's");
    }
    pool->fd = pool->memory.fd = -1;
    snprintf(pool->name, sizeof pool->name, "%s", name);
    tb_status status = map_file(pool);
    if (status == TB_OK) {
        follow_mirror(pool);
        pool->memory.fd = -1;
        status = locate(pool, device);
    }
    if (status != TB_OK) {
        tb_error kept;
        tb_last_error(&kept);
        tb_dora_pool_close(pool);
        tb__error_restore(&kept);
        return status;
    }
    *out = pool;
    return TB_OK;
}

void tb_dora_pool_close(tb_dora_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    if (pool->memory.gpu != NULL) {
        tb__device_free(&pool->memory);
    }
    unmap_file(pool);
    free(pool);
}

/* ---- reading ---- */

static const struct tb__a64 *word_of(const tb_dora_pool *pool)
{
    return (const struct tb__a64 *)(const void *)(pool->base + TB__DORADMA_GEN_OFFSET);
}

static tb_status check_file(const tb_dora_pool *pool)
{
    struct stat info;
    if (fstat(pool->fd, &info) != 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "pool of dora's `%s`", pool->name);
    }
    if ((uint64_t)info.st_size < pool->bytes) {
        return TB__FAIL(TB_E_CORRUPT,
                        "pool of dora's `%s` was cut short: %lld of %" PRIu64 " bytes", pool->name,
                        (long long)info.st_size, pool->bytes);
    }
    if (info.st_nlink == 0) {
        return TB__FAIL(TB_E_FREED,
                        "pool of dora's `%s` was removed: open the one that replaces it",
                        pool->name);
    }
    return TB_OK;
}

tb_status tb_dora_pool_read(tb_dora_pool *pool, uint64_t after, int64_t timeout_ns, tb_tensor *out,
                            uint64_t *generation)
{
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    if (pool == NULL || out == NULL || generation == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_dora_pool_read() with NULL");
    }
    int64_t deadline_ns = tb__deadline_ns(timeout_ns);
    for (;;) {
        TB__TRY(check_file(pool));
        /* Pairs with the writer's release store behind the payload. dora begins with 0: nothing. */
        uint64_t g = tb__a64_load_acquire(word_of(pool));
        if (g != 0 && g % 2 == 0 && g != after) {
            *out = pool->tensor;
            *generation = g;
            return TB_OK;
        }
        if (tb__left_ns(deadline_ns) == 0) {
            return TB__FAIL(TB_AGAIN, "pool of dora's `%s`: generation %" PRIu64 ": %s", pool->name,
                            g,
                            g == 0       ? "nothing was written"
                            : g % 2 != 0 ? "a write is not over"
                                         : "nothing new");
        }
        nanosleep(&pause, NULL);
    }
}

tb_status tb_dora_pool_check(const tb_dora_pool *pool, uint64_t generation)
{
    if (pool == NULL) {
        return TB__FAIL(TB_E_INVALID, "pool is NULL");
    }
    /* What was read of the payload was read before the look. */
    tb__fence_acquire();
    uint64_t now = tb__a64_load_relaxed(word_of(pool));
    return now == generation ? TB_OK
                             : TB__FAIL(TB_E_STALE,
                                        "pool of dora's `%s`: generation %" PRIu64
                                        " was overwritten (%" PRIu64 " now): read it again",
                                        pool->name, generation, now);
}

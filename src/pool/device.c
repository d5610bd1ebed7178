/* See device.h. Allocations are found again by the pool's uid within the process, so that a reader
 * in the owner's own process, or a second reader, uses the pointer that is there. Users' threads.
 */
#include "pool/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <tensorbus/reader.h>

#include "base/error.h"

struct tb__device_share {
    struct tb__device_share *next;
    uint8_t uid[16];
    uint32_t users;
    const struct tb__gpu *gpu; /* on which it is mapped here */
    struct tb__device_memory memory;
    uint64_t offset;               /* of slot 0 */
    struct tb__adopted adopted;    /* `memory` is a view of it */
    int is_adopted;                /* the memory stays its user's */
    struct tb__device_share *base; /* the owner's, of which this is another GPU's view */
};

static pthread_mutex_t shares_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct tb__device_share *shares;

/* Mutex held. */
static struct tb__device_share *find(const uint8_t *uid, const struct tb__gpu *gpu)
{
    struct tb__device_share *at = shares;
    while (at != NULL && !(memcmp(at->uid, uid, sizeof at->uid) == 0 && at->gpu == gpu)) {
        at = at->next;
    }
    return at;
}

static tb_status create(const uint8_t *uid, const struct tb__gpu *gpu,
                        struct tb__device_share **out)
{
    struct tb__device_share *share = calloc(1, sizeof *share);
    if (share == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a pool on a GPU");
    }
    memcpy(share->uid, uid, sizeof share->uid);
    share->gpu = gpu;
    share->users = 1;
    *out = share;
    return TB_OK;
}

static void link_share(struct tb__device_share *share)
{
    pthread_mutex_lock(&shares_mutex);
    share->next = shares;
    shares = share;
    pthread_mutex_unlock(&shares_mutex);
}

/* ---- owner ---- */

_Static_assert(TB__PLACE_VMM == (int)TB__DEVICE_VMM && TB__PLACE_IPC == (int)TB__DEVICE_IPC &&
                   TB__PLACE_MAPPED == (int)TB__DEVICE_MAPPED &&
                   TB__PLACE_DMABUF == (int)TB__DEVICE_DMABUF,
               "a segment names kinds of device memory by their numbers");

static tb_status describe(const struct tb__device_memory *memory, struct tb__doradma_spec *spec,
                          int *out_take_fd)
{
    spec->device_bytes = memory->bytes;
    spec->device_kind = (uint32_t)memory->kind;
    return memory->kind == TB__DEVICE_IPC ? tb__device_export_ipc(memory, spec->ipc_handle)
                                          : tb__device_export_fd(memory, out_take_fd);
}

static void destroy(struct tb__device_share *share)
{
    if (share->base != NULL) {
        tb__device_share_close(share->base);
    } else if (share->is_adopted) {
        tb__adopted_release(&share->adopted);
    } else {
        tb__device_free(&share->memory);
    }
    free(share);
}

/* Its memory is there, or `status` says why not. */
static tb_status offer(struct tb__device_share *share, tb_status status,
                       struct tb__doradma_spec *spec, struct tb__device_share **out,
                       int *out_take_fd)
{
    *out_take_fd = -1;
    if (status == TB_OK) {
        memcpy(spec->device_uuid, share->gpu->uuid, sizeof spec->device_uuid);
        status = describe(&share->memory, spec, out_take_fd);
    }
    if (status != TB_OK) {
        tb_error kept;
        tb_last_error(&kept);
        destroy(share);
        tb__error_restore(&kept);
        return status;
    }
    share->offset = spec->device_offset;
    link_share(share);
    *out = share;
    return TB_OK;
}

tb_status tb__device_share_create(tb_device device, uint64_t bytes, struct tb__doradma_spec *spec,
                                  struct tb__device_share **out, int *out_take_fd)
{
    const struct tb__gpu *gpu;
    struct tb__device_share *share = NULL;
    TB__TRY(tb__cuda_need());
    TB__TRY(tb__gpu_of_device(device, &gpu));
    TB__TRY(create(spec->uid, gpu, &share));
    /* dora's readers know IPC handles alone. */
    tb_status status = spec->flags & TB__GEOMETRY_EXPORT
                           ? tb__device_alloc_plain(gpu, bytes, &share->memory)
                           : tb__device_alloc(gpu, bytes, &share->memory);
    return offer(share, status, spec, out, out_take_fd);
}

tb_status tb__device_share_adopt(struct tb__adopted *adopted, struct tb__doradma_spec *spec,
                                 struct tb__device_share **out, int *out_take_fd)
{
    struct tb__device_share *share = NULL;
    tb_status status = create(spec->uid, adopted->gpu, &share);
    if (status != TB_OK) {
        tb__adopted_release(adopted);
        return status;
    }
    share->adopted = *adopted;
    share->is_adopted = 1;
    share->memory = adopted->memory;
    share->memory.bytes = adopted->export_bytes;
    spec->device_offset = adopted->offset;
    return offer(share, TB_OK, spec, out, out_take_fd);
}

tb_status tb__device_share_dmabuf(tb_device device, int borrow_fd, uint64_t bytes,
                                  struct tb__doradma_spec *spec, struct tb__device_share **out,
                                  int *out_take_fd)
{
    const struct tb__gpu *gpu;
    struct tb__device_share *share = NULL;
    TB__TRY(tb__cuda_need());
    TB__TRY(tb__gpu_of_device(device, &gpu));
    TB__TRY(create(spec->uid, gpu, &share));
    tb_status status =
        tb__device_import_fd(gpu, TB__DEVICE_DMABUF, borrow_fd, bytes, 0, &share->memory);
    return offer(share, status, spec, out, out_take_fd);
}

/* ---- reader ---- */

static tb_status import(const struct tb__doradma_view *view, const struct tb__gpu *gpu,
                        int borrow_fd, struct tb__device_memory *out)
{
    return view->device_kind == TB__PLACE_IPC
               ? tb__device_import_ipc(gpu, view->ipc_handle, view->device_bytes, out)
               : tb__device_import_fd(gpu, (enum tb__device_kind)view->device_kind, borrow_fd,
                                      view->device_bytes, 1, out);
}

/* Mutex held: this process's own plain memory, which the driver opens to other processes alone. */
static struct tb__device_share *find_plain(const uint8_t *uid)
{
    struct tb__device_share *at = shares;
    while (at != NULL && !(memcmp(at->uid, uid, sizeof at->uid) == 0 && at->base == NULL &&
                           at->memory.kind == TB__DEVICE_IPC && !at->memory.imported)) {
        at = at->next;
    }
    return at;
}

/* Another GPU's view of it, by peer access. *out: NULL when there is none. */
static tb_status view_plain(const uint8_t *uid, const struct tb__gpu *gpu,
                            struct tb__device_share **out)
{
    pthread_mutex_lock(&shares_mutex);
    struct tb__device_share *base = find_plain(uid);
    if (base != NULL) {
        base->users++;
    }
    pthread_mutex_unlock(&shares_mutex);
    *out = NULL;
    if (base == NULL) {
        return TB_OK;
    }
    struct tb__device_share *share = NULL;
    tb_status status = tb__device_allow(&base->memory, gpu);
    if (status == TB_OK) {
        status = create(uid, gpu, &share);
    }
    if (status != TB_OK) {
        tb__device_share_close(base);
        return status;
    }
    share->base = base;
    share->memory = base->memory;
    share->memory.gpu = gpu;
    share->offset = base->offset;
    link_share(share);
    *out = share;
    return TB_OK;
}

tb_status tb__device_share_open(const struct tb__doradma_view *view, tb_device device,
                                int borrow_fd, struct tb__device_share **out)
{
    const struct tb__gpu *gpu;
    struct tb__device_share *share;
    TB__TRY(tb__cuda_need());
    TB__TRY(device != TB_CPU ? tb__gpu_of_device(device, &gpu)
                             : tb__gpu_by_uuid(view->device_uuid, &gpu));
    pthread_mutex_lock(&shares_mutex);
    share = find(view->uid, gpu);
    if (share != NULL) {
        share->users++;
    }
    pthread_mutex_unlock(&shares_mutex);
    if (share != NULL) {
        *out = share;
        return TB_OK;
    }
    TB__TRY(view_plain(view->uid, gpu, &share));
    if (share != NULL) {
        *out = share;
        return TB_OK;
    }
    TB__TRY(create(view->uid, gpu, &share));
    tb_status status = import(view, gpu, borrow_fd, &share->memory);
    if (status != TB_OK) {
        tb__device_free(&share->memory);
        free(share);
        return status;
    }
    share->offset = view->device_offset;
    link_share(share); /* two threads that came at once have one each */
    *out = share;
    return TB_OK;
}

/* ---- both ---- */

void tb__device_share_close(struct tb__device_share *share)
{
    if (share == NULL) {
        return;
    }
    pthread_mutex_lock(&shares_mutex);
    int last = --share->users == 0;
    if (last) {
        struct tb__device_share **at = &shares;
        while (*at != share) {
            at = &(*at)->next;
        }
        *at = share->next;
    }
    pthread_mutex_unlock(&shares_mutex);
    if (last) {
        destroy(share);
    }
}

uint8_t *tb__device_data(const struct tb__device_share *share)
{
    return (uint8_t *)(uintptr_t)(share->memory.ptr + share->offset);
}

const struct tb__gpu *tb__device_gpu(const struct tb__device_share *share)
{
    return share->gpu;
}

tb_device tb__device_id(const struct tb__device_share *share)
{
    return TB_CUDA(share->gpu->ordinal);
}

/* ---- registered host memory ---- */

tb_status tb__mapped_get(struct tb__mapped *mapped, const struct tb__gpu *gpu, void *memory,
                         uint64_t bytes, int read_only)
{
    if (mapped->done) {
        return TB_OK;
    }
    TB__TRY(tb__host_register(gpu, memory, bytes, read_only, &mapped->registration));
    mapped->done = 1;
    return TB_OK;
}

uint64_t tb__mapped_address(const struct tb__mapped *mapped, const void *memory,
                            const void *pointer)
{
    return mapped->registration.device_ptr +
           (uint64_t)((const uint8_t *)pointer - (const uint8_t *)memory);
}

void tb__mapped_end(struct tb__mapped *mapped)
{
    if (mapped->done) {
        tb__host_unregister(&mapped->registration);
        mapped->done = 0;
    }
}

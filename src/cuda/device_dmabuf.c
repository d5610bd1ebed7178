/* Memory behind a DMA-BUF descriptor, as external memory of the driver. */
#include "cuda/device_dmabuf.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

/* Whether two descriptors are of one file: who owns a descriptor that the driver has imported is
 * not written anywhere, so ours is closed only if it is still what it was. */
static int same_file(int fd, const struct stat *was)
{
    struct stat is;
    return fd >= 0 && fstat(fd, &is) == 0 && is.st_ino == was->st_ino && is.st_dev == was->st_dev;
}

static tb_status map_buffer(struct tb__device_memory *memory)
{
    const struct tb__external_buffer buffer = {.size = memory->mapped_bytes};
    int result = tb__cuda()->external_get_buffer(&memory->ptr, memory->external, &buffer);
    if (result != TB__CUDA_SUCCESS) {
        memory->ptr = 0;
        return tb__cuda_fail(result, "cuExternalMemoryGetMappedBuffer", "%llu bytes, cuda:%d",
                             (unsigned long long)memory->mapped_bytes, memory->gpu->ordinal);
    }
    memory->is_mapped = 1;
    return TB_OK;
}

tb_status tb__dmabuf_import(struct tb__device_memory *memory, int borrow_fd)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    if (cuda->import_external == NULL || cuda->external_get_buffer == NULL ||
        cuda->external_destroy == NULL) {
        return TB__FAIL(TB_E_UNSUPPORTED, "this driver imports no external memory");
    }
    memory->fd = fcntl(borrow_fd, F_DUPFD_CLOEXEC, 3);
    int given = memory->fd < 0 ? -1 : fcntl(memory->fd, F_DUPFD_CLOEXEC, 3);
    if (given < 0) {
        return TB__FAIL_ERRNO(tb__fd_failure(errno), "descriptor %d as a DMA-BUF", borrow_fd);
    }
    struct stat was = {0};
    struct tb__external_handle handle = {.type = TB__EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD,
                                         .size = memory->mapped_bytes};
    handle.handle.fd = given;
    int result = fstat(given, &was) == 0 ? cuda->import_external(&memory->external, &handle)
                                         : TB__CUDA_INVALID_VALUE;
    if (result != TB__CUDA_SUCCESS) {
        memory->external = NULL;
        tb__fd_close(&given);
        return tb__cuda_fail(result, "cuImportExternalMemory",
                             "DMA-BUF of %llu bytes for cuda:%d (drivers for CUDA 13 import them "
                             "on integrated GPUs; elsewhere copy the buffer into a pool)",
                             (unsigned long long)memory->mapped_bytes, memory->gpu->ordinal);
    }
    memory->given_fd = given;
    memory->given_dev = was.st_dev;
    memory->given_ino = was.st_ino;
    return map_buffer(memory);
}

void tb__dmabuf_free(struct tb__device_memory *memory)
{
    struct tb__gpu_scope scope;
    if (memory->external != NULL && tb__gpu_enter_to_free(memory->gpu, &scope)) {
        if (memory->is_mapped) {
            tb__cuda_note(tb__cuda()->mem_free(memory->ptr), "cuMemFree", "a DMA-BUF's mapping");
        }
        tb__cuda_note(tb__cuda()->external_destroy(memory->external), "cuDestroyExternalMemory",
                      "a DMA-BUF");
        tb__gpu_leave(&scope);
        const struct stat was = {.st_dev = memory->given_dev, .st_ino = memory->given_ino};
        if (same_file(memory->given_fd, &was)) {
            tb__fd_close(&memory->given_fd);
        }
    }
    tb__fd_close(&memory->fd);
}

/* Host memory in a memfd, page-locked and mapped for the device. */
#include "cuda/device_mapped.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "base/fd.h"
#include "base/size.h"

#define MAPPED_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static tb_status mapped_map(struct tb__device_memory *memory, int fd)
{
    int access = memory->read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    void *host = mmap(NULL, memory->mapped_bytes, access, MAP_SHARED, fd, 0);
    if (host == MAP_FAILED) {
        char size[TB__SIZE_TEXT];
        return TB__FAIL_ERRNO(TB_E_NOMEM, "mapping %s for cuda:%d",
                              tb__size_text(memory->mapped_bytes, size), memory->gpu->ordinal);
    }
    memory->host = host;
    memory->is_mapped = 1;
    madvise(host, memory->mapped_bytes, MADV_DONTDUMP);
    TB__TRY(tb__host_register(memory->gpu, host, memory->mapped_bytes, memory->read_only,
                              &memory->registration));
    memory->ptr = memory->registration.device_ptr;
    return TB_OK;
}

tb_status tb__mapped_alloc(struct tb__device_memory *memory)
{
    TB__TRY(tb__memfd_create("tensorbus-gpu", memory->mapped_bytes, &memory->fd));
    int reason = posix_fallocate(memory->fd, 0, (off_t)memory->mapped_bytes);
    if (reason != 0) {
        char size[TB__SIZE_TEXT];
        return tb__error_set(TB_E_NOMEM, reason, __func__, "allocating %s for cuda:%d",
                             tb__size_text(memory->mapped_bytes, size), memory->gpu->ordinal);
    }
    TB__TRY(mapped_map(memory, memory->fd));
    /* Readers whose device cannot register what is mapped read-only must be able to map it
     * writable: then nothing but good manners keeps them from writing. */
    return memory->gpu->read_only_host_register
               ? tb__memfd_seal(memory->fd, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
               : TB_OK;
}

tb_status tb__mapped_import(struct tb__device_memory *memory, int borrow_fd)
{
    uint64_t found = 0;
    TB__TRY(tb__memfd_check(borrow_fd, MAPPED_SEALS, UINT64_MAX, 1, &found));
    if (found < memory->mapped_bytes) {
        return TB__FAIL(TB_E_PROTOCOL, "a peer sent memory of %llu bytes, %llu are needed",
                        (unsigned long long)found, (unsigned long long)memory->mapped_bytes);
    }
    memory->read_only = memory->read_only && memory->gpu->read_only_host_register;
    return mapped_map(memory, borrow_fd);
}

void tb__mapped_free(struct tb__device_memory *memory)
{
    tb__host_unregister(&memory->registration);
    if (memory->is_mapped) {
        munmap(memory->host, memory->mapped_bytes);
    }
    tb__fd_close(&memory->fd);
}

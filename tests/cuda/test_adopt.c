/* What kind of memory an address is, and which kinds a pool can make its own. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "cuda/adopt.h"
#include "cuda/order.h"
#include "tests/cuda/kit.h"

#define MIB ((uint64_t)1 << 20)
#define BYTES (4 * MIB)
#define OFFSET 1000000

static void every_kind_has_a_name_and_a_reason(void)
{
    static const struct {
        tb_memory_kind kind;
        const char *name, *why;
        int can_share;
    } cases[] = {
        {TB_MEMORY_UNKNOWN, "unknown", "nobody knows", 0},
        {TB_MEMORY_PINNED, "pinned", "allocate shared-pinned memory", 0},
        {TB_MEMORY_DEVICE, "device", "descriptor or an IPC handle", 1},
        {TB_MEMORY_STREAM_ORDERED, "stream-ordered", "allocate device memory", 0},
        {TB_MEMORY_MANAGED, "managed", "exports it to no other", 0},
        {TB_MEMORY_SHARED_PINNED, "shared-pinned", "shared memory", 1},
        {TB_MEMORY_LOCKED, "locked", "private memory", 0},
        {TB_MEMORY_PAGEABLE, "pageable", "a pool's loan", 0},
        {TB_MEMORY_VIRTUAL, "virtual", "expandable segments", 0},
        {(tb_memory_kind)9, "?", "nobody knows", 0},
        {(tb_memory_kind)-1, "?", "nobody knows", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *why = NULL;
        CHECK(strcmp(tb_memory_kind_name(cases[i].kind), cases[i].name) == 0);
        CHECK_EQ(tb_memory_can_share(cases[i].kind, &why), cases[i].can_share);
        CHECK_EQ(tb_memory_can_share(cases[i].kind, NULL), cases[i].can_share);
        if (strstr(why, cases[i].why) == NULL) {
            FAIL("`%s` is not in `%s`", cases[i].why, why);
        }
    }
    CHECK(!tb__cuda_is_open());
}

/* ------------------------------------------------------------------ others' memory */

/* Memory as other libraries allocate it. */
struct others {
    uint64_t plain, managed, pooled, exportable, closed;
    unsigned long long exportable_handle, closed_handle;
    char *locked, *pageable;
    struct tb__host_registration registration;
};

static uint64_t virtual_memory(int handle_types, unsigned long long *handle)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    const struct tb__gpu *gpu = gpu_at(0);
    struct tb__mem_prop prop = {.type = TB__MEM_ALLOCATION_TYPE_PINNED,
                                .requested_handle_types = (uint32_t)handle_types,
                                .location = {TB__MEM_LOCATION_TYPE_DEVICE, gpu->device}};
    struct tb__mem_access access = {.location = prop.location, .flags = TB__MEM_ACCESS_READWRITE};
    uint64_t at = 0;
    CHECK_EQ(cuda->mem_create(handle, BYTES, &prop, 0), 0);
    CHECK_EQ(cuda->mem_address_reserve(&at, BYTES, 0, 0, 0), 0);
    CHECK_EQ(cuda->mem_map(at, BYTES, 0, *handle, 0), 0);
    CHECK_EQ(cuda->mem_set_access(at, BYTES, &access, 1), 0);
    return at;
}

static void virtual_memory_end(uint64_t at, unsigned long long handle)
{
    CHECK_EQ(tb__cuda()->mem_unmap(at, BYTES), 0);
    CHECK_EQ(tb__cuda()->mem_address_free(at, BYTES), 0);
    CHECK_EQ(tb__cuda()->mem_release(handle), 0);
}

static struct others others_make(void)
{
    struct others o = {0};
    struct tb__gpu_scope scope;
    OK(tb__gpu_enter(gpu_at(0), &scope));
    const struct tb__cuda_api *cuda = tb__cuda();
    CHECK_EQ(cuda->mem_alloc(&o.plain, BYTES), 0);
    CHECK_EQ(cuda->mem_alloc_managed(&o.managed, 65536, TB__MEM_ATTACH_GLOBAL), 0);
    CHECK_EQ(cuda->mem_alloc_async(&o.pooled, BYTES, NULL), 0);
    o.exportable = virtual_memory(TB__MEM_HANDLE_TYPE_POSIX_FD, &o.exportable_handle);
    o.closed = virtual_memory(0, &o.closed_handle);
    tb__gpu_leave(&scope);
    o.locked = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    o.pageable = malloc(8192);
    OK(tb__host_register(gpu_at(0), o.locked, 8192, 0, &o.registration));
    return o;
}

static void others_drop(struct others *o)
{
    struct tb__gpu_scope scope;
    tb__host_unregister(&o->registration);
    munmap(o->locked, 8192);
    free(o->pageable);
    OK(tb__gpu_enter(gpu_at(0), &scope));
    CHECK_EQ(tb__cuda()->mem_free(o->plain), 0);
    CHECK_EQ(tb__cuda()->mem_free(o->managed), 0);
    CHECK_EQ(tb__cuda()->mem_free_async(o->pooled, NULL), 0);
    virtual_memory_end(o->exportable, o->exportable_handle);
    virtual_memory_end(o->closed, o->closed_handle);
    tb__gpu_leave(&scope);
    OK(tb__stream_synchronize(NULL, gpu_at(0)));
}

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* G17 */
static void g17_what_cannot_be_shared_is_refused_by_name(void)
{
    struct others o = others_make();
    const struct {
        void *address;
        tb_memory_kind kind;
        tb_device device;
        const char *text;
    } cases[] = {
        {at(o.managed), TB_MEMORY_MANAGED, TB_CUDA(0),
         "a pool cannot adopt the managed memory at 0x"},
        {at(o.pooled), TB_MEMORY_STREAM_ORDERED, TB_CUDA(0),
         "a pool cannot adopt the stream-ordered memory at 0x"},
        {at(o.closed), TB_MEMORY_VIRTUAL, TB_CUDA(0),
         "a pool cannot adopt the virtual memory at 0x"},
        {o.locked + 100, TB_MEMORY_PINNED, TB_CUDA(0),
         "a pool cannot adopt the pinned memory at 0x"},
        {o.pageable, TB_MEMORY_PAGEABLE, TB_CPU, "a pool cannot adopt the pageable memory at 0x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tb__adopted adopted;
        tb_memory_kind kind = TB_MEMORY_UNKNOWN;
        tb_device device = 77;
        const char *why = NULL;
        FAILS(tb__adopt(cases[i].address, 64, &adopted), TB_E_UNSUPPORTED, cases[i].text);
        OK(tb_memory_kind_of(cases[i].address, &kind, &device));
        CHECK_EQ(kind, cases[i].kind);
        CHECK_EQ(device, cases[i].device);
        tb_memory_can_share(kind, &why);
        FAILS(tb__adopt(cases[i].address, 64, &adopted), TB_E_UNSUPPORTED, why);
    }
    tb_memory_kind kind = TB_MEMORY_UNKNOWN;
    OK(tb_memory_kind_of(at(o.plain), &kind, NULL));
    CHECK_EQ(kind, TB_MEMORY_DEVICE);
    OK(tb_memory_kind_of(at(o.exportable), &kind, NULL));
    CHECK_EQ(kind, TB_MEMORY_DEVICE);
    FAILS(tb_memory_kind_of(NULL, &kind, NULL), TB_E_INVALID, "NULL");
    FAILS(tb_memory_kind_of(at(o.plain), NULL, NULL), TB_E_INVALID, "NULL");
    others_drop(&o);
}

/* The same for what tb_alloc() made. */
static void own_kinds_are_refused_alike(void)
{
    static const tb_memory_kind kinds[] = {TB_MEMORY_PINNED, TB_MEMORY_STREAM_ORDERED,
                                           TB_MEMORY_MANAGED, TB_MEMORY_LOCKED};
    for (size_t i = 0; i < 4; i++) {
        tb_memory_options options = {.size = sizeof options, .kind = kinds[i], .bytes = 65536};
        struct tb__adopted adopted;
        tb_memory *memory = NULL;
        tb_memory_kind kind = TB_MEMORY_UNKNOWN;
        OK(tb_alloc(&options, &memory));
        FAILS(tb__adopt(tb_memory_data(memory), 64, &adopted), TB_E_UNSUPPORTED,
              tb_memory_kind_name(kinds[i]));
        OK(tb_memory_kind_of(tb_memory_data(memory), &kind, NULL));
        CHECK_EQ(kind, kinds[i]);
        tb_memory_free(memory);
    }
    OK(tb__stream_synchronize(NULL, gpu_at(0)));
}

static void ranges_are_checked(void)
{
    struct others o = others_make();
    struct tb__adopted adopted = {.bytes = 77};
    FAILS(tb__adopt(at(o.plain), BYTES + 1, &adopted), TB_E_INVALID, "reach beyond it");
    FAILS(tb__adopt(at(o.plain + 100), BYTES, &adopted), TB_E_INVALID, "from byte 100");
    FAILS(tb__adopt(at(o.exportable + 5), BYTES, &adopted), TB_E_INVALID, "from byte 5");
    FAILS(tb__adopt(at(o.plain), UINT64_MAX, &adopted), TB_E_INVALID, "reach beyond it");
    FAILS(tb__adopt(NULL, 1, &adopted), TB_E_INVALID, "1 bytes at");
    FAILS(tb__adopt(at(o.plain), 0, &adopted), TB_E_INVALID, "0 bytes");
    CHECK_EQ(adopted.bytes, 77);
    others_drop(&o);
}

/* ------------------------------------------------------------------ two processes */

struct offer {
    int kind;
    uint64_t export_bytes, offset, bytes;
    uint8_t handle[64];
};

/* G14: the reader sees exactly the slice. */
static void reader(int socket)
{
    struct offer offer;
    struct tb__device_memory memory;
    char word = 0;
    int fd = kit_receive(socket, &offer, sizeof offer);
    if (offer.kind == TB__DEVICE_NONE) {
        char *host = mmap(NULL, offer.export_bytes, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(host != MAP_FAILED);
        CHECK(kit_same(host + offer.offset, offer.bytes, 6));
        munmap(host, offer.export_bytes);
    } else {
        OK(offer.kind == TB__DEVICE_IPC
               ? tb__device_import_ipc(gpu_at(0), offer.handle, offer.export_bytes, &memory)
               : tb__device_import_fd(gpu_at(0), (enum tb__device_kind)offer.kind, fd,
                                      offer.export_bytes, 1, &memory));
        EXPECT(0, memory.ptr + offer.offset, offer.bytes, 6);
        tb__device_free(&memory);
    }
    tb__fd_close(&fd);
    kit_send(socket, &word, 1, -1);
}

static void give_slice(int socket, const void *address, uint64_t bytes, tb_memory_kind kind)
{
    struct tb__adopted adopted;
    struct offer offer = {.bytes = bytes};
    char word = 0;
    int fd = -1;
    OK(tb__adopt(address, bytes, &adopted));
    CHECK_EQ(adopted.kind, kind);
    CHECK_EQ(adopted.address, (uintptr_t)address);
    offer.kind = adopted.memory.kind;
    offer.offset = adopted.offset;
    offer.export_bytes = adopted.export_bytes;
    if (adopted.memory.kind == TB__DEVICE_IPC) {
        OK(tb__device_export_ipc(&adopted.memory, offer.handle));
    } else if (adopted.memory.kind != TB__DEVICE_NONE) {
        OK(tb__device_export_fd(&adopted.memory, &fd));
    } else {
        CHECK(adopted.borrow_fd >= 0);
    }
    kit_send(socket, &offer, sizeof offer, fd >= 0 ? fd : adopted.borrow_fd);
    tb__fd_close(&fd);
    kit_receive(socket, &word, 1);
    tb__adopted_release(&adopted);
    tb__adopted_release(&adopted);
}

static void g14_slices_of_others_memory(void)
{
    struct kit_pair first = kit_pair_start(reader), second = kit_pair_start(reader);
    struct others o = others_make();
    kit_fill(0, o.plain + OFFSET, 2 * MIB, 6);
    give_slice(first.socket, at(o.plain + OFFSET), 2 * MIB, TB_MEMORY_DEVICE);
    kit_fill(0, o.exportable + OFFSET, 2 * MIB, 6);
    give_slice(second.socket, at(o.exportable + OFFSET), 2 * MIB, TB_MEMORY_DEVICE);
    kit_pair_end(&first);
    kit_pair_end(&second);
    others_drop(&o);
}

static void g14_slices_of_own_memory(void)
{
    static const tb_memory_kind kinds[] = {TB_MEMORY_DEVICE, TB_MEMORY_SHARED_PINNED};
    struct kit_pair pairs[] = {kit_pair_start(reader), kit_pair_start(reader)};
    for (int i = 0; i < 2; i++) {
        tb_memory_options options = {
            .size = sizeof options, .kind = kinds[i], .bytes = BYTES, .device = TB_CUDA(0)};
        tb_memory *memory = NULL;
        OK(tb_alloc(&options, &memory));
        char *data = tb_memory_data(memory);
        if (kinds[i] == TB_MEMORY_DEVICE) {
            kit_fill(0, (uintptr_t)data + OFFSET, 2 * MIB, 6);
        } else {
            kit_pattern(data + OFFSET, 2 * MIB, 6);
        }
        /* Adopted and given back before: the memory keeps what it is exported by. */
        struct tb__adopted adopted;
        OK(tb__adopt(data, 1000, &adopted));
        tb__adopted_release(&adopted);
        give_slice(pairs[i].socket, data + OFFSET, 2 * MIB, kinds[i]);
        kit_pair_end(&pairs[i]);
        tb_memory_free(memory);
    }
}

/* Memory that was adopted lives on when its user frees it (virtual memory only). */
static void adopted_virtual_memory_is_kept(void)
{
    struct others o = others_make();
    struct tb__adopted adopted;
    struct tb__device_memory again;
    int fd = -1;
    kit_fill(0, o.exportable, BYTES, 7);
    OK(tb__adopt(at(o.exportable), BYTES, &adopted));
    others_drop(&o);
    OK(tb__device_export_fd(&adopted.memory, &fd));
    OK(tb__device_import_fd(gpu_at(0), TB__DEVICE_VMM, fd, BYTES, 1, &again));
    tb__fd_close(&fd);
    EXPECT(0, again.ptr, BYTES, 7);
    tb__device_free(&again);
    tb__adopted_release(&adopted);
}

static tb_status adopt_and_release(void *argument)
{
    struct tb__adopted adopted;
    TB__TRY(tb__adopt(argument, 1000, &adopted));
    tb__adopted_release(&adopted);
    return TB_OK;
}

static void every_failing_call_leaves_nothing(void)
{
    struct others o = others_make();
    kit_fake()->own();
    /* Where the driver does not answer, the memory is of no known kind: refused, without a code. */
    for (unsigned n = 1; n < 20; n++) {
        char rule[32];
        snprintf(rule, sizeof rule, "*:%u:999", n);
        kit_fake()->fail(rule);
        tb_status status = adopt_and_release(at(o.exportable));
        CHECK(status == TB_OK || status == TB_E_UNSUPPORTED || status == TB_E_SYSTEM);
        kit_fake()->fail(NULL);
        CLEAN();
        OK(adopt_and_release(at(o.exportable)));
        CLEAN();
    }
    kit_fake()->own();
    others_drop(&o);
}

/* ------------------------------------------------------------------ DMA-BUF */

static void dmabuf_reader(int socket)
{
    uint64_t bytes = 0;
    struct tb__device_memory memory;
    int fd = kit_receive(socket, &bytes, sizeof bytes);
    OK(tb__device_import_fd(gpu_at(0), TB__DEVICE_DMABUF, fd, bytes, 1, &memory));
    tb__fd_close(&fd);
    CHECK(!memory.read_only); /* nothing keeps a reader from writing, so it is not said */
    EXPECT(0, memory.ptr, bytes, 8);
    tb__device_free(&memory);
}

/* A buffer of another driver is imported by the owner, and by its readers from the same descriptor.
 */
static void a_dmabuf_is_imported_by_owner_and_reader(void)
{
    struct kit_pair pair = kit_pair_start(dmabuf_reader);
    struct tb__device_memory memory;
    const uint64_t bytes = 5 * MIB;
    int buffer = memfd_create("camera", MFD_CLOEXEC), fd = -1;
    CHECK(buffer >= 0 && ftruncate(buffer, (off_t)bytes) == 0);
    OK(tb__device_import_fd(gpu_at(0), TB__DEVICE_DMABUF, buffer, bytes, 0, &memory));
    CHECK(!memory.read_only);
    kit_fill(0, memory.ptr, bytes, 8);
    OK(tb__device_export_fd(&memory, &fd));
    kit_send(pair.socket, &bytes, sizeof bytes, fd);
    tb__fd_close(&fd);
    kit_pair_end(&pair);
    tb__device_free(&memory);
    int pipes[2];
    CHECK_EQ(pipe2(pipes, O_CLOEXEC), 0);
    FAILS(tb__device_import_fd(gpu_at(0), TB__DEVICE_DMABUF, pipes[0], bytes, 0, &memory),
          TB_E_SYSTEM, "cuImportExternalMemory(DMA-BUF of");
    FAILS(tb__device_import_fd(gpu_at(0), TB__DEVICE_DMABUF, -1, bytes, 0, &memory), TB_E_SYSTEM,
          "as a DMA-BUF: Bad file descriptor");
    FAILS(tb__device_import_fd(gpu_at(0), TB__DEVICE_DMABUF, buffer, 2 * bytes, 0, &memory),
          TB_E_SYSTEM, "10485760 bytes");
    close(pipes[0]);
    close(pipes[1]);
    close(buffer);
}

static void no_dmabuf_here(void)
{
    struct tb__device_memory memory;
    int buffer = memfd_create("camera", MFD_CLOEXEC);
    CHECK(buffer >= 0 && ftruncate(buffer, 65536) == 0);
    FAILS(tb__device_import_fd(gpu_at(0), TB__DEVICE_DMABUF, buffer, 65536, 0, &memory),
          TB_E_UNSUPPORTED, "copy the buffer into a pool");
    close(buffer);
}

static tb_status dmabuf_and_back(void *argument)
{
    struct tb__device_memory memory;
    TB__TRY(
        tb__device_import_fd(gpu_at(0), TB__DEVICE_DMABUF, *(int *)argument, 65536, 0, &memory));
    tb__device_free(&memory);
    return TB_OK;
}

static void every_failing_call_of_a_dmabuf_leaves_nothing(void)
{
    int buffer = memfd_create("camera", MFD_CLOEXEC);
    CHECK(buffer >= 0 && ftruncate(buffer, 65536) == 0);
    CHECK(FAIL_EACH(dmabuf_and_back, &buffer, TB__CUDA_UNKNOWN) >= 5);
    close(buffer);
}

int main(int argc, char **argv)
{
    static const struct kit_test tests[] = {
        ANY(every_kind_has_a_name_and_a_reason, NULL),
        ANY(g17_what_cannot_be_shared_is_refused_by_name, NULL),
        ANY(own_kinds_are_refused_alike, NULL),
        ANY(ranges_are_checked, NULL),
        ANY(g14_slices_of_others_memory, NULL),
        ANY(g14_slices_of_own_memory, NULL),
        ANY(adopted_virtual_memory_is_kept, NULL),
        FAKE(every_failing_call_leaves_nothing, NULL),
        FAKE(a_dmabuf_is_imported_by_owner_and_reader, NULL),
        FAKE(a_dmabuf_is_imported_by_owner_and_reader, "dma_buf_borrows=1"),
        FAKE(no_dmabuf_here, "no_dma_buf=0"),
        FAKE(every_failing_call_of_a_dmabuf_leaves_nothing, NULL),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}

/* Exportable device memory: each kind, between processes, and what a hostile peer may send. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "cuda/device_memory.h"
#include "cuda/order.h"
#include "tests/cuda/kit.h"

#define MIB ((uint64_t)1 << 20)
#define BYTES (3 * MIB + 1000)

static void the_kind_follows_from_the_abilities(void)
{
    static const struct {
        struct tb__gpu gpu;
        enum tb__device_kind kind;
    } cases[] = {
        {{.vmm = 1, .posix_fd = 1, .unified = 1}, TB__DEVICE_VMM},
        {{.vmm = 1, .posix_fd = 1, .integrated = 1}, TB__DEVICE_VMM},
        {{.vmm = 1, .unified = 1}, TB__DEVICE_IPC},
        {{.unified = 1}, TB__DEVICE_IPC},
        {{.unified = 1, .host_register = 1, .can_map_host = 1}, TB__DEVICE_IPC},
        {{.integrated = 1, .unified = 1, .host_register = 1, .can_map_host = 1}, TB__DEVICE_MAPPED},
        {{.integrated = 1, .unified = 1, .host_register = 1}, TB__DEVICE_NONE},
        {{.integrated = 1, .unified = 1, .can_map_host = 1}, TB__DEVICE_NONE},
        {{.vmm = 1}, TB__DEVICE_NONE},
        {{0}, TB__DEVICE_NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_EQ(tb__device_kind_of(&cases[i].gpu), cases[i].kind);
    }
}

static void alloc_rounds_up_and_gives_back(void)
{
    static const enum tb__device_kind kinds[] = {TB__DEVICE_VMM, TB__DEVICE_IPC, TB__DEVICE_MAPPED};
    int count = 0;
    OK(tb__gpu_count(&count));
    for (int i = 0; i < count; i++) {
        struct tb__device_memory memory;
        uint64_t before = 0, after = 0, total = 0;
        OK(tb__device_alloc(gpu_at(i), BYTES, &memory));
        if (kit_fake() != NULL) {
            CHECK_EQ(memory.kind, kinds[i]);
        }
        CHECK_EQ(memory.bytes, BYTES);
        CHECK(memory.mapped_bytes >= BYTES && memory.mapped_bytes < BYTES + 4 * MIB);
        CHECK(memory.ptr != 0 && memory.ptr % 256 == 0);
        CHECK_EQ(memory.home, i);
        OK(tb__gpu_memory(gpu_at(i), &before, &total));
        kit_fill(i, memory.ptr, BYTES, 5);
        EXPECT(i, memory.ptr, BYTES, 5);
        tb__device_free(&memory);
        CHECK_EQ(memory.kind, TB__DEVICE_NONE);
        tb__device_free(&memory);
        OK(tb__gpu_memory(gpu_at(i), &after, &total));
        CHECK(memory.kind != TB__DEVICE_NONE || after >= before);
    }
}

static void impossible_sizes_are_refused(void)
{
    struct tb__device_memory memory = {.fd = 77};
    FAILS(tb__device_alloc(gpu_at(0), 0, &memory), TB_E_INVALID, "0 bytes");
    FAILS(tb__device_alloc(gpu_at(0), UINT64_MAX, &memory), TB_E_INVALID, "bytes");
    FAILS(tb__device_alloc(gpu_at(0), (uint64_t)1 << 50, &memory), TB_E_NOMEM, "out of memory");
    FAILS(tb__device_alloc(gpu_at(0), (uint64_t)1 << 50, &memory), TB_E_NOMEM, "are free");
    CHECK_EQ(memory.fd, 77);
}

/* ------------------------------------------------------------------ two processes */

struct offer {
    uint64_t bytes;
    int kind;
    uint8_t handle[64];
    uint8_t uuid[16];
};

static struct offer offer_of(const struct tb__device_memory *memory, int *fd)
{
    struct offer offer = {.bytes = memory->bytes, .kind = memory->kind};
    memcpy(offer.uuid, memory->gpu->uuid, 16);
    *fd = -1;
    if (memory->kind == TB__DEVICE_IPC) {
        OK(tb__device_export_ipc(memory, offer.handle));
    } else {
        OK(tb__device_export_fd(memory, fd));
        CHECK(fcntl(*fd, F_GETFD) & FD_CLOEXEC);
    }
    return offer;
}

static tb_status import(const struct offer *offer, int fd, const struct tb__gpu *gpu,
                        struct tb__device_memory *out)
{
    return offer->kind == TB__DEVICE_IPC
               ? tb__device_import_ipc(gpu, offer->handle, offer->bytes, out)
               : tb__device_import_fd(gpu, (enum tb__device_kind)offer->kind, fd, offer->bytes, 1,
                                      out);
}

/* Map what comes, read it; say so; read it again after the next word. */
static void reader(int socket)
{
    struct offer offer;
    struct tb__device_memory memory;
    const struct tb__gpu *gpu = NULL;
    char word = 0;
    int fd = kit_receive(socket, &offer, sizeof offer);
    OK(tb__gpu_by_uuid(offer.uuid, &gpu));
    OK(import(&offer, fd, gpu, &memory));
    tb__fd_close(&fd);
    CHECK(memory.imported && memory.home == gpu->ordinal && memory.ptr % 256 == 0);
    EXPECT(gpu->ordinal, memory.ptr, BYTES, 9);
    kit_send(socket, &word, 1, -1);
    kit_receive(socket, &word, 1);
    EXPECT(gpu->ordinal, memory.ptr, BYTES, 10);
    int copy = -1;
    uint8_t handle[64];
    if (offer.kind != TB__DEVICE_MAPPED) {
        FAILS(tb__device_export_fd(&memory, &copy), TB_E_UNSUPPORTED, "imported");
    }
    FAILS(tb__device_export_ipc(&memory, handle), TB_E_UNSUPPORTED, "imported");
    tb__device_free(&memory);
}

static void another_process_reads(int ordinal)
{
    struct kit_pair pair = kit_pair_start(reader);
    struct tb__device_memory memory;
    int fd = -1;
    char word = 0;
    OK(tb__device_alloc(gpu_at(ordinal), BYTES, &memory));
    kit_fill(ordinal, memory.ptr, BYTES, 9);
    struct offer offer = offer_of(&memory, &fd);
    kit_send(pair.socket, &offer, sizeof offer, fd);
    tb__fd_close(&fd);
    kit_receive(pair.socket, &word, 1);
    kit_fill(ordinal, memory.ptr, BYTES, 10);
    kit_send(pair.socket, &word, 1, -1);
    kit_pair_end(&pair);
    tb__device_free(&memory);
}

static void virtual_memory_crosses_processes(void)
{
    another_process_reads(0);
}

static void ipc_memory_crosses_processes(void)
{
    another_process_reads(1);
}

static void mapped_memory_crosses_processes(void)
{
    another_process_reads(2);
}

/* The reader sees one of the owner's devices, under another number. */
static void renumbered_reader(int socket)
{
    setenv("CUDA_VISIBLE_DEVICES", "2,1", 1);
    reader(socket);
}

static void devices_are_matched_by_uuid(void)
{
    struct kit_pair pair = kit_pair_start(renumbered_reader);
    struct tb__device_memory memory;
    int fd = -1;
    char word = 0;
    OK(tb__device_alloc(gpu_at(2), BYTES, &memory));
    kit_fill(2, memory.ptr, BYTES, 9);
    struct offer offer = offer_of(&memory, &fd);
    kit_send(pair.socket, &offer, sizeof offer, fd);
    tb__fd_close(&fd);
    kit_receive(pair.socket, &word, 1);
    kit_fill(2, memory.ptr, BYTES, 10);
    kit_send(pair.socket, &word, 1, -1);
    kit_pair_end(&pair);
    tb__device_free(&memory);
}

static void blind_reader(int socket)
{
    struct offer offer;
    struct tb__device_memory memory;
    const struct tb__gpu *gpu = NULL;
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    int fd = kit_receive(socket, &offer, sizeof offer);
    FAILS(tb__gpu_by_uuid(offer.uuid, &gpu), TB_E_NOT_FOUND, "CUDA_VISIBLE_DEVICES is `0`");
    FAILS(import(&offer, fd, gpu_at(0), &memory), TB_E_SYSTEM, "does not see");
    tb__fd_close(&fd);
}

static void a_device_that_is_not_visible_is_named(void)
{
    struct kit_pair pair = kit_pair_start(blind_reader);
    struct tb__device_memory memory;
    int fd = -1;
    OK(tb__device_alloc(gpu_at(1), BYTES, &memory));
    struct offer offer = offer_of(&memory, &fd);
    kit_send(pair.socket, &offer, sizeof offer, fd);
    tb__fd_close(&fd);
    kit_pair_end(&pair);
    tb__device_free(&memory);
}

/* G07: a consumer writes through its mapping. */
static void writing_reader(int socket)
{
    struct offer offer;
    struct tb__device_memory memory;
    struct tb__gpu_scope scope;
    char bytes[64] = {1};
    int fd = kit_receive(socket, &offer, sizeof offer);
    OK(import(&offer, fd, gpu_at(0), &memory));
    tb__fd_close(&fd);
    CHECK(memory.read_only);
    OK(tb__gpu_enter(memory.gpu, &scope));
    CHECK_EQ(tb__cuda()->memcpy_htod_async(memory.ptr, bytes, sizeof bytes, NULL),
             TB__CUDA_INVALID_VALUE);
    tb__gpu_leave(&scope);
    EXPECT(0, memory.ptr, BYTES, 9); /* and goes on */
    tb__device_free(&memory);
}

static void g07_a_reader_cannot_write(void)
{
    struct kit_pair pair = kit_pair_start(writing_reader);
    struct tb__device_memory memory;
    int fd = -1;
    OK(tb__device_alloc(gpu_at(0), BYTES, &memory));
    if (memory.kind != TB__DEVICE_VMM) {
        kit_pair_kill(&pair);
        tb__device_free(&memory);
        kit_skip("cuda:0 has no virtual memory with descriptors");
    }
    kit_fill(0, memory.ptr, BYTES, 9);
    struct offer offer = offer_of(&memory, &fd);
    kit_send(pair.socket, &offer, sizeof offer, fd);
    tb__fd_close(&fd);
    kit_pair_end(&pair);
    EXPECT(0, memory.ptr, BYTES, 9);
    tb__device_free(&memory);
}

/* The owner is killed while the reader holds the memory. */
static void dying_owner(int socket)
{
    struct tb__device_memory memory;
    int fd = -1;
    char word = 0;
    OK(tb__device_alloc(gpu_at(0), BYTES, &memory));
    kit_fill(0, memory.ptr, BYTES, 3);
    struct offer offer = offer_of(&memory, &fd);
    kit_send(socket, &offer, sizeof offer, fd);
    kit_receive(socket, &word, 1); /* never comes */
}

static void memory_outlives_its_owner(void)
{
    struct kit_pair pair = kit_pair_start(dying_owner);
    struct tb__device_memory memory;
    struct offer offer;
    int fd = kit_receive(pair.socket, &offer, sizeof offer);
    OK(import(&offer, fd, gpu_at(0), &memory));
    tb__fd_close(&fd);
    kit_pair_kill(&pair);
    EXPECT(0, memory.ptr, BYTES, 3);
    tb__device_free(&memory);
}

/* ------------------------------------------------------------------ what a peer may send */

static void bad_descriptors_are_errors(void)
{
    struct tb__device_memory memory = {.fd = 77};
    int pipes[2], memfd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(pipe2(pipes, O_CLOEXEC) == 0 && memfd >= 0 && ftruncate(memfd, 8 * MIB) == 0);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const int bad[] = {-1, 9999, pipes[0], memfd, null};
    const enum tb__device_kind kinds[] = {TB__DEVICE_VMM, TB__DEVICE_MAPPED};
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            tb_status status = tb__device_import_fd(gpu_at(0), kinds[k], bad[i], MIB, 1, &memory);
            CHECK(status == TB_E_SYSTEM || status == TB_E_PROTOCOL);
            CLEAN();
        }
    }
    FAILS(tb__device_import_fd(gpu_at(0), TB__DEVICE_IPC, memfd, MIB, 1, &memory), TB_E_INVALID,
          "not imported by descriptor");
    FAILS(tb__device_import_fd(gpu_at(0), TB__DEVICE_VMM, memfd, 0, 1, &memory), TB_E_INVALID,
          "0 bytes");
    CHECK_EQ(memory.fd, 77);
    close(pipes[0]);
    close(pipes[1]);
    close(memfd);
    close(null);
}

static void less_than_promised_is_an_error(void)
{
    static const int ordinals[] = {0, 2};
    for (int i = 0; i < (kit_fake() != NULL ? 2 : 1); i++) {
        struct tb__device_memory own, memory = {.fd = 77};
        const struct tb__gpu *gpu = gpu_at(ordinals[i]);
        int fd = -1;
        OK(tb__device_alloc(gpu, 2 * MIB, &own));
        OK(tb__device_export_fd(&own, &fd));
        tb_status status = tb__device_import_fd(gpu, own.kind, fd, 64 * MIB, 1, &memory);
        /* Of virtual memory it is the driver that says so, in a word of its choice. */
        CHECK(own.kind == TB__DEVICE_VMM ? status == TB_E_SYSTEM || status == TB_E_UNSUPPORTED
                                         : status == TB_E_PROTOCOL);
        CHECK_EQ(memory.fd, 77);
        tb__fd_close(&fd);
        tb__device_free(&own);
    }
}

static void lying_ipc_owner(int socket)
{
    struct tb__device_memory memory;
    int fd = -1;
    char word = 0;
    OK(tb__device_alloc(gpu_at(1), BYTES, &memory));
    struct offer offer = offer_of(&memory, &fd);
    kit_send(socket, &offer, sizeof offer, -1);
    kit_receive(socket, &word, 1);
    tb__device_free(&memory);
}

static void bad_ipc_handles_are_errors(void)
{
    struct kit_pair pair = kit_pair_start(lying_ipc_owner);
    struct tb__device_memory memory = {.fd = 77};
    struct offer offer;
    char word = 0;
    kit_receive(pair.socket, &offer, sizeof offer);
    FAILS(tb__device_import_ipc(gpu_at(1), offer.handle, 64 * MIB, &memory), TB_E_PROTOCOL,
          "67108864 are needed");
    CLEAN();
    offer.handle[3] ^= 1;
    FAILS(tb__device_import_ipc(gpu_at(1), offer.handle, MIB, &memory), TB_E_SYSTEM,
          "cuIpcOpenMemHandle");
    memset(offer.handle, 0, sizeof offer.handle);
    FAILS(tb__device_import_ipc(gpu_at(1), offer.handle, MIB, &memory), TB_E_SYSTEM,
          "cuIpcOpenMemHandle");
    CHECK_EQ(memory.fd, 77);
    kit_send(pair.socket, &word, 1, -1);
    kit_pair_end(&pair);
}

static void own_ipc_memory_cannot_be_opened(void)
{
    struct tb__device_memory own, memory;
    uint8_t handle[64];
    OK(tb__device_alloc(gpu_at(1), BYTES, &own));
    OK(tb__device_export_ipc(&own, handle));
    FAILS(tb__device_import_ipc(gpu_at(1), handle, BYTES, &memory), TB_E_SYSTEM,
          "this process's own memory");
    tb__device_free(&own);
}

/* ------------------------------------------------------------------ several devices */

static void peers_reach_what_is_allowed_to_them(void)
{
    struct tb__device_memory memory;
    struct tb__gpu_scope scope;
    char bytes[64] = {0};
    OK(tb__device_alloc(gpu_at(0), BYTES, &memory));
    kit_fill(0, memory.ptr, BYTES, 4);
    OK(tb__gpu_enter(gpu_at(1), &scope));
    CHECK_EQ(tb__cuda()->memcpy_dtoh_async(bytes, memory.ptr, 64, NULL), TB__CUDA_INVALID_VALUE);
    tb__gpu_leave(&scope);
    OK(tb__device_allow(&memory, gpu_at(1)));
    EXPECT(1, memory.ptr, BYTES, 4);
    FAILS(tb__device_allow(&memory, gpu_at(2)), TB_E_UNSUPPORTED, "cuda:2 cannot reach");
    tb__device_free(&memory);
}

static void other_device_reader(int socket)
{
    struct offer offer;
    struct tb__device_memory memory = {.fd = 77};
    int fd = kit_receive(socket, &offer, sizeof offer);
    OK(import(&offer, fd, gpu_at(1), &memory));
    CHECK_EQ(memory.home, 0);
    EXPECT(1, memory.ptr, BYTES, 9);
    tb__device_free(&memory);
    FAILS(import(&offer, fd, gpu_at(2), &memory), TB_E_UNSUPPORTED,
          "on cuda:0, which cuda:2 cannot reach");
    tb__fd_close(&fd);
}

static void a_peer_device_imports(void)
{
    struct kit_pair pair = kit_pair_start(other_device_reader);
    struct tb__device_memory memory;
    int fd = -1;
    OK(tb__device_alloc(gpu_at(0), BYTES, &memory));
    kit_fill(0, memory.ptr, BYTES, 9);
    struct offer offer = offer_of(&memory, &fd);
    kit_send(pair.socket, &offer, sizeof offer, fd);
    tb__fd_close(&fd);
    kit_pair_end(&pair);
    tb__device_free(&memory);
}

/* ------------------------------------------------------------------ failures */

static tb_status alloc_export_free(void *argument)
{
    const struct tb__gpu *gpu = argument;
    struct tb__device_memory memory;
    uint8_t handle[64];
    int fd = -1;
    TB__TRY(tb__device_alloc(gpu, BYTES, &memory));
    tb_status status = memory.kind == TB__DEVICE_IPC ? tb__device_export_ipc(&memory, handle)
                                                     : tb__device_export_fd(&memory, &fd);
    tb__fd_close(&fd);
    tb__device_free(&memory);
    return status;
}

static void every_failing_call_leaves_nothing(void)
{
    for (int i = 0; i < 3; i++) {
        for (size_t k = 0; k < 3; k++) {
            static const int codes[] = {TB__CUDA_OUT_OF_MEMORY, TB__CUDA_INVALID_VALUE,
                                        TB__CUDA_UNKNOWN};
            unsigned calls = FAIL_EACH(alloc_export_free, (void *)(uintptr_t)gpu_at(i), codes[k]);
            CHECK(calls >= 5);
        }
    }
}

struct incoming {
    struct offer offer;
    int fd;
};

static tb_status import_free(void *argument)
{
    const struct incoming *incoming = argument;
    struct tb__device_memory memory;
    const struct tb__gpu *gpu = NULL;
    TB__TRY(tb__gpu_by_uuid(incoming->offer.uuid, &gpu));
    TB__TRY(import(&incoming->offer, incoming->fd, gpu, &memory));
    tb__device_free(&memory);
    return TB_OK;
}

static void failing_imports(int socket)
{
    struct incoming incoming;
    char word = 0;
    for (int i = 0; i < 3; i++) {
        incoming.fd = kit_receive(socket, &incoming.offer, sizeof incoming.offer);
        unsigned calls = FAIL_EACH(import_free, &incoming, TB__CUDA_UNKNOWN);
        CHECK(calls >= 5);
        tb__fd_close(&incoming.fd);
        kit_send(socket, &word, 1, -1);
    }
}

static void every_failing_call_of_an_import_leaves_nothing(void)
{
    struct kit_pair pair = kit_pair_start(failing_imports);
    for (int i = 0; i < 3; i++) {
        struct tb__device_memory memory;
        int fd = -1;
        char word = 0;
        OK(tb__device_alloc(gpu_at(i), BYTES, &memory));
        struct offer offer = offer_of(&memory, &fd);
        kit_send(pair.socket, &offer, sizeof offer, fd);
        tb__fd_close(&fd);
        kit_receive(pair.socket, &word, 1);
        tb__device_free(&memory);
    }
    kit_pair_end(&pair);
}

static void nothing_to_share(void)
{
    struct tb__device_memory memory;
    FAILS(tb__device_alloc(gpu_at(0), BYTES, &memory), TB_E_UNSUPPORTED, "a pool on the CPU");
}

int main(int argc, char **argv)
{
#define KINDS "devices=3;no_vmm=1,2;integrated=2"
    static const struct kit_test tests[] = {
        ANY(the_kind_follows_from_the_abilities, NULL),
        ANY(alloc_rounds_up_and_gives_back, KINDS),
        ANY(impossible_sizes_are_refused, NULL),
        ANY(virtual_memory_crosses_processes, KINDS),
        FAKE(ipc_memory_crosses_processes, KINDS),
        FAKE(mapped_memory_crosses_processes, KINDS),
        FAKE(devices_are_matched_by_uuid, "devices=3;mig=2"),
        FAKE(a_device_that_is_not_visible_is_named, "devices=2"),
        ANY(g07_a_reader_cannot_write, NULL),
        ANY(memory_outlives_its_owner, NULL),
        ANY(bad_descriptors_are_errors, NULL),
        ANY(less_than_promised_is_an_error, KINDS),
        FAKE(bad_ipc_handles_are_errors, KINDS),
        FAKE(own_ipc_memory_cannot_be_opened, KINDS),
        FAKE(peers_reach_what_is_allowed_to_them, "devices=3;peer=0-1"),
        FAKE(a_peer_device_imports, "devices=3;peer=0-1"),
        FAKE(every_failing_call_leaves_nothing, KINDS),
        FAKE(every_failing_call_of_an_import_leaves_nothing, KINDS),
        FAKE(nothing_to_share, "integrated=0;no_vmm=0;no_host_register=0"),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}

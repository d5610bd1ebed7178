/* Copies between two devices that reach each other, whosever the memory is. */
#include <stdio.h>
#include <unistd.h>

#include "cuda/copy.h"
#include "cuda/device_memory.h"
#include "cuda/path.h"
#include "tests/cuda/kit.h"
#include "tests/cuda/sides.h"
#include "tests/cuda/streams.h"

/* What is measured and tried between two devices that reach each other. */
static void need_peers(void)
{
    int count = 0, can = 0;
    OK(tb__gpu_count(&count));
    if (count >= 2) {
        OK(tb__gpu_peer(gpu_at(0), gpu_at(1), &can));
    }
    if (!can) {
        kit_skip("no two devices that reach each other");
    }
}

/* A copy of all of `src` to another device by this path; what led there is nobody's error. */
static void copy_by(int line, struct tb__copy_end src, int dst_at, uint64_t bytes,
                    enum tb__path path)
{
    struct side dst = side_make(dst_at, bytes);
    const struct tb__copy job = {.dst = dst.end, .src = src, .bytes = bytes};
    struct tb__copy_result result;
    tb_error before;
    FAILS(tb__gpu_copy(&(struct tb__copy){.bytes = 1}, NULL, NULL), TB_E_INVALID, "NULL");
    tb_last_error(&before);
    OK(tb__gpu_copy(&job, NULL, &result));
    if (result.path != path) {
        kit_fail(__FILE__, line, "the path was %s", tb__path_name(result.path));
    }
    CHECK(strcmp(tb_last_error_text(), before.text) == 0);
    OK(tb__stream_synchronize(NULL, gpu_at(dst_at)));
    side_expect(line, &dst, bytes, 41);
    side_drop(&dst);
}

/* Virtual memory of another library, open to its own device alone; 2 MiB. */
struct foreign {
    unsigned long long handle;
    struct tb__copy_end end;
};

static struct foreign foreign_make(void)
{
    const struct tb__cuda_api *cuda = tb__cuda();
    const struct tb__mem_prop prop = {
        .type = TB__MEM_ALLOCATION_TYPE_PINNED,
        .location = {TB__MEM_LOCATION_TYPE_DEVICE, gpu_at(0)->device}};
    const struct tb__mem_access access = {.location = prop.location,
                                          .flags = TB__MEM_ACCESS_READWRITE};
    struct foreign foreign = {.end = {.gpu = gpu_at(0)}};
    CHECK_EQ(cuda->mem_create(&foreign.handle, 2 * MIB, &prop, 0), 0);
    CHECK_EQ(cuda->mem_address_reserve(&foreign.end.ptr, 2 * MIB, 0, 0, 0), 0);
    CHECK_EQ(cuda->mem_map(foreign.end.ptr, 2 * MIB, 0, foreign.handle, 0), 0);
    CHECK_EQ(cuda->mem_set_access(foreign.end.ptr, 2 * MIB, &access, 1), 0);
    kit_fill(0, foreign.end.ptr, 2 * MIB, 41);
    return foreign;
}

static void foreign_drop(struct foreign *foreign)
{
    CHECK_EQ(tb__cuda()->mem_unmap(foreign->end.ptr, 2 * MIB), 0);
    CHECK_EQ(tb__cuda()->mem_address_free(foreign->end.ptr, 2 * MIB), 0);
    CHECK_EQ(tb__cuda()->mem_release(foreign->handle), 0);
}

/* It is not ours to open, and yet goes from device to device; where the driver refuses that as
 * well, through the host. */
static void memory_of_others_that_the_peer_was_not_let_into(void)
{
    need_peers();
    struct foreign foreign = foreign_make();
    copy_by(__LINE__, foreign.end, 1, 2 * MIB, TB__PATH_PEER);
    if (kit_fake() != NULL) {
        static const char *const refusals[] = {"cuMemcpyPeerAsync:1:1", "cuMemcpyPeerAsync:1:217"};
        for (size_t i = 0; i < 2; i++) {
            kit_fake()->fail(refusals[i]);
            copy_by(__LINE__, foreign.end, 1, 2 * MIB, TB__PATH_STAGED);
            CHECK(kit_fake()->has_failed());
        }
        kit_fake()->fail(NULL);
    }
    foreign_drop(&foreign);
    tb__copy_trim();
}

/* Memory of tb_alloc(), and frames: mapped as they are in any process. They are opened to the peer
 * that copies from them, which needs no more calls then. */
static void what_we_have_mapped_is_opened_to_a_peer(void)
{
    need_peers();
    struct side own = side_make(0, 2 * MIB);
    struct tb__device_memory frames[2];
    int fd = -1;
    side_fill(&own, 2 * MIB, 41);
    OK(tb__device_export_fd(&own.device, &fd));
    for (int i = 0; i < 2; i++) {
        OK(tb__device_import_fd(gpu_at(i), TB__DEVICE_VMM, fd, 2 * MIB, 1, &frames[i]));
    }
    close(fd);
    unsigned long named = kit_fake() != NULL ? kit_fake()->calls("cuMemcpyPeerAsync") : 0;
    copy_by(__LINE__, own.end, 1, 2 * MIB, TB__PATH_PEER);
    copy_by(__LINE__, (struct tb__copy_end){.ptr = frames[0].ptr, .gpu = gpu_at(0)}, 1, 2 * MIB,
            TB__PATH_PEER);
    int count = 0;
    OK(tb__gpu_count(&count));
    for (int i = 0; i < count; i++) { /* lies on the first, is read through the second */
        int can = 0;
        OK(tb__gpu_peer(gpu_at(i), gpu_at(0), &can));
        if (can) {
            copy_by(__LINE__, (struct tb__copy_end){.ptr = frames[1].ptr, .gpu = gpu_at(1)}, i,
                    2 * MIB, i == 1 ? TB__PATH_SAME_DEVICE : TB__PATH_PEER);
        }
    }
    if (kit_fake() != NULL) {
        CHECK_EQ(kit_fake()->calls("cuMemcpyPeerAsync"), named);
        /* Refused once for each pair of a mapping and a device. */
        CHECK_EQ(kit_fake()->calls("cuMemcpyDtoDAsync_v2"), 8);
    }
    /* Opened for reading: a frame stays its owner's. */
    struct tb__gpu_scope scope;
    OK(tb__gpu_enter(gpu_at(1), &scope));
    CHECK(tb__cuda()->memcpy_dtod_async(frames[0].ptr, own.end.ptr, 64, NULL) != 0);
    tb__gpu_leave(&scope);
    for (int i = 0; i < 2; i++) {
        tb__device_free(&frames[i]);
    }
    side_drop(&own);
}

/* From one device to a peer, from allocating to freeing: whatever call fails, the bytes are there
 * or the error says why not, and nothing is left. */
static tb_status copy_to_a_peer(void *argument)
{
    struct tb__device_memory src = {.fd = -1}, dst = {.fd = -1};
    tb_error kept;
    (void)argument;
    tb_status status = tb__device_alloc(gpu_at(0), MIB, &src);
    if (status == TB_OK) {
        status = tb__device_alloc(gpu_at(1), MIB, &dst);
    }
    if (status == TB_OK) {
        const struct tb__copy job = {.dst = {.ptr = dst.ptr, .gpu = gpu_at(1)},
                                     .src = {.ptr = src.ptr, .gpu = gpu_at(0)},
                                     .bytes = MIB};
        status = copy_and_wait(&job, NULL);
    }
    tb_last_error(&kept);
    for (int i = 0; i < 2; i++) { /* the first may be the call that fails */
        (void)!tb__stream_synchronize(NULL, gpu_at(1));
    }
    tb__copy_trim();
    tb__device_free(&dst);
    tb__device_free(&src);
    if (status != TB_OK) {
        tb__error_set_cuda(kept.status, kept.cuda_code, kept.where, "%s", kept.text);
    }
    return status;
}

static void every_failing_call_on_the_way_to_a_peer(void)
{
    static const int codes[] = {TB__CUDA_UNKNOWN, TB__CUDA_INVALID_VALUE,
                                TB__CUDA_PEER_ACCESS_UNSUPPORTED};
    for (size_t i = 0; i < 3; i++) {
        CHECK(FAIL_EACH(copy_to_a_peer, NULL, codes[i]) >= 20);
    }
}

int main(int argc, char **argv)
{
    static const struct kit_test tests[] = {
        ANY(memory_of_others_that_the_peer_was_not_let_into, "devices=2;peer=0-1"),
        ANY(what_we_have_mapped_is_opened_to_a_peer, "devices=3;peer=0-1,0-2,1-2"),
        FAKE(every_failing_call_on_the_way_to_a_peer, "devices=2;peer=0-1"),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}

/* Flat copies: every pair of memories, every path, in the order of the stream, with calls failing.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cuda/copy.h"
#include "cuda/device_memory.h"
#include "cuda/host_cache.h"
#include "cuda/order.h"
#include "cuda/path.h"
#include "cuda/transit.h"
#include "tests/cuda/kit.h"
#include "tests/cuda/sides.h"
#include "tests/cuda/streams.h"

/* ------------------------------------------------------------------ every pair */

static enum tb__path path_of(int src, int dst, uint64_t bytes)
{
    struct tb__path_case c = {.same_device = src == dst, .exportable = 1, .bytes = bytes};
    c.src = src >= 0 ? TB__GPU : src == -1 ? TB__HOST_LOCKED : TB__HOST_PAGEABLE;
    c.dst = dst >= 0 ? TB__GPU : dst == -1 ? TB__HOST_LOCKED : TB__HOST_PAGEABLE;
    if (src >= 0 && dst >= 0) {
        OK(tb__gpu_peer(gpu_at(src), gpu_at(dst), &c.peer));
    }
    return tb__path_choose(&c, tb__copy_register_min());
}

static void copy_pair(int src_at, int dst_at, int stream_at, uint64_t bytes)
{
    struct side src = side_make(src_at, bytes), dst = side_make(dst_at, bytes);
    const struct tb__copy job = {.dst = dst.end, .src = src.end, .bytes = bytes};
    struct tb__copy_result result = {.path = TB__PATHS};
    tb__stream stream = NULL;
    OK(tb__stream_create(gpu_at(stream_at), &stream));
    side_fill(&src, bytes, 11);
    side_fill(&dst, bytes, 12);
    if (src_at >= 0 && dst_at >= 0 && src_at != dst_at) {
        (void)!tb__device_allow(&src.device, gpu_at(dst_at));
    }
    OK(tb__gpu_copy(&job, stream, &result));
    CHECK_EQ(result.path, path_of(src_at, dst_at, bytes));
    /* What is not busy may be touched at once. */
    if (!result.src_busy) {
        side_fill(&src, bytes, 13);
    }
    if (result.dst_busy) {
        OK(tb__stream_synchronize(stream, gpu_at(stream_at)));
    }
    side_expect(__LINE__, &dst, bytes, 11);
    side_fill(&dst, bytes, 12);
    side_fill(&src, bytes, 14);
    OK(copy_and_wait(&job, stream));
    side_expect(__LINE__, &dst, bytes, 14);
    tb__stream_destroy(gpu_at(stream_at), stream);
    side_drop(&src);
    side_drop(&dst);
}

static void every_pair_of_memories(void)
{
    static const uint64_t sizes[] = {1, 4096, 5 * MIB + 17};
    int count = 0;
    OK(tb__gpu_count(&count));
    tb__copy_set_register_min(5 * MIB);
    CHECK_EQ(tb__copy_register_min(), 5 * MIB);
    for (int src = -2; src < count; src++) {
        for (int dst = -2; dst < count; dst++) {
            for (int stream = 0; stream < count; stream++) {
                for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                    copy_pair(src, dst, stream, sizes[i]);
                }
            }
        }
    }
    tb__copy_trim();
}

/* From what size on pageable memory is page-locked: as the environment says, or the built-in one
 * where it says nonsense. */
static void the_environment_sets_the_threshold(void)
{
    static const char *const nonsense[] = {"0", "-1", "20MiB", "x", "99999999999999999999"};
    tb__copy_set_register_min(0);
    setenv("TENSORBUS_GPU_PIN_MIN", "123456", 1);
    CHECK_EQ(tb__copy_register_min(), 123456);
    for (size_t i = 0; i < sizeof nonsense / sizeof nonsense[0]; i++) {
        tb__copy_set_register_min(0);
        setenv("TENSORBUS_GPU_PIN_MIN", nonsense[i], 1);
        CHECK_EQ(tb__copy_register_min(), TB__REGISTER_MIN_BYTES);
    }
    unsetenv("TENSORBUS_GPU_PIN_MIN");
    tb__copy_set_register_min(0);
    CHECK_EQ(tb__copy_register_min(), TB__REGISTER_MIN_BYTES);
}

/* Large pageable ranges that begin and end anywhere: only their whole pages are locked. */
static void ranges_that_share_pages(void)
{
    const uint64_t bytes = MIB + 777;
    struct side heap = side_make(-2, 2 * MIB), device = side_make(0, 2 * MIB);
    struct tb__copy_result result;
    tb__copy_set_register_min(MIB);
    for (uint64_t offset = 1; offset < 4096; offset += 1365) {
        for (int back = 0; back < 2; back++) {
            const struct tb__copy_end host = {.ptr = heap.end.ptr + offset};
            const struct tb__copy_end there = {.ptr = device.device.ptr + 512, .gpu = gpu_at(0)};
            const struct tb__copy job = {
                .dst = back ? host : there, .src = back ? there : host, .bytes = bytes};
            kit_pattern((char *)heap.host + offset, bytes, (unsigned)offset);
            if (back) {
                memset(heap.host, 0, 2 * MIB);
            }
            OK(tb__gpu_copy(&job, NULL, &result));
            CHECK_EQ(result.path, TB__PATH_REGISTER);
            CHECK(!result.src_busy && !result.dst_busy);
            EXPECT(0, device.device.ptr + 512, bytes, (unsigned)offset);
            CHECK(kit_same((char *)heap.host + offset, bytes, (unsigned)offset));
        }
    }
    /* While somebody copies from the same page. */
    struct tb__host_registration neighbour = {0};
    OK(tb__host_register(gpu_at(0), heap.host, 4096, 0, &neighbour));
    const struct tb__copy job = {
        .dst = device.end, .src = {.ptr = heap.end.ptr + 4096}, .bytes = MIB + 100};
    OK(tb__gpu_copy(&job, NULL, &result));
    CHECK_EQ(result.path, TB__PATH_REGISTER);
    tb__host_unregister(&neighbour);
    side_drop(&heap);
    side_drop(&device);
}

static void default_streams_do_as_well(void)
{
    static const tb__stream streams[] = {NULL, TB__STREAM_LEGACY, TB__STREAM_PER_THREAD};
    struct side src = side_make(-1, MIB), dst = side_make(0, MIB);
    const struct tb__copy job = {.dst = dst.end, .src = src.end, .bytes = MIB};
    for (unsigned i = 0; i < 3; i++) {
        side_fill(&src, MIB, i);
        OK(tb__gpu_copy(&job, streams[i], NULL));
        OK(tb__stream_synchronize(streams[i], gpu_at(0)));
        side_expect(__LINE__, &dst, MIB, i);
    }
    side_drop(&src);
    side_drop(&dst);
}

static void nothing_and_nowhere(void)
{
    struct tb__copy_result result = {.path = TB__PATHS};
    const struct tb__copy nothing = {.bytes = 0};
    OK(tb__gpu_copy(&nothing, NULL, &result));
    CHECK_EQ(result.path, TB__PATH_NONE);
    const struct tb__copy from_null = {.dst = {.ptr = 4096, .gpu = gpu_at(0)}, .bytes = 7};
    FAILS(tb__gpu_copy(&from_null, NULL, &result), TB_E_INVALID, "7 bytes from NULL");
    const struct tb__copy to_null = {.src = {.ptr = 4096, .gpu = gpu_at(0)}, .bytes = 7};
    FAILS(tb__gpu_copy(&to_null, NULL, &result), TB_E_INVALID, "7 bytes to NULL");
}

/* ------------------------------------------------------------------ order */

/* A stream stands still until its gate, a word, is opened. */
static void gate_close(const struct words *gate, tb__stream stream, const struct tb__gpu *gpu)
{
    atomic_store(gate->host, 0);
    OK(stream_wait64(stream, gpu, gate->registration.device_ptr, 1));
}

/* The call returns though the stream stands still; nothing is copied before it goes on, all after.
 */
static void copies_keep_the_order_of(int src_at, int dst_at, int stream_at)
{
    const uint64_t bytes = 5 * MIB;
    struct words gate = words_make();
    struct side src = side_make(src_at, bytes), dst = side_make(dst_at, bytes);
    const struct tb__copy job = {.dst = dst.end, .src = src.end, .bytes = bytes};
    const struct tb__gpu *gpu = gpu_at(stream_at);
    struct tb__copy_result result;
    tb__stream stream = NULL;
    OK(tb__stream_create(gpu, &stream));
    if (src_at >= 0 && dst_at >= 0 && src_at != dst_at) {
        (void)!tb__device_allow(&src.device, gpu_at(dst_at));
    }
    side_fill(&src, bytes, 21);
    side_fill(&dst, bytes, 22);
    gate_close(&gate, stream, gpu);
    OK(tb__gpu_copy(&job, stream, &result));
    CHECK(result.src_busy && result.dst_busy);
    pause_ms(10);
    CHECK_EQ(tb__stream_query(stream, gpu), TB_AGAIN);
    side_expect(__LINE__, &dst, bytes, 22);
    side_fill(&src, bytes, 23); /* still in time */
    atomic_store(gate.host, 1);
    OK(tb__stream_synchronize(stream, gpu));
    side_expect(__LINE__, &dst, bytes, 23);
    tb__stream_destroy(gpu, stream);
    side_drop(&src);
    side_drop(&dst);
    words_drop(&gate);
}

static void copies_keep_the_order_of_the_stream(void)
{
    int count = 0;
    OK(tb__gpu_count(&count));
    if (!gpu_at(0)->stream_mem_ops_64) {
        kit_skip("streams of the device cannot wait for words");
    }
    for (int stream = 0; stream < count; stream++) {
        copies_keep_the_order_of(-1, 0, stream);
        copies_keep_the_order_of(0, -1, stream);
        copies_keep_the_order_of(0, 0, stream);
        for (int i = 1; i < count; i++) {
            copies_keep_the_order_of(0, i, stream);
            copies_keep_the_order_of(i, 0, stream);
        }
    }
    tb__copy_trim();
}

/* A stream that stands still holds up no other stream's copy between the same devices. */
static void one_still_stream_holds_up_nobody(void)
{
    const uint64_t bytes = 5 * MIB;
    struct words gate = words_make();
    struct side src = side_make(0, bytes), dst = side_make(1, bytes), more = side_make(1, bytes);
    const struct tb__copy job = {.dst = dst.end, .src = src.end, .bytes = bytes};
    const struct tb__copy other = {.dst = more.end, .src = src.end, .bytes = bytes};
    tb__stream still = NULL, running = NULL;
    OK(tb__stream_create(gpu_at(0), &still));
    OK(tb__stream_create(gpu_at(1), &running));
    side_fill(&src, bytes, 31);
    side_fill(&dst, bytes, 32);
    gate_close(&gate, still, gpu_at(0));
    OK(tb__gpu_copy(&job, still, NULL));
    OK(copy_and_wait(&other, running));
    side_expect(__LINE__, &more, bytes, 31);
    side_expect(__LINE__, &dst, bytes, 32);
    tb__copy_trim(); /* frees what is at rest only */
    atomic_store(gate.host, 1);
    OK(tb__stream_synchronize(still, gpu_at(0)));
    side_expect(__LINE__, &dst, bytes, 31);
    tb__stream_destroy(gpu_at(0), still);
    tb__stream_destroy(gpu_at(1), running);
    side_drop(&src);
    side_drop(&dst);
    side_drop(&more);
    words_drop(&gate);
    tb__copy_trim();
}

/* Both halves of a staged copy run at the same time: while the second chunk is read from its
 * device, the first is written to the other. */
static void both_halves_overlap(void)
{
    const uint64_t bytes = 6 * TB__CHUNK_BYTES;
    struct side src = side_make(0, bytes), dst = side_make(1, bytes);
    const struct tb__copy job = {.dst = dst.end, .src = src.end, .bytes = bytes};
    struct timespec begin, end;
    OK(copy_and_wait(&job, NULL)); /* makes the chunks */
    /* 12 halves of 60 ms: one after another 720 ms, two at a time 420 ms. The best of some: the
     * machine may have other things to do. */
    double best = 1e9;
    for (int i = 0; i < 5 && best > 600; i++) {
        clock_gettime(CLOCK_MONOTONIC, &begin);
        OK(copy_and_wait(&job, NULL));
        clock_gettime(CLOCK_MONOTONIC, &end);
        double ms =
            (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
        best = ms < best ? ms : best;
    }
    if (best < 400 || best > 600) {
        FAIL("%.0f ms", best);
    }
    side_drop(&src);
    side_drop(&dst);
    tb__copy_trim();
}

/* The destination is slow: no chunk is filled again before it was emptied. */
static void chunks_are_not_filled_too_early(void)
{
    const uint64_t bytes = 6 * TB__CHUNK_BYTES + 5;
    struct side src = side_make(0, bytes), dst = side_make(1, bytes);
    const struct tb__copy job = {.dst = dst.end, .src = src.end, .bytes = bytes};
    for (unsigned i = 0; i < 2; i++) {
        side_fill(&src, bytes, 35 + i);
        OK(copy_and_wait(&job, NULL));
        side_expect(__LINE__, &dst, bytes, 35 + i);
    }
    side_drop(&src);
    side_drop(&dst);
    tb__copy_trim();
}

static void memory_that_cannot_be_locked_goes_the_drivers_way(void)
{
    struct side src = side_make(-2, 2 * MIB), dst = side_make(0, 2 * MIB);
    const struct tb__copy job = {.dst = dst.end, .src = src.end, .bytes = 2 * MIB};
    struct tb__host_registration part = {0};
    struct tb__copy_result result;
    tb__copy_set_register_min(MIB);
    side_fill(&src, 2 * MIB, 51);
    kit_fake()->fail("cuMemHostRegister_v2:1:2");
    OK(tb__gpu_copy(&job, NULL, &result));
    CHECK_EQ(result.path, TB__PATH_DRIVER);
    CHECK(kit_fake()->has_failed());
    kit_fake()->fail(NULL);
    OK(tb__stream_synchronize(NULL, gpu_at(0)));
    side_expect(__LINE__, &dst, 2 * MIB, 51);
    (void)part;
    side_drop(&src);
    side_drop(&dst);
}

/* ------------------------------------------------------------------ failures */

/* G02: beyond the buffer, and an error in the middle; the next copy works. */
static void g02_a_copy_that_fails(void)
{
    struct side src = side_make(-1, 2 * MIB), dst = side_make(0, MIB);
    struct tb__copy job = {.dst = dst.end, .src = src.end, .bytes = 64 * MIB};
    struct tb__copy_result result = {.path = TB__PATHS};
    const struct tb__gpu *gpu = gpu_at(0);
    tb__stream stream = NULL;
    OK(tb__stream_create(gpu, &stream));
    tb_status status = tb__gpu_copy(&job, stream, &result);
    CHECK_EQ(status, TB_E_SYSTEM);
    CHECK(strstr(tb_last_error_text(), "cuMemcpyHtoDAsync(64.0 MiB (67108864 bytes) from host to "
                                       "cuda:0): CUDA_ERROR_INVALID_VALUE (1)") != NULL);
    CHECK_EQ(result.path, TB__PATHS); /* untouched */
    job.bytes = MIB;
    side_fill(&src, MIB, 61);
    OK(copy_and_wait(&job, stream));
    side_expect(__LINE__, &dst, MIB, 61);
    tb__stream_destroy(gpu, stream);
    side_drop(&src);
    side_drop(&dst);
}

struct attempt {
    struct tb__copy job;
    const struct tb__gpu *gpu;
};

/* The devices' memory is the test's, so that only what a copy leaves behind counts. */
static tb_status copy_and_trim(void *argument)
{
    const struct attempt *attempt = argument;
    tb_status status = copy_and_wait(&attempt->job, NULL);
    tb_error kept;
    tb_last_error(&kept);
    /* Also a failed copy leaves nothing enqueued that the stream does not come after. Twice: it may
     * be this call that fails. */
    if (tb__stream_synchronize(NULL, attempt->gpu) != TB_OK) {
        (void)!tb__stream_synchronize(NULL, attempt->gpu);
    }
    tb__copy_trim();
    if (status != TB_OK) {
        /* as a caller would find it */
        tb__error_set_cuda(kept.status, kept.cuda_code, kept.where, "%s", kept.text);
    }
    return status;
}

static void every_failing_call_leaves_nothing(void)
{
    static const int pairs[][2] = {{-2, 0}, {0, -2}, {-1, 0}, {0, 0}, {0, 1}, {0, 2}};
    const uint64_t bytes = 5 * MIB;
    tb__copy_set_register_min(5 * MIB);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        for (int large = 0; large < 2; large++) {
            struct side src = side_make(pairs[i][0], bytes), dst = side_make(pairs[i][1], bytes);
            struct attempt attempt = {{dst.end, src.end, large ? bytes : MIB},
                                      gpu_at(pairs[i][1] >= 0 ? pairs[i][1] : 0)};
            kit_fake()->own(); /* what is there now is ours */
            unsigned calls = FAIL_EACH(copy_and_trim, &attempt, TB__CUDA_UNKNOWN);
            CHECK(calls >= 5);
            kit_fake()->own();
            side_drop(&src);
            side_drop(&dst);
        }
    }
}

static void a_stream_that_breaks_breaks_nothing_else(void)
{
    struct side src = side_make(-1, MIB), dst = side_make(0, MIB), other = side_make(1, MIB);
    const struct tb__copy job = {.dst = dst.end, .src = src.end, .bytes = MIB};
    const struct tb__copy elsewhere = {.dst = other.end, .src = src.end, .bytes = MIB};
    tb__stream stream = NULL;
    OK(tb__stream_create(gpu_at(0), &stream));
    kit_fake()->fail("async:cuMemcpyHtoDAsync_v2:1:700");
    OK(tb__gpu_copy(&job, stream, NULL));
    FAILS(tb__stream_synchronize(stream, gpu_at(0)), TB_E_SYSTEM, "the context is broken");
    FAILS(tb__gpu_copy(&job, stream, NULL), TB_E_SYSTEM, "end this process");
    side_fill(&src, MIB, 71);
    OK(copy_and_wait(&elsewhere, NULL));
    side_expect(__LINE__, &other, MIB, 71);
    kit_fake()->break_device(0, 0);
    tb__stream_destroy(gpu_at(0), stream);
    side_drop(&src);
    side_drop(&dst);
    side_drop(&other);
}

int main(int argc, char **argv)
{
    static const struct kit_test tests[] = {
        ANY(every_pair_of_memories, "devices=3;peer=0-2;no_vmm=1"),
        ANY(the_environment_sets_the_threshold, ""),
        ANY(ranges_that_share_pages, NULL),
        ANY(default_streams_do_as_well, NULL),
        ANY(nothing_and_nowhere, NULL),
        ANY(copies_keep_the_order_of_the_stream, "devices=3;peer=0-2"),
        FAKE(one_still_stream_holds_up_nobody, "devices=2"),
        FAKE(both_halves_overlap, "devices=2;slow=60000"),
        FAKE(chunks_are_not_filled_too_early, "devices=2;slow=10000;slow_to_device=1"),
        FAKE(memory_that_cannot_be_locked_goes_the_drivers_way, NULL),
        FAKE(g02_a_copy_that_fails, NULL),
        FAKE(every_failing_call_leaves_nothing, "devices=3;peer=0-2"),
        FAKE(a_stream_that_breaks_breaks_nothing_else, "devices=2"),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}

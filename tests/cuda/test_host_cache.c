/* Registrations of memory that is not ours: only what was promised, only what comes back, bounded.
 */
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "cuda/copy.h"
#include "cuda/copy_tensor.h"
#include "cuda/device_memory.h"
#include "cuda/host_cache.h"
#include "tests/cuda/kit.h"
#include "tests/cuda/streams.h"

#define KIB ((uint64_t)1 << 10)
#define BYTES (64 * KIB)

static int get_put(const void *ptr, uint64_t bytes)
{
    struct tb__host_lease lease;
    int found = tb__host_cache_get(gpu_at(0), ptr, bytes, &lease);
    if (found) {
        CHECK(lease.from >= (uintptr_t)ptr && lease.to <= (uintptr_t)ptr + bytes);
        CHECK(tb__host_device_address((void *)lease.from, lease.to - lease.from) != 0);
    }
    tb__host_cache_put(&lease, NULL, gpu_at(0), 1);
    return found;
}

static struct tb__host_cache_stats stats(void)
{
    struct tb__host_cache_stats now;
    tb__host_cache_stats(&now);
    return now;
}

static void only_what_was_promised_and_comes_back(void)
{
    char *a = pages(BYTES), *b = pages(BYTES);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(get_put(a, BYTES), 0); /* nobody promised it */
    }
    OK(tb__host_promise(a, BYTES));
    CHECK_EQ(get_put(a, BYTES), 0);
    CHECK_EQ(get_put(a + 100, 1000), 1); /* seen before */
    CHECK_EQ(get_put(a, BYTES), 1);
    CHECK_EQ(get_put(b, 1), 0);
    CHECK_EQ(stats().registered, 1);
    CHECK_EQ(get_put(a + 1, BYTES), 0); /* reaches beyond: it would be locked in part */
    CHECK_EQ(stats().registered, 0);
    CHECK_EQ(get_put(a, BYTES), 1);
    CHECK_EQ(stats().registered, 1);
    CHECK_EQ(stats().bytes, BYTES);
    OK(tb__host_forget(a, BYTES));
    CHECK_EQ(tb__host_device_address(a, BYTES), 0);
    CHECK_EQ(get_put(a, BYTES), 0);
    FAILS(tb__host_forget(a, BYTES), TB_E_NOT_FOUND, "were not promised");
    FAILS(tb__host_promise(NULL, 5), TB_E_INVALID, "no range");
    FAILS(tb__host_promise(a, 0), TB_E_INVALID, "0 bytes");
    FAILS(tb__host_promise(a, UINT64_MAX), TB_E_INVALID, "no range");
    munmap(a, BYTES);
    munmap(b, BYTES);
}

static void large_ranges_at_once(void)
{
    char *a = pages(TB__REGISTER_MIN_BYTES);
    OK(tb__host_promise(a, TB__REGISTER_MIN_BYTES));
    CHECK_EQ(get_put(a, 100), 1);
    OK(tb__host_forget(a, TB__REGISTER_MIN_BYTES));
    munmap(a, TB__REGISTER_MIN_BYTES);
}

static void promises_are_counted(void)
{
    char *a = pages(BYTES);
    OK(tb__host_promise(a, BYTES));
    OK(tb__host_promise(a, BYTES));
    get_put(a, BYTES);
    CHECK_EQ(get_put(a, BYTES), 1);
    OK(tb__host_forget(a, BYTES));
    CHECK_EQ(get_put(a, BYTES), 1);
    OK(tb__host_forget(a, BYTES));
    CHECK_EQ(stats().promised, 0);
    munmap(a, BYTES);
}

static void the_least_recently_used_goes(void)
{
    char *ranges[4];
    tb__host_cache_limit(2 * BYTES, 10);
    for (int i = 0; i < 4; i++) {
        ranges[i] = pages(BYTES);
        OK(tb__host_promise(ranges[i], BYTES));
        get_put(ranges[i], BYTES);
    }
    /* The older goes, whichever was noted first. */
    for (int older = 0; older < 2; older++) {
        CHECK_EQ(get_put(ranges[0], BYTES), 1);
        CHECK_EQ(get_put(ranges[1], BYTES), 1);
        CHECK_EQ(get_put(ranges[!older], BYTES), 1);
        CHECK_EQ(get_put(ranges[2], BYTES), 1);
        CHECK_EQ(stats().registered, 2);
        CHECK(tb__host_device_address(ranges[!older], BYTES) != 0);
        CHECK_EQ(tb__host_device_address(ranges[older], BYTES), 0);
    }
    CHECK_EQ(stats().evicted, 4);
    /* By number. */
    tb__host_cache_limit(10 * BYTES, 1);
    CHECK_EQ(get_put(ranges[3], BYTES), 1);
    CHECK_EQ(stats().registered, 1);
    /* What is larger than all there may be evicts nobody. */
    tb__host_cache_limit(BYTES / 2, 10);
    CHECK_EQ(get_put(ranges[1], BYTES), 0);
    CHECK_EQ(stats().registered, 1);
    tb__host_cache_trim();
    CHECK_EQ(stats().registered, 0);
    CHECK_EQ(stats().promised, 4);
    for (int i = 0; i < 4; i++) {
        OK(tb__host_forget(ranges[i], BYTES));
        munmap(ranges[i], BYTES);
    }
}

/* A copy under way keeps its registration, whoever wants the room. */
static void copies_under_way_are_not_evicted(void)
{
    char *a = pages(BYTES), *b = pages(BYTES);
    char *words = pages(4096);
    struct tb__host_registration registration = {0};
    struct tb__device_memory memory;
    const struct tb__gpu *gpu = gpu_at(0);
    tb__stream stream = NULL;
    OK(tb__host_register(gpu, words, 4096, 0, &registration));
    OK(tb__device_alloc(gpu, BYTES, &memory));
    OK(tb__stream_create(gpu, &stream));
    tb__host_cache_limit(BYTES, 10);
    OK(tb__host_promise(a, BYTES));
    OK(tb__host_promise(b, BYTES));
    get_put(a, BYTES);
    get_put(b, BYTES);
    OK(stream_wait64(stream, gpu, registration.device_ptr, 1));
    const struct tb__copy job = {.dst = {.ptr = memory.ptr, .gpu = gpu},
                                 .src = {.ptr = (uint64_t)(uintptr_t)a},
                                 .bytes = BYTES};
    struct tb__copy_result result;
    for (unsigned i = 0; i < 3; i++) {
        OK(tb__gpu_copy(&job, stream, &result));
        CHECK_EQ(result.path, TB__PATH_DMA);
        CHECK(result.src_busy);
    }
    kit_pattern(a, BYTES, 5);
    CHECK_EQ(get_put(b, BYTES), 0); /* no room */
    tb__host_cache_trim();
    CHECK(tb__host_device_address(a, BYTES) != 0);
    __atomic_store_n((uint64_t *)(void *)words, 1, __ATOMIC_SEQ_CST);
    OK(tb__stream_synchronize(stream, gpu));
    EXPECT(0, memory.ptr, BYTES, 5);
    CHECK_EQ(get_put(b, BYTES), 1);
    CHECK_EQ(tb__host_device_address(a, BYTES), 0);
    OK(tb__host_forget(a, BYTES));
    OK(tb__host_forget(b, BYTES));
    tb__stream_destroy(gpu, stream);
    tb__device_free(&memory);
    tb__host_unregister(&registration);
    munmap(a, BYTES);
    munmap(b, BYTES);
    munmap(words, 4096);
}

/* Arrays side by side on the heap: the page that they share is locked for neither. */
static void neighbours_on_a_page_are_left_alone(void)
{
    char *heap = pages(16 * 4096);
    char *a = heap + 100, *b = heap + 5 * 4096 + 700; /* b begins where a ends */
    const uint64_t a_bytes = 5 * 4096 + 600, b_bytes = 4 * 4096, small = 4096 + 1000;
    struct tb__device_memory memory;
    struct tb__copy_result result;
    const struct tb__gpu *gpu = gpu_at(0);
    OK(tb__device_alloc(gpu, 16 * 4096, &memory));
    OK(tb__host_promise(a, a_bytes));
    OK(tb__host_promise(b, b_bytes));
    OK(tb__host_promise(heap + 10 * 4096 + 1, small)); /* has no whole page */
    for (int i = 0; i < 2; i++) {
        get_put(a, a_bytes);
        get_put(b, b_bytes);
        CHECK_EQ(get_put(heap + 10 * 4096 + 1, small), 0);
    }
    CHECK_EQ(stats().registered, 2);
    CHECK_EQ(stats().bytes, 4 * 4096 + 3 * 4096);
    CHECK_EQ(tb__host_device_address(heap + 5 * 4096, 1), 0);
    CHECK_EQ(get_put(a, 50), 0); /* on the first page */
    const struct {
        char *at;
        uint64_t bytes;
        enum tb__path path;
    } copies[] = {
        {a, a_bytes, TB__PATH_DMA},
        {b, b_bytes, TB__PATH_DMA},
        {a + 4096, 8192, TB__PATH_DMA},
        {b + 10, 6000, TB__PATH_DMA},
        {a, 200, TB__PATH_DRIVER},
        {heap, 12 * 4096, TB__PATH_DRIVER}, /* more than what was promised */
    };
    for (size_t i = 0; i < sizeof copies / sizeof copies[0]; i++) {
        for (int back = 0; back < 2; back++) {
            const struct tb__copy_end device = {.ptr = memory.ptr + 64, .gpu = gpu};
            const struct tb__copy_end host = {.ptr = (uint64_t)(uintptr_t)copies[i].at};
            const struct tb__copy job = {
                .dst = back ? host : device, .src = back ? device : host, .bytes = copies[i].bytes};
            kit_pattern(copies[i].at, copies[i].bytes, 20 + (unsigned)i);
            if (back) {
                memset(heap, 0, 16 * 4096);
            }
            OK(tb__gpu_copy(&job, NULL, &result));
            CHECK_EQ(result.path, copies[i].path);
            OK(tb__stream_synchronize(NULL, gpu));
            EXPECT(0, memory.ptr + 64, copies[i].bytes, 20 + (unsigned)i);
            CHECK(kit_same(copies[i].at, copies[i].bytes, 20 + (unsigned)i));
        }
    }
    CHECK_EQ(stats().registered, 0); /* let go for the last */
    OK(tb__host_forget(a, a_bytes));
    OK(tb__host_forget(b, b_bytes));
    OK(tb__host_forget(heap + 10 * 4096 + 1, small));
    tb__device_free(&memory);
    munmap(heap, 16 * 4096);
}

/* Rows of a promised array that does not begin on a page. */
static void strided_copies_let_go_of_what_cannot_be_cut(void)
{
    char *heap = pages(16 * 4096);
    const int64_t strides[] = {2000, 1}, packed[] = {1000, 1};
    struct tb__device_memory memory;
    struct tb__copy_result result;
    tb_tensor host = {.data = heap + 48, .dtype = TB_U8, .ndim = 2, .shape = {20, 1000}};
    tb_tensor device = host;
    OK(tb__device_alloc(gpu_at(0), 65536, &memory));
    device.device = TB_CUDA(0);
    device.data = (void *)(uintptr_t)memory.ptr;
    device.strides = packed;
    host.strides = strides;
    OK(tb__host_promise(heap + 48, 45000));
    get_put(heap + 48, 45000);
    CHECK_EQ(get_put(heap + 48, 45000), 1);
    kit_fill(0, memory.ptr, 20000, 4);
    OK(tb__gpu_copy_tensor(&host, &device, NULL, &result));
    CHECK_EQ(result.path, TB__PATH_DRIVER);
    OK(tb__stream_synchronize(NULL, gpu_at(0)));
    CHECK_EQ(stats().registered, 0);
    char expected[20000];
    kit_pattern(expected, sizeof expected, 4);
    for (int i = 0; i < 20; i++) {
        CHECK(memcmp(heap + 48 + i * 2000, expected + i * 1000, 1000) == 0);
    }
    OK(tb__host_forget(heap + 48, 45000));
    tb__device_free(&memory);
    munmap(heap, 16 * 4096);
}

static void a_lease_is_not_forgotten(void)
{
    char *a = pages(BYTES);
    struct tb__host_lease lease;
    OK(tb__host_promise(a, BYTES));
    get_put(a, BYTES);
    CHECK_EQ(tb__host_cache_get(gpu_at(0), a, BYTES, &lease), 1);
    FAILS(tb__host_forget(a, BYTES), TB_E_BUSY, "are being copied");
    tb__host_cache_put(&lease, NULL, gpu_at(0), 1);
    tb__host_cache_put(&lease, NULL, gpu_at(0), 1); /* an empty one */
    OK(tb__host_forget(a, BYTES));
    munmap(a, BYTES);
}

static void a_registration_that_fails_is_tried_once(void)
{
    char *a = pages(BYTES);
    OK(tb__host_promise(a, BYTES));
    get_put(a, BYTES);
    kit_fake()->fail("cuMemHostRegister_v2:1:2");
    CHECK_EQ(get_put(a, BYTES), 0);
    CHECK(kit_fake()->has_failed());
    kit_fake()->fail(NULL);
    unsigned long before = kit_fake()->calls("cuMemHostRegister_v2");
    CHECK_EQ(get_put(a, BYTES), 0);
    CHECK_EQ(kit_fake()->calls("cuMemHostRegister_v2"), before);
    OK(tb__host_forget(a, BYTES));
    munmap(a, BYTES);
}

int main(int argc, char **argv)
{
    static const struct kit_test tests[] = {
        ANY(only_what_was_promised_and_comes_back, NULL),
        ANY(large_ranges_at_once, NULL),
        ANY(promises_are_counted, NULL),
        ANY(the_least_recently_used_goes, NULL),
        ANY(copies_under_way_are_not_evicted, NULL),
        ANY(neighbours_on_a_page_are_left_alone, NULL),
        ANY(strided_copies_let_go_of_what_cannot_be_cut, NULL),
        ANY(a_lease_is_not_forgotten, NULL),
        FAKE(a_registration_that_fails_is_tried_once, NULL),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}

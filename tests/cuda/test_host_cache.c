/* Registrations of memory that is not ours: only what was promised, only what comes back, bounded.
 */
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "cuda/copy.h"
#include "cuda/device_memory.h"
#include "cuda/host_cache.h"
#include "tests/cuda/kit.h"

#define KIB ((uint64_t)1 << 10)
#define BYTES (64 * KIB)

static const struct tb__gpu *gpu_at(int ordinal)
{
    const struct tb__gpu *gpu = NULL;
    OK(tb__gpu_get(ordinal, &gpu));
    return gpu;
}

static char *pages(uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static int get_put(const void *ptr, uint64_t bytes)
{
    struct tb__host_lease lease;
    int found = tb__host_cache_get(gpu_at(0), ptr, bytes, &lease);
    if (found) {
        CHECK_EQ(lease.device_ptr, tb__host_device_address(ptr, bytes));
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
    CHECK_EQ(get_put(a + 1, BYTES), 0); /* reaches beyond */
    CHECK_EQ(get_put(b, 1), 0);
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
    OK(tb__stream_wait64_geq(stream, gpu, registration.device_ptr, 1));
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
        ANY(a_lease_is_not_forgotten, NULL),
        FAKE(a_registration_that_fails_is_tried_once, NULL),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}

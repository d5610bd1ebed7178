/* tb_alloc(): every kind, its alignment, what is refused, and nothing left when a call fails. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <tensorbus/memory.h>

#include "cuda/device.h"
#include "cuda/host_memory.h"
#include "cuda/order.h"
#include "tests/cuda/kit.h"
#include "tests/cuda/streams.h"

#define BYTES 100000

static const tb_memory_kind kinds[] = {TB_MEMORY_PINNED,         TB_MEMORY_DEVICE,
                                       TB_MEMORY_STREAM_ORDERED, TB_MEMORY_MANAGED,
                                       TB_MEMORY_SHARED_PINNED,  TB_MEMORY_LOCKED};
#define KINDS (sizeof kinds / sizeof kinds[0])

static tb_memory_options options_of(tb_memory_kind kind)
{
    return (tb_memory_options){.size = sizeof(tb_memory_options), .kind = kind, .bytes = BYTES};
}

static const struct tb__gpu *first_gpu(void)
{
    const struct tb__gpu *gpu = NULL;
    OK(tb__gpu_get(0, &gpu));
    return gpu;
}

static int on_cpu(tb_memory_kind kind)
{
    return kind != TB_MEMORY_DEVICE && kind != TB_MEMORY_STREAM_ORDERED;
}

static void every_kind_is_aligned_and_usable(void)
{
    static const uint64_t alignments[] = {0, 1, 256, 4096, 65536, TB_MEMORY_MAX_ALIGNMENT};
    for (size_t k = 0; k < KINDS; k++) {
        for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
            tb_memory_options options = options_of(kinds[k]);
            tb_memory_info info = {.size = sizeof info};
            tb_memory *memory = NULL, *found = NULL;
            uint64_t wanted = alignments[i] < 256 ? 256 : alignments[i];
            options.alignment = alignments[i];
            OK(tb_alloc(&options, &memory));
            OK(tb_memory_get_info(memory, &info));
            CHECK_EQ(info.kind, kinds[k]);
            CHECK_EQ(info.bytes, BYTES);
            CHECK_EQ(info.alignment, wanted);
            CHECK_EQ(info.device, kinds[k] == TB_MEMORY_LOCKED ? TB_CPU : TB_CUDA(0));
            CHECK_EQ(info.data != NULL, on_cpu(kinds[k]));
            CHECK_EQ(info.device_data != 0, kinds[k] != TB_MEMORY_LOCKED);
            CHECK_EQ((uintptr_t)tb_memory_data(memory) % wanted, 0);
            CHECK(info.data == NULL || info.data == tb_memory_data(memory));
            CHECK_EQ(info.device_data % 256, 0);
            if (info.data != NULL) {
                kit_pattern(info.data, BYTES, 3);
            } else {
                OK(tb__stream_synchronize(NULL, first_gpu()));
                kit_fill(0, info.device_data, BYTES, 3);
            }
            if (info.device_data != 0) {
                EXPECT(0, info.device_data, BYTES, 3);
            }
            char *first = tb_memory_data(memory);
            OK(tb_memory_find(first, &found));
            CHECK(found == memory);
            OK(tb_memory_find(first + BYTES - 1, &found));
            CHECK(found == memory);
            FAILS(tb_memory_find(first + BYTES, &found), TB_E_NOT_FOUND, "in no memory of");
            tb_memory_free(memory);
            FAILS(tb_memory_find(first, &found), TB_E_NOT_FOUND, "in no memory of");
        }
    }
    tb_memory_free(NULL);
}

static void many_are_told_apart(void)
{
    enum { COUNT = 40 };
    tb_memory *all[COUNT], *found = NULL;
    for (int i = 0; i < COUNT; i++) {
        tb_memory_options options = options_of(kinds[(size_t)i % KINDS]);
        options.bytes = (uint64_t)(i + 1) * 1000;
        OK(tb_alloc(&options, &all[i]));
    }
    for (int i = 0; i < COUNT; i++) {
        char *data = tb_memory_data(all[i]);
        OK(tb_memory_find(data + (i + 1) * 1000 - 1, &found));
        CHECK(found == all[i]);
    }
    for (int i = 0; i < COUNT; i += 2) {
        tb_memory_free(all[i]);
    }
    for (int i = 1; i < COUNT; i += 2) {
        OK(tb_memory_find(tb_memory_data(all[i]), &found));
        CHECK(found == all[i]);
        tb_memory_free(all[i]);
    }
    OK(tb__stream_synchronize(NULL, first_gpu()));
}

static void mistakes_are_named(void)
{
    static char byte;
    tb_memory *memory = (tb_memory *)(void *)&byte;
    tb_memory_options options = options_of(TB_MEMORY_LOCKED);
    FAILS(tb_alloc(NULL, &memory), TB_E_INVALID, "NULL");
    FAILS(tb_alloc(&options, NULL), TB_E_INVALID, "NULL");
    options.size = 0;
    FAILS(tb_alloc(&options, &memory), TB_E_INVALID, "tb_memory_options.size is 0");
    options = options_of(TB_MEMORY_UNKNOWN);
    FAILS(tb_alloc(&options, &memory), TB_E_INVALID, "kind 0 (unknown)");
    options = options_of(TB_MEMORY_PAGEABLE);
    FAILS(tb_alloc(&options, &memory), TB_E_INVALID, "kind 7 (pageable)");
    options = options_of((tb_memory_kind)99);
    FAILS(tb_alloc(&options, &memory), TB_E_INVALID, "kind 99 (?)");
    options = options_of(TB_MEMORY_LOCKED);
    options.bytes = 0;
    FAILS(tb_alloc(&options, &memory), TB_E_INVALID, "0 bytes of locked memory");
    options.bytes = UINT64_MAX;
    FAILS(tb_alloc(&options, &memory), TB_E_INVALID, "18446744073709551615 bytes");
    options = options_of(TB_MEMORY_LOCKED);
    options.alignment = 384;
    FAILS(tb_alloc(&options, &memory), TB_E_INVALID,
          "alignment to 384 bytes: it is a power of two");
    options.alignment = 2 * TB_MEMORY_MAX_ALIGNMENT;
    FAILS(tb_alloc(&options, &memory), TB_E_INVALID, "up to 2097152");
    options = options_of(TB_MEMORY_PINNED);
    options.advice = TB_ADVICE_READ_MOSTLY;
    FAILS(tb_alloc(&options, &memory), TB_E_INVALID, "advice about managed memory alone");
    options = options_of(TB_MEMORY_MANAGED);
    options.advice = 64;
    FAILS(tb_alloc(&options, &memory), TB_E_INVALID, "advice 0x40");
    options = options_of(TB_MEMORY_PINNED);
    options.device = TB_CUDA(77);
    FAILS(tb_alloc(&options, &memory), TB_E_NOT_FOUND, "there is no cuda:77");
    options.device = 5;
    FAILS(tb_alloc(&options, &memory), TB_E_INVALID, "no GPU");
    options = options_of(TB_MEMORY_DEVICE);
    options.bytes = (uint64_t)1 << 50;
    FAILS(tb_alloc(&options, &memory), TB_E_NOMEM, "are free");
    CHECK(memory == (tb_memory *)(void *)&byte);
    tb_memory_info info = {.size = sizeof info};
    FAILS(tb_memory_get_info(NULL, &info), TB_E_INVALID, "NULL");
    FAILS(tb_memory_free_on(NULL, NULL), TB_E_INVALID, "NULL");
    CHECK(tb_memory_data(NULL) == NULL);
}

static void locked_memory_needs_no_gpu(void)
{
    tb_memory_options options = options_of(TB_MEMORY_LOCKED);
    tb_memory *memory = NULL;
    char line[256];
    long locked = -1;
    OK(tb_alloc(&options, &memory));
    FILE *status = fopen("/proc/self/status", "re");
    while (fgets(line, sizeof line, status) != NULL) {
        sscanf(line, "VmLck: %ld", &locked);
    }
    fclose(status);
    CHECK(locked >= BYTES / 1024 || kit_locks_nothing());
    CHECK(!tb__cuda_is_open());
    tb_memory_free(memory);
    options = options_of(TB_MEMORY_PINNED);
    FAILS(tb_alloc(&options, &memory), TB_E_UNSUPPORTED, "CUDA_ERROR_NO_DEVICE");
}

static void limit_body(void *argument)
{
    (void)argument;
    tb_memory_options options = options_of(TB_MEMORY_LOCKED);
    tb_memory *memory = NULL;
    struct rlimit limit = {.rlim_cur = 65536, .rlim_max = 65536};
    CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    /* Without the right to lock as much as one likes. */
    if (setuid(65534) != 0) {
        kit_skip("cannot give up the right to lock any amount");
    }
    options.bytes = 8 << 20;
    FAILS(tb_alloc(&options, &memory), TB_E_LIMIT,
          "locking 8.0 MiB (8388608 bytes): this process "
          "may lock 64.0 KiB (65536 bytes) in all");
    FAILS(tb_alloc(&options, &memory), TB_E_LIMIT, "ulimit -l");
    options.bytes = 4096;
    OK(tb_alloc(&options, &memory));
    tb_memory_free(memory);
}

static void the_limit_on_locked_memory_is_named(void)
{
    if (kit_locks_nothing()) {
        kit_skip("this sanitizer lets nobody lock memory");
    }
    int status = kit_child(limit_body, NULL);
    if (status == 77) {
        kit_skip("cannot give up the right to lock any amount");
    }
    CHECK_EQ(status, 0);
}

/* ------------------------------------------------------------------ managed memory */

static void advice_is_about_managed_memory(void)
{
    tb_memory_options options = options_of(TB_MEMORY_MANAGED);
    tb_memory *memory = NULL, *pinned = NULL;
    options.advice = TB_ADVICE_READ_MOSTLY | TB_ADVICE_PREFER_DEVICE | TB_ADVICE_ACCESSED_BY_CPU;
    unsigned long before = kit_fake() != NULL ? kit_fake()->calls("cuMemAdvise_v2") : 0;
    const struct tb__gpu *gpu = NULL;
    OK(tb__gpu_get(0, &gpu));
    if (!gpu->concurrent_managed) {
        kit_skip("the device and the CPU cannot use managed memory at the same time");
    }
    OK(tb_alloc(&options, &memory));
    if (kit_fake() != NULL) {
        CHECK_EQ(kit_fake()->calls("cuMemAdvise_v2"), before + 3);
    }
    static const struct {
        uint32_t ours;
        unsigned advice, type;
    } each[] = {
        {TB_ADVICE_READ_MOSTLY, TB__MEM_ADVISE_SET_READ_MOSTLY, TB__MEM_LOCATION_TYPE_DEVICE},
        {TB_ADVICE_PREFER_DEVICE, TB__MEM_ADVISE_SET_PREFERRED_LOCATION,
         TB__MEM_LOCATION_TYPE_DEVICE},
        {TB_ADVICE_PREFER_CPU, TB__MEM_ADVISE_SET_PREFERRED_LOCATION, TB__MEM_LOCATION_TYPE_HOST},
        {TB_ADVICE_ACCESSED_BY_DEVICE, TB__MEM_ADVISE_SET_ACCESSED_BY,
         TB__MEM_LOCATION_TYPE_DEVICE},
        {TB_ADVICE_ACCESSED_BY_CPU, TB__MEM_ADVISE_SET_ACCESSED_BY, TB__MEM_LOCATION_TYPE_HOST},
    };
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        OK(tb_memory_advise(memory, each[i].ours, TB_CUDA(0)));
        unsigned said = 0, type = 0;
        int id = -1;
        if (kit_fake() != NULL) {
            kit_fake()->advice(&said, &type, &id);
            CHECK(said == each[i].advice && type == each[i].type && id == 0);
        }
    }
    OK(tb_memory_advise(memory, TB_ADVICE_PREFER_CPU | TB_ADVICE_ACCESSED_BY_DEVICE, TB_CUDA(0)));
    OK(tb_memory_prefetch(memory, TB_CUDA(0), NULL));
    OK(tb_memory_prefetch(memory, TB_CPU, NULL));
    OK(tb__stream_synchronize(NULL, gpu));
    FAILS(tb_memory_advise(memory, 0, TB_CPU), TB_E_INVALID, "advice 0x0");
    FAILS(tb_memory_advise(memory, 32, TB_CPU), TB_E_INVALID, "advice 0x20");
    FAILS(tb_memory_advise(memory, 1, TB_CUDA(9)), TB_E_NOT_FOUND, "no cuda:9");
    FAILS(tb_memory_prefetch(memory, TB_CUDA(9), NULL), TB_E_NOT_FOUND, "no cuda:9");
    FAILS(tb_memory_advise(NULL, 1, TB_CPU), TB_E_INVALID, "NULL");
    FAILS(tb_memory_prefetch(NULL, TB_CPU, NULL), TB_E_INVALID, "NULL");
    options = options_of(TB_MEMORY_PINNED);
    OK(tb_alloc(&options, &pinned));
    FAILS(tb_memory_advise(pinned, TB_ADVICE_READ_MOSTLY, TB_CPU), TB_E_UNSUPPORTED,
          "advice of pinned memory: it works on managed memory alone");
    FAILS(tb_memory_prefetch(pinned, TB_CPU, NULL), TB_E_UNSUPPORTED, "prefetching of pinned");
    tb_memory_free(pinned);
    tb_memory_free(memory);
}

static void what_the_device_lacks_is_said(void)
{
    tb_memory_options options = options_of(TB_MEMORY_MANAGED);
    tb_memory *memory = NULL;
    FAILS(tb_alloc(&options, &memory), TB_E_UNSUPPORTED, "cuda:0 (Fake GPU 0) has no managed");
    options = options_of(TB_MEMORY_STREAM_ORDERED);
    FAILS(tb_alloc(&options, &memory), TB_E_UNSUPPORTED, "has no stream-ordered pool");
    options = options_of(TB_MEMORY_SHARED_PINNED);
    FAILS(tb_alloc(&options, &memory), TB_E_UNSUPPORTED, "cannot page-lock existing memory");
}

/* ------------------------------------------------------------------ streams */

static void stream_ordered_memory_is_freed_in_order(void)
{
    const struct tb__gpu *gpu = NULL;
    tb__stream one = NULL, other = NULL, elsewhere = NULL;
    tb_memory *memory = NULL;
    OK(tb__gpu_get(0, &gpu));
    OK(tb__stream_create(gpu, &one));
    OK(tb__stream_create(gpu, &other));
    tb_memory_options options = options_of(TB_MEMORY_STREAM_ORDERED);
    options.stream = one;
    OK(tb_alloc(&options, &memory));
    tb_memory_free(memory);
    OK(tb__stream_synchronize(one, gpu));
    CHECK(kit_fake() == NULL || kit_fake()->calls("cuMemFreeAsync") == 1);
    /* The stream that it was allocated on stands still; it is freed on another. */
    if (gpu->stream_mem_ops_64) {
        struct tb__host_registration gate = {0};
        void *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        OK(tb__host_register(gpu, word, 4096, 0, &gate));
        OK(tb_alloc(&options, &memory));
        OK(tb__stream_synchronize(one, gpu));
        OK(stream_wait64(one, gpu, gate.device_ptr, 1));
        OK(tb_memory_free_on(memory, other));
        OK(tb__stream_synchronize(other, gpu));
        if (kit_fake() != NULL) {
            struct fake_leaks leaks;
            kit_fake()->leaks(&leaks);
            CHECK_EQ(leaks.allocations, 0);
        }
        __atomic_store_n((uint64_t *)word, 1, __ATOMIC_SEQ_CST);
        OK(tb__stream_synchronize(one, gpu));
        tb__host_unregister(&gate);
        munmap(word, 4096);
    }
    options = options_of(TB_MEMORY_LOCKED);
    OK(tb_alloc(&options, &memory));
    FAILS(tb_memory_free_on(memory, other), TB_E_INVALID, "locked memory was freed, but");
    int count = 0;
    OK(tb__gpu_count(&count));
    if (count > 1) {
        const struct tb__gpu *second = NULL;
        OK(tb__gpu_get(1, &second));
        OK(tb__stream_create(second, &elsewhere));
        options = options_of(TB_MEMORY_STREAM_ORDERED);
        options.device = TB_CUDA(0);
        options.stream = elsewhere;
        FAILS(tb_alloc(&options, &memory), TB_E_INVALID, "a stream of cuda:1");
        tb__stream_destroy(second, elsewhere);
    }
    tb__stream_destroy(gpu, one);
    tb__stream_destroy(gpu, other);
}

/* ------------------------------------------------------------------ failures, fork */

static tb_status alloc_and_free(void *argument)
{
    tb_memory_options options = options_of(*(const tb_memory_kind *)argument);
    tb_memory *memory = NULL;
    options.device = TB_CUDA(1);
    options.advice = options.kind == TB_MEMORY_MANAGED ? TB_ADVICE_READ_MOSTLY : 0;
    TB__TRY(tb_alloc(&options, &memory));
    tb_memory_free(memory);
    if (options.kind == TB_MEMORY_STREAM_ORDERED) {
        const struct tb__gpu *gpu = NULL;
        TB__TRY(tb__gpu_get(1, &gpu));
        if (tb__stream_synchronize(NULL, gpu) != TB_OK) {
            return tb__stream_synchronize(NULL, gpu);
        }
    }
    return TB_OK;
}

static void every_failing_call_leaves_nothing(void)
{
    for (size_t k = 0; k < KINDS; k++) {
        tb_memory_kind kind = kinds[k];
        if (kind != TB_MEMORY_LOCKED) {
            CHECK(FAIL_EACH(alloc_and_free, &kind, TB__CUDA_OUT_OF_MEMORY) >= 4);
            CHECK(FAIL_EACH(alloc_and_free, &kind, TB__CUDA_UNKNOWN) >= 4);
        }
    }
}

static void free_in_the_child(void *argument)
{
    tb_memory **all = argument;
    tb_memory_options options = options_of(TB_MEMORY_PINNED);
    tb_memory *memory = NULL;
    FAILS(tb_alloc(&options, &memory), TB_E_FORKED, "fork()");
    for (size_t k = 0; k < KINDS; k++) {
        tb_memory_free(all[k]);
    }
    options = options_of(TB_MEMORY_LOCKED);
    OK(tb_alloc(&options, &memory));
    tb_memory_free(memory);
}

static void g08_a_child_may_free_and_the_parent_keeps(void)
{
    tb_memory *all[KINDS];
    for (size_t k = 0; k < KINDS; k++) {
        tb_memory_options options = options_of(kinds[k]);
        OK(tb_alloc(&options, &all[k]));
    }
    kit_pattern(tb_memory_data(all[0]), BYTES, 9);
    CHECK_EQ(kit_child(free_in_the_child, all), 0);
    CHECK(kit_same(tb_memory_data(all[0]), BYTES, 9));
    for (size_t k = 0; k < KINDS; k++) {
        tb_memory_free(all[k]);
    }
    OK(tb__stream_synchronize(NULL, first_gpu()));
}

static void promises_need_no_gpu(void)
{
    static char bytes[4096];
    OK(tb_memory_promise(bytes, sizeof bytes));
    FAILS(tb_memory_promise(NULL, 5), TB_E_INVALID, "no range of memory");
    OK(tb_memory_forget(bytes, sizeof bytes));
    FAILS(tb_memory_forget(bytes, sizeof bytes), TB_E_NOT_FOUND, "not promised");
    CHECK(!tb__cuda_is_open());
}

int main(int argc, char **argv)
{
    static const struct kit_test tests[] = {
        ANY(every_kind_is_aligned_and_usable, NULL),
        ANY(many_are_told_apart, NULL),
        ANY(mistakes_are_named, NULL),
        FAKE(locked_memory_needs_no_gpu, "devices=0"),
        ANY(the_limit_on_locked_memory_is_named, NULL),
        ANY(advice_is_about_managed_memory, NULL),
        FAKE(what_the_device_lacks_is_said, "no_managed=0;no_pools=0;no_host_register=0"),
        ANY(stream_ordered_memory_is_freed_in_order, "devices=2"),
        FAKE(every_failing_call_leaves_nothing, "devices=2"),
        ANY(g08_a_child_may_free_and_the_parent_keeps, NULL),
        ANY(promises_need_no_gpu, NULL),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}

/* Page-locking memory that is there already. */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fd.h"
#include "cuda/host_memory.h"
#include "cuda/order.h"
#include "tests/cuda/kit.h"

#define BYTES (5 * 4096u)

static void registered_memory_has_an_address_for_the_device(void)
{
    char *memory = pages(BYTES);
    struct tb__host_registration registration = {0};
    CHECK_EQ(tb__host_device_address(memory, 1), 0);
    OK(tb__host_register(gpu_at(0), memory, BYTES, 0, &registration));
    CHECK(registration.owned && registration.ptr == memory && registration.bytes == BYTES);
    CHECK(registration.device_ptr != 0);
    if (gpu_at(0)->host_pointer_is_device_pointer) {
        CHECK_EQ(registration.device_ptr, (uintptr_t)memory);
    }
    CHECK_EQ(tb__host_device_address(memory, BYTES), registration.device_ptr);
    CHECK_EQ(tb__host_device_address(memory + 100, 5000), registration.device_ptr + 100);
    CHECK_EQ(tb__host_device_address(memory + 4096, BYTES), 0); /* reaches beyond */
    CHECK_EQ(tb__host_device_address(memory, 0), 0);
    tb__host_unregister(&registration);
    CHECK(registration.gpu == NULL);
    tb__host_unregister(&registration);
    CHECK_EQ(tb__host_device_address(memory, BYTES), 0);
    munmap(memory, BYTES);
}

static void the_device_may_see_it_elsewhere(void)
{
    char *memory = pages(BYTES);
    struct tb__host_registration registration = {0};
    OK(tb__host_register(gpu_at(0), memory, BYTES, 0, &registration));
    CHECK(registration.device_ptr != (uintptr_t)memory);
    CHECK_EQ(tb__host_device_address(memory + 7, 9), registration.device_ptr + 7);
    tb__host_unregister(&registration);
    munmap(memory, BYTES);
}

/* To ask about memory of one device makes no context on another. */
static void asking_makes_no_context(void)
{
    char *memory = pages(BYTES);
    struct tb__host_registration registration = {0};
    struct fake_leaks leaks;
    OK(tb__host_register(gpu_at(1), memory, BYTES, 0, &registration));
    CHECK(tb__host_device_address(memory, BYTES) != 0);
    CHECK_EQ(tb__host_device_address(&leaks, 8), 0);
    kit_fake()->leaks(&leaks);
    CHECK_EQ(leaks.primaries, 1);
    tb__host_unregister(&registration);
    munmap(memory, BYTES);
}

static void what_somebody_else_registered_is_taken_as_it_is(void)
{
    char *memory = pages(BYTES);
    struct tb__host_registration theirs = {0}, mine = {0};
    OK(tb__host_register(gpu_at(0), memory, BYTES, 0, &theirs));
    OK(tb__host_register(gpu_at(0), memory, BYTES, 0, &mine));
    CHECK(!mine.owned);
    CHECK_EQ(mine.device_ptr, theirs.device_ptr);
    tb__host_unregister(&mine);
    CHECK(tb__host_device_address(memory, BYTES) != 0); /* still theirs */
    OK(tb__host_register(gpu_at(0), memory + 4096, 4096, 0, &mine));
    CHECK_EQ(mine.device_ptr, theirs.device_ptr + 4096);
    tb__host_unregister(&mine);
    tb__host_unregister(&theirs);
    /* Only a part of it is. */
    OK(tb__host_register(gpu_at(0), memory + 4096, 4096, 0, &theirs));
    mine.bytes = 77;
    FAILS(tb__host_register(gpu_at(0), memory, BYTES, 0, &mine), TB_E_EXISTS,
          "a part of it is page-locked already");
    CHECK_EQ(mine.bytes, 77);
    /* Two registrations side by side are not one. */
    OK(tb__host_register(gpu_at(0), memory + 8192, 4096, 0, &mine));
    CHECK_EQ(tb__host_device_address(memory + 4096, 8192), 0);
    tb__host_unregister(&mine);
    tb__host_unregister(&theirs);
    munmap(memory, BYTES);
}

static void somebody_else_may_have_unregistered_it(void)
{
    char *memory = pages(BYTES);
    struct tb__host_registration registration = {0};
    struct tb__gpu_scope scope;
    OK(tb__host_register(gpu_at(0), memory, BYTES, 0, &registration));
    OK(tb__gpu_enter(gpu_at(0), &scope));
    CHECK_EQ(tb__cuda()->mem_host_unregister(memory), 0);
    tb__gpu_leave(&scope);
    tb__host_unregister(&registration);
    munmap(memory, BYTES);
}

static void read_only_memory(void)
{
    int fd = -1;
    struct tb__host_registration registration = {0};
    OK(tb__memfd_create("test", BYTES, &fd));
    char *writable = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(writable != MAP_FAILED);
    kit_pattern(writable, BYTES, 2);
    OK(tb__memfd_seal(fd, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL));
    char *memory = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    if (!gpu_at(0)->read_only_host_register) {
        kit_skip("the device cannot register read-only memory");
    }
    tb_status status = tb__host_register(gpu_at(0), memory, BYTES, 0, &registration);
    CHECK_EQ(status, TB_E_SYSTEM); /* it would let the device write */
    OK(tb__host_register(gpu_at(0), memory, BYTES, 1, &registration));
    EXPECT(0, registration.device_ptr, BYTES, 2);
    tb__host_unregister(&registration);
    munmap(memory, BYTES);
    munmap(writable, BYTES);
    tb__fd_close(&fd);
}

static void what_the_device_cannot_is_said(void)
{
    char *memory = pages(BYTES);
    struct tb__host_registration registration = {0};
    FAILS(tb__host_register(gpu_at(1), memory, BYTES, 1, &registration), TB_E_UNSUPPORTED,
          "cuda:1 (Fake GPU 1) cannot page-lock read-only memory");
    FAILS(tb__host_register(gpu_at(0), memory, BYTES, 0, &registration), TB_E_UNSUPPORTED,
          "cuda:0 (Fake GPU 0) cannot page-lock existing memory");
    FAILS(tb__host_register(gpu_at(0), NULL, BYTES, 0, &registration), TB_E_INVALID, "bytes at");
    FAILS(tb__host_register(gpu_at(0), memory, 0, 0, &registration), TB_E_INVALID, "0 bytes");
    munmap(memory, BYTES);
}

static void a_limit_that_may_be_in_the_way_is_named(void)
{
    char *memory = pages(BYTES);
    struct tb__host_registration registration = {0};
    struct rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
    CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    kit_fake()->fail("cuMemHostRegister_v2:1:2");
    FAILS(tb__host_register(gpu_at(0), memory, BYTES, 0, &registration), TB_E_NOMEM,
          "locked memory is limited to 4.0 KiB (4096 bytes) (ulimit -l)");
    munmap(memory, BYTES);
}

static void memory_that_is_not_there(void)
{
    char *memory = pages(BYTES);
    struct tb__host_registration registration = {0};
    CHECK_EQ(mprotect(memory + 4096, 4096, PROT_NONE), 0);
    CHECK(tb__host_register(gpu_at(0), memory, BYTES, 0, &registration) < 0);
    CHECK(registration.gpu == NULL);
    munmap(memory, BYTES);
}

static tb_status register_and_back(void *memory)
{
    struct tb__host_registration registration = {0};
    TB__TRY(tb__host_register(gpu_at(0), memory, BYTES, 0, &registration));
    tb__host_unregister(&registration);
    return TB_OK;
}

static void every_failing_call_leaves_nothing(void)
{
    char *memory = pages(BYTES);
    CHECK(FAIL_EACH(register_and_back, memory, TB__CUDA_UNKNOWN) >= 5);
    CHECK(FAIL_EACH(register_and_back, memory, TB__CUDA_OUT_OF_MEMORY) >= 5);
    munmap(memory, BYTES);
}

int main(int argc, char **argv)
{
    static const struct kit_test tests[] = {
        ANY(registered_memory_has_an_address_for_the_device, NULL),
        FAKE(the_device_may_see_it_elsewhere, "no_same_pointer=all"),
        FAKE(asking_makes_no_context, "devices=2"),
        ANY(what_somebody_else_registered_is_taken_as_it_is, NULL),
        ANY(somebody_else_may_have_unregistered_it, NULL),
        ANY(read_only_memory, NULL),
        FAKE(what_the_device_cannot_is_said,
             "devices=2;no_host_register=0;no_read_only_register=1"),
        FAKE(a_limit_that_may_be_in_the_way_is_named, NULL),
        ANY(memory_that_is_not_there, NULL),
        FAKE(every_failing_call_leaves_nothing, NULL),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}

/* Bad days of memory: allocations of the service thread fail, and come back; owners are killed
 * while they make memory that has a name. */
#include "proc/pool_support.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pool/observe.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_FAIL 1
#else
#define CAN_FAIL 0 /* the sanitizers have an allocator of their own */
#endif

static atomic_int failing; /* all threads but the main one get no memory */

#if CAN_FAIL
void *__libc_calloc(size_t count, size_t size);

void *calloc(size_t count, size_t size)
{
    if (atomic_load(&failing) && syscall(SYS_gettid) != getpid()) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_calloc(count, size);
}
#endif

/* A reader that leaves while there is no memory for a shorter list of readers stays mapped, and
 * goes when there is memory again. */
static void readers_that_leave_without_memory(void)
{
    if (!CAN_FAIL) {
        harness_skip("no failing allocations under a sanitizer");
    }
    tb_reader *readers[8];
    tb_bus *owner = open_bus("owner");
    tb_bus *client = open_bus("client");
    tb_bus *short_lived = open_bus("short");
    tb_pool *pool = register_words(owner, "frames", 8, 2);
    tb_reader *first = open_reader(client, "owner/frames");
    unsigned memfds = harness_memfd_count();
    for (int i = 0; i < 8; i++) {
        readers[i] = open_reader(i < 4 ? client : short_lived, "owner/frames");
    }
    atomic_store(&failing, 1);
    for (int i = 0; i < 4; i++) {
        tb_reader_close(readers[i]);
    }
    tb_bus_close(short_lived);
    CHECK_STATUS(tb_reader_open(client, "owner/frames", NULL, &readers[0]), TB_E_NOMEM);
    for (int64_t i = 0; i < 4; i++) { /* the claims of who has left are void */
        CHECK_OK(write_words(pool, i, TB_SECONDS(1), NULL));
    }
    CHECK_LT(memfds, harness_memfd_count());
    atomic_store(&failing, 0);
    tb_reader_close(open_reader(client, "owner/frames"));
    CHECK_WITHIN_MS(harness_memfd_count() < memfds, 2000); /* one bus less */
    CHECK_EQ(stats_of(pool).readers, 1);
    tb_reader_close(first);
    CHECK_WITHIN_MS(stats_of(pool).readers == 0, 2000);
    tb_bus_close(client);
    tb_bus_close(owner);
}

/* ------------------------------------------------------------------ exports */

static void exporting_owner(void *argument)
{
    (void)argument;
    tb_pool *pool;
    tb_pool_options options = words_options("frames", 1 << 24, 1); /* 128 MiB */
    options.doradma_name = "dora_pool_break_half";
    tb_bus *bus = open_bus(NULL);
    parent_reached("begin");
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    parent_pause("registered");
}

/* An owner that is killed while it makes a file for foreign readers leaves nothing that would keep
 * the name from the next one. */
static void half_made_exports(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool_options options = words_options("frames", 8, 1);
    options.doradma_name = "dora_pool_break_half";
    for (unsigned i = 0; i < 8; i++) {
        struct child owner;
        tb_pool *pool;
        child_start(&owner, "owner", exporting_owner, NULL);
        child_await(&owner, "begin");
        harness_sleep_us(2000 + i * 4000);
        child_kill(&owner);
        CHECK_OK(tb_pool_register(bus, &options, &pool));
        tb_pool_close(pool);
        CHECK(access("/dev/shm/dora_pool_break_half", F_OK) != 0);
    }
    tb_bus_close(bus);
}

/* `clean` takes what killed owners left in /dev/shm, and nothing that is in use. */
static void exports_are_swept(void)
{
    struct child owner;
    tb_pool *pool;
    tb_pool_options options = words_options("frames", 8, 1);
    options.doradma_name = "dora_pool_break_live";
    tb_bus *bus = open_bus("owner");
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    child_start(&owner, "owner", exporting_owner, NULL);
    child_await(&owner, "begin");
    child_await(&owner, "registered");
    tb__exports_sweep(NULL);
    CHECK(access("/dev/shm/dora_pool_break_half", F_OK) == 0);
    child_kill(&owner);
    CHECK_LE(1, tb__exports_sweep(NULL));
    CHECK(access("/dev/shm/dora_pool_break_half", F_OK) != 0);
    CHECK(access("/dev/shm/dora_pool_break_live", F_OK) == 0);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(readers_that_leave_without_memory, 20),
    TEST(half_made_exports, 30),
    TEST(exports_are_swept, 20),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

/* A pool with more readers than a sleeper can watch. */
#include "proc/pool_support.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CROWD 200

struct killer {
    struct child *child;
    int64_t killed_ns;
};

static void *kill_soon(void *argument)
{
    struct killer *killer = argument;
    harness_sleep_us(60000 + (unsigned)(harness_now_ns() % 90000));
    killer->killed_ns = harness_now_ns();
    child_kill(killer->child);
    return NULL;
}

static void blocking_reader(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus(NULL);
    open_every(bus, "owner/frames");
    /* Past the library's fork handlers: the sockets stay open when this process is killed, as they
     * do for long when a large one is. */
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
        harness_sleep_us(1500000);
        _exit(0);
    }
    parent_pause("attached");
}

/* There are more readers than a sleeper can watch: the death of any is noticed in time. */
static void death_of_one_in_a_crowd(void)
{
    int64_t delays[5];
    tb_bus *owner = open_bus("owner");
    tb_bus *others = open_bus("others");
    for (int i = 0; i < 5; i++) {
        struct child blocker;
        tb_pool *pool;
        tb_pool_options options = words_options("frames", 8, 1);
        options.policy = TB_EVERY;
        CHECK_OK(tb_pool_register(owner, &options, &pool));
        child_start(&blocker, "blocker", blocking_reader, NULL);
        child_await(&blocker, "attached");
        for (int k = 0; k < CROWD; k++) {
            open_reader(others, "owner/frames");
        }
        CHECK_OK(write_words(pool, 1, TB_SECONDS(1), NULL));
        struct killer killer = {&blocker, 0};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, kill_soon, &killer) == 0);
        CHECK_OK(write_words(pool, 2, TB_SECONDS(5), NULL));
        int64_t written = harness_now_ns();
        pthread_join(thread, NULL);
        delays[i] = written - killer.killed_ns;
        tb_pool_close(pool);
    }
    tb_bus_close(others);
    tb_bus_close(owner);
    CHECK_LT(percentile(delays, 5, 50), 30000000LL * harness_slowness());
}

static const struct test tests[] = {
    TEST(death_of_one_in_a_crowd, 40),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

/* P05, P06, P13, P19: processes die, restart and fork; the others go on at once. */
#include "proc/pool_support.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The machine is shared with other work: a bound in time must hold in all but this share. */
#define LATE_PER_CENT 10

/* ------------------------------------------------------------------ P05 */

#define P05_ELEMENTS ((int64_t)(256 << 20) / 8)

/* Publish one frame, then write the next one over and over. */
static void dying_owner(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", P05_ELEMENTS, 2);
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    parent_pause("written");
    tb_loan *loan;
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    int64_t *words = tb_loan_tensor(loan)->data;
    for (int64_t value = 2;; value++) {
        for (int64_t i = 0; i < P05_ELEMENTS; i++) {
            words[i] = value;
            if (value == 2 && i == P05_ELEMENTS / 2) {
                parent_reached("half");
            }
        }
    }
}

/* Hold the frame before, wait for the next; tell when the wait ended. */
static void bereft_consumer(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("consumer");
    tb_reader *reader = open_reader(bus, "owner/frames");
    tb_frame *held;
    tb_frame *next;
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &held));
    parent_reached("waiting");
    CHECK_STATUS(tb_reader_next(reader, TB_SECONDS(20), &next), TB_E_OWNER_DIED);
    int64_t now = harness_now_ns();
    parent_tell(&now, sizeof now);
    parent_hear(&now, sizeof now); /* the owner is gone altogether by now */
    CHECK_EQ(words_value(held), 1);
    tb_frame_release(held);
    CHECK_STATUS(tb_reader_newest(reader, TB_POLL, &next), TB_E_OWNER_DIED);
    unsigned mappings = harness_memfd_count();
    tb_reader_close(reader);
    CHECK_LT(harness_memfd_count(), mappings); /* with its last holder the memory goes */
    tb_bus_close(bus);
}

static void P05_kill_the_owner_in_a_write(void)
{
    int64_t delays[5];
    for (int i = 0; i < 5; i++) {
        struct child owner;
        struct child consumer;
        child_start(&owner, "owner", dying_owner, NULL);
        child_await(&owner, "written");
        child_start(&consumer, "consumer", bereft_consumer, NULL);
        child_await(&consumer, "waiting");
        child_go(&owner);
        child_await(&owner, "half");
        int64_t killed = harness_now_ns();
        int64_t noticed;
        child_kill(&owner);
        child_hear(&consumer, &noticed, sizeof noticed);
        delays[i] = noticed - killed;
        child_tell(&consumer, &noticed, sizeof noticed);
        child_join(&consumer);
    }
    int64_t median = percentile(delays, 5, 50);
    CHECK_LE(median, 10000000LL * harness_slowness() + 2000000);
}

/* ------------------------------------------------------------------ P06 */

#define P06_SLOTS 5

struct victim_order {
    size_t ballast_bytes; /* resident memory that the kernel must take down first */
};

/* Hold all slots but one and wait for the end. */
static void victim(void *argument)
{
    const struct victim_order *order = argument;
    tb_handle handles[P06_SLOTS - 1];
    tb_frame *frame;
    if (order->ballast_bytes > 0) {
        void *ballast = mmap(NULL, order->ballast_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        CHECK(ballast != MAP_FAILED);
    }
    tb_bus *bus = open_bus(NULL);
    tb_reader *reader = open_reader(bus, "owner/frames");
    parent_reached("ready");
    parent_hear(handles, sizeof handles);
    for (int i = 0; i < P06_SLOTS - 1; i++) {
        CHECK_OK(tb_reader_frame(reader, &handles[i], &frame));
    }
    parent_pause("holding");
}

/* Kill a victim that holds all but one slot, take all those slots back, and return the time of it.
 */
static int64_t kill_and_take_back(tb_pool *pool, tb_handle handles[P06_SLOTS - 1],
                                  struct victim_order order)
{
    struct child child;
    tb_loan *loans[P06_SLOTS - 1];
    child_start(&child, "victim", victim, &order);
    child_await(&child, "ready");
    child_tell(&child, handles, sizeof(tb_handle) * (P06_SLOTS - 1));
    child_await(&child, "holding");
    CHECK_WITHIN_MS(stats_of(pool).held == P06_SLOTS - 1, 1000);
    int64_t begin = harness_now_ns();
    child_signal(&child, SIGKILL);
    for (int i = 0; i < P06_SLOTS - 1; i++) {
        CHECK_OK(tb_pool_loan(pool, TB_SECONDS(5), &loans[i]));
    }
    int64_t delay = harness_now_ns() - begin;
    child_join_signal(&child, SIGKILL);
    for (int i = 0; i < P06_SLOTS - 1; i++) {
        fill_words(tb_loan_tensor(loans[i]), 3);
        CHECK_OK(tb_loan_publish(loans[i], &handles[i]));
    }
    return delay;
}

static void P06_kill_a_holder_again_and_again(void)
{
    size_t count = harness_scale(1000, 1000);
    int64_t *delays = calloc(count, sizeof *delays);
    struct victim_order order = {0};
    tb_handle handles[P06_SLOTS - 1];
    unsigned fds = 0;
    unsigned threads = 0;
    unsigned mappings = 0;
    unsigned long rss = 0;
    CHECK(delays != NULL);
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 64, P06_SLOTS);
    CHECK_OK(write_words(pool, 3, TB_POLL, NULL));
    for (int i = 0; i < P06_SLOTS - 1; i++) {
        CHECK_OK(write_words(pool, 3, TB_POLL, &handles[i]));
    }
    for (size_t i = 0; i < count; i++) {
        delays[i] = kill_and_take_back(pool, handles, order);
        if (i == count / 10) {
            CHECK_WITHIN_MS(stats_of(pool).readers == 0, 1000);
            fds = harness_fd_count();
            threads = harness_thread_count();
            mappings = harness_memfd_count();
            rss = harness_rss_kib();
        }
    }
    CHECK_WITHIN_MS(stats_of(pool).readers == 0, 1000);
    CHECK_EQ(stats_of(pool).held, 0);
    CHECK_WITHIN_MS(harness_fd_count() <= fds, 1000);
    CHECK_WITHIN_MS(harness_memfd_count() <= mappings, 1000);
    CHECK_LE(harness_thread_count(), threads);
    if (harness_slowness() == 1) {
        CHECK_LE(harness_rss_kib(), rss + 1024);
    }
    int64_t late = percentile(delays, count, 100 - LATE_PER_CENT);
    CHECK_LE(late, 25000000LL * harness_slowness());
    free(delays);
    tb_bus_close(bus);
}

static void P06_kill_a_large_holder(void)
{
    struct victim_order order = {.ballast_bytes = harness_full() ? (size_t)4 << 30 : 1 << 30};
    tb_handle handles[P06_SLOTS - 1];
    int64_t delays[3];
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 64, P06_SLOTS);
    CHECK_OK(write_words(pool, 3, TB_POLL, NULL));
    for (int i = 0; i < P06_SLOTS - 1; i++) {
        CHECK_OK(write_words(pool, 3, TB_POLL, &handles[i]));
    }
    for (int i = 0; i < 3; i++) {
        delays[i] = kill_and_take_back(pool, handles, order);
    }
    CHECK_LE(percentile(delays, 3, 50), 25000000LL * harness_slowness());
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ P13 */

struct owner_order {
    int64_t value; /* of the first of three frames */
};

static void restarting_owner(void *argument)
{
    const struct owner_order *order = argument;
    tb_handle handle;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 1000, 3);
    for (int64_t i = 0; i < 3; i++) {
        CHECK_OK(write_words(pool, order->value + i, TB_POLL, &handle));
    }
    parent_tell(&handle, sizeof handle);
    parent_pause("written");
    tb_bus_close(bus);
}

static void restart(int says_goodbye)
{
    struct child owner;
    struct owner_order order = {.value = 100};
    tb_handle old_handle;
    tb_handle new_handle;
    child_start(&owner, "owner 1", restarting_owner, &order);
    child_hear(&owner, &old_handle, sizeof old_handle);
    child_await(&owner, "written");
    tb_bus *bus = open_bus("consumer");
    tb_reader *old = open_reader(bus, "owner/frames");
    tb_frame *held;
    tb_frame *frame;
    CHECK_OK(tb_reader_newest(old, TB_POLL, &held));
    if (says_goodbye) {
        child_go(&owner);
        child_join(&owner);
    } else {
        child_kill(&owner);
    }
    order.value = 200;
    child_start(&owner, "owner 2", restarting_owner, &order);
    child_hear(&owner, &new_handle, sizeof new_handle);
    child_await(&owner, "written");

    tb_reader *fresh = open_reader(bus, "owner/frames");
    CHECK_OK(tb_reader_newest(fresh, TB_SECONDS(1), &frame));
    CHECK_EQ(words_value(frame), 202);
    tb_frame_release(frame);
    CHECK_EQ(words_value(held), 102);
    /* Same name, same generation, another pool. */
    CHECK_EQ(old_handle.generation, new_handle.generation);
    CHECK_STATUS(tb_reader_frame(fresh, &old_handle, &frame), TB_E_STALE);
    CHECK_OK(tb_reader_frame(fresh, &new_handle, &frame));
    tb_frame_release(frame);
    CHECK_STATUS(tb_reader_newest(old, TB_SECONDS(5), &frame),
                 says_goodbye ? TB_CLOSED : TB_E_OWNER_DIED);
    tb_frame_release(held);
    child_go(&owner);
    child_join(&owner);
    tb_bus_close(bus);
}

static void P13_owner_restarts(void)
{
    restart(0);
    restart(1);
}

/* ------------------------------------------------------------------ P19 */

/* In a forked child: every object of the parent answers FORKED; a bus of its own works. */
static int use_in_fork(tb_bus *bus, tb_pool *pool, tb_reader *reader)
{
    tb_loan *loan;
    tb_frame *frame;
    tb_reader *another;
    if (pool != NULL && tb_pool_loan(pool, TB_POLL, &loan) != TB_E_FORKED) {
        return 10;
    }
    if (reader != NULL && tb_reader_newest(reader, TB_POLL, &frame) != TB_E_FORKED) {
        return 11;
    }
    if (tb_reader_open(bus, "owner/frames", NULL, &another) != TB_E_FORKED) {
        return 12;
    }
    tb_bus *own;
    if (tb_bus_open(NULL, &own) != TB_OK ||
        tb_reader_open(own, "owner/frames", NULL, &another) != TB_OK ||
        tb_reader_newest(another, TB_SECONDS(5), &frame) != TB_OK) {
        return 13;
    }
    tb_frame_release(frame);
    tb_bus_close(own);
    return 0;
}

static void fork_and_use(tb_bus *bus, tb_pool *pool, tb_reader *reader)
{
    int status;
    harness_before_fork();
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        _exit(use_in_fork(bus, pool, reader));
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

/* Leave a child that does nothing with what it inherited. */
static void fork_sleeper(void)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        sleep(60);
        _exit(0);
    }
    parent_tell(&pid, sizeof pid);
}

static void forking_owner(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 1000, 4);
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    parent_pause("written");
    fork_and_use(bus, pool, NULL);
    CHECK_OK(write_words(pool, 2, TB_POLL, NULL)); /* undisturbed */
    parent_pause("forked");
    fork_sleeper();
    parent_pause("sleeper");
}

static void P19_owner_forks(void)
{
    struct child owner;
    pid_t sleeper;
    child_start(&owner, "owner", forking_owner, NULL);
    child_await(&owner, "written");
    tb_bus *bus = open_bus("consumer");
    tb_reader *reader = open_reader(bus, "owner/frames");
    tb_frame *held;
    tb_frame *frame;
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &held));
    child_go(&owner);
    child_await(&owner, "forked");
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &frame));
    CHECK_EQ(words_value(frame), 2);
    CHECK_EQ(words_value(held), 1);
    tb_frame_release(held);
    child_go(&owner);
    child_hear(&owner, &sleeper, sizeof sleeper);
    child_await(&owner, "sleeper");
    int64_t begin = harness_now_ns();
    child_kill(&owner);
    CHECK_STATUS(tb_reader_next(reader, TB_SECONDS(10), &held), TB_E_OWNER_DIED);
    CHECK_LT(harness_now_ns() - begin, 100000000LL * harness_slowness());
    CHECK(kill(sleeper, 0) == 0); /* it was noticed although the child lives */
    CHECK_EQ(words_value(frame), 2);
    CHECK(kill(sleeper, SIGKILL) == 0);
    tb_bus_close(bus);
}

static void forking_reader(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("consumer");
    tb_reader *reader = open_reader(bus, "owner/frames");
    tb_frame *held;
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &held));
    fork_and_use(bus, NULL, reader);
    CHECK_EQ(words_value(held), 1);
    fork_sleeper();
    parent_pause("sleeper");
}

static void P19_reader_forks(void)
{
    struct child consumer;
    pid_t sleeper;
    child_start(&consumer, "consumer", forking_reader, NULL);
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 1000, 1);
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    child_hear(&consumer, &sleeper, sizeof sleeper);
    child_await(&consumer, "sleeper");
    CHECK_EQ(stats_of(pool).held, 1); /* the child's exit has not given it back */
    CHECK_STATUS(write_words(pool, 2, TB_POLL, NULL), TB_AGAIN);
    int64_t begin = harness_now_ns();
    child_kill(&consumer);
    CHECK_OK(write_words(pool, 2, TB_SECONDS(10), NULL));
    CHECK_LT(harness_now_ns() - begin, 100000000LL * harness_slowness());
    CHECK(kill(sleeper, 0) == 0);
    CHECK(kill(sleeper, SIGKILL) == 0);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(P05_kill_the_owner_in_a_write, 60),
    TEST(P06_kill_a_holder_again_and_again, 120),
    TEST(P06_kill_a_large_holder, 60),
    TEST(P13_owner_restarts, 20),
    TEST(P19_owner_forks, 20),
    TEST(P19_reader_forks, 20),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

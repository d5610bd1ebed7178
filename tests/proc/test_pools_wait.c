/* Readers that wait where nothing comes: event loops, slots that are being written, freed pools. */
#include "proc/pool_support.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORDS 64
#define THREADS 8

static int is_readable(int fd, int timeout_ms)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    return poll(&entry, 1, timeout_ms) == 1;
}

static int64_t thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ------------------------------------------------------------------ event loops */

static void silent_owner(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("owner");
    register_words(bus, "frames", WORDS, 4);
    parent_pause("open");
    tb_bus_close(bus);
}

/* A drained descriptor and no frame: the owner's end, good or bad, is news as well. */
static void the_end_of_an_owner_makes_the_descriptor_readable(void)
{
    for (int killed = 0; killed < 2; killed++) {
        struct child owner;
        tb_frame *frame;
        int fd;
        child_start(&owner, "owner", silent_owner, NULL);
        child_await(&owner, "open");
        tb_bus *bus = open_bus("client");
        tb_reader *reader = open_reader(bus, "owner/frames");
        CHECK_OK(tb_reader_fd(reader, &fd));
        CHECK_STATUS(tb_reader_next(reader, TB_POLL, &frame), TB_AGAIN);
        CHECK(!is_readable(fd, 20));
        if (killed) {
            child_kill(&owner);
        } else {
            child_go(&owner);
        }
        CHECK(is_readable(fd, 2000));
        CHECK_STATUS(tb_reader_next(reader, TB_POLL, &frame), killed ? TB_E_OWNER_DIED : TB_CLOSED);
        tb_bus_close(bus);
        if (!killed) {
            child_join(&owner);
        }
    }
}

#define BALLAST_BYTES ((size_t)1 << 30) /* takes the kernel about 70 ms to take down */
#define ROUNDS 5
#define CROWD 140u /* more than the 127 that the kernel watches at once */

static void heavy_owner(void *argument)
{
    (void)argument;
    void *ballast = mmap(NULL, BALLAST_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(ballast != MAP_FAILED);
    silent_owner(NULL);
}

/* Kill a large owner of so many readers; returns when all their descriptors were readable. */
static int64_t time_to_hear_of_the_end(uint32_t count)
{
    struct child owner;
    int fds[CROWD];
    tb_reader *readers[CROWD];
    tb_frame *frame;
    child_start(&owner, "owner", heavy_owner, NULL);
    child_await(&owner, "open");
    tb_bus *bus = open_bus("client");
    for (uint32_t i = 0; i < count; i++) {
        readers[i] = open_reader(bus, "owner/frames");
        CHECK_OK(tb_reader_fd(readers[i], &fds[i]));
        CHECK_STATUS(tb_reader_next(readers[i], TB_POLL, &frame), TB_AGAIN);
        CHECK(!is_readable(fds[i], 0));
    }
    int64_t killed_ns = harness_now_ns();
    child_signal(&owner, SIGKILL);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(is_readable(fds[i], 2000));
    }
    int64_t delay_ns = harness_now_ns() - killed_ns;
    for (uint32_t i = 0; i < count; i++) {
        CHECK_STATUS(tb_reader_next(readers[i], TB_POLL, &frame), TB_E_OWNER_DIED);
    }
    child_join_signal(&owner, SIGKILL);
    tb_bus_close(bus);
    return delay_ns;
}

/* An event loop need not wait until the kernel has taken a large owner's memory down. */
static void an_event_loop_hears_of_a_large_owner_s_end_at_once(void)
{
    int64_t delays[ROUNDS];
    for (uint32_t count = 1; count <= CROWD; count += CROWD - 1) {
        for (int i = 0; i < ROUNDS; i++) {
            delays[i] = time_to_hear_of_the_end(count);
        }
        CHECK_LE(percentile(delays, ROUNDS, 50), 10000000LL * harness_slowness() + 2000000);
    }
}

static pthread_barrier_t start;

static void *ask_for_descriptor(void *argument)
{
    int fd;
    pthread_barrier_wait(&start);
    CHECK_OK(tb_reader_fd(argument, &fd));
    return (void *)(intptr_t)fd;
}

/* Threads that ask for the first time at once get one descriptor, and it works. */
static void threads_share_one_descriptor(void)
{
    tb_bus *bus = open_bus("process");
    tb_pool *pool = register_words(bus, "frames", WORDS, 4);
    for (int round = 0; round < 50; round++) {
        pthread_t threads[THREADS];
        void *fds[THREADS];
        tb_frame *frame;
        unsigned before = harness_fd_count();
        tb_reader_options options = {.size = sizeof options, .start_next = 1};
        tb_reader *reader;
        CHECK_OK(tb_reader_open(bus, "process/frames", &options, &reader));
        pthread_barrier_init(&start, NULL, THREADS);
        for (int i = 0; i < THREADS; i++) {
            CHECK_EQ(pthread_create(&threads[i], NULL, ask_for_descriptor, reader), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            CHECK_EQ(pthread_join(threads[i], &fds[i]), 0);
            CHECK(fds[i] == fds[0]);
        }
        pthread_barrier_destroy(&start);
        int fd = (int)(intptr_t)fds[0];
        CHECK_STATUS(tb_reader_next(reader, TB_POLL, &frame), TB_AGAIN);
        CHECK(!is_readable(fd, 0));
        CHECK_OK(write_words(pool, round, TB_SECONDS(1), NULL));
        CHECK(is_readable(fd, 2000));
        tb_reader_close(reader);
        CHECK_WITHIN_MS(harness_fd_count() <= before + 4, 2000); /* two lifelines at most */
    }
    tb_bus_close(bus);
}

/* A child of a fork keeps none of the library's descriptors: not a pool's memory, nor an end of a
 * wake-up descriptor. */
static void a_forked_child_has_no_descriptors(void)
{
    harness_before_fork();
    unsigned before = harness_fd_count();
    tb_bus *bus = open_bus("process");
    tb_pool *pool = register_words(bus, "frames", WORDS, 4);
    tb_reader *reader = open_reader(bus, "process/frames");
    int fd;
    CHECK_OK(tb_reader_fd(reader, &fd));
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    pid_t child = fork();
    CHECK_LE(0, child);
    if (child == 0) {
        _exit(harness_fd_count() == before ? 0 : 1);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    tb_frame *frame;
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame)); /* the parent notices nothing */
    tb_frame_release(frame);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ slots that are being written
 */

/* The only frame is being overwritten: who waits for the next one sleeps. */
static void a_slot_that_is_being_written_is_not_spun_for(void)
{
    tb_bus *bus = open_bus("process");
    tb_pool *pool = register_words(bus, "frames", WORDS, 1);
    tb_reader *reader = open_reader(bus, "process/frames");
    tb_loan *loan;
    tb_frame *frame;
    CHECK_OK(write_words(pool, 1, TB_SECONDS(1), NULL));
    CHECK_OK(tb_pool_loan(pool, TB_SECONDS(1), &loan)); /* before the reader took it */
    int64_t begin = thread_cpu_ns();
    CHECK_STATUS(tb_reader_next(reader, TB_MILLIS(400), &frame), TB_AGAIN);
    CHECK_LT(thread_cpu_ns() - begin, 10000000LL * harness_slowness());
    fill_words(tb_loan_tensor(loan), 2);
    CHECK_OK(tb_loan_publish(loan, NULL));
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(2), &frame));
    CHECK_EQ(words_value(frame), 2);
    tb_frame_release(frame);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ writers */

struct occupied {
    tb_pool *pool;
    tb_reader *reader;
    tb_loan *loan;
    tb_frame *frame;
};

static void *occupy(void *argument)
{
    struct occupied *occupied = argument;
    CHECK_OK(write_words(occupied->pool, 1, TB_SECONDS(1), NULL));
    CHECK_OK(tb_reader_newest(occupied->reader, TB_SECONDS(1), &occupied->frame));
    CHECK_OK(write_words(occupied->pool, 2, TB_SECONDS(1), NULL));
    CHECK_OK(tb_pool_loan(occupied->pool, TB_SECONDS(1), &occupied->loan));
    return NULL;
}

static void *wait_in_vain(void *argument)
{
    struct occupied *occupied = argument;
    tb_loan *loan;
    CHECK_STATUS(tb_pool_loan(occupied->pool, TB_MILLIS(400), &loan), TB_AGAIN);
    return NULL;
}

static int64_t process_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* One slot on loan, one held, one the newest: who looks at them must not wake itself by giving up
 * the second because of the first, nor another one who does the same. */
static void writers_that_wait_sleep(void)
{
    struct occupied occupied;
    pthread_t thread;
    pthread_t waiting[2];
    tb_bus *bus = open_bus("process");
    occupied.pool = register_words(bus, "frames", WORDS, 3);
    occupied.reader = open_reader(bus, "process/frames");
    CHECK_EQ(pthread_create(&thread, NULL, occupy, &occupied), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    for (size_t count = 1; count <= 2; count++) {
        int64_t begin = process_cpu_ns();
        for (size_t i = 0; i < count; i++) {
            CHECK_EQ(pthread_create(&waiting[i], NULL, wait_in_vain, &occupied), 0);
        }
        for (size_t i = 0; i < count; i++) {
            CHECK_EQ(pthread_join(waiting[i], NULL), 0);
        }
        CHECK_LT(process_cpu_ns() - begin, 20000000LL * harness_slowness());
    }
    tb_loan_cancel(occupied.loan);
    tb_frame_release(occupied.frame);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ by pool id */

/* The same for the verb that returns a frame again: it keeps its timeout. */
static void a_frame_that_is_gone_is_not_read_for_ever(void)
{
    tb_bus *bus = open_bus("process");
    tb_bus *other = open_bus("other");
    tb_pool *pool = register_words(bus, "pool_7", WORDS, 1);
    tb_loan *loan;
    tb_frame *frame;
    CHECK_OK(write_words(pool, 1, TB_SECONDS(1), NULL));
    CHECK_OK(tb_read(other, "pool_process_7", TB_SECONDS(1), &frame));
    tb_frame_release(frame);
    CHECK_OK(tb_pool_loan(pool, TB_SECONDS(1), &loan));
    CHECK_STATUS(tb_read(other, "pool_process_7", TB_POLL, &frame), TB_AGAIN);
    CHECK_STATUS(tb_read(other, "pool_process_7", TB_MILLIS(20), &frame), TB_AGAIN);
    fill_words(tb_loan_tensor(loan), 2);
    CHECK_OK(tb_loan_publish(loan, NULL));
    CHECK_OK(tb_read(other, "pool_process_7", TB_POLL, &frame));
    CHECK_EQ(words_value(frame), 2);
    tb_frame_release(frame);
    tb_bus_close(other);
    tb_bus_close(bus);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(the_end_of_an_owner_makes_the_descriptor_readable, 20),
        TEST(an_event_loop_hears_of_a_large_owner_s_end_at_once, 60),
        TEST(threads_share_one_descriptor, 30),
        TEST(a_forked_child_has_no_descriptors, 20),
        TEST(a_slot_that_is_being_written_is_not_spun_for, 20),
        TEST(writers_that_wait_sleep, 20),
        TEST(a_frame_that_is_gone_is_not_read_for_ever, 20),
    };
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

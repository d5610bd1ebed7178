/* P08, P09, P27: the end of pools, its misuse, and acknowledgement. */
#include "proc/pool_support.h"

#include <pthread.h>
#include <stdio.h>

/* ------------------------------------------------------------------ P08 */

static void expect_warnings(const char *verb, const char *id, unsigned count)
{
    char line[256];
    snprintf(line, sizeof line,
             "Attempt to %s memory pool [%s] failed - reason: pool does not exist. Operation "
             "aborted.\n",
             verb, id);
    CHECK_EQ(harness_log_count(line), count);
    line[strlen(line) - 1] = '\0';
    if (count > 0) {
        CHECK_STR(tb_last_error_text(), line);
    }
}

/* Misuse is answered at once, not after a wait for a pool that may come. */
static void check_quick(int64_t begin)
{
    CHECK_LT(harness_now_ns() - begin, 100000000LL * harness_slowness());
}

static tb_tensor words_tensor(int64_t *words)
{
    return (tb_tensor){.data = words, .dtype = TB_I64, .ndim = 1, .shape = {16}};
}

static void P08_misuse_by_the_owner(void)
{
    char id[TB_POOL_ID_SIZE];
    int64_t words[16] = {1};
    tb_tensor tensor = words_tensor(words);
    tb_frame *frame;
    tb_bus *bus = open_bus("owner_with_under_scores");
    CHECK_OK(tb_register(bus, &tensor, id));
    CHECK(strncmp(id, "pool_owner_with_under_scores_", 29) == 0);
    CHECK_OK(tb_read(bus, id, TB_POLL, &frame));
    CHECK_EQ(((const int64_t *)tb_frame_tensor(frame)->data)[0], 1);
    tb_frame_release(frame);
    CHECK_OK(tb_read(bus, id, TB_POLL, &frame)); /* the same one again */
    tb_frame_release(frame);
    words[0] = 2;
    CHECK_OK(tb_write(bus, id, &tensor, TB_SECONDS(1)));
    CHECK_OK(tb_read(bus, id, TB_POLL, &frame));
    CHECK_EQ(((const int64_t *)tb_frame_tensor(frame)->data)[0], 2);
    CHECK_OK(tb_free(bus, id));
    CHECK_EQ(harness_log_count("Attempt"), 0);

    int64_t begin = harness_now_ns();
    CHECK_STATUS(tb_free(bus, id), TB_E_FREED);
    expect_warnings("release", id, 1);
    tb_frame *another;
    CHECK_STATUS(tb_read(bus, id, TB_SECONDS(10), &another), TB_E_FREED);
    expect_warnings("read", id, 1);
    CHECK_STATUS(tb_write(bus, id, &tensor, TB_SECONDS(10)), TB_E_FREED);
    expect_warnings("write", id, 1);
    check_quick(begin);
    CHECK_EQ(harness_log_count("Attempt"), 3);
    CHECK_EQ(((const int64_t *)tb_frame_tensor(frame)->data)[0], 2); /* held all the while */
    tb_frame_release(frame);
    CHECK_OK(tb_register(bus, &tensor, id)); /* the bus is as it was */
    tb_bus_close(bus);
}

/* What never was, and what is no id. */
static void P08_misuse_of_what_never_was(void)
{
    static const char *const unknown[] = {"pool_owner_1", "pool_nobody_1"};
    static const char *const wrong[] = {"",       "pool",       "pool_",
                                        "pool_x", "pool_a/b_1", "pool_owner_x"};
    int64_t words[16] = {1};
    tb_tensor tensor = words_tensor(words);
    tb_frame *frame;
    tb_bus *bus = open_bus("owner");
    int64_t begin = harness_now_ns();
    for (size_t i = 0; i < 2; i++) {
        CHECK_STATUS(tb_read(bus, unknown[i], TB_SECONDS(10), &frame), TB_E_FREED);
        expect_warnings("read", unknown[i], 1);
        CHECK_STATUS(tb_free(bus, unknown[i]), TB_E_FREED);
        expect_warnings("release", unknown[i], 1);
        CHECK_STATUS(tb_write(bus, unknown[i], &tensor, TB_SECONDS(10)), TB_E_FREED);
        expect_warnings("write", unknown[i], 1);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_STATUS(tb_read(bus, wrong[i], TB_POLL, &frame), TB_E_INVALID);
        CHECK_STATUS(tb_free(bus, wrong[i]), TB_E_INVALID);
    }
    check_quick(begin);
    CHECK_EQ(harness_log_count("Attempt"), 6);
    tb_bus_close(bus);
}

/* Does what it is told with a pool of another process. */
static void other_process(void *argument)
{
    (void)argument;
    char id[TB_POOL_ID_SIZE];
    tb_frame *frame;
    int64_t words[16] = {9};
    tb_tensor tensor = words_tensor(words);
    tb_bus *bus = open_bus("other");
    for (;;) {
        char order;
        parent_hear(&order, 1);
        int64_t begin = harness_now_ns();
        switch (order) {
        case 'i': /* take an id, read it */
            parent_hear(id, sizeof id);
            CHECK_OK(tb_read(bus, id, TB_SECONDS(5), &frame));
            tb_frame_release(frame);
            break;
        case 'f':
            CHECK_OK(tb_free(bus, id));
            break;
        case 'F':
            CHECK_STATUS(tb_free(bus, id), TB_E_FREED);
            break;
        case 'R':
            CHECK_STATUS(tb_read(bus, id, TB_SECONDS(10), &frame), TB_E_FREED);
            break;
        case 'W': /* only the owner writes */
            CHECK_STATUS(tb_write(bus, id, &tensor, TB_SECONDS(10)), TB_E_FREED);
            break;
        default:
            tb_bus_close(bus);
            return;
        }
        check_quick(begin);
        parent_reached("done");
    }
}

static void order(struct child *child, char what)
{
    child_tell(child, &what, 1);
    child_await(child, "done");
}

static void hand_over(struct child *child, const char *id)
{
    child_tell(child, "i", 1);
    child_tell(child, id, TB_POOL_ID_SIZE);
    child_await(child, "done");
}

static void P08_misuse_across_processes(void)
{
    char first[TB_POOL_ID_SIZE];
    char second[TB_POOL_ID_SIZE];
    int64_t words[16] = {1};
    tb_tensor tensor = words_tensor(words);
    tb_frame *frame;
    struct child child;
    child_start(&child, "other", other_process, NULL);
    tb_bus *bus = open_bus("owner");
    CHECK_OK(tb_register(bus, &tensor, first));
    CHECK_OK(tb_register(bus, &tensor, second));

    /* The owner frees; the other one reads, frees and writes. */
    hand_over(&child, first);
    order(&child, 'W');
    CHECK_OK(tb_free(bus, first));
    order(&child, 'R');
    order(&child, 'F');
    order(&child, 'R');
    CHECK_EQ(harness_log_count("Attempt to read memory pool"), 2);
    CHECK_EQ(harness_log_count("Attempt to release memory pool"), 1);
    CHECK_EQ(harness_log_count("Attempt to write memory pool"), 1);

    /* The other one frees; the owner writes, reads and frees. */
    hand_over(&child, second);
    order(&child, 'f');
    int64_t begin = harness_now_ns();
    CHECK_STATUS(tb_write(bus, second, &tensor, TB_SECONDS(10)), TB_E_FREED);
    expect_warnings("write", second, 1);
    CHECK_STATUS(tb_read(bus, second, TB_SECONDS(10), &frame), TB_E_FREED);
    expect_warnings("read", second, 1);
    CHECK_STATUS(tb_free(bus, second), TB_E_FREED);
    expect_warnings("release", second, 1);
    check_quick(begin);
    CHECK_EQ(harness_log_count("Attempt"), 7);
    child_tell(&child, "q", 1);
    child_join(&child);
    tb_bus_close(bus);
}

/* The same with pools and readers: statuses, at once, and the pool's own warning. */
static void P08_misuse_of_pools_and_readers(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 16, 2);
    tb_reader *reader = open_reader(bus, "owner/frames");
    tb_reader *late;
    tb_frame *frame;
    tb_loan *loan;
    tb_handle handle;
    CHECK_OK(write_words(pool, 1, TB_POLL, &handle));
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    CHECK_OK(tb_pool_free(pool));
    int64_t begin = harness_now_ns();
    CHECK_STATUS(tb_loan_publish(loan, NULL), TB_E_FREED);
    CHECK_STATUS(tb_pool_loan(pool, TB_SECONDS(10), &loan), TB_E_FREED);
    CHECK_STATUS(tb_pool_free(pool), TB_E_FREED);
    CHECK_LE(1, harness_log_count("frames"));
    CHECK_STATUS(tb_reader_next(reader, TB_SECONDS(10), &frame), TB_E_FREED);
    CHECK_STATUS(tb_reader_newest(reader, TB_SECONDS(10), &frame), TB_E_FREED);
    CHECK_STATUS(tb_reader_frame(reader, &handle, &frame), TB_E_FREED);
    CHECK_STATUS(tb_reader_free_pool(reader), TB_E_FREED);
    CHECK_STATUS(tb_reader_open(bus, "owner/frames", NULL, &late), TB_E_FREED);
    check_quick(begin);
    tb_bus_close(bus);
}

/* Threads that read while another frees: each gets a frame or FREED, nothing else. */
static struct {
    tb_bus *bus;
    char id[TB_POOL_ID_SIZE];
} shared_pool;

static void *read_until_freed(void *argument)
{
    uint64_t *count = argument;
    tb_frame *frame;
    tb_status status;
    while ((status = tb_read(shared_pool.bus, shared_pool.id, TB_SECONDS(5), &frame)) == TB_OK) {
        ++*count;
        tb_frame_release(frame);
    }
    CHECK_STATUS(status, TB_E_FREED);
    return NULL;
}

static void P08_free_under_readers(void)
{
    int64_t words[16] = {1};
    tb_tensor tensor = words_tensor(words);
    shared_pool.bus = open_bus("owner");
    for (unsigned round = 0; round < harness_scale(50, 500); round++) {
        pthread_t threads[3];
        uint64_t counts[3] = {0};
        CHECK_OK(tb_register(shared_pool.bus, &tensor, shared_pool.id));
        for (int i = 0; i < 3; i++) {
            CHECK(pthread_create(&threads[i], NULL, read_until_freed, &counts[i]) == 0);
        }
        harness_sleep_us(500);
        tb_status status = tb_write(shared_pool.bus, shared_pool.id, &tensor, TB_SECONDS(5));
        CHECK(status == TB_OK || status == TB_AGAIN);
        CHECK_OK(tb_free(shared_pool.bus, shared_pool.id));
        for (int i = 0; i < 3; i++) {
            CHECK(pthread_join(threads[i], NULL) == 0);
        }
    }
    tb_bus_close(shared_pool.bus);
}

/* ------------------------------------------------------------------ P09 */

static void holding_consumer(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("holder");
    tb_reader *reader = open_reader(bus, "owner/frames");
    tb_frame *held;
    tb_frame *next;
    CHECK_OK(tb_reader_newest(reader, TB_SECONDS(5), &held));
    parent_pause("holding");
    CHECK_EQ(words_value(held), 4);
    /* Another frame was published before the free: it is not handed out any more. */
    CHECK_STATUS(tb_reader_newest(reader, TB_SECONDS(5), &next), TB_E_FREED);
    CHECK_STATUS(tb_reader_next(reader, TB_POLL, &next), TB_E_FREED);
    CHECK_EQ(words_value(held), 4);
    tb_frame_release(held);
    tb_bus_close(bus);
}

static void freeing_consumer(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("freer");
    tb_reader *reader = open_reader(bus, "owner/frames");
    CHECK_OK(tb_reader_free_pool(reader));
    tb_bus_close(bus);
}

static void P09_freed_while_held(void)
{
    struct child holder;
    struct child freer;
    child_start(&holder, "holder", holding_consumer, NULL);
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 100000, 2);
    CHECK_OK(write_words(pool, 4, TB_POLL, NULL));
    child_await(&holder, "holding");
    CHECK_OK(write_words(pool, 5, TB_POLL, NULL));
    child_start(&freer, "freer", freeing_consumer, NULL);
    child_join(&freer);
    CHECK_STATUS(write_words(pool, 6, TB_POLL, NULL), TB_E_FREED);
    CHECK_EQ(stats_of(pool).freed, 1);
    tb_pool_close(pool); /* not even this disturbs the holder */
    child_go(&holder);
    child_join(&holder);
    tb_bus_close(bus);
}

/* A reader that sleeps is woken by the free. */
static void P09_free_wakes_sleepers(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 16, 2);
    struct child freer;
    tb_reader *reader = open_reader(bus, "owner/frames"); /* before it is freed */
    child_start(&freer, "freer", freeing_consumer, NULL);
    tb_frame *frame;
    int64_t begin = harness_now_ns();
    CHECK_STATUS(tb_reader_next(reader, TB_SECONDS(10), &frame), TB_E_FREED);
    CHECK_LT(harness_now_ns() - begin, 2000000000LL * harness_slowness());
    child_join(&freer);
    CHECK_EQ(stats_of(pool).freed, 1);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ P27 */

static void acknowledger(void *argument)
{
    int acks = *(int *)argument;
    tb_bus *bus = open_bus("mirror");
    tb_reader *reader;
    tb_reader_options options = {
        .size = sizeof options, .wait_ns = TB_SECONDS(20), .every = 1, .ack = 1};
    CHECK_OK(tb_reader_open(bus, "owner/frames", &options, &reader));
    parent_reached("attached");
    for (int i = 0; i < acks; i++) {
        tb_frame *frame;
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
        CHECK_OK(tb_reader_ack(reader, frame));
        tb_frame_release(frame);
    }
    parent_pause("acknowledged");
    tb_bus_close(bus);
}

static void P27_named_acknowledger(void)
{
    static const char *const ackers[] = {"mirror", NULL};
    int acks = 1;
    struct child child;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool;
    tb_handle handle;
    tb_pool_options options = words_options("frames", 16, 4);
    options.ackers = ackers;
    CHECK_OK(tb_pool_register(bus, &options, &pool));

    /* Absent. */
    CHECK_OK(write_words(pool, 1, TB_POLL, &handle));
    int64_t begin = harness_now_ns();
    CHECK_STATUS(tb_pool_wait_acked(pool, &handle, TB_MILLIS(50)), TB_E_NOT_ACKED);
    CHECK_HAS(tb_last_error_text(), "mirror");
    CHECK_LT(harness_now_ns() - begin, 1000000000LL * harness_slowness());

    /* There, acknowledges one frame, then no more. */
    child_start(&child, "mirror", acknowledger, &acks);
    child_await(&child, "attached");
    CHECK_OK(tb_pool_wait_acked(pool, &handle, TB_SECONDS(10)));
    child_await(&child, "acknowledged");
    CHECK_OK(write_words(pool, 2, TB_POLL, &handle));
    CHECK_STATUS(tb_pool_wait_acked(pool, &handle, TB_MILLIS(50)), TB_E_NOT_ACKED);
    CHECK_HAS(tb_last_error_text(), "mirror");

    /* Dead: it might come back, but until then it has not acknowledged. */
    child_kill(&child);
    CHECK_STATUS(tb_pool_wait_acked(pool, &handle, TB_MILLIS(200)), TB_E_NOT_ACKED);
    CHECK_HAS(tb_last_error_text(), "mirror");

    /* Another pool's handle. */
    tb_pool *other = register_words(bus, "other", 16, 2);
    CHECK_STATUS(tb_pool_wait_acked(other, &handle, TB_POLL), TB_E_STALE);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(P08_misuse_by_the_owner, 10),     TEST(P08_misuse_of_what_never_was, 10),
    TEST(P08_misuse_across_processes, 20), TEST(P08_misuse_of_pools_and_readers, 10),
    TEST(P08_free_under_readers, 30),      TEST(P09_freed_while_held, 10),
    TEST(P09_free_wakes_sleepers, 20),     TEST(P27_named_acknowledger, 20),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

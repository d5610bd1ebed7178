/* What is counted as overwritten: frames that a reader in order had not come to, and nothing else.
 * Who is counted as a reader. */
#include <string.h>

#include "pool/observe.h"
#include "proc/pool_support.h"

static void frames_by_handle_are_not_missed(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 16, 3);
    for (int64_t n = 1; n <= 20; n++) {
        tb_handle handle;
        tb_frame *frame;
        CHECK_OK(write_words(pool, n, TB_POLL, &handle));
        CHECK_OK(tb_frame_open(bus, &handle, TB_POLL, &frame));
        CHECK_EQ(words_value(frame), n);
        tb_frame_release(frame);
    }
    CHECK_EQ(stats_of(pool).frames, 20);
    CHECK_EQ(stats_of(pool).overwrites, 0);
    tb_bus_close(bus);
}

/* As a tool sees them. */
static uint32_t observed_readers(tb_bus *bus)
{
    tb__observer *observer;
    struct tb__observation seen;
    CHECK_OK(tb__observer_open(bus, "owner/frames", &observer));
    tb__observer_look(observer, &seen);
    tb__observer_close(observer);
    return seen.stats.readers;
}

static void open_by_handle(void *argument)
{
    (void)argument;
    tb_handle handle;
    tb_frame *frame;
    tb_bus *bus = open_bus("user");
    parent_hear(&handle, sizeof handle);
    CHECK_OK(tb_frame_open(bus, &handle, TB_POLL, &frame));
    parent_pause("holds");
    tb_frame_release(frame);
    tb_bus_close(bus);
}

/* Whether the processes that read a pool are those two, in any order. */
static int are_readers(tb_pool *pool, const char *one, const char *other)
{
    char names[2][65] = {"", ""};
    uint32_t count;
    CHECK_OK(tb_pool_get_readers(pool, names, 2, &count));
    int straight = strcmp(names[0], one) == 0 && strcmp(names[1], other) == 0;
    int crossed = strcmp(names[0], other) == 0 && strcmp(names[1], one) == 0;
    return count == 2 && (straight || crossed);
}

static uint32_t reader_count(tb_pool *pool)
{
    uint32_t count;
    CHECK_OK(tb_pool_get_readers(pool, NULL, 0, &count));
    return count;
}

/* The owner that opens its own handles (a sender to a `backpressure` input does) is no reader, but
 * what it holds is held. */
static void the_owners_own_handles_are_no_reader(void)
{
    struct child user;
    child_start(&user, "user", open_by_handle, NULL);
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 16, 3);
    tb_handle handle;
    tb_frame *frame;
    CHECK_OK(write_words(pool, 1, TB_POLL, &handle));
    CHECK_OK(tb_frame_open(bus, &handle, TB_POLL, &frame));
    CHECK_EQ(stats_of(pool).readers, 0);
    CHECK_EQ(stats_of(pool).held, 1);
    CHECK_EQ(observed_readers(bus), 0);
    CHECK_EQ(reader_count(pool), 0);
    tb_reader *reader = open_reader(bus, "owner/frames");
    CHECK_EQ(stats_of(pool).readers, 1);
    CHECK_EQ(observed_readers(bus), 1);
    child_tell(&user, &handle, sizeof handle);
    child_await(&user, "holds");
    CHECK_EQ(stats_of(pool).readers, 2);
    CHECK_EQ(stats_of(pool).held, 2);
    CHECK_EQ(observed_readers(bus), 2);
    CHECK(are_readers(pool, "owner", "user"));
    CHECK_EQ(reader_count(pool), 2);
    char one[1][65];
    uint32_t count;
    CHECK_OK(tb_pool_get_readers(pool, one, 1, &count)); /* no more than there is room for */
    CHECK_EQ(count, 2);
    CHECK(strcmp(one[0], "owner") == 0 || strcmp(one[0], "user") == 0);
    child_go(&user);
    child_join(&user);
    tb_reader_close(reader);
    CHECK_WITHIN_MS(stats_of(pool).readers == 0, 2000);
    CHECK_EQ(reader_count(pool), 0);
    CHECK_EQ(observed_readers(bus), 0);
    tb_frame_release(frame);
    tb_bus_close(bus);
}

static void frames_that_a_reader_had_not_taken_are_counted(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 16, 3);
    tb_reader *reader = open_reader(bus, "owner/frames");
    for (int64_t n = 1; n <= 10; n++) {
        CHECK_OK(write_words(pool, n, TB_POLL, NULL));
    }
    /* The first seven have gone, three are in the slots. */
    CHECK_EQ(stats_of(pool).overwrites, 7);
    tb_frame *frame;
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_EQ(info_of(frame).missed, 7);
    CHECK_EQ(words_value(frame), 8);
    tb_frame_release(frame);
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    tb_frame_release(frame);
    /* Frames 8 and 9 were taken: that they go is no loss. */
    CHECK_OK(write_words(pool, 11, TB_POLL, NULL));
    CHECK_OK(write_words(pool, 12, TB_POLL, NULL));
    CHECK_EQ(stats_of(pool).overwrites, 7);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(frames_by_handle_are_not_missed, 10),
    TEST(the_owners_own_handles_are_no_reader, 20),
    TEST(frames_that_a_reader_had_not_taken_are_counted, 10),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

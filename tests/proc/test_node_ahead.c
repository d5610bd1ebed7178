/* A subscriber opens the pools behind a stream before it takes a frame of them: when it subscribes,
 * and when the sender uses another one. So frames outlive an owner that is killed meanwhile. */
#include "proc/node_frames.h"

#include "base/clock.h"
#include "endpoint/bus.h"
#include "wire/stream.h"

#define WORDS 20000
#define LARGE_BYTES (1 << 20)
#define FORGERIES 2000

static void expect_frame(tb_node *node, uint64_t number)
{
    tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
    CHECK_EQ(tb_event_dropped(event), 0);
    CHECK(tb_event_frame(event) != NULL);
    CHECK_EQ(((const uint64_t *)tb_event_tensor(event)->data)[0], number);
    CHECK_EQ(((const uint64_t *)tb_event_tensor(event)->data)[WORDS - 1], number);
    tb_event_release(event);
}

/* ---- a pool that is new, and a subscriber that is busy ---- */

static void source_of_two_pools(void *argument)
{
    (void)argument;
    tb_node *node = open_node("a", "", "out=b/in");
    tb_pool *first = register_words(tb_node_bus(node), "first", WORDS, 4);
    tb_pool *second = register_words(tb_node_bus(node), "second", WORDS, 4);
    parent_pause("open");
    send_frame(node, first, 1);
    parent_pause("first sent");
    send_frame(node, second, 2);
    parent_pause("second sent");
}

static void pools_are_opened_while_the_subscriber_is_busy(void)
{
    struct child a;
    child_start(&a, "a", source_of_two_pools, NULL);
    tb_node *node = open_node("b", "in=a/out;queue=10", "");
    child_await(&a, "open");
    for (unsigned i = 0; i < 2; i++) {
        unsigned before = harness_memfd_count();
        child_go(&a);
        child_await(&a, i == 0 ? "first sent" : "second sent");
        CHECK_WITHIN_MS(harness_memfd_count() == before + 2, 2000); /* its segment and page */
    }
    child_kill(&a);
    expect_frame(node, 1);
    expect_frame(node, 2);
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    expect_end(node);
    tb_node_close(node);
}

/* ---- a large value, which travels in a pool of the library's own ---- */

static void source_of_a_large_value(void *argument)
{
    (void)argument;
    tb_node *node = open_node("a", "", "out=b/in");
    uint8_t *large = malloc(LARGE_BYTES);
    CHECK(large != NULL);
    memset(large, 7, LARGE_BYTES);
    parent_pause("open");
    CHECK_OK(tb_node_send(node, "out", tb_bytes(large, LARGE_BYTES), NULL, TB_SECONDS(20)));
    parent_pause("sent");
}

static void large_values_outlive_their_sender(void)
{
    struct child a;
    size_t bytes;
    child_start(&a, "a", source_of_a_large_value, NULL);
    tb_node *node = open_node("b", "in=a/out;queue=10", "");
    child_await(&a, "open");
    unsigned before = harness_memfd_count();
    child_go(&a);
    child_await(&a, "sent");
    CHECK_WITHIN_MS(harness_memfd_count() == before + 2, 2000);
    child_kill(&a);
    tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
    const uint8_t *data = tb_event_bytes(event, &bytes);
    CHECK_EQ(bytes, LARGE_BYTES);
    CHECK_EQ(data[0], 7);
    CHECK_EQ(data[LARGE_BYTES - 1], 7);
    tb_event_release(event);
    tb_node_close(node);
}

/* ---- a subscriber that comes late ---- */

static void early_subscriber(void *argument)
{
    (void)argument;
    tb_node *node = open_node("b", "in=a/out;queue=10", "");
    expect_frame(node, 1);
    parent_pause("took one");
    tb_node_close(node);
}

static void source_for_late_ones(void *argument)
{
    (void)argument;
    tb_node *node = open_node("a", "", "out=b/in");
    tb_pool *pool = register_words(tb_node_bus(node), "frames", WORDS, 4);
    send_frame(node, pool, 1);
    parent_pause("first sent");
    send_frame(node, pool, 2);
    parent_pause("second sent");
}

static void a_late_subscriber_opens_the_pools_when_it_subscribes(void)
{
    struct child a;
    struct child b;
    child_start(&b, "b", early_subscriber, NULL);
    child_start(&a, "a", source_for_late_ones, NULL);
    child_await(&b, "took one");
    child_await(&a, "first sent");
    unsigned before = harness_memfd_count();
    tb_node *node = open_node("c", "in=a/out;queue=10", "");
    /* The stream's ring and page, the doorbells, and the pool's segment and page: with no message
     * yet, and at once. */
    CHECK_LE(before + 5, harness_memfd_count());
    child_go(&a);
    child_await(&a, "second sent");
    child_kill(&a);
    expect_frame(node, 2);
    tb_node_close(node);
    child_go(&b);
    child_join(&b);
}

/* ---- somebody who makes pools up ---- */

static void plain_source(void *argument)
{
    (void)argument;
    tb_node *node = open_node("a", "", "out=b/in");
    parent_pause("open");
    CHECK_OK(send_number(node, "out", 1, TB_SECONDS(20)));
    parent_pause("sent");
    tb_node_close(node);
}

static void made_up_pools_do_no_harm(void)
{
    struct child a;
    tb_bus *stranger;
    struct tb__lifeline *line;
    child_start(&a, "a", plain_source, NULL);
    tb_node *node = open_node("b", "in=a/out;queue=10", "");
    child_await(&a, "open");
    tb_bus_options options = {.size = sizeof options, .name = "stranger"};
    CHECK_OK(tb_bus_open(&options, &stranger));
    CHECK_OK(tb__bus_connect(stranger, "b", 0, tb__deadline_ns(TB_SECONDS(5)), &line));
    unsigned threads = harness_thread_count();
    for (uint64_t i = 0; i < FORGERIES; i++) {
        /* Owners that do not exist, and this process with pools that it does not have. */
        struct tb__stream_pool_wire pool = {{0}};
        uint64_t owner = i % 2 == 0 ? i : tb_bus_id(tb_node_bus(node));
        memcpy(pool.uid, &owner, sizeof owner);
        memcpy(pool.uid + sizeof owner, &i, sizeof i);
        tb_status ignored = tb__lifeline_send(line, TB__MSG_STREAM_POOL, &pool, sizeof pool);
        (void)ignored; /* a full socket */
        CHECK_LE(harness_thread_count(), threads + 1);
    }
    child_go(&a);
    child_await(&a, "sent");
    tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
    CHECK_EQ(event_number(event), 1);
    tb_event_release(event);
    tb__lifeline_unref(line);
    tb_bus_close(stranger);
    tb_node_close(node); /* also while it is busy with them */
    child_go(&a);
    child_join(&a);
}

static const struct test tests[] = {
    TEST(pools_are_opened_while_the_subscriber_is_busy, 30),
    TEST(large_values_outlive_their_sender, 30),
    TEST(a_late_subscriber_opens_the_pools_when_it_subscribes, 30),
    TEST(made_up_pools_do_no_harm, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

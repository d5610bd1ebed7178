/* How nodes end and what their receivers get (F11): exit(0), close, kill, restart. */
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include "proc/node_frames.h"
#include "proc/node_runner.h"

#define WORDS 100000

/* Handles, small and large values, all still in the queue when the process exits. */
static void send_some(tb_node *node)
{
    tb_pool *pool = register_words(tb_node_bus(node), "frames", WORDS, 8);
    uint64_t *large = calloc(WORDS, 8);
    for (uint64_t n = 1; n <= 5; n++) {
        send_frame(node, pool, n);
        CHECK_OK(send_number(node, "out", n, TB_SECONDS(20)));
        for (int i = 0; i < WORDS; i++) {
            large[i] = n;
        }
        CHECK_OK(
            tb_node_send(node, "out", tb_bytes(large, (size_t)WORDS * 8), NULL, TB_SECONDS(20)));
    }
    free(large);
}

static void check_some(tb_node *node)
{
    for (uint64_t n = 1; n <= 5; n++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(tb_event_dropped(event), 0);
        const uint64_t *words = tb_event_tensor(event)->data;
        CHECK(tb_event_frame(event) != NULL);
        for (int i = 0; i < WORDS; i++) {
            CHECK_EQ(words[i], n);
        }
        tb_event_release(event);
        event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(event_number(event), n);
        tb_event_release(event);
        event = next_event(node, TB_EVENT_INPUT, "in");
        words = tb_event_tensor(event)->data;
        for (int i = 0; i < WORDS; i++) {
            CHECK_EQ(words[i], n);
        }
        tb_event_release(event);
    }
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    expect_end(node);
}

static void exiting_source(void *argument)
{
    (void)argument;
    tb_node *node = open_node("source", "", "out=sink/in");
    send_some(node);
    parent_reached("sent");
    exit(0); /* NOLINT: the case itself: no close */
}

static void closing_source(void *argument)
{
    (void)argument;
    tb_node *node = open_node("source", "", "out=sink/in");
    send_some(node);
    parent_reached("sent");
    tb_node_close(node);
}

/* The consumer sleeps until the source is on its way out, then gets every frame, then the end. */
static void run_end(void (*source_run)(void *), const char *inputs)
{
    struct child source;
    child_start(&source, "source", source_run, NULL);
    tb_node *node = open_node("sink", inputs, "");
    child_await(&source, "sent");
    harness_sleep_us(100000);
    check_some(node);
    tb_node_close(node);
    child_join(&source);
}

static void f11_exit_0_drop_oldest(void)
{
    harness_allow_sockets();
    run_end(exiting_source, "in=source/out;queue=20");
}

static void f11_exit_0_backpressure(void)
{
    harness_allow_sockets();
    run_end(exiting_source, "in=source/out;queue=20;policy=backpressure");
}

static void f11_close_drop_oldest(void)
{
    run_end(closing_source, "in=source/out;queue=20");
}

static void f11_close_backpressure(void)
{
    run_end(closing_source, "in=source/out;queue=20;policy=backpressure");
}

/* ---- killed ---- */

static void killed_source(void *argument)
{
    tb_node *node = open_node("source", "", "out=sink/in");
    if (argument != NULL) {
        leave_heir(1500);
    }
    tb_pool *pool = register_words(tb_node_bus(node), "frames", WORDS, 8);
    send_frame(node, pool, 1);
    parent_pause("first");
    for (uint64_t n = 2; n <= 6; n++) {
        send_frame(node, pool, n);
        CHECK_OK(send_number(node, "out", n, TB_SECONDS(20)));
    }
    parent_pause("sent");
    tb_node_close(node);
}

/* Even after SIGKILL everything that was sent arrives: the ring and the frames are still mapped. */
static void f11_killed_source(void)
{
    struct child source;
    child_start(&source, "source", killed_source, NULL);
    tb_node *node = open_node("sink", "in=source/out;queue=20", "");
    child_await(&source, "first");
    expect_event(node, TB_EVENT_INPUT, "in");
    child_go(&source);
    child_await(&source, "sent");
    child_kill(&source);
    for (uint64_t n = 2; n <= 6; n++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        const uint64_t *words = tb_event_tensor(event)->data;
        CHECK_EQ(words[0], n);
        CHECK_EQ(words[WORDS - 1], n);
        tb_event_release(event);
        event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(event_number(event), n);
        tb_event_release(event);
    }
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    expect_end(node);
    tb_node_close(node);
}

/* A node that sleeps learns of a kill at once, not at the end of some interval. */
static void f11_a_kill_wakes(void)
{
    struct child source;
    child_start(&source, "source", killed_source, &source);
    tb_node *node = open_node("sink", "in=source/out;queue=20", "");
    child_await(&source, "first");
    expect_event(node, TB_EVENT_INPUT, "in");
    int64_t before = harness_now_ns();
    child_signal(&source, SIGKILL);
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    CHECK_LE(harness_now_ns() - before, 200000000LL * harness_slowness());
    expect_end(node);
    tb_node_close(node);
    child_join_signal(&source, SIGKILL);
    harness_allow_sockets();
}

/* ---- the runner ---- */

/* Forked before the runner uses the library; begins when the runner is there. */
static void await_runner(void)
{
    char go;
    parent_hear(&go, sizeof go);
}

static void stopped_node(void *argument)
{
    (void)argument;
    tb_node *node;
    await_runner();
    node_environment("node", "tick=tensorbus/timer/secs/3600", "", "_runner");
    CHECK_OK(tb_node_open(&node));
    expect_event(node, TB_EVENT_STOP, "");
    expect_end(node);
    expect_end(node);
    tb_node_close(node);
}

static void stop_comes_once(void)
{
    struct test_runner runner;
    struct child child;
    child_start(&child, "node", stopped_node, NULL);
    runner_open(&runner);
    child_tell(&child, "g", 1);
    runner_await(&runner, "node");
    runner_stop(&runner, "node");
    child_join(&child);
    runner_close(&runner);
}

static void the_end_of_the_runner_is_stop(void)
{
    struct test_runner runner;
    struct child child;
    child_start(&child, "node", stopped_node, NULL);
    runner_open(&runner);
    child_tell(&child, "g", 1);
    runner_await(&runner, "node");
    runner_close(&runner);
    child_join(&child);
}

static void runner_tell_gone_patiently(struct test_runner *runner, const char *node,
                                       const char *gone)
{
    struct tb__name_wire wire = {{0}};
    snprintf(wire.name, sizeof wire.name, "%s", gone);
    struct tb__lifeline *line = runner_find(runner, node);
    tb_status status;
    while ((status = tb__lifeline_send(line, TB__MSG_NODE_GONE, &wire, sizeof wire)) == TB_AGAIN) {
        usleep(200);
    }
    CHECK_OK(status);
}

static void lonely_node(void *argument)
{
    (void)argument;
    tb_node *node;
    await_runner();
    node_environment("node", "in=absent/out\nother=absent/out", "out=missing/in", "_runner");
    CHECK_OK(tb_node_open(&node));
    parent_reached("opened");
    CHECK_OK(send_number(node, "out", 1, 0));
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    expect_event(node, TB_EVENT_INPUT_CLOSED, "other");
    expect_end(node);
    tb_node_close(node);
}

/* A node whose neighbours never come opens as soon as the runner says that they are gone. */
static void gone_nodes_are_not_waited_for(void)
{
    struct test_runner runner;
    struct child child;
    child_start(&child, "node", lonely_node, NULL);
    runner_open(&runner);
    child_tell(&child, "g", 1);
    runner_await(&runner, "node");
    CHECK(!child_has_spoken(&child, 50));
    runner_tell_gone(&runner, "node", "absent");
    CHECK(!child_has_spoken(&child, 300));
    runner_tell_gone(&runner, "node", "missing");
    child_await(&child, "opened");
    child_join(&child);
    runner_close(&runner);
}

/* In the main arena, and in large blocks of all: the list would soon be one of these. */
static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void deaf_to_strangers(void *argument)
{
    (void)argument;
    tb_node *node;
    char go;
    await_runner();
    node_environment("node", "in=absent/out", "out=missing/in", "_runner");
    size_t before = allocated();
    CHECK_OK(tb_node_open(&node)); /* everything was said before the last neighbour's end */
    CHECK_LE(allocated(), before + 1000000);
    parent_reached("opened");
    parent_hear(&go, sizeof go);
    tb_node_close(node);
}

/* Whoever may connect can say who is gone; that does not fill the node's memory. */
static void only_neighbours_are_kept_in_mind(void)
{
    struct test_runner runner;
    struct child child;
    char name[32];
    child_start(&child, "node", deaf_to_strangers, NULL);
    runner_open(&runner);
    child_tell(&child, "g", 1);
    runner_await(&runner, "node");
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "stranger%d", i);
        runner_tell_gone_patiently(&runner, "node", "absent");
        runner_tell_gone_patiently(&runner, "node", name);
    }
    CHECK(!child_has_spoken(&child, 50));
    runner_tell_gone_patiently(&runner, "node", "missing");
    child_await(&child, "opened");
    child_tell(&child, "g", 1);
    child_join(&child);
    runner_close(&runner);
}

static void numbers_source(void *argument)
{
    uint64_t base;
    (void)argument;
    parent_hear(&base, sizeof base);
    tb_node *node = open_node("source", "", "out=sink/in");
    for (uint64_t n = 1; n <= 3; n++) {
        CHECK_OK(send_number(node, "out", base + n, TB_SECONDS(20)));
    }
    parent_pause("sent");
    tb_node_close(node);
}

/* With restart=1 the input stays open while its sender is away, and closes when that is for good.
 */
static void a_restarted_sender_is_found_again(void)
{
    struct test_runner runner;
    struct child sources[2];
    tb_node *node;
    for (int life = 0; life < 2; life++) {
        child_start(&sources[life], "source", numbers_source, NULL);
    }
    runner_open(&runner);
    uint64_t base = 100;
    child_tell(&sources[0], &base, sizeof base);
    node_environment("sink", "in=source/out;queue=20;restart=1", "", "_runner");
    CHECK_OK(tb_node_open(&node));
    runner_await(&runner, "sink");
    tb_event *event;
    for (int life = 0; life < 2; life++) {
        for (uint64_t n = 1; n <= 3; n++) {
            event = next_event(node, TB_EVENT_INPUT, "in");
            CHECK_EQ(event_number(event), base + n);
            tb_event_release(event);
        }
        child_await(&sources[life], "sent");
        if (life == 0) {
            child_kill(&sources[0]);
            CHECK_STATUS(tb_node_next(node, TB_MILLIS(100), &event), TB_AGAIN);
            base = 200;
            child_tell(&sources[1], &base, sizeof base);
        }
    }
    child_go(&sources[1]);
    CHECK_STATUS(tb_node_next(node, TB_MILLIS(100), &event), TB_AGAIN);
    runner_tell_gone(&runner, "sink", "source");
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    expect_end(node);
    child_join(&sources[1]);
    tb_node_close(node);
    runner_close(&runner);
}

static void fork_child(void *argument)
{
    tb_node *node = argument;
    tb_event *event;
    CHECK_STATUS(tb_node_next(node, 0, &event), TB_E_FORKED);
    CHECK_STATUS(send_number(node, "out", 1, 0), TB_E_FORKED);
    tb_node_close(node);
    exit(0); /* NOLINT: must not wait for the parent's subscribers either */
}

static void a_forked_child_has_no_node(void)
{
    struct child child;
    tb_node *node = open_node("node", "", "out=");
    child_start(&child, "child", fork_child, node);
    child_join(&child);
    CHECK_OK(send_number(node, "out", 1, 0));
    tb_node_close(node);
}

static const struct test tests[] = {
    TEST(f11_exit_0_drop_oldest, 60),
    TEST(f11_exit_0_backpressure, 60),
    TEST(f11_close_drop_oldest, 60),
    TEST(f11_close_backpressure, 60),
    TEST(f11_killed_source, 60),
    TEST(f11_a_kill_wakes, 60),
    TEST(stop_comes_once, 60),
    TEST(the_end_of_the_runner_is_stop, 60),
    TEST(gone_nodes_are_not_waited_for, 60),
    TEST(only_neighbours_are_kept_in_mind, 60),
    TEST(a_restarted_sender_is_found_again, 60),
    TEST(a_forked_child_has_no_node, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

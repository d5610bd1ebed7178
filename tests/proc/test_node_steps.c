/* Kills between any two instructions of sending and of taking: the other side gets whole messages
 * in order, then the end, and is never blocked. */
#include <pthread.h>
#include <stdatomic.h>

#include "proc/node_frames.h"

#define WORDS 6000 /* 48,000 bytes: too large for a slot */

/* Stepping is slow, and ThreadSanitizer makes ten instructions of one: there, bytes alone. */
static void skip_where_too_slow(void)
{
#if defined(__SANITIZE_THREAD__)
    harness_skip("too many instructions under ThreadSanitizer");
#endif
}

/* Kill at points spread evenly over the instructions of an act, and at every system call of it. */
static void kill_everywhere(int (*kill)(const void *act, int by_calls, unsigned long count,
                                        unsigned long *out_count),
                            const void *act)
{
    unsigned long budget = harness_slowness() > 1 ? 20000 : harness_full() ? 10000000 : 25000;
    unsigned long total;
    unsigned long done;
    CHECK(!kill(act, 0, (unsigned long)-1, &total)); /* to the end: how long is it? */
    unsigned long points = 2 * budget / total < 30 || harness_full() ? 2 * budget / total : 30;
    for (unsigned long steps = 0; steps < total; steps += total / (points + 1) + 1) {
        kill(act, 0, steps, &done);
    }
    CHECK(!kill(act, 1, (unsigned long)-1, &total));
    for (unsigned long stops = 1; stops <= total; stops++) {
        kill(act, 1, stops, &done);
    }
}

static int kill_child(struct child *child, int by_calls, unsigned long count,
                      unsigned long *out_count)
{
    return by_calls ? child_kill_after_calls(child, count, out_count)
                    : child_kill_after_steps(child, count, out_count);
}

/* Message n holds n in all its words, whatever way it travels. */
static void send_small(tb_node *node, tb_pool *pool, int64_t number)
{
    (void)pool;
    CHECK_OK(send_number(node, "out", (uint64_t)number, TB_SECONDS(20)));
}

static void send_large(tb_node *node, tb_pool *pool, int64_t number)
{
    static int64_t words[WORDS];
    const tb_tensor tensor = {.data = words, .dtype = TB_I64, .ndim = 1, .shape = {WORDS}};
    (void)pool;
    fill_words(&tensor, number);
    CHECK_OK(tb_node_send(node, "out", tb_bytes(words, sizeof words), NULL, TB_SECONDS(20)));
}

static uint64_t check_whole(const tb_event *event)
{
    size_t bytes;
    const uint64_t *words = tb_event_bytes(event, &bytes);
    CHECK(words != NULL);
    for (size_t i = 0; i < bytes / 8; i++) {
        CHECK_EQ(words[i], words[0]);
    }
    return words[0];
}

struct act {
    void (*send)(tb_node *node, tb_pool *pool, int64_t number);
    const char *inputs;
};

/* ------------------------------------------------------------------ senders that die */

static void dying_source(void *argument)
{
    const struct act *act = argument;
    tb_node *node = open_node("source", "", "out=sink/in");
    tb_pool *pool = register_words(tb_node_bus(node), "frames", WORDS, 4);
    act->send(node, pool, 1);
    parent_pause("sent one");
    act->send(node, pool, 2);
    steps_begin();
    act->send(node, pool, 3);
    steps_end();
}

static int kill_source(const void *argument, int by_calls, unsigned long count,
                       unsigned long *out_count)
{
    const struct act *act = argument;
    struct child source;
    child_start(&source, "source", dying_source, (void *)(uintptr_t)act);
    tb_node *node = open_node("sink", act->inputs, "");
    child_await(&source, "sent one");
    tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
    CHECK_EQ(check_whole(event), 1);
    tb_event_release(event);
    child_go(&source);
    int killed = kill_child(&source, by_calls, count, out_count);
    /* Two for certain, three whole or not at all, then the end, soon. */
    int64_t before = harness_now_ns();
    event = next_event(node, TB_EVENT_INPUT, "in");
    CHECK_EQ(check_whole(event), 2);
    tb_event_release(event);
    CHECK_OK(tb_node_next(node, TB_SECONDS(20), &event));
    if (tb_event_get_type(event) == TB_EVENT_INPUT) {
        CHECK_EQ(check_whole(event), 3);
        tb_event_release(event);
        event = next_event(node, TB_EVENT_INPUT_CLOSED, "in");
    } else {
        CHECK(killed);
        CHECK_EQ(tb_event_get_type(event), TB_EVENT_INPUT_CLOSED);
    }
    CHECK_EQ(tb_event_dropped(event), 0);
    tb_event_release(event);
    expect_end(node);
    CHECK_LE(harness_now_ns() - before, 200000000LL * harness_slowness());
    tb_node_close(node);
    return killed;
}

static void run_dying_source(void (*send)(tb_node *, tb_pool *, int64_t))
{
    struct act act = {send, "in=source/out;queue=3"};
    kill_everywhere(kill_source, &act);
    act.inputs = "in=source/out;queue=3;policy=backpressure";
    kill_everywhere(kill_source, &act);
}

static void f11_sender_of_bytes_dies_at_any_step(void)
{
    run_dying_source(send_small);
}

static void f11_sender_of_large_values_dies_at_any_step(void)
{
    skip_where_too_slow();
    run_dying_source(send_large);
}

static void f11_sender_of_handles_dies_at_any_step(void)
{
    skip_where_too_slow();
    run_dying_source(send_frame);
}

/* ------------------------------------------------------------------ subscribers that die */

static void dying_sink(void *argument)
{
    const struct act *act = argument;
    tb_node *node = open_node("sink", act->inputs, "");
    expect_event(node, TB_EVENT_INPUT, "in");
    parent_pause("took one");
    steps_begin();
    tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
    CHECK_EQ(check_whole(event), 2);
    tb_event_release(event);
    steps_end();
}

static int kill_sink(const void *argument, int by_calls, unsigned long count,
                     unsigned long *out_count)
{
    const struct act *act = argument;
    struct child sink;
    child_start(&sink, "sink", dying_sink, (void *)(uintptr_t)act);
    tb_node *node = open_node("source", "", "out=sink/in");
    tb_pool *pool = register_words(tb_node_bus(node), "frames", WORDS, 4);
    act->send(node, pool, 1);
    child_await(&sink, "took one");
    act->send(node, pool, 2);
    act->send(node, pool, 3);
    child_go(&sink);
    int killed = kill_child(&sink, by_calls, count, out_count);
    /* Nobody is left: nothing waits, and all slots come back. */
    int64_t before = harness_now_ns();
    for (int64_t n = 4; n < 10; n++) {
        act->send(node, pool, n);
    }
    tb_loan *loans[3];
    for (int i = 0; i < 3; i++) {
        CHECK_OK(tb_pool_loan(pool, TB_SECONDS(1), &loans[i]));
    }
    CHECK_LE(harness_now_ns() - before, 200000000LL * harness_slowness());
    for (int i = 0; i < 3; i++) {
        tb_loan_cancel(loans[i]);
    }
    tb_node_close(node);
    return killed;
}

static void run_dying_sink(void (*send)(tb_node *, tb_pool *, int64_t))
{
    struct act act = {send, "in=source/out;queue=3"};
    kill_everywhere(kill_sink, &act);
    act.inputs = "in=source/out;queue=3;policy=backpressure";
    kill_everywhere(kill_sink, &act);
}

static void f07_taker_of_bytes_dies_at_any_step(void)
{
    run_dying_sink(send_small);
}

static void f07_taker_of_large_values_dies_at_any_step(void)
{
    skip_where_too_slow();
    run_dying_sink(send_large);
}

static void f15_taker_of_handles_dies_at_any_step(void)
{
    skip_where_too_slow();
    run_dying_sink(send_frame);
}

/* ------------------------------------------------------------------ a subscriber in slow motion */

struct writer {
    tb_pool *pool;
    _Atomic int stop;
};

static void *overwrite(void *argument)
{
    struct writer *writer = argument;
    while (!atomic_load(&writer->stop)) {
        tb_loan *loan;
        if (tb_pool_loan(writer->pool, TB_MILLIS(1), &loan) == TB_OK) {
            fill_words(tb_loan_tensor(loan), 99);
            CHECK_OK(tb_loan_publish(loan, NULL));
        }
    }
    return NULL;
}

/* The frame of a message in a backpressure queue is kept until the subscriber has a lease of its
 * own, however slowly it goes from one instruction to the next while the owner writes. */
static void f15_slow_taker_never_loses_a_frame(void)
{
    struct act act = {send_frame, "in=source/out;queue=3;policy=backpressure"};
    struct child sink;
    struct writer writer = {0};
    pthread_t thread;
    unsigned long steps;
    skip_where_too_slow();
    child_start(&sink, "sink", dying_sink, &act);
    tb_node *node = open_node("source", "", "out=sink/in");
    writer.pool = register_words(tb_node_bus(node), "frames", WORDS, 4);
    act.send(node, writer.pool, 1);
    child_await(&sink, "took one");
    act.send(node, writer.pool, 2);
    CHECK_EQ(pthread_create(&thread, NULL, overwrite, &writer), 0);
    child_go(&sink);
    CHECK(!child_kill_after_steps(&sink, (unsigned long)-1, &steps));
    atomic_store(&writer.stop, 1);
    pthread_join(thread, NULL);
    tb_node_close(node);
}

static const struct test tests[] = {
    TEST(f11_sender_of_bytes_dies_at_any_step, 120),
    TEST(f11_sender_of_large_values_dies_at_any_step, 120),
    TEST(f11_sender_of_handles_dies_at_any_step, 120),
    TEST(f07_taker_of_bytes_dies_at_any_step, 120),
    TEST(f07_taker_of_large_values_dies_at_any_step, 120),
    TEST(f15_taker_of_handles_dies_at_any_step, 120),
    TEST(f15_slow_taker_never_loses_a_frame, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

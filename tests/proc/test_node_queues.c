/* Queues: what arrives of a burst (F07), and who waits for whom (F17). */
#include <pthread.h>

#include "proc/node_support.h"

#define BURST 100

static void burst_source(void *argument)
{
    (void)argument;
    tb_node *node = open_node("source", "", "out=slow/in");
    for (uint64_t n = 1; n <= BURST; n++) {
        CHECK_OK(send_number(node, "out", n, TB_SECONDS(60)));
    }
    parent_pause("sent");
    tb_node_close(node);
}

/* The node sleeps while the burst comes; then counts what arrives in which order. */
static void run_burst(uint32_t queue, int backpressure)
{
    struct child source;
    char inputs[200];
    snprintf(inputs, sizeof inputs,
             "in=source/out;queue=%u;policy=%s\ntick=tensorbus/timer/millis/10;queue=10", queue,
             backpressure ? "backpressure" : "drop_oldest");
    child_start(&source, "source", burst_source, NULL);
    setenv("TENSORBUS_EXIT_WHEN_NODES_FINISH", "1", 1);
    tb_node *node = open_node("slow", inputs, "");
    if (!backpressure) {
        child_await(&source, "sent");
    }
    harness_sleep_us(harness_full() ? 3000000 : 300000);
    uint64_t messages = 0;
    uint64_t dropped = 0;
    uint64_t ticks = 0;
    uint64_t dropped_ticks = 0;
    uint64_t last = 0;
    int released = 0;
    tb_event *event;
    tb_status status;
    while ((status = tb_node_next(node, TB_SECONDS(20), &event)) == TB_OK) {
        if (tb_event_get_type(event) == TB_EVENT_INPUT && tb_event_id(event)[0] == 'i') {
            uint64_t number = event_number(event);
            dropped += tb_event_dropped(event);
            CHECK_EQ(number, last + 1 + tb_event_dropped(event));
            last = number;
            messages++;
        } else if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            dropped_ticks += tb_event_dropped(event);
            ticks++;
        } else {
            CHECK_EQ(tb_event_get_type(event), TB_EVENT_INPUT_CLOSED);
            CHECK_STR(tb_event_id(event), "in");
        }
        tb_event_release(event);
        if (last == BURST && ticks > 0 && !released) {
            if (backpressure) {
                child_await(&source, "sent");
            }
            child_go(&source);
            released = 1;
        }
    }
    CHECK_STATUS(status, TB_CLOSED);
    uint64_t expected = backpressure || queue > BURST ? BURST : queue;
    CHECK_EQ(messages, expected);
    CHECK_EQ(dropped, BURST - expected);
    CHECK_EQ(last, BURST);
    CHECK_LE(1, ticks);
    CHECK_LE(10, dropped_ticks); /* 30 were due in the sleep, 10 fit */
    tb_node_close(node);
    child_join(&source);
}

static void f07_drop_oldest_queue_1(void)
{
    run_burst(1, 0);
}

static void f07_drop_oldest_queue_10(void)
{
    run_burst(10, 0);
}

static void f07_drop_oldest_queue_1000(void)
{
    run_burst(1000, 0);
}

static void f07_backpressure_queue_1(void)
{
    run_burst(1, 1);
}

static void f07_backpressure_queue_10(void)
{
    run_burst(10, 1);
}

static void f07_backpressure_queue_1000(void)
{
    run_burst(1000, 1);
}

static void f17_other(void *argument)
{
    (void)argument;
    tb_node *node = open_node("b", "in=a/out;queue=3;policy=backpressure", "out=a/in");
    int sent = 0;
    while (send_number(node, "out", 1, TB_MILLIS(50)) == TB_OK) {
        sent++;
    }
    CHECK_EQ(sent, 3);
    parent_pause("full");
    /* The other one is full too, and still nobody is stuck: take one, one can be sent. */
    expect_event(node, TB_EVENT_INPUT, "in");
    parent_pause("took one");
    CHECK_OK(send_number(node, "out", 1, TB_SECONDS(10)));
    tb_node_close(node);
}

/* A cycle with full backpressure queues: sends time out, nobody hangs. */
static void f17_full_cycle_times_out(void)
{
    struct child other;
    child_start(&other, "b", f17_other, NULL);
    tb_node *node = open_node("a", "in=b/out;queue=3;policy=backpressure", "out=b/in");
    int sent = 0;
    while (send_number(node, "out", 1, TB_MILLIS(50)) == TB_OK) {
        sent++;
    }
    CHECK_EQ(sent, 3);
    child_await(&other, "full");
    int64_t before = harness_now_ns();
    CHECK_STATUS(send_number(node, "out", 1, TB_MILLIS(100)), TB_AGAIN);
    CHECK_HAS(tb_last_error_text(), "`b`");
    int64_t waited = harness_now_ns() - before;
    CHECK_LE(100000000, waited);
    CHECK_LE(waited, 1000000000LL * harness_slowness());
    child_go(&other);
    child_await(&other, "took one");
    CHECK_OK(send_number(node, "out", 1, TB_SECONDS(10)));
    expect_event(node, TB_EVENT_INPUT, "in");
    child_go(&other);
    tb_event *event;
    int got = 0;
    while (tb_node_next(node, TB_SECONDS(20), &event) == TB_OK) {
        got += tb_event_get_type(event) == TB_EVENT_INPUT;
        tb_event_release(event);
    }
    CHECK_EQ(got, 3);
    tb_node_close(node);
    child_join(&other);
}

static void sleeping_taker(void *argument)
{
    harness_sleep_us(*(unsigned *)argument);
    tb_node *node = open_node("slow", "in=source/out;queue=2;policy=backpressure", "");
    parent_pause("there");
    for (uint64_t n = 1; n <= 4; n++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(event_number(event), n);
        tb_event_release(event);
    }
    parent_pause("took four");
    tb_node_close(node);
}

static void fast_taker(void *argument)
{
    harness_sleep_us(*(unsigned *)argument);
    tb_node *node = open_node("fast", "in=source/out;queue=2;policy=backpressure", "");
    for (uint64_t n = 1; n <= 4; n++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(event_number(event), n);
        tb_event_release(event);
    }
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    tb_node_close(node);
}

/* A send without room in one of two queues reaches neither; one that waits goes on when the slow
 * subscriber takes, or dies. */
static void run_all_or_nobody(unsigned slow_after_us, unsigned fast_after_us)
{
    struct child slow;
    struct child fast;
    child_start(&slow, "slow", sleeping_taker, &slow_after_us);
    child_start(&fast, "fast", fast_taker, &fast_after_us);
    tb_node *node = open_node("source", "", "out=slow/in,fast/in");
    child_await(&slow, "there");
    CHECK_OK(send_number(node, "out", 1, 0));
    CHECK_OK(send_number(node, "out", 2, TB_SECONDS(10)));
    CHECK_STATUS(send_number(node, "out", 99, TB_MILLIS(20)), TB_AGAIN);
    child_go(&slow);
    CHECK_OK(send_number(node, "out", 3, TB_SECONDS(10)));
    CHECK_OK(send_number(node, "out", 4, TB_SECONDS(10)));
    child_await(&slow, "took four");
    tb_node_close(node);
    child_go(&slow);
    child_join(&slow);
    child_join(&fast);
}

/* Whoever of the two subscribes first. */
static void f07_all_or_nobody(void)
{
    run_all_or_nobody(0, 100000);
    run_all_or_nobody(100000, 0);
}

static void stuck_taker(void *argument)
{
    (void)argument;
    tb_node *node = open_node("stuck", "in=source/out;queue=2;policy=backpressure", "");
    leave_heir(1500);
    parent_pause("there");
    tb_node_close(node);
}

static void f07_a_dead_subscriber_blocks_nobody(void)
{
    struct child stuck;
    child_start(&stuck, "stuck", stuck_taker, NULL);
    tb_node *node = open_node("source", "", "out=stuck/in");
    child_await(&stuck, "there");
    CHECK_OK(send_number(node, "out", 1, 0));
    CHECK_OK(send_number(node, "out", 2, 0));
    CHECK_STATUS(send_number(node, "out", 3, 0), TB_AGAIN);
    int64_t before = harness_now_ns();
    child_signal(&stuck, 9);
    CHECK_OK(send_number(node, "out", 3, TB_SECONDS(10)));
    CHECK_LE(harness_now_ns() - before, 200000000LL * harness_slowness());
    for (uint64_t n = 0; n < 100; n++) {
        CHECK_OK(send_number(node, "out", n, 0));
    }
    child_join_signal(&stuck, 9);
    harness_allow_sockets();
    tb_node_close(node);
}

/* ---- several threads on one output ---- */

#define THREADS 4
#define EACH 500

static tb_node *shared_node;

/* Every tenth value is too large for a slot. */
static void *send_many(void *argument)
{
    uint64_t thread = (uint64_t)(uintptr_t)argument;
    uint64_t *words = calloc(10000, sizeof *words);
    for (uint64_t n = 1; n <= EACH; n++) {
        words[0] = thread << 32 | n;
        CHECK_OK(tb_node_send(shared_node, "out", tb_bytes(words, n % 10 == 0 ? 80000 : 8), NULL,
                              TB_SECONDS(60)));
    }
    free(words);
    return NULL;
}

static void threaded_source(void *argument)
{
    pthread_t threads[THREADS];
    (void)argument;
    shared_node = open_node("source", "", "out=sink/in,sink/again");
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, send_many, (void *)i), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    tb_node_close(shared_node);
}

/* Each thread's messages come in its order, and both subscribers get all of them. */
static void f07_several_threads_send(void)
{
    struct child source;
    child_start(&source, "source", threaded_source, NULL);
    tb_node *node = open_node("sink",
                              "in=source/out;queue=10;policy=backpressure\n"
                              "again=source/out;queue=3;policy=backpressure",
                              "");
    uint64_t last[2][THREADS] = {{0}};
    tb_event *event;
    while (tb_node_next(node, TB_SECONDS(20), &event) == TB_OK) {
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            size_t bytes;
            uint64_t word;
            memcpy(&word, tb_event_bytes(event, &bytes), 8);
            uint64_t *before = &last[tb_event_id(event)[0] == 'a'][word >> 32];
            uint64_t number = word & 0xffffffff;
            CHECK_EQ(number, *before + 1);
            CHECK_EQ(bytes, number % 10 == 0 ? 80000 : 8);
            *before = number;
        }
        tb_event_release(event);
    }
    for (int i = 0; i < 2 * THREADS; i++) {
        CHECK_EQ(last[i / THREADS][i % THREADS], EACH);
    }
    tb_node_close(node);
    child_join(&source);
}

static const struct test tests[] = {
    TEST(f07_drop_oldest_queue_1, 60),    TEST(f07_drop_oldest_queue_10, 60),
    TEST(f07_drop_oldest_queue_1000, 60), TEST(f07_backpressure_queue_1, 60),
    TEST(f07_backpressure_queue_10, 60),  TEST(f07_backpressure_queue_1000, 60),
    TEST(f07_all_or_nobody, 60),          TEST(f07_a_dead_subscriber_blocks_nobody, 60),
    TEST(f07_several_threads_send, 120),  TEST(f17_full_cycle_times_out, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

/* Handles in queues: forwarded, overwritten, kept (F15). */
#include "proc/node_support.h"
#include "proc/pool_support.h"

#define FRAMES 200
#define WORDS 20000

static void write_frame(tb_pool *pool, uint64_t number, tb_handle *handle)
{
    CHECK_OK(write_words(pool, (int64_t)number, TB_SECONDS(20), handle));
    CHECK_EQ(tb_handle_sequence(handle), number);
}

/* The number in a frame; all of its elements must agree, now and a moment later. */
static uint64_t frame_number(const tb_event *event)
{
    CHECK(tb_event_frame(event) != NULL);
    const tb_tensor *tensor = tb_event_tensor(event);
    const uint64_t *words = tensor->data;
    uint64_t number = words[0];
    CHECK_EQ(tensor->shape[0], WORDS);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < WORDS; i++) {
            CHECK_EQ(words[i], number);
        }
    }
    return number;
}

static void producer(void *argument)
{
    (void)argument;
    tb_node *node = open_node("a", "", "out=b/in");
    tb_pool *pool = register_words(tb_node_bus(node), "frames", WORDS, 4);
    tb_metadata *metadata;
    CHECK_OK(tb_metadata_create(&metadata));
    for (uint64_t n = 1; n <= FRAMES; n++) {
        tb_handle handle;
        write_frame(pool, n, &handle);
        CHECK_OK(tb_metadata_set_int64(metadata, "number", (int64_t)n));
        CHECK_OK(tb_node_send(node, "out", tb_handle_value(&handle), metadata, TB_SECONDS(20)));
        harness_sleep_us(200); /* frames live as long as their owner: do not end before all began */
    }
    tb_metadata_destroy(metadata);
    tb_node_close(node);
}

/* Forwards the handle and lets go of the frame at once. */
static void forwarder(void *argument)
{
    const char *inputs = argument;
    tb_node *node = open_node("b", inputs, "out=c/in");
    tb_event *event;
    uint64_t lost = 0;
    while (tb_node_next(node, TB_SECONDS(20), &event) == TB_OK) {
        lost += tb_event_dropped(event);
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            tb_frame_info info = {.size = sizeof info};
            CHECK_OK(tb_frame_get_info(tb_event_frame(event), &info));
            CHECK_EQ(info.sequence, frame_number(event));
            CHECK_STR(info.producer, "a");
            CHECK_OK(tb_node_send(node, "out", tb_handle_value(&info.handle),
                                  tb_event_metadata(event), TB_SECONDS(20)));
        }
        tb_event_release(event);
    }
    tb_node_close(node);
    parent_tell(&lost, sizeof lost);
}

/* Every frame is what its metadata says, or a counted drop. Returns how many came. */
static uint64_t run_chain(const char *b_inputs, const char *c_inputs, unsigned pause_us)
{
    struct child a;
    struct child b;
    child_start(&a, "a", producer, NULL);
    child_start(&b, "b", forwarder, (void *)(uintptr_t)b_inputs);
    tb_node *node = open_node("c", c_inputs, "");
    uint64_t last = 0;
    uint64_t came = 0;
    uint64_t dropped = 0;
    tb_event *event;
    while (tb_node_next(node, TB_SECONDS(20), &event) == TB_OK) {
        dropped += tb_event_dropped(event);
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            tb_metadata_value number;
            CHECK_OK(tb_metadata_get(tb_event_metadata(event), "number", &number));
            CHECK_EQ(frame_number(event), number.integer);
            CHECK_LT(last, number.integer);
            last = (uint64_t)number.integer;
            came++;
            harness_sleep_us(pause_us);
            CHECK_EQ(frame_number(event), number.integer);
        }
        tb_event_release(event);
    }
    uint64_t lost;
    child_hear(&b, &lost, sizeof lost);
    CHECK_EQ(came + dropped + lost, FRAMES);
    tb_node_close(node);
    child_join(&a);
    child_join(&b);
    return came;
}

static void f15_forwarded_backpressure(void)
{
    CHECK_EQ(run_chain("in=a/out;queue=10;policy=backpressure",
                       "in=b/out;queue=10;policy=backpressure", 1000),
             FRAMES);
}

static void f15_forwarded_drop_oldest(void)
{
    uint64_t came = run_chain("in=a/out;queue=10", "in=b/out;queue=10", 3000);
    CHECK_LT(came, FRAMES); /* 4 slots, and a slow reader: some must be lost */
    CHECK_LT(0, came);
}

static void f15_forwarded_mixed(void)
{
    run_chain("in=a/out;queue=10;policy=backpressure", "in=b/out;queue=10", 2000);
    run_chain("in=a/out;queue=10", "in=b/out;queue=10;policy=backpressure", 2000);
}

/* ---- one pool, one sleeping subscriber ---- */

static void one_producer(void *argument)
{
    int backpressure = *(int *)argument;
    tb_node *node = open_node("a", "", "out=sink/in");
    tb_pool *pool = register_words(tb_node_bus(node), "frames", WORDS, 4);
    tb_handle handle;
    for (uint64_t n = 1; n <= 3; n++) {
        write_frame(pool, n, &handle);
        CHECK_OK(tb_node_send(node, "out", tb_handle_value(&handle), NULL, TB_SECONDS(20)));
    }
    if (backpressure) {
        /* Three of four slots are kept for messages in flight and the newest is never given up. */
        tb_loan *loan;
        write_frame(pool, 4, &handle);
        CHECK_STATUS(tb_pool_loan(pool, TB_MILLIS(20), &loan), TB_AGAIN);
        parent_pause("kept");
        /* As soon as messages are taken the slots are free, without another send. */
        write_frame(pool, 5, &handle);
    } else {
        for (uint64_t n = 4; n <= 20; n++) {
            write_frame(pool, n, &handle);
        }
        parent_pause("overwritten");
    }
    CHECK_OK(tb_node_send(node, "out", tb_handle_value(&handle), NULL, TB_SECONDS(20)));
    tb_node_close(node);
}

static void f15_backpressure_keeps_the_frames(void)
{
    struct child a;
    int backpressure = 1;
    child_start(&a, "a", one_producer, &backpressure);
    tb_node *node = open_node("sink", "in=a/out;queue=10;policy=backpressure", "");
    child_await(&a, "kept");
    for (uint64_t n = 1; n <= 3; n++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(tb_event_dropped(event), 0);
        CHECK_EQ(frame_number(event), n);
        tb_event_release(event);
    }
    child_go(&a);
    tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
    CHECK_EQ(frame_number(event), 5);
    tb_event_release(event);
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    expect_end(node);
    tb_node_close(node);
    child_join(&a);
}

static void f15_drop_oldest_never_delivers_stale(void)
{
    struct child a;
    int backpressure = 0;
    child_start(&a, "a", one_producer, &backpressure);
    tb_node *node = open_node("sink", "in=a/out;queue=10", "");
    child_await(&a, "overwritten");
    tb_event *event;
    CHECK_STATUS(tb_node_next(node, 0, &event), TB_AGAIN);
    child_go(&a);
    event = next_event(node, TB_EVENT_INPUT, "in");
    CHECK_EQ(frame_number(event), 20);
    CHECK_EQ(tb_event_dropped(event), 3);
    /* The frame can be kept beyond its event. */
    tb_frame *kept;
    CHECK_OK(tb_frame_hold(tb_event_frame(event), &kept));
    tb_event_release(event);
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    CHECK_EQ(((const uint64_t *)tb_frame_tensor(kept)->data)[WORDS - 1], 20);
    tb_frame_release(kept);
    tb_node_close(node);
    child_join(&a);
}

static void dying_forwarder(void *argument)
{
    (void)argument;
    tb_node *node = open_node("b", "in=a/out;queue=10;policy=backpressure", "out=c/in");
    for (int i = 0; i < 3; i++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        tb_frame_info info = {.size = sizeof info};
        CHECK_OK(tb_frame_get_info(tb_event_frame(event), &info));
        CHECK_OK(tb_node_send(node, "out", tb_handle_value(&info.handle), NULL, TB_SECONDS(20)));
        tb_event_release(event);
    }
    parent_pause("holds three");
    tb_node_close(node);
}

static void idle_taker(void *argument)
{
    (void)argument;
    tb_node *node = open_node("c", "in=b/out;queue=10;policy=backpressure", "");
    parent_pause("idle");
    /* The forwarder is dead: what it kept is free to be overwritten, so these are frames or drops.
     */
    uint64_t seen = 0;
    tb_event *event;
    while (tb_node_next(node, TB_SECONDS(20), &event) == TB_OK) {
        seen += tb_event_dropped(event);
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            CHECK_EQ(frame_number(event), seen + 1);
            seen++;
        }
        tb_event_release(event);
    }
    CHECK_EQ(seen, 3);
    tb_node_close(node);
}

/* A forwarder is killed while it keeps frames for others: the owner has its slots back. */
static void f15_a_dead_forwarder_holds_nothing(void)
{
    struct child b;
    struct child c;
    child_start(&b, "b", dying_forwarder, NULL);
    child_start(&c, "c", idle_taker, NULL);
    tb_node *node = open_node("a", "", "out=b/in");
    tb_pool *pool = register_words(tb_node_bus(node), "frames", WORDS, 4);
    tb_handle handle;
    for (uint64_t n = 1; n <= 3; n++) {
        write_frame(pool, n, &handle);
        CHECK_OK(tb_node_send(node, "out", tb_handle_value(&handle), NULL, TB_SECONDS(20)));
    }
    child_await(&c, "idle");
    child_await(&b, "holds three");
    write_frame(pool, 4, &handle);
    tb_loan *loan;
    CHECK_STATUS(tb_pool_loan(pool, TB_MILLIS(20), &loan), TB_AGAIN);
    child_kill(&b);
    CHECK_OK(tb_pool_loan(pool, TB_MILLIS(100) * harness_slowness(), &loan));
    tb_loan_cancel(loan);
    child_go(&c);
    child_join(&c);
    tb_node_close(node);
}

/* ---- many frames held ---- */

#define MANY 70

static void many_producer(void *argument)
{
    (void)argument;
    tb_node *node = open_node("a", "", "out=sink/in");
    tb_pool *pool = register_words(tb_node_bus(node), "frames", WORDS, 80);
    tb_handle handle;
    uint64_t sent = 0;
    for (;;) {
        write_frame(pool, sent + 1, &handle);
        tb_status status = tb_node_send(node, "out", tb_handle_value(&handle), NULL, 0);
        if (status == TB_AGAIN) {
            break;
        }
        CHECK_OK(status);
        sent++;
    }
    /* As many as one reader can hold: the next message waits although the queue has room. */
    CHECK_EQ(sent, TB_MAX_LEASES);
    parent_pause("all leases used");
    for (uint64_t n = sent + 1; n <= MANY; n++) {
        if (n > sent + 1) {
            write_frame(pool, n, &handle);
        }
        CHECK_OK(tb_node_send(node, "out", tb_handle_value(&handle), NULL, TB_SECONDS(20)));
    }
    tb_node_close(node);
}

/* A queue longer than the leases that a sender has, and a receiver that gives nothing back. */
static void f15_all_leases_used(void)
{
    struct child a;
    child_start(&a, "a", many_producer, NULL);
    tb_node *node = open_node("sink", "in=a/out;queue=1000;policy=backpressure", "");
    tb_event *held[TB_MAX_LEASES];
    child_await(&a, "all leases used");
    child_go(&a);
    for (uint64_t n = 0; n < TB_MAX_LEASES; n++) {
        held[n] = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(frame_number(held[n]), n + 1);
    }
    /* The next message stays in the queue, and the node is told why. */
    for (int i = 0; i < 2; i++) {
        tb_event *event = next_event(node, TB_EVENT_ERROR, "in");
        CHECK_HAS(tb_event_text(event), "64");
        tb_event_release(event);
    }
    for (uint64_t n = TB_MAX_LEASES; n < MANY; n++) {
        tb_event_release(held[n - TB_MAX_LEASES]);
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(frame_number(event), n + 1);
        CHECK_EQ(tb_event_dropped(event), 0);
        tb_event_release(event);
    }
    for (uint64_t n = MANY - TB_MAX_LEASES; n < TB_MAX_LEASES; n++) {
        tb_event_release(held[n]);
    }
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    tb_node_close(node);
    child_join(&a);
}

static const struct test tests[] = {
    TEST(f15_forwarded_backpressure, 60),
    TEST(f15_forwarded_drop_oldest, 60),
    TEST(f15_forwarded_mixed, 60),
    TEST(f15_backpressure_keeps_the_frames, 60),
    TEST(f15_drop_oldest_never_delivers_stale, 60),
    TEST(f15_a_dead_forwarder_holds_nothing, 60),
    TEST(f15_all_leases_used, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

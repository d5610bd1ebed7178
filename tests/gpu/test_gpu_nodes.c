/* Handles of frames that a GPU works on, sent through nodes. */
#include "gpu/gpu_roles.h"
#include "proc/node_support.h"

#define WORDS ((int64_t)1 << 16)
#define FRAMES 6

/* Sends each handle before the GPU has begun, and lets it begin when it is told to. */
static void source(void *argument)
{
    const char *outputs = argument;
    const struct tb__gpu *gpu = gpu_begin();
    struct gpu_brake brake;
    tb_node *node = open_node("source", "", outputs);
    tb_pool *pool = gpu_register(tb_node_bus(node), "frames", TB_CUDA(0), WORDS, FRAMES + 2);
    tb_cuda_stream stream = gpu_stream();
    gpu_brake_init(&brake);
    for (uint32_t n = 1; n <= FRAMES; n++) {
        tb_handle handle;
        gpu_brake_put(&brake, gpu, stream);
        gpu_publish(pool, n, stream, &handle);
        CHECK_OK(tb_node_send(node, "out", tb_handle_value(&handle), NULL, TB_SECONDS(20)));
        parent_pause("sent");
        gpu_brake_off(&brake);
    }
    gpu_synchronize(stream);
    parent_pause("all");
    tb_node_close(node);
    gpu_stream_end(stream);
    gpu_brake_end(&brake);
}

static void end(struct child *child, tb_node *node)
{
    child_await(child, "all");
    child_go(child);
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    tb_event *event;
    while (tb_node_next(node, TB_SECONDS(20), &event) == TB_OK) {
        tb_event_release(event);
    }
    tb_node_close(node);
    child_join(child);
}

/* With tb_bus_set_stream_ordered(): at once. */
static void an_ordered_node_gets_a_pending_frame_at_once(void)
{
    struct child child;
    struct gpu_seen seen;
    gpu_need_brake();
    child_start(&child, "source", source, (void *)(uintptr_t) "out=sink/in");
    gpu_begin();
    tb_node *node = open_node("sink", "in=source/out", "");
    CHECK_OK(tb_bus_set_stream_ordered(tb_node_bus(node), 1));
    tb_cuda_stream stream = gpu_stream();
    gpu_seen_init(&seen);
    for (uint32_t n = 1; n <= FRAMES; n++) {
        child_await(&child, "sent");
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(tb_event_tensor(event)->device, TB_CUDA(0));
        tb_frame *frame = tb_event_take_frame(event);
        tb_event_release(event);
        CHECK(frame != NULL);
        CHECK_EQ(gpu_info(frame).sequence, n);
        CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
        CHECK_OK(tb_frame_wait_on(frame, stream));
        gpu_look_on(frame, stream, &seen);
        CHECK_OK(tb_frame_release_on(frame, stream));
        CHECK_EQ(gpu_is_idle(stream), 0);
        child_go(&child);
        gpu_synchronize(stream);
        gpu_check_seen(&seen, n);
    }
    end(&child, node);
    gpu_stream_end(stream);
    gpu_seen_end(&seen);
}

/* Without: complete. The event comes when the GPU has finished the frame. */
static void a_plain_node_gets_complete_frames(void)
{
    struct child child;
    gpu_need_brake();
    child_start(&child, "source", source, (void *)(uintptr_t) "out=sink/in");
    gpu_begin();
    tb_node *node = open_node("sink", "in=source/out", "");
    for (uint32_t n = 1; n <= FRAMES; n++) {
        child_await(&child, "sent");
        child_go(&child); /* the event waits for the GPU, so it must be let go */
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(tb_event_dropped(event), 0);
        CHECK_OK(tb_frame_poll(tb_event_frame(event)));
        CHECK_EQ(gpu_info(tb_event_frame(event)).sequence, n);
        gpu_check(tb_event_tensor(event), n);
        tb_event_release(event);
    }
    end(&child, node);
}

/* A node in the middle forwards the handle of a frame that is pending, and lets go of it. */
static void forwarder(void *argument)
{
    (void)argument;
    gpu_begin();
    tb_node *node = open_node("middle", "in=source/out", "out=sink/in");
    CHECK_OK(tb_bus_set_stream_ordered(tb_node_bus(node), 1));
    tb_event *event;
    while (tb_node_next(node, TB_SECONDS(20), &event) == TB_OK) {
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            tb_frame_info info = gpu_info(tb_event_frame(event));
            CHECK_OK(
                tb_node_send(node, "out", tb_handle_value(&info.handle), NULL, TB_SECONDS(20)));
        }
        tb_event_release(event);
    }
    tb_node_close(node);
}

static void a_pending_frame_is_forwarded(void)
{
    struct child children[2];
    gpu_need_brake();
    child_start(&children[0], "source", source, (void *)(uintptr_t) "out=middle/in");
    child_start(&children[1], "middle", forwarder, NULL);
    gpu_begin();
    tb_node *node = open_node("sink", "in=middle/out", "");
    CHECK_OK(tb_bus_set_stream_ordered(tb_node_bus(node), 1));
    for (uint32_t n = 1; n <= FRAMES; n++) {
        child_await(&children[0], "sent");
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(gpu_info(tb_event_frame(event)).sequence, n);
        CHECK_STATUS(tb_frame_poll(tb_event_frame(event)), TB_AGAIN);
        child_go(&children[0]);
        CHECK_WITHIN_MS(tb_frame_poll(tb_event_frame(event)) == TB_OK, 5000);
        gpu_check(tb_event_tensor(event), n);
        tb_event_release(event);
    }
    end(&children[0], node);
    child_join(&children[1]);
}

/* The source dies with frames pending that are in the sink's queue: no event hangs. */
static void doomed_source(void *argument)
{
    const struct tb__gpu *gpu = gpu_begin();
    struct gpu_brake brake;
    (void)argument;
    tb_node *node = open_node("source", "", "out=sink/in");
    tb_pool *pool = gpu_register(tb_node_bus(node), "frames", TB_CUDA(0), WORDS, 6);
    tb_cuda_stream stream = gpu_stream();
    gpu_brake_init(&brake);
    for (uint32_t n = 1; n <= 3; n++) {
        tb_handle handle;
        if (n == 2) {
            gpu_synchronize(stream);
            gpu_brake_put(&brake, gpu, stream);
        }
        gpu_publish(pool, n, stream, &handle);
        CHECK_OK(tb_node_send(node, "out", tb_handle_value(&handle), NULL, TB_SECONDS(20)));
    }
    parent_pause("sent");
}

static void source_dies(int ordered)
{
    struct child child;
    tb_event *event;
    unsigned whole = 0;
    unsigned broken = 0;
    gpu_need_brake();
    child_start(&child, "source", doomed_source, NULL);
    gpu_begin();
    tb_node *node = open_node("sink", "in=source/out;queue=8", "");
    CHECK_OK(tb_bus_set_stream_ordered(tb_node_bus(node), ordered));
    /* The first frame, so that the pool is open. */
    event = next_event(node, TB_EVENT_INPUT, "in");
    CHECK_WITHIN_MS(tb_frame_poll(tb_event_frame(event)) == TB_OK, 5000);
    gpu_check(tb_event_tensor(event), 1);
    tb_event_release(event);
    child_await(&child, "sent");
    child_kill(&child);
    int64_t begun_ns = harness_now_ns();
    while (tb_node_next(node, TB_SECONDS(5), &event) == TB_OK) {
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            tb_status status = tb_frame_poll(tb_event_frame(event));
            whole += status == TB_OK;
            broken += status == TB_E_INCOMPLETE;
            CHECK_NE(status, TB_AGAIN);
        }
        tb_event_release(event);
    }
    CHECK_LT(harness_now_ns() - begun_ns, TB_SECONDS(3));
    CHECK_EQ(whole, 0);
    CHECK_LE(broken, ordered ? 2 : 0);
    tb_node_close(node);
}

static void an_ordered_sink_outlives_its_source(void)
{
    source_dies(1);
}

static void a_plain_sink_outlives_its_source(void)
{
    source_dies(0);
}

/* ------------------------------------------------------------------ bare handles */

/* A node may have opened the pool before its program asked for order on the GPU. */
static void order_is_asked_for_after_the_pool_was_opened(void)
{
    struct producer producer = {.slots = 6};
    tb_frame *frame;
    tb_frame *held;
    producer_start(&producer);
    gpu_begin();
    producer_ready(&producer);
    tb_bus *bus = gpu_open_bus("consumer");
    tb_handle handle = producer_must(&producer, DO_WRITE, 1, 1);
    CHECK_OK(tb_frame_open(bus, &handle, 0, &held));
    CHECK_OK(tb_bus_set_stream_ordered(bus, 1));
    for (uint32_t n = 2; n <= 5; n++) {
        producer_must(&producer, DO_BRAKE, 0, 0);
        handle = producer_must(&producer, DO_PUBLISH, 0, n);
        CHECK_OK(tb_frame_open(bus, &handle, 0, &frame)); /* at once */
        CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
        producer_must(&producer, DO_RELEASE, 0, 0);
        CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 2000);
        gpu_check(tb_frame_tensor(frame), n);
        tb_frame_release(frame);
    }
    CHECK_EQ(producer_ask(&producer, DO_READERS, 0, 0).number, 2); /* the old one is held */
    gpu_check(tb_frame_tensor(held), 1);
    tb_frame_release(held);
    tb_bus_close(bus);
    producer_end(&producer);
}

static const struct test tests[] = {
    TEST(an_ordered_node_gets_a_pending_frame_at_once, 60),
    TEST(a_plain_node_gets_complete_frames, 60),
    TEST(a_pending_frame_is_forwarded, 60),
    TEST(order_is_asked_for_after_the_pool_was_opened, 30),
    TEST(an_ordered_sink_outlives_its_source, 60),
    TEST(a_plain_sink_outlives_its_source, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

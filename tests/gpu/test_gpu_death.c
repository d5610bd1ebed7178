/* What is left of frames that a GPU works on when one of the two processes dies: G06, G15. */
#include "gpu/gpu_roles.h"

#define RETURN_MS 25 /* slots of a dead reader are back */
#define PATIENCE_MS 2000

static int64_t ms_since(int64_t begun_ns)
{
    return (harness_now_ns() - begun_ns) / 1000000;
}

/* How long something takes, tried until it was soon enough: the machine is not ours alone. Each
 * time in a process of its own, which forks before it opens the driver. */
struct timing {
    int64_t (*try_once)(void); /* milliseconds */
};

static void try_in_role(void *argument)
{
    const struct timing *timing = argument;
    int64_t took_ms = timing->try_once();
    parent_tell(&took_ms, sizeof took_ms);
}

static void check_soon(int64_t (*try_once)(void), int64_t limit_ms)
{
    struct timing timing = {try_once};
    int64_t took_ms = 0;
    for (int i = 0; i < 8; i++) {
        struct child child;
        child_start(&child, "try", try_in_role, &timing);
        child_hear(&child, &took_ms, sizeof took_ms);
        child_join(&child);
        if (took_ms <= limit_ms * (int64_t)harness_slowness()) {
            return;
        }
    }
    FAIL("after %lld ms, not %lld", (long long)took_ms, (long long)limit_ms);
}

static void check_owner_died(tb_reader *reader)
{
    tb_frame *frame;
    CHECK_STATUS(tb_reader_next(reader, TB_SECONDS(5), &frame), TB_E_OWNER_DIED);
    CHECK_HAS(tb_last_error_text(), "has died");
}

/* ------------------------------------------------------------------ G06 */

static void G06_a_kernel_that_reads_a_frame_of_a_dead_producer_finishes(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_PUBLISH, 0, 600);
    tb_frame *frame = consumer_next(&consumer, 1);
    const tb_tensor *tensor = tb_frame_tensor(frame);
    size_t bytes;
    CHECK_OK(tb_tensor_bytes(tensor, &bytes));
    uint32_t *copy = gpu_pinned(bytes);
    CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, PATIENCE_MS);
    CHECK_OK(tb_frame_wait_on(frame, consumer.stream));
    gpu_brake_put(&consumer.brake, consumer.gpu, consumer.stream);
    CHECK_CUDA(tb__cuda()->memcpy_dtoh_async(copy, (uint64_t)(uintptr_t)tensor->data, bytes,
                                             (tb__stream)consumer.stream));
    child_kill(&producer.child);
    CHECK_OK(tb_frame_poll(frame));
    CHECK_OK(tb_frame_release_on(frame, consumer.stream));
    gpu_brake_off(&consumer.brake);
    gpu_synchronize(consumer.stream);
    for (size_t i = 0; i < bytes / 4; i++) {
        CHECK_EQ(copy[i], 600);
    }
    check_owner_died(consumer.reader);
    CHECK_EQ(gpu_reader_stats(consumer.reader).incomplete, 0);
    gpu_pinned_end(copy);
    consumer_end(&consumer);
}

/* A frame that was finished is there for who comes for it after its owner's death. */
static void a_finished_frame_outlives_its_producer(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_frame *frame;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    tb_reader *plain = gpu_open_reader(consumer.bus, "producer/frames", 0);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    CHECK_OK(tb_reader_next(plain, TB_SECONDS(5), &frame));
    tb_frame_release(frame);
    child_kill(&producer.child);
    frame = consumer_next(&consumer, 1);
    CHECK_OK(tb_frame_poll(frame));
    consumer_use(&consumer, frame);
    consumer_saw(&consumer, 1);
    check_owner_died(consumer.reader);
    check_owner_died(plain);
    consumer_end(&consumer);
}

/* ------------------------------------------------------------------ G15 */

static int64_t wait_for_stream(tb_cuda_stream stream, int64_t begun_ns)
{
    CHECK_WITHIN_MS(gpu_is_idle(stream) == 1, PATIENCE_MS);
    return ms_since(begun_ns);
}

static void G15_kernels_behind_the_gate_of_an_unfinished_frame_go_on(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_frame *again;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_PUBLISH, 1, 1);
    consumer_use(&consumer, consumer_next(&consumer, 1));
    consumer_saw(&consumer, 1);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 2);
    tb_frame *frame = consumer_next(&consumer, 2);
    CHECK_OK(tb_frame_hold(frame, &again));
    consumer_use(&consumer, again); /* released before anybody knows */
    CHECK_OK(tb_frame_wait_on(frame, consumer.stream));
    CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
    int64_t begun_ns = harness_now_ns();
    child_kill(&producer.child);
    CHECK_LE(wait_for_stream(consumer.stream, begun_ns), 500);
    CHECK_STATUS(tb_frame_poll(frame), TB_E_INCOMPLETE);
    CHECK_HAS(tb_last_error_text(), "frame 2 of pool `producer/frames` is incomplete: its producer "
                                    "died before the GPU had finished it");
    CHECK_STATUS(tb_frame_release_on(frame, consumer.stream), TB_E_INCOMPLETE);
    check_owner_died(consumer.reader);
    gpu_synchronize(consumer.stream);
    CHECK_EQ(gpu_reader_stats(consumer.reader).held, 0);
    consumer_end(&consumer);
    CHECK_LE(1, harness_log_count("1 frames that a GPU worked on are incomplete"));
}

/* The release came before the death, and said OK: it is counted, and said in the log. */
static void G15_what_was_released_before_the_death_is_counted(void)
{
    struct producer producer = {.slots = 3};
    struct consumer consumer;
    tb_frame *frame;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_BRAKE, 0, 0);
    for (uint32_t n = 1; n <= 2; n++) {
        producer_must(&producer, DO_PUBLISH, 0, n);
        consumer_use(&consumer, consumer_next(&consumer, n));
    }
    int64_t begun_ns = harness_now_ns();
    child_kill(&producer.child);
    CHECK_LE(wait_for_stream(consumer.stream, begun_ns), 500);
    /* Found out when the frames' leases are used again. */
    CHECK_STATUS(tb_reader_next(consumer.reader, TB_SECONDS(5), &frame), TB_E_OWNER_DIED);
    for (int i = 0; i < 4; i++) {
        CHECK_STATUS(tb_reader_next(consumer.reader, TB_POLL, &frame), TB_E_OWNER_DIED);
    }
    CHECK_EQ(gpu_reader_stats(consumer.reader).incomplete, 2);
    CHECK_LE(1, harness_log_count("do not use what was computed from it"));
    consumer_end(&consumer);
}

/* Only the mark in the page tells: a heir keeps the dead producer's sockets open. */
static int64_t time_the_gates(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_LEAVE_HEIR, 0, 1500);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    tb_frame *frame = consumer_next(&consumer, 1);
    CHECK_OK(tb_frame_wait_on(frame, consumer.stream));
    int64_t begun_ns = harness_now_ns();
    child_signal(&producer.child, SIGKILL);
    int64_t took_ms = wait_for_stream(consumer.stream, begun_ns);
    child_join_signal(&producer.child, SIGKILL);
    CHECK_STATUS(tb_frame_release_on(frame, consumer.stream), TB_E_INCOMPLETE);
    consumer_end(&consumer);
    return took_ms;
}

static void G15_the_mark_alone_opens_the_gates(void)
{
    gpu_need_fake(); /* a real one works on for as long as the heir has its descriptors */
    check_soon(time_the_gates, RETURN_MS);
}

/* The frame is found after its producer's death, and waited for by a stream even then. */
static void G15_an_unfinished_frame_that_is_found_after_the_death(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_frame *frame;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_BRAKE, 0, 0);
    tb_handle handle = producer_must(&producer, DO_PUBLISH, 0, 1);
    child_kill(&producer.child);
    tb_status status = tb_reader_frame(consumer.reader, &handle, &frame);
    if (status == TB_OK) {
        CHECK_OK(tb_frame_wait_on(frame, consumer.stream));
        gpu_look_on(frame, consumer.stream, &consumer.seen);
        CHECK_WITHIN_MS(gpu_is_idle(consumer.stream) == 1, PATIENCE_MS);
        CHECK_STATUS(tb_frame_poll(frame), TB_E_INCOMPLETE);
        CHECK_STATUS(tb_frame_release_on(frame, consumer.stream), TB_E_INCOMPLETE);
    } else {
        CHECK_STATUS(status, TB_E_STALE);
    }
    consumer_end(&consumer);
}

/* A reader that is not ordered on the GPU never sees it. */
static void G15_others_never_see_an_unfinished_frame(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_frame *frame;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    tb_reader *plain = gpu_open_reader(consumer.bus, "producer/frames", 0);
    producer_must(&producer, DO_PUBLISH, 1, 1);
    CHECK_OK(tb_reader_next(plain, TB_SECONDS(5), &frame));
    tb_frame_release(frame);
    producer_must(&producer, DO_BRAKE, 0, 0);
    tb_handle handle = producer_must(&producer, DO_PUBLISH, 0, 2);
    child_kill(&producer.child);
    check_owner_died(plain);
    int64_t begun_ns = harness_now_ns();
    CHECK_STATUS(tb_reader_frame(plain, &handle, &frame), TB_E_STALE);
    CHECK_LE(ms_since(begun_ns), 1000 * harness_slowness());
    consumer_end(&consumer);
}

/* ------------------------------------------------------------------ a consumer dies */

static void doomed_consumer(void *argument)
{
    struct producer nobody = {.is_ready = 1};
    struct consumer consumer;
    (void)argument;
    parent_pause("begin");
    consumer_begin(&consumer, &nobody);
    gpu_brake_put(&consumer.brake, consumer.gpu, consumer.stream);
    for (uint64_t n = 1; n <= 2; n++) {
        consumer_use(&consumer, consumer_next(&consumer, n));
        parent_pause("used");
    }
}

static int64_t time_the_slots(void)
{
    struct child child;
    tb_loan *loan;
    child_start(&child, "consumer", doomed_consumer, NULL);
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), 1 << 18, 2);
    tb_cuda_stream stream = gpu_stream();
    child_await(&child, "begin");
    child_go(&child);
    for (uint32_t n = 1; n <= 2; n++) {
        gpu_publish(pool, n, stream, NULL);
        child_await(&child, "used");
        if (n == 1) {
            child_go(&child);
        }
    }
    gpu_synchronize(stream);
    CHECK_STATUS(tb_pool_loan(pool, TB_MILLIS(30), &loan), TB_AGAIN);
    child_signal(&child, SIGKILL);
    int64_t begun_ns = harness_now_ns();
    CHECK_OK(tb_pool_loan(pool, TB_SECONDS(5), &loan));
    int64_t took_ms = ms_since(begun_ns);
    tb_loan_cancel(loan);
    child_join_signal(&child, SIGKILL);
    gpu_publish(pool, 3, stream, NULL); /* its gates may be gone */
    gpu_publish(pool, 4, stream, NULL);
    gpu_synchronize(stream);
    CHECK_WITHIN_MS(gpu_pool_stats(pool).frames == 4, PATIENCE_MS);
    CHECK_WITHIN_MS(gpu_pool_stats(pool).readers == 0, PATIENCE_MS);
    tb_bus_close(bus);
    gpu_stream_end(stream);
    return took_ms;
}

static void a_consumer_killed_with_work_in_flight_gives_its_slots_back(void)
{
    check_soon(time_the_slots, RETURN_MS);
}

/* The producer's stream still has to write the gates of a reader that is dead: they stay until it
 * has. */
static void gates_of_a_dead_consumer_stay_until_the_stream_has_passed(void)
{
    struct child child;
    struct gpu_brake brake;
    child_start(&child, "consumer", doomed_consumer, NULL);
    const struct tb__gpu *gpu = gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), 1 << 18, 4);
    tb_cuda_stream stream = gpu_stream();
    gpu_brake_init(&brake);
    child_await(&child, "begin");
    child_go(&child);
    CHECK_WITHIN_MS(gpu_pool_stats(pool).readers == 1, 20000);
    gpu_brake_put(&brake, gpu, stream);
    gpu_publish(pool, 1, stream, NULL);
    child_await(&child, "used");
    child_kill(&child);
    CHECK_WITHIN_MS(gpu_pool_stats(pool).readers == 0, PATIENCE_MS);
    harness_sleep_us(20000);
    gpu_brake_off(&brake);
    gpu_synchronize(stream); /* an unmapped gate would end this process, or break the context */
    CHECK_WITHIN_MS(gpu_pool_stats(pool).frames == 1, PATIENCE_MS);
    gpu_publish(pool, 2, stream, NULL);
    gpu_synchronize(stream);
    tb_bus_close(bus);
    gpu_brake_end(&brake);
    gpu_stream_end(stream);
}

static const struct test tests[] = {
    TEST(G06_a_kernel_that_reads_a_frame_of_a_dead_producer_finishes, 30),
    TEST(a_finished_frame_outlives_its_producer, 30),
    TEST(G15_kernels_behind_the_gate_of_an_unfinished_frame_go_on, 30),
    TEST(G15_what_was_released_before_the_death_is_counted, 30),
    TEST(G15_the_mark_alone_opens_the_gates, 30),
    TEST(G15_an_unfinished_frame_that_is_found_after_the_death, 30),
    TEST(G15_others_never_see_an_unfinished_frame, 30),
    TEST(a_consumer_killed_with_work_in_flight_gives_its_slots_back, 30),
    TEST(gates_of_a_dead_consumer_stay_until_the_stream_has_passed, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

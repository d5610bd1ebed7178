/* Frames of GPUs whose streams cannot wait for words in memory: the CPU waits in their place, and
 * is told by them. TENSORBUS_GPU_ORDER=cpu makes any device one of these, also a real one. */
#include "gpu/gpu_roles.h"

#define PATIENCE_MS 2000
#define WORDS ((int64_t)1 << 16)

/* For this process and those forked from it. */
static void by_cpu(void)
{
    setenv("TENSORBUS_GPU_ORDER", "cpu", 1);
}

static void by_words(void)
{
    unsetenv("TENSORBUS_GPU_ORDER");
}

/* ------------------------------------------------------------------ a thread that waits */

struct waiter {
    tb_frame *frame;
    tb_cuda_stream stream;
    tb_status status;
    pthread_t thread;
    int ended;
};

static void *wait_on(void *argument)
{
    struct waiter *waiter = argument;
    waiter->status = tb_frame_wait_on(waiter->frame, waiter->stream);
    __atomic_store_n(&waiter->ended, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void waiter_start(struct waiter *waiter, tb_frame *frame, tb_cuda_stream stream)
{
    *waiter = (struct waiter){.frame = frame, .stream = stream};
    CHECK_EQ(pthread_create(&waiter->thread, NULL, wait_on, waiter), 0);
}

static int waiter_ended(struct waiter *waiter)
{
    return __atomic_load_n(&waiter->ended, __ATOMIC_SEQ_CST);
}

static void waiter_end(struct waiter *waiter)
{
    CHECK_WITHIN_MS(waiter_ended(waiter), PATIENCE_MS);
    pthread_join(waiter->thread, NULL);
    CHECK_OK(waiter->status);
}

/* ------------------------------------------------------------------ frames */

static void the_cpu_waits_for_a_pending_frame(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    struct waiter waiter;
    by_cpu();
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    tb_reader *plain = gpu_open_reader(consumer.bus, "producer/frames", 0);
    tb_frame *other;
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 71); /* returns at once */
    tb_frame *frame = consumer_next(&consumer, 1);
    CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
    waiter_start(&waiter, frame, consumer.stream);
    harness_sleep_us(20000);
    CHECK_EQ(waiter_ended(&waiter), 0);
    CHECK_STATUS(tb_reader_next(plain, TB_POLL, &other), TB_AGAIN);
    producer_must(&producer, DO_RELEASE, 0, 0);
    waiter_end(&waiter);
    CHECK_OK(tb_frame_poll(frame));
    gpu_look_on(frame, consumer.stream, &consumer.seen);
    CHECK_OK(tb_frame_release_on(frame, consumer.stream));
    consumer_saw(&consumer, 71);
    CHECK_OK(tb_reader_next(plain, TB_SECONDS(5), &other));
    gpu_check(tb_frame_tensor(other), 71);
    tb_frame_release(other);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* Every frame is whole, at full speed, with slots used again and again. */
static void run_frames(struct producer *producer, uint32_t frames)
{
    struct consumer consumer;
    consumer_begin(&consumer, producer);
    for (uint32_t n = 1; n <= frames; n++) {
        producer_must(producer, DO_PUBLISH, n % 2, n);
        tb_frame *frame = consumer_next(&consumer, n);
        consumer_use(&consumer, frame);
        if (n % 3 == 0) {
            consumer_saw(&consumer, n);
        }
    }
    consumer_saw(&consumer, frames);
    CHECK_WITHIN_MS(gpu_reader_stats(consumer.reader).held == 0, PATIENCE_MS);
    CHECK_EQ(gpu_reader_stats(consumer.reader).incomplete, 0);
    consumer_end(&consumer);
}

static void frames_pass_when_both_are_told_by_the_cpu(void)
{
    struct producer producer = {.slots = 3};
    by_cpu();
    producer_start(&producer);
    run_frames(&producer, (uint32_t)harness_scale(200, 5000));
    producer_end(&producer);
}

/* The two sides need not have the same abilities: gates are opened by the owner's CPU, ... */
static void frames_pass_when_the_producer_is_told_by_the_cpu(void)
{
    struct producer producer = {.slots = 3};
    by_cpu();
    producer_start(&producer);
    by_words();
    run_frames(&producer, (uint32_t)harness_scale(200, 5000));
    producer_end(&producer);
}

/* ... or looked at by the reader's. */
static void frames_pass_when_the_consumer_is_told_by_the_cpu(void)
{
    struct producer producer = {.slots = 3};
    producer_start(&producer);
    producer_ready(&producer);
    by_cpu();
    run_frames(&producer, (uint32_t)harness_scale(200, 5000));
    producer_end(&producer);
}

/* Machines that cannot. */
static void frames_pass_on(const char *machine)
{
    struct producer producer = {.slots = 3};
    gpu_need_fake();
    gpu_machine(machine);
    producer_start(&producer);
    run_frames(&producer, 40);
    producer_end(&producer);
}

static void frames_pass_without_stream_memory_operations(void)
{
    frames_pass_on("no_stream_ops=all");
}

static void frames_pass_on_an_integrated_gpu(void)
{
    frames_pass_on("integrated=all;no_stream_ops=all");
}

static void frames_pass_where_nothing_can_be_page_locked(void)
{
    frames_pass_on("no_host_register=all");
}

/* ------------------------------------------------------------------ slots */

static void a_slot_is_reused_when_the_readers_stream_has_passed(void)
{
    struct producer producer = {.slots = 2};
    struct consumer consumer;
    by_cpu();
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_PUBLISH, 0, 21);
    tb_frame *frame = consumer_next(&consumer, 1);
    producer_must(&producer, DO_PUBLISH, 0, 22); /* the other slot */
    CHECK_OK(tb_frame_wait_on(frame, consumer.stream));
    gpu_brake_put(&consumer.brake, consumer.gpu, consumer.stream);
    gpu_look_on(frame, consumer.stream, &consumer.seen);
    CHECK_OK(tb_frame_release_on(frame, consumer.stream));
    CHECK_EQ(producer_ask(&producer, DO_LOAN, 0, 20).status, TB_AGAIN);
    gpu_brake_off(&consumer.brake);
    consumer_saw(&consumer, 21);
    producer_must(&producer, DO_LOAN, 0, 1000);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* A function of ours that the driver calls late says nothing about the frame that is in the slot by
 * then. */
static void a_late_call_completes_no_later_frame(void)
{
    struct gpu_brake user, brake;
    tb_frame *frame;
    tb_handle handle;
    gpu_skip_under(NULL, "the tool lets no stream pass one that is held up");
    by_cpu();
    const struct tb__gpu *gpu = gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, 2);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_cuda_stream stream = gpu_stream();
    tb_cuda_stream blocked = gpu_stream();
    gpu_brake_init(&user);
    gpu_brake_init(&brake);
    gpu_brake_put_function(&user, blocked); /* no other function is called until it returns */
    for (uint32_t n = 1; n <= 2; n++) {
        gpu_publish(pool, n, stream, &handle);
        CHECK_OK(tb_reader_frame(reader, &handle, &frame));
        /* By the watching thread, which asks the driver. */
        CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, PATIENCE_MS);
        gpu_check(tb_frame_tensor(frame), n);
        tb_frame_release(frame);
    }
    gpu_brake_put(&brake, gpu, stream);
    gpu_publish(pool, 3, stream, &handle); /* in the slot of frame 1 */
    CHECK_OK(tb_reader_frame(reader, &handle, &frame));
    gpu_brake_off(&user);
    gpu_synchronize(blocked);
    for (int i = 0; i < 20; i++) { /* the calls for frames 1 and 2 come */
        CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
        harness_sleep_us(1000);
    }
    gpu_brake_off(&brake);
    CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, PATIENCE_MS);
    gpu_check(tb_frame_tensor(frame), 3);
    tb_frame_release(frame);
    tb_bus_close(bus);
    gpu_stream_end(stream);
    gpu_stream_end(blocked);
    gpu_brake_end(&user);
    gpu_brake_end(&brake);
}

/* ------------------------------------------------------------------ ends */

static void the_producer_dies_under_a_waiting_cpu(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    struct waiter waiter;
    tb_frame *next;
    by_cpu();
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_PUBLISH, 1, 1);
    consumer_use(&consumer, consumer_next(&consumer, 1));
    consumer_saw(&consumer, 1);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 2);
    tb_frame *frame = consumer_next(&consumer, 2);
    waiter_start(&waiter, frame, consumer.stream);
    harness_sleep_us(2000);
    child_kill(&producer.child);
    waiter_end(&waiter);
    CHECK_STATUS(tb_frame_poll(frame), TB_E_INCOMPLETE);
    CHECK_HAS(tb_last_error_text(), "its producer died before the GPU had finished it");
    CHECK_STATUS(tb_frame_release_on(frame, consumer.stream), TB_E_INCOMPLETE);
    gpu_synchronize(consumer.stream);
    CHECK_STATUS(tb_reader_next(consumer.reader, TB_SECONDS(5), &next), TB_E_OWNER_DIED);
    CHECK_WITHIN_MS(gpu_reader_stats(consumer.reader).held == 0, PATIENCE_MS);
    consumer_end(&consumer);
}

static void the_producers_stream_fails_under_a_waiting_cpu(void)
{
    struct producer producer = {.slots = 4};
    struct consumer consumer;
    struct waiter waiter;
    by_cpu();
    gpu_need_fake();
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    tb_frame *frame = consumer_next(&consumer, 1);
    waiter_start(&waiter, frame, consumer.stream);
    harness_sleep_us(2000);
    producer_must(&producer, DO_BREAK, 0, TB__CUDA_LAUNCH_FAILED);
    waiter_end(&waiter);
    CHECK_STATUS(tb_frame_release_on(frame, consumer.stream), TB_E_INCOMPLETE);
    CHECK_HAS(tb_last_error_text(), "its producer's stream failed");
    producer_must(&producer, DO_BREAK, 0, 0);
    producer_must(&producer, DO_RELEASE, 0, 0);
    for (uint32_t n = 2; n <= 9; n++) { /* every slot is used again */
        producer_must(&producer, DO_PUBLISH, 1, n);
        consumer_use(&consumer, consumer_next(&consumer, n));
        consumer_saw(&consumer, n);
    }
    consumer_end(&consumer);
    producer_end(&producer);
}

static void hold_and_hang(void *argument)
{
    struct consumer consumer = {.gpu = gpu_begin()};
    (void)argument;
    consumer.bus = gpu_open_bus("victim");
    consumer.reader = gpu_open_reader(consumer.bus, "producer/frames", 1);
    consumer.stream = gpu_stream();
    gpu_brake_init(&consumer.brake);
    tb_frame *frame;
    CHECK_OK(tb_reader_next(consumer.reader, TB_SECONDS(20), &frame));
    CHECK_OK(tb_frame_wait_on(frame, consumer.stream));
    gpu_brake_put(&consumer.brake, consumer.gpu, consumer.stream);
    CHECK_OK(tb_frame_release_on(frame, consumer.stream));
    parent_reached("held");
    for (;;) {
        pause();
    }
}

static void a_consumer_dies_whose_stream_has_a_frame(void)
{
    struct producer producer = {.slots = 1};
    struct child victim;
    by_cpu();
    producer_start(&producer);
    child_start(&victim, "victim", hold_and_hang, NULL);
    producer_ready(&producer);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    child_await(&victim, "held");
    CHECK_EQ(producer_ask(&producer, DO_LOAN, 0, 20).status, TB_AGAIN);
    child_kill(&victim);
    producer_must(&producer, DO_LOAN, 0, 1000);
    producer_end(&producer);
}

/* Frames under way are finished before their pool goes. */
static void closing_waits_for_frames_under_way(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    by_cpu();
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 5);
    tb_frame *frame = consumer_next(&consumer, 1);
    producer_must(&producer, DO_CLOSE_BUS, 0, 0);
    CHECK_OK(tb_frame_poll(frame));
    consumer_use(&consumer, frame);
    consumer_saw(&consumer, 5);
    consumer_end(&consumer);
    producer_end(&producer);
}

static const struct test tests[] = {
    TEST(the_cpu_waits_for_a_pending_frame, 30),
    TEST(frames_pass_when_both_are_told_by_the_cpu, 60),
    TEST(frames_pass_when_the_producer_is_told_by_the_cpu, 60),
    TEST(frames_pass_when_the_consumer_is_told_by_the_cpu, 60),
    TEST(frames_pass_without_stream_memory_operations, 30),
    TEST(frames_pass_on_an_integrated_gpu, 30),
    TEST(frames_pass_where_nothing_can_be_page_locked, 30),
    TEST(a_slot_is_reused_when_the_readers_stream_has_passed, 30),
    TEST(a_late_call_completes_no_later_frame, 30),
    TEST(the_producer_dies_under_a_waiting_cpu, 30),
    TEST(the_producers_stream_fails_under_a_waiting_cpu, 30),
    TEST(a_consumer_dies_whose_stream_has_a_frame, 30),
    TEST(closing_waits_for_frames_under_way, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

/* Closing readers, pools and buses while streams work on their frames. */
#include "gpu/gpu_roles.h"

/* ------------------------------------------------------------------ a reader */

struct later {
    struct gpu_brake *brake;
    pthread_t thread;
    int64_t off_ns;
};

static void *take_brake_off(void *argument)
{
    struct later *later = argument;
    harness_sleep_us(20000);
    __atomic_store_n(&later->off_ns, harness_now_ns(), __ATOMIC_SEQ_CST);
    gpu_brake_off(later->brake);
    return NULL;
}

static void brake_off_later(struct later *later, struct gpu_brake *brake)
{
    *later = (struct later){.brake = brake};
    CHECK_EQ(pthread_create(&later->thread, NULL, take_brake_off, later), 0);
}

/* Closing waits for the streams: the frames of a reader that is gone are its owner's again. */
static void a_reader_is_closed_while_its_streams_run(void)
{
    struct producer producer = {.slots = 2};
    struct consumer consumer;
    struct later later;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_PUBLISH, 0, 31);
    tb_frame *frame = consumer_next(&consumer, 1);
    gpu_brake_put(&consumer.brake, consumer.gpu, consumer.stream);
    consumer_use(&consumer, frame);
    brake_off_later(&later, &consumer.brake);
    tb_reader_close(consumer.reader);
    int64_t closed_ns = harness_now_ns();
    pthread_join(later.thread, NULL);
    CHECK_LE(later.off_ns, closed_ns);
    gpu_synchronize(consumer.stream);
    gpu_check_seen(&consumer.seen, 31);
    producer_must(&producer, DO_PUBLISH, 0, 32);
    producer_must(&producer, DO_LOAN, 0, 1000);
    CHECK_WITHIN_MS(producer_ask(&producer, DO_READERS, 0, 0).number == 0, 2000);
    consumer_end(&consumer);
    producer_end(&producer);
}

static void a_bus_is_closed_while_its_readers_streams_run(void)
{
    struct producer producer = {.slots = 2};
    struct consumer consumer;
    struct later later;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_PUBLISH, 0, 33);
    tb_frame *frame = consumer_next(&consumer, 1);
    gpu_brake_put(&consumer.brake, consumer.gpu, consumer.stream);
    consumer_use(&consumer, frame);
    brake_off_later(&later, &consumer.brake);
    consumer_end(&consumer); /* takes the brake off, too: not before the bus is closed */
    pthread_join(later.thread, NULL);
    producer_must(&producer, DO_PUBLISH, 0, 34);
    producer_must(&producer, DO_LOAN, 0, 1000);
    producer_end(&producer);
}

/* The reader's streams wait for the owner, which dies while the reader is being closed. */
struct doom {
    struct producer *producer;
    int64_t killed_ns;
};

static void *kill_producer(void *argument)
{
    struct doom *doom = argument;
    harness_sleep_us(20000);
    doom->killed_ns = harness_now_ns();
    kill(doom->producer->child.pid, SIGKILL);
    return NULL;
}

static void a_reader_is_closed_while_its_owner_dies(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    struct doom doom = {.producer = &producer};
    pthread_t thread;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    consumer_use(&consumer, consumer_next(&consumer, 1));
    CHECK_EQ(pthread_create(&thread, NULL, kill_producer, &doom), 0);
    tb_reader_close(consumer.reader);
    int64_t closed_ns = harness_now_ns();
    pthread_join(thread, NULL);
    CHECK_LE(doom.killed_ns, closed_ns);
    CHECK_LE(closed_ns - doom.killed_ns, 200000000LL * harness_slowness());
    gpu_synchronize(consumer.stream);
    child_join_signal(&producer.child, SIGKILL);
    consumer_end(&consumer);
}

/* A frame that is held, not released, at the close; and one that was never waited for. */
static void held_frames_are_released_at_the_close(void)
{
    struct producer producer = {.slots = 3};
    struct consumer consumer;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_PUBLISH, 1, 1);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 2);
    consumer_next(&consumer, 1);
    consumer_next(&consumer, 2);
    tb_reader_close(consumer.reader);
    CHECK_WITHIN_MS(producer_ask(&producer, DO_READERS, 0, 0).number == 0, 2000);
    producer_must(&producer, DO_LOAN, 0, 1000);
    producer_must(&producer, DO_RELEASE, 0, 0);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* ------------------------------------------------------------------ an owner */

static void close_with_frames_in_flight(enum producer_act how, tb_status ended)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_frame *frame;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    tb_reader *plain = gpu_open_reader(consumer.bus, "producer/frames", 0);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    producer_must(&producer, DO_PUBLISH, 0, 2);
    tb_frame *held = consumer_next(&consumer, 1);
    CHECK_OK(tb_frame_wait_on(held, consumer.stream));
    producer_must(&producer, how, 0, 0); /* the brake comes off meanwhile */
    CHECK_WITHIN_MS(gpu_is_idle(consumer.stream) == 1, 5000);
    CHECK_OK(tb_frame_poll(held));
    gpu_check(tb_frame_tensor(held), 1); /* its memory is ours, too */
    CHECK_OK(tb_frame_release_on(held, consumer.stream));
    if (ended == TB_CLOSED) { /* what was published is there for those who have not taken it */
        frame = consumer_next(&consumer, 2);
        CHECK_OK(tb_frame_poll(frame));
        consumer_use(&consumer, frame);
        consumer_saw(&consumer, 2);
        for (uint32_t n = 1; n <= 2; n++) {
            CHECK_OK(tb_reader_next(plain, TB_SECONDS(5), &frame));
            gpu_check(tb_frame_tensor(frame), n);
            tb_frame_release(frame);
        }
    }
    CHECK_STATUS(tb_reader_next(consumer.reader, TB_SECONDS(5), &frame), ended);
    CHECK_STATUS(tb_reader_next(plain, TB_SECONDS(5), &frame), ended);
    CHECK_EQ(gpu_reader_stats(consumer.reader).incomplete, 0);
    CHECK_EQ(harness_log_count("incomplete"), 0);
    consumer_end(&consumer);
    producer_end(&producer);
}

static void a_pool_is_closed_with_frames_in_flight(void)
{
    close_with_frames_in_flight(DO_CLOSE_POOL, TB_E_FREED);
}

static void a_bus_is_closed_with_frames_in_flight(void)
{
    close_with_frames_in_flight(DO_CLOSE_BUS, TB_CLOSED);
}

/* Freed by somebody else while frames are pending: no frame can be published any more, those that
 * are held end well. */
static void a_pool_is_freed_with_frames_in_flight(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_frame *frame;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    frame = consumer_next(&consumer, 1);
    CHECK_OK(tb_frame_wait_on(frame, consumer.stream));
    CHECK_OK(tb_reader_free_pool(consumer.reader));
    CHECK_EQ(producer_ask(&producer, DO_PUBLISH, 1, 2).status, TB_E_FREED);
    producer_must(&producer, DO_RELEASE, 0, 0);
    gpu_look_on(frame, consumer.stream, &consumer.seen);
    CHECK_OK(tb_frame_release_on(frame, consumer.stream));
    consumer_saw(&consumer, 1);
    CHECK_STATUS(tb_reader_next(consumer.reader, TB_POLL, &frame), TB_E_FREED);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* The pool is freed between the loan and its publication on a stream. */
static void a_loan_of_a_freed_pool_is_taken(void)
{
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), 1 << 16, 2);
    tb_cuda_stream stream = gpu_stream();
    tb_loan *loan;
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    gpu_fill(tb_loan_tensor(loan), 1, stream);
    CHECK_OK(tb_pool_free(pool));
    CHECK_STATUS(tb_loan_publish_on(loan, stream, NULL), TB_E_FREED);
    CHECK_EQ(gpu_pool_stats(pool).frames, 0);
    gpu_synchronize(stream);
    tb_bus_close(bus);
    gpu_stream_end(stream);
}

/* Both ends in turn, many times: nothing grows. */
static void readers_come_and_go_while_frames_are_pending(void)
{
    struct producer producer = {.slots = 8};
    struct consumer consumer;
    tb_frame *frame;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    unsigned long rounds = harness_scale(15, 300);
    for (uint32_t n = 1; n <= rounds; n++) {
        producer_must(&producer, DO_BRAKE, 0, 0);
        producer_must(&producer, DO_PUBLISH, 0, n);
        tb_reader *reader = gpu_open_reader(consumer.bus, "producer/frames", 1);
        CHECK_OK(tb_reader_newest(reader, TB_SECONDS(5), &frame));
        CHECK_EQ(gpu_info(frame).sequence, n);
        CHECK_OK(tb_frame_wait_on(frame, consumer.stream));
        gpu_look_on(frame, consumer.stream, &consumer.seen);
        CHECK_OK(tb_frame_release_on(frame, consumer.stream));
        producer_must(&producer, DO_RELEASE, 0, 0);
        consumer_saw(&consumer, n);
        tb_reader_close(reader);
    }
    CHECK_WITHIN_MS(producer_ask(&producer, DO_READERS, 0, 0).number == 1, 2000);
    consumer_end(&consumer);
    producer_end(&producer);
}

static const struct test tests[] = {
    TEST(a_reader_is_closed_while_its_streams_run, 30),
    TEST(a_bus_is_closed_while_its_readers_streams_run, 30),
    TEST(a_reader_is_closed_while_its_owner_dies, 30),
    TEST(held_frames_are_released_at_the_close, 30),
    TEST(a_pool_is_closed_with_frames_in_flight, 30),
    TEST(a_bus_is_closed_with_frames_in_flight, 30),
    TEST(a_pool_is_freed_with_frames_in_flight, 30),
    TEST(a_loan_of_a_freed_pool_is_taken, 30),
    TEST(readers_come_and_go_while_frames_are_pending, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

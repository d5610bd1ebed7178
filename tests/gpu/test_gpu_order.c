/* Frames ordered on the GPU: G10, G16, and what readers of each kind see of a pending frame. */
#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 18)        /* 1 MiB */
#define LARGE_WORDS ((int64_t)16 << 20) /* 64 MiB */
#define SLOTS 4

/* ------------------------------------------------------------------ G10 */

struct run {
    int64_t words;
    uint32_t frames;
};

static void stream_producer(void *argument)
{
    const struct run *run = argument;
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), run->words, SLOTS);
    tb_cuda_stream stream = gpu_stream();
    parent_pause("registered");
    for (uint32_t n = 1; n <= run->frames; n++) {
        gpu_publish(pool, n, stream, NULL);
    }
    parent_pause("published");
    gpu_stream_end(stream);
    tb_bus_close(bus);
}

/* The consumer's stream copies the first and the last word of each frame away behind its wait; they
 * are looked at when all is done. */
static void take_in_order(tb_reader *reader, uint32_t frames, tb_cuda_stream stream)
{
    uint32_t *seen;
    tb_frame *frame;
    tb__stream raw = (tb__stream)stream;
    CHECK_CUDA(tb__cuda()->mem_host_alloc((void **)&seen, frames * 2 * sizeof *seen, 1));
    uint32_t count = 0;
    uint64_t newest = 0;
    while (newest < frames) {
        tb_frame_info info = {.size = sizeof info};
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
        CHECK_OK(tb_frame_get_info(frame, &info));
        CHECK_LT(newest, info.sequence);
        newest = info.sequence;
        uint64_t data = (uint64_t)(uintptr_t)tb_frame_tensor(frame)->data;
        size_t bytes;
        CHECK_OK(tb_tensor_bytes(tb_frame_tensor(frame), &bytes));
        seen[2 * count] = seen[2 * count + 1] = 0;
        CHECK_OK(tb_frame_wait_on(frame, stream));
        CHECK_CUDA(tb__cuda()->memcpy_dtoh_async(&seen[2 * count], data, 4, raw));
        CHECK_CUDA(tb__cuda()->memcpy_dtoh_async(&seen[2 * count + 1], data + bytes - 4, 4, raw));
        CHECK_OK(tb_frame_release_on(frame, stream));
        count++;
    }
    gpu_synchronize(stream);
    uint32_t before = 0;
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQ(seen[2 * i], seen[2 * i + 1]);
        CHECK_LT(before, seen[2 * i]);
        before = seen[2 * i];
    }
    CHECK_EQ(before, frames);
    CHECK_CUDA(tb__cuda()->mem_free_host(seen));
}

static void G10_streams_of_two_processes_order_themselves(void)
{
    struct run run = {harness_full() ? LARGE_WORDS : WORDS, (uint32_t)harness_scale(300, 10000)};
    struct child producer;
    child_start(&producer, "producer", stream_producer, &run);
    gpu_begin();
    child_await(&producer, "registered");
    tb_bus *bus = gpu_open_bus("consumer");
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_cuda_stream stream = gpu_stream();
    child_go(&producer);
    take_in_order(reader, run.frames, stream);
    child_await(&producer, "published");
    gpu_stream_end(stream);
    tb_bus_close(bus);
    child_go(&producer);
    child_join(&producer);
}

/* ------------------------------------------------------------------ one pending frame */

static void a_pending_frame_comes_at_once_and_the_stream_waits_for_it(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 71);
    tb_frame *frame = consumer_next(&consumer, 1);
    CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
    CHECK_EQ(gpu_info(frame).copies, 0);
    CHECK_EQ(gpu_info(frame).lane, TB_LANE_DIRECT);
    CHECK_EQ(tb_frame_tensor(frame)->device, TB_CUDA(0));
    consumer_use(&consumer, frame);
    harness_sleep_us(20000);
    CHECK_EQ(gpu_is_idle(consumer.stream), 0); /* held up by the producer's stream alone */
    producer_must(&producer, DO_RELEASE, 0, 0);
    consumer_saw(&consumer, 71);
    consumer_end(&consumer);
    producer_end(&producer);
}

static void a_reader_that_comes_late_gets_the_pending_frame(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_frame *frame;
    producer_start(&producer);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 2);
    consumer_begin(&consumer, &producer);
    /* When frame 2 was published its gates were in no list: they are opened at its completion. */
    CHECK_OK(tb_reader_newest(consumer.reader, TB_POLL, &frame));
    CHECK_EQ(gpu_info(frame).sequence, 2);
    CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
    consumer_use(&consumer, frame);
    CHECK_EQ(gpu_is_idle(consumer.stream), 0);
    producer_must(&producer, DO_RELEASE, 0, 0);
    consumer_saw(&consumer, 2);
    consumer_end(&consumer);
    producer_end(&producer);
}

static void others_see_a_frame_when_the_gpu_has_finished_it(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_frame *frame;
    tb_frame *early;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    tb_reader *plain = gpu_open_reader(consumer.bus, "producer/frames", 0);
    producer_must(&producer, DO_BRAKE, 0, 0);
    tb_handle handle = producer_must(&producer, DO_PUBLISH, 0, 5);
    CHECK_STATUS(tb_reader_next(plain, TB_MILLIS(20), &frame), TB_AGAIN);
    CHECK_STATUS(tb_reader_newest(plain, TB_POLL, &frame), TB_AGAIN);
    early = consumer_next(&consumer, 1);
    producer_must(&producer, DO_RELEASE, 0, 0);
    CHECK_OK(tb_reader_next(plain, TB_SECONDS(20), &frame));
    CHECK_OK(tb_frame_poll(frame));
    gpu_check(tb_frame_tensor(frame), 5);
    tb_frame_info info = gpu_info(frame);
    CHECK_EQ(memcmp(&info.handle, &handle, sizeof handle), 0);
    tb_frame_release(frame);
    consumer_use(&consumer, early);
    consumer_saw(&consumer, 5);
    /* By its handle it is waited for. */
    producer_must(&producer, DO_BRAKE, 0, 0);
    handle = producer_must(&producer, DO_PUBLISH, 0, 6);
    producer_must(&producer, DO_RELEASE, 0, 0);
    CHECK_OK(tb_reader_frame(plain, &handle, &frame));
    gpu_check(tb_frame_tensor(frame), 6);
    tb_frame_release(frame);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* ------------------------------------------------------------------ sleeping readers */

struct sleeper {
    tb_reader *reader;
    tb_frame *frame;
    tb_status status;
};

static void *sleep_for_frame(void *argument)
{
    struct sleeper *sleeper = argument;
    sleeper->status = tb_reader_next(sleeper->reader, TB_SECONDS(20), &sleeper->frame);
    return NULL;
}

static pthread_t start_sleeper(struct sleeper *sleeper)
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, sleep_for_frame, sleeper), 0);
    CHECK_WITHIN_MS(gpu_reader_stats(sleeper->reader).waits > 0, 10000);
    harness_sleep_us(2000);
    return thread;
}

static void sleeping_readers_are_woken(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    struct sleeper ordered = {.reader = consumer.reader};
    struct sleeper plain = {.reader = gpu_open_reader(consumer.bus, "producer/frames", 0)};
    producer_must(&producer, DO_BRAKE, 0, 0);
    pthread_t ordered_thread = start_sleeper(&ordered);
    pthread_t plain_thread = start_sleeper(&plain);
    /* Who orders itself on the GPU is woken when the frame is enqueued, ... */
    int64_t begun_ns = harness_now_ns();
    producer_must(&producer, DO_PUBLISH, 0, 9);
    pthread_join(ordered_thread, NULL);
    CHECK_OK(ordered.status);
    CHECK_LT(harness_now_ns() - begun_ns, 200000000LL * harness_slowness());
    CHECK_STATUS(tb_frame_poll(ordered.frame), TB_AGAIN);
    tb_frame_release(ordered.frame);
    /* ... the other one when the GPU has finished it. */
    begun_ns = harness_now_ns();
    producer_must(&producer, DO_RELEASE, 0, 0);
    pthread_join(plain_thread, NULL);
    CHECK_OK(plain.status);
    CHECK_LT(harness_now_ns() - begun_ns, 200000000LL * harness_slowness());
    gpu_check(tb_frame_tensor(plain.frame), 9);
    tb_frame_release(plain.frame);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* ------------------------------------------------------------------ G16 */

static void G16_a_gate_opens_when_its_own_frame_is_done(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_frame *frame;
    gpu_skip_under(NULL, "the tool lets no stream pass one that is held up");
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    tb_reader *plain = gpu_open_reader(consumer.bus, "producer/frames", 0);
    tb_cuda_stream other = gpu_stream();
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 10);
    producer_must(&producer, DO_PUBLISH, 1, 11); /* overtakes it on the GPU */
    tb_frame *first = consumer_next(&consumer, 1);
    tb_frame *second = consumer_next(&consumer, 2);
    CHECK_OK(tb_frame_wait_on(first, consumer.stream));
    CHECK_OK(tb_frame_wait_on(second, other));
    gpu_look_on(second, other, &consumer.seen);
    CHECK_OK(tb_frame_release_on(second, other));
    gpu_synchronize(other);
    gpu_check_seen(&consumer.seen, 11);
    harness_sleep_us(5000);
    CHECK_EQ(gpu_is_idle(consumer.stream), 0);
    CHECK_STATUS(tb_frame_poll(first), TB_AGAIN);
    /* Others see them in order: 11 is not there before 10. */
    CHECK_STATUS(tb_reader_next(plain, TB_MILLIS(10), &frame), TB_AGAIN);
    producer_must(&producer, DO_RELEASE, 0, 0);
    for (uint32_t value = 10; value <= 11; value++) {
        CHECK_OK(tb_reader_next(plain, TB_SECONDS(20), &frame));
        CHECK_EQ(gpu_info(frame).sequence, value - 9);
        gpu_check(tb_frame_tensor(frame), value);
        tb_frame_release(frame);
    }
    gpu_look_on(first, consumer.stream, &consumer.seen);
    CHECK_OK(tb_frame_release_on(first, consumer.stream));
    consumer_saw(&consumer, 10);
    gpu_stream_end(other);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* Both ways of publishing number their frames together. */
static void frames_of_the_cpu_and_of_the_gpu_mix(void)
{
    struct producer producer = {.slots = 6};
    struct consumer consumer;
    tb_frame *frame;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    tb_reader *plain = gpu_open_reader(consumer.bus, "producer/frames", 0);
    producer_must(&producer, DO_WRITE, 1, 1);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 2);
    producer_must(&producer, DO_WRITE, 1, 3);
    for (uint64_t n = 1; n <= 3; n++) {
        frame = consumer_next(&consumer, n);
        CHECK_STATUS(tb_frame_poll(frame), n == 2 ? TB_AGAIN : TB_OK);
        if (n == 2) {
            consumer_use(&consumer, frame);
        } else {
            gpu_check(tb_frame_tensor(frame), (uint32_t)n);
            tb_frame_release(frame);
        }
    }
    CHECK_OK(tb_reader_next(plain, TB_SECONDS(20), &frame));
    gpu_check(tb_frame_tensor(frame), 1);
    tb_frame_release(frame);
    CHECK_STATUS(tb_reader_next(plain, TB_MILLIS(10), &frame), TB_AGAIN);
    producer_must(&producer, DO_RELEASE, 0, 0);
    for (uint32_t n = 2; n <= 3; n++) {
        CHECK_OK(tb_reader_next(plain, TB_SECONDS(20), &frame));
        CHECK_EQ(gpu_info(frame).missed, 0);
        gpu_check(tb_frame_tensor(frame), n);
        tb_frame_release(frame);
    }
    consumer_saw(&consumer, 2);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* ------------------------------------------------------------------ holds */

/* A slot comes back when all streams that hold its frame have passed, not before. */
static void a_slot_is_reused_when_every_stream_has_passed(void)
{
    struct producer producer = {.slots = 2};
    struct consumer consumer;
    struct gpu_brake brakes[3];
    tb_cuda_stream streams[3];
    tb_reader *readers[3];
    tb_frame *frames[3];
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    readers[0] = readers[1] = consumer.reader;
    readers[2] = gpu_open_reader(consumer.bus, "producer/frames", 1);
    producer_must(&producer, DO_PUBLISH, 0, 21);
    CHECK_OK(tb_reader_next(readers[0], TB_SECONDS(20), &frames[0]));
    CHECK_OK(tb_frame_hold(frames[0], &frames[1]));
    CHECK_OK(tb_reader_next(readers[2], TB_SECONDS(20), &frames[2]));
    producer_must(&producer, DO_PUBLISH, 0, 22); /* the other slot */
    for (int i = 0; i < 3; i++) {
        streams[i] = gpu_stream();
        gpu_brake_init(&brakes[i]);
        CHECK_OK(tb_frame_wait_on(frames[i], streams[i]));
        gpu_brake_put(&brakes[i], consumer.gpu, streams[i]);
        gpu_look_on(frames[i], streams[i], &consumer.seen);
        CHECK_OK(tb_frame_release_on(frames[i], streams[i]));
    }
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(producer_ask(&producer, DO_LOAN, 0, 20).status, TB_AGAIN);
        gpu_brake_off(&brakes[i]);
        gpu_synchronize(streams[i]);
        gpu_check_seen(&consumer.seen, 21);
    }
    producer_must(&producer, DO_LOAN, 0, 1000);
    producer_must(&producer, DO_PUBLISH, 0, 23);
    for (int i = 0; i < 3; i++) {
        gpu_stream_end(streams[i]);
        gpu_brake_end(&brakes[i]);
    }
    CHECK_EQ(gpu_reader_stats(consumer.reader).incomplete, 0);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* All leases are with streams: the next frame comes when one of them has passed. */
static void a_reader_waits_for_leases_that_its_streams_have(void)
{
    struct producer producer = {.slots = 8};
    struct consumer consumer;
    tb_frame *frame;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    gpu_brake_put(&consumer.brake, consumer.gpu, consumer.stream);
    for (uint32_t n = 1; n <= 4; n++) { /* as many as max_leases */
        producer_must(&producer, DO_PUBLISH, 0, n);
        frame = consumer_next(&consumer, n);
        consumer_use(&consumer, frame);
    }
    producer_must(&producer, DO_PUBLISH, 0, 5);
    CHECK_STATUS(tb_reader_next(consumer.reader, TB_MILLIS(5), &frame), TB_E_BUSY);
    gpu_brake_off(&consumer.brake);
    frame = consumer_next(&consumer, 5);
    consumer_use(&consumer, frame);
    consumer_saw(&consumer, 5);
    consumer_end(&consumer);
    producer_end(&producer);
}

static const struct test tests[] = {
    TEST(G10_streams_of_two_processes_order_themselves, 60),
    TEST(a_pending_frame_comes_at_once_and_the_stream_waits_for_it, 30),
    TEST(a_reader_that_comes_late_gets_the_pending_frame, 30),
    TEST(others_see_a_frame_when_the_gpu_has_finished_it, 30),
    TEST(sleeping_readers_are_woken, 30),
    TEST(G16_a_gate_opens_when_its_own_frame_is_done, 30),
    TEST(frames_of_the_cpu_and_of_the_gpu_mix, 30),
    TEST(a_slot_is_reused_when_every_stream_has_passed, 30),
    TEST(a_reader_waits_for_leases_that_its_streams_have, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

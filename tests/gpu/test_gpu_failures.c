/* Streams and copies that fail: G02, G03. Only the fake driver fails on demand. */
#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 16)

static void *host_words(uint32_t value)
{
    uint32_t *words = malloc(WORDS * sizeof *words);
    for (int64_t i = 0; i < WORDS; i++) {
        words[i] = value;
    }
    return words;
}

/* ------------------------------------------------------------------ a stream that fails */

static void check_healthy(struct producer *producer, struct consumer *consumer, tb_reader *plain,
                          uint32_t value)
{
    tb_frame *frame;
    producer_must(producer, DO_PUBLISH, 1, value);
    CHECK_OK(tb_reader_newest(consumer->reader, TB_SECONDS(5), &frame));
    consumer_use(consumer, frame);
    consumer_saw(consumer, value);
    CHECK_OK(tb_reader_newest(plain, TB_SECONDS(5), &frame));
    gpu_check(tb_frame_tensor(frame), value);
    tb_frame_release(frame);
}

/* The context of the producer's stream breaks while two of its frames are pending, one of which a
 * reader holds, and waits for. */
static void pending_frames_of_a_stream_that_fails_are_incomplete(void)
{
    struct producer producer = {.slots = 5};
    struct consumer consumer;
    tb_frame *frame;
    gpu_need_fake();
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    tb_reader *plain = gpu_open_reader(consumer.bus, "producer/frames", 0);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    producer_must(&producer, DO_PUBLISH, 0, 2);
    frame = consumer_next(&consumer, 1);
    CHECK_OK(tb_frame_wait_on(frame, consumer.stream));
    tb_frame *second = consumer_next(&consumer, 2);
    CHECK_STATUS(tb_frame_poll(second), TB_AGAIN);
    producer_must(&producer, DO_BREAK, 0, TB__CUDA_LAUNCH_FAILED);
    CHECK_WITHIN_MS(gpu_is_idle(consumer.stream) == 1, 2000);
    CHECK_STATUS(tb_frame_poll(frame), TB_E_INCOMPLETE);
    CHECK_HAS(tb_last_error_text(), "its producer's stream failed before the GPU had finished it");
    CHECK_STATUS(tb_frame_release_on(frame, consumer.stream), TB_E_INCOMPLETE);
    CHECK_WITHIN_MS(tb_frame_poll(second) == TB_E_INCOMPLETE, 2000);
    tb_frame_release(second);
    CHECK_LE(2, harness_log_count("its stream failed: cuEventQuery"));
    /* A frame on a healthy stream goes through, and the failed ones are in nobody's way. */
    producer_must(&producer, DO_BREAK, 0, 0);
    producer_must(&producer, DO_RELEASE, 0, 0);
    check_healthy(&producer, &consumer, plain, 3);
    for (uint32_t n = 4; n <= 12; n++) { /* every slot is used again */
        check_healthy(&producer, &consumer, plain, n);
    }
    consumer_end(&consumer);
    producer_end(&producer);
}

/* Released before it failed: counted when the lease is used again. */
static void a_frame_that_fails_after_its_release_is_counted(void)
{
    struct producer producer = {.slots = 6};
    struct consumer consumer;
    gpu_need_fake();
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    tb_reader *plain = gpu_open_reader(consumer.bus, "producer/frames", 0);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    consumer_use(&consumer, consumer_next(&consumer, 1));
    producer_must(&producer, DO_BREAK, 0, TB__CUDA_ILLEGAL_ADDRESS);
    CHECK_WITHIN_MS(gpu_is_idle(consumer.stream) == 1, 2000);
    producer_must(&producer, DO_BREAK, 0, 0);
    producer_must(&producer, DO_RELEASE, 0, 0);
    for (uint32_t n = 2; n <= 6; n++) {
        check_healthy(&producer, &consumer, plain, n);
    }
    CHECK_EQ(gpu_reader_stats(consumer.reader).incomplete, 1);
    CHECK_EQ(gpu_reader_stats(plain).incomplete, 0);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* A context beside the device's own, in which the program makes its stream: it alone breaks. */
static void a_stream_of_a_context_of_its_own_that_fails(void)
{
    int (*create)(tb__context * out, unsigned flags, int device);
    int (*destroy)(tb__context context);
    tb__context context;
    struct gpu_brake brake;
    gpu_need_fake();
    const struct tb__gpu *gpu = gpu_begin();
    gpu_brake_init(&brake);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    create = (__typeof__(create))dlsym(library, "cuCtxCreate_v2");
    destroy = (__typeof__(destroy))dlsym(library, "cuCtxDestroy_v2");
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, 2);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_cuda_stream own = gpu_stream();
    tb_cuda_stream waiting = gpu_stream();
    tb_frame *frame;
    for (uint32_t n = 1; n <= 4; n++) { /* each slot has had frames of the other context */
        gpu_publish(pool, n, own, NULL);
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        tb_frame_release(frame);
    }
    CHECK_CUDA(create(&context, 0, gpu->device));
    tb_cuda_stream other = gpu_stream();
    gpu_publish(pool, 5, other, NULL);
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 2000);
    tb_frame_release(frame);
    gpu_fake()->fail("async:cuMemsetD32Async:1:719");
    gpu_brake_put(&brake, gpu, other);
    gpu_publish(pool, 6, other, NULL);
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_OK(tb_frame_wait_on(frame, waiting));
    gpu_brake_off(&brake);
    CHECK_WITHIN_MS(gpu_is_idle(waiting) == 1, 2000);
    CHECK_STATUS(tb_frame_release_on(frame, waiting), TB_E_INCOMPLETE);
    gpu_fake()->fail(NULL);
    CHECK_CUDA(tb__cuda()->stream_destroy((tb__stream)other));
    CHECK_CUDA(destroy(context));
    gpu_publish(pool, 7, own, NULL);
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 2000);
    gpu_check(tb_frame_tensor(frame), 7);
    tb_frame_release(frame);
    gpu_stream_end(waiting);
    tb_bus_close(bus);
    gpu_brake_end(&brake);
    gpu_stream_end(own);
}

/* Asking whether the stream is well fails, which says nothing about the stream. */
static void a_failed_question_is_no_failed_stream(void)
{
    static const char *const rules[] = {"cuEventQuery:1:999", "cuCtxGetCurrent:1:999",
                                        "cuCtxPushCurrent_v2:1:2"};
    gpu_need_fake();
    const struct tb__gpu *gpu = gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, 2);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_cuda_stream stream = gpu_stream();
    struct gpu_brake brake;
    gpu_brake_init(&brake);
    for (uint32_t i = 0; i < 3; i++) {
        tb_frame *frame;
        gpu_brake_put(&brake, gpu, stream);
        gpu_publish(pool, 50 + i, stream, NULL);
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        gpu_fake()->fail(rules[i]); /* the watching thread asks every millisecond */
        CHECK_WITHIN_MS(gpu_fake()->has_failed(), 2000);
        harness_sleep_us(5000);
        CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
        gpu_fake()->fail(NULL);
        gpu_brake_off(&brake);
        CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 2000);
        gpu_check(tb_frame_tensor(frame), 50 + i);
        tb_frame_release(frame);
    }
    tb_bus_close(bus);
    gpu_stream_end(stream);
    gpu_brake_end(&brake);
}

/* One more hold of a frame that has failed. */
static void a_failed_frame_cannot_be_held_once_more(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_frame *again;
    gpu_need_fake();
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    tb_frame *frame = consumer_next(&consumer, 1);
    producer_must(&producer, DO_BREAK, 0, TB__CUDA_ILLEGAL_ADDRESS);
    CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_E_INCOMPLETE, 2000);
    CHECK_STATUS(tb_frame_hold(frame, &again), TB_E_INCOMPLETE);
    CHECK_HAS(tb_last_error_text(), "stream failed");
    CHECK_STATUS(tb_frame_release_on(frame, consumer.stream), TB_E_INCOMPLETE);
    producer_must(&producer, DO_BREAK, 0, 0);
    producer_must(&producer, DO_RELEASE, 0, 0);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* ------------------------------------------------------------------ G02, G03 */

static void G02_a_copy_that_is_refused_publishes_nothing(void)
{
    gpu_need_fake();
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, 2);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_cuda_stream stream = gpu_stream();
    void *words = host_words(7);
    tb_tensor tensor = gpu_words(words, TB_CPU, WORDS);
    tb_frame *frame;
    tb_error error;
    for (int i = 0; i < 5; i++) {
        gpu_fake()->fail("cuMemcpyHtoDAsync_v2:1:1");
        CHECK_STATUS(i % 2 == 0 ? tb_pool_write_on(pool, &tensor, stream, TB_POLL, NULL)
                                : tb_pool_write(pool, &tensor, TB_POLL, NULL),
                     TB_E_SYSTEM);
        tb_last_error(&error);
        CHECK_EQ(error.cuda_code, 1);
        CHECK_HAS(error.text, "cuMemcpyHtoDAsync");
        CHECK_HAS(error.text, "CUDA_ERROR_INVALID_VALUE");
        CHECK_STATUS(tb_reader_next(reader, TB_POLL, &frame), TB_AGAIN);
    }
    CHECK_EQ(gpu_pool_stats(pool).frames, 0);
    gpu_fake()->fail(NULL);
    CHECK_OK(tb_pool_write_on(pool, &tensor, stream, TB_POLL, NULL));
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &frame));
    gpu_synchronize(stream);
    gpu_check(tb_frame_tensor(frame), 7);
    tb_frame_release(frame);
    free(words);
    tb_bus_close(bus);
    gpu_stream_end(stream);
}

/* The copy breaks its context when the stream gets there. */
static void G02_a_copy_that_fails_on_the_way_publishes_nothing(void)
{
    gpu_need_fake();
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, 3);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_reader *plain = gpu_open_reader(bus, "producer/frames", 0);
    tb_cuda_stream stream = gpu_stream();
    void *words = host_words(8);
    tb_tensor tensor = gpu_words(words, TB_CPU, WORDS);
    tb_frame *frame;
    tb_error error;
    gpu_fake()->fail("async:cuMemcpyHtoDAsync_v2:1:700");
    CHECK_STATUS(tb_pool_write(pool, &tensor, TB_POLL, NULL), TB_E_SYSTEM);
    tb_last_error(&error);
    CHECK_EQ(error.cuda_code, 700);
    CHECK_HAS(error.text, "CUDA_ERROR_ILLEGAL_ADDRESS");
    CHECK_EQ(gpu_pool_stats(pool).frames, 0);
    CHECK_STATUS(tb_reader_next(reader, TB_POLL, &frame), TB_AGAIN);
    gpu_fake()->break_device(0, 0);
    /* On a stream: the frame was announced, and is incomplete. */
    gpu_fake()->fail("async:cuMemcpyHtoDAsync_v2:1:700");
    if (tb_pool_write_on(pool, &tensor, stream, TB_POLL, NULL) == TB_OK &&
        tb_reader_next(reader, TB_POLL, &frame) == TB_OK) {
        CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_E_INCOMPLETE, 2000);
        tb_frame_release(frame);
    }
    CHECK_STATUS(tb_reader_next(plain, TB_MILLIS(20), &frame), TB_AGAIN);
    gpu_fake()->fail(NULL);
    gpu_fake()->break_device(0, 0);
    for (int i = 0; i < 6; i++) {
        CHECK_OK(tb_pool_write_on(pool, &tensor, stream, TB_SECONDS(5), NULL));
        CHECK_OK(tb_reader_newest(plain, TB_SECONDS(5), &frame));
        gpu_check(tb_frame_tensor(frame), 8);
        tb_frame_release(frame);
    }
    free(words);
    tb_bus_close(bus);
    gpu_stream_end(stream);
}

static void G03_an_oversize_write_is_refused_before_any_call(void)
{
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pools[2] = {gpu_register(bus, "fixed", TB_CUDA(0), WORDS, 2)};
    tb_cuda_stream stream = gpu_stream();
    void *words = host_words(9);
    tb_pool_options options = gpu_words_options("varying", TB_CUDA(0), WORDS, 2);
    options.capacity_bytes = WORDS * 4;
    CHECK_OK(tb_pool_register(bus, &options, &pools[1]));
    tb_tensor large = gpu_words(words, TB_CPU, WORDS * 2); /* its end is not looked at */
    for (int i = 0; i < 2; i++) {
        unsigned long before = gpu_fake() != NULL ? gpu_fake()->calls(NULL) : 0;
        CHECK_STATUS(tb_pool_write_on(pools[i], &large, stream, TB_POLL, NULL), TB_E_MISMATCH);
        CHECK_STATUS(tb_pool_write(pools[i], &large, TB_POLL, NULL), TB_E_MISMATCH);
        CHECK_EQ(gpu_fake() != NULL ? gpu_fake()->calls(NULL) : 0, before);
        CHECK_EQ(gpu_pool_stats(pools[i]).frames, 0);
        tb_tensor right = gpu_words(words, TB_CPU, WORDS);
        CHECK_OK(tb_pool_write_on(pools[i], &right, stream, TB_POLL, NULL));
        gpu_synchronize(stream);
        CHECK_WITHIN_MS(gpu_pool_stats(pools[i]).frames == 1, 2000);
    }
    free(words);
    tb_bus_close(bus);
    gpu_stream_end(stream);
}

static const struct test tests[] = {
    TEST(pending_frames_of_a_stream_that_fails_are_incomplete, 30),
    TEST(a_frame_that_fails_after_its_release_is_counted, 30),
    TEST(a_stream_of_a_context_of_its_own_that_fails, 30),
    TEST(a_failed_question_is_no_failed_stream, 30),
    TEST(a_failed_frame_cannot_be_held_once_more, 30),
    TEST(G02_a_copy_that_is_refused_publishes_nothing, 30),
    TEST(G02_a_copy_that_fails_on_the_way_publishes_nothing, 30),
    TEST(G03_an_oversize_write_is_refused_before_any_call, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

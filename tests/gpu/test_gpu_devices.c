/* Two devices: streams and readers of one with pools on the other. */
#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 16)

static tb_status open_on(tb_bus *bus, tb_device device, uint32_t ordered, tb_reader **out)
{
    tb_reader_options options = {.size = sizeof options,
                                 .wait_ns = TB_SECONDS(5),
                                 .stream_ordered = ordered,
                                 .device = device};
    return tb_reader_open(bus, "producer/frames", &options, out);
}

/* A stream of the other device looks at the frame: peers reach each other's memory. */
static void a_reader_on_a_peer_reads_in_place(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_reader *reader;
    tb_frame *frame;
    gpu_machine("devices=2;peer=0-1");
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    const struct tb__gpu *second = gpu_second();
    int can;
    CHECK_OK(tb__gpu_peer(second, consumer.gpu, &can));
    if (!can) {
        harness_skip("the devices do not reach each other");
    }
    tb_cuda_stream stream = gpu_stream_on(second);
    CHECK_OK(open_on(consumer.bus, TB_CUDA(1), 1, &reader));
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 61);
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
    CHECK_EQ(gpu_info(frame).copies, 0);
    CHECK_OK(tb_frame_wait_on(frame, stream));
    gpu_look_on(frame, stream, &consumer.seen);
    CHECK_OK(tb_frame_release_on(frame, stream));
    CHECK_EQ(gpu_is_idle(stream), 0);
    producer_must(&producer, DO_RELEASE, 0, 0);
    gpu_synchronize(stream);
    gpu_check_seen(&consumer.seen, 61);
    tb_reader_close(reader);
    consumer_end(&consumer);
    gpu_stream_end(stream);
    producer_end(&producer);
}

static void a_reader_on_a_device_that_cannot_reach_it_is_told(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_reader *reader;
    gpu_need_fake();
    gpu_machine("devices=2");
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    for (uint32_t ordered = 0; ordered < 2; ordered++) {
        CHECK_STATUS(open_on(consumer.bus, TB_CUDA(1), ordered, &reader), TB_E_UNSUPPORTED);
        CHECK_HAS(tb_last_error_text(), "cuda:1");
        CHECK_HAS(tb_last_error_text(), "cuda:0");
    }
    CHECK_STATUS(open_on(consumer.bus, TB_CUDA(7), 1, &reader), TB_E_NOT_FOUND);
    CHECK_WITHIN_MS(producer_ask(&producer, DO_READERS, 0, 0).number == 1, 2000);
    /* On its own device, waited for by a stream of the other: that needs no peer. */
    const struct tb__gpu *second = gpu_second();
    tb_cuda_stream stream = gpu_stream_on(second);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 62);
    tb_frame *frame = consumer_next(&consumer, 1);
    CHECK_OK(tb_frame_wait_on(frame, stream));
    CHECK_OK(tb_frame_release_on(frame, stream));
    CHECK_EQ(gpu_is_idle(stream), 0);
    producer_must(&producer, DO_RELEASE, 0, 0);
    gpu_synchronize(stream);
    CHECK_WITHIN_MS(gpu_reader_stats(consumer.reader).held == 0, 2000);
    consumer_end(&consumer);
    gpu_stream_end(stream);
    producer_end(&producer);
}

/* Both devices publish into one pool in turn, and read from it. */
static void streams_of_both_devices_publish_into_one_pool(void)
{
    gpu_machine("devices=2;peer=0-1");
    const struct tb__gpu *first = gpu_begin();
    const struct tb__gpu *second = gpu_second();
    tb_cuda_stream streams[2] = {gpu_stream_on(first), gpu_stream_on(second)};
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "host", TB_CPU, WORDS, 4);
    tb_reader *ordered = gpu_open_reader(bus, "producer/host", 1);
    tb_reader *plain = gpu_open_reader(bus, "producer/host", 0);
    struct gpu_brake brake;
    uint64_t memory[2];
    gpu_brake_init(&brake);
    for (int i = 0; i < 2; i++) {
        struct tb__gpu_scope scope;
        CHECK_OK(tb__gpu_enter(i == 0 ? first : second, &scope));
        CHECK_CUDA(tb__cuda()->mem_alloc(&memory[i], WORDS * 4));
        tb__gpu_leave(&scope);
    }
    unsigned long frames = harness_scale(40, 1000);
    for (uint32_t n = 1; n <= frames; n++) {
        int i = (int)(n % 3) % 2;
        tb_frame *frame;
        tb_tensor tensor = {.data = (void *)(uintptr_t)memory[i],
                            .device = TB_CUDA(i),
                            .dtype = TB_U32,
                            .ndim = 1,
                            .shape = {WORDS}};
        gpu_brake_put(&brake, i == 0 ? first : second, streams[i]);
        gpu_fill(&tensor, n, streams[i]);
        CHECK_OK(tb_pool_write_on(pool, &tensor, streams[i], TB_SECONDS(5), NULL));
        CHECK_OK(tb_reader_next(ordered, TB_POLL, &frame));
        CHECK_EQ(gpu_info(frame).sequence, n);
        CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
        CHECK_OK(tb_frame_wait_on(frame, streams[1 - i])); /* the other device waits */
        CHECK_OK(tb_frame_release_on(frame, streams[1 - i]));
        gpu_brake_off(&brake);
        CHECK_OK(tb_reader_next(plain, TB_SECONDS(5), &frame));
        const uint32_t *words = tb_frame_tensor(frame)->data;
        CHECK_EQ(words[0], n);
        CHECK_EQ(words[WORDS - 1], n);
        tb_frame_release(frame);
        gpu_synchronize(streams[1 - i]);
    }
    for (int i = 0; i < 2; i++) {
        gpu_stream_end(streams[i]);
        CHECK_CUDA(tb__cuda()->mem_free(memory[i]));
    }
    tb_bus_close(bus);
    gpu_brake_end(&brake);
}

/* One device's context breaks: frames of the other one go on in the same pool. */
static void frames_of_a_healthy_device_go_on_beside_a_broken_one(void)
{
    gpu_need_fake();
    gpu_machine("devices=2");
    const struct tb__gpu *first = gpu_begin();
    const struct tb__gpu *second = gpu_second();
    tb_cuda_stream healthy = gpu_stream_on(first);
    tb_cuda_stream doomed = gpu_stream_on(second);
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, 3);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_reader *plain = gpu_open_reader(bus, "producer/frames", 0);
    struct gpu_brake brake;
    tb_loan *loan;
    tb_frame *frame;
    gpu_brake_init(&brake);
    gpu_publish(pool, 1, healthy, NULL);
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    tb_frame_release(frame);
    gpu_brake_put(&brake, second, doomed);
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    CHECK_OK(tb_loan_publish_on(loan, doomed, NULL));
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
    gpu_fake()->break_device(1, TB__CUDA_ILLEGAL_ADDRESS);
    CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_E_INCOMPLETE, 2000);
    tb_frame_release(frame);
    for (uint32_t n = 3; n <= 10; n++) {
        gpu_publish(pool, n, healthy, NULL);
        CHECK_OK(tb_reader_newest(plain, TB_SECONDS(5), &frame));
        CHECK_EQ(gpu_info(frame).sequence, n);
        gpu_check(tb_frame_tensor(frame), n);
        tb_frame_release(frame);
    }
    CHECK_OK(tb_pool_loan(pool, TB_SECONDS(5), &loan));
    CHECK_STATUS(tb_loan_publish_on(loan, doomed, NULL), TB_E_SYSTEM);
    gpu_publish(pool, 11, healthy, NULL);
    CHECK_OK(tb_reader_newest(plain, TB_SECONDS(5), &frame));
    gpu_check(tb_frame_tensor(frame), 11);
    tb_frame_release(frame);
    gpu_synchronize(healthy);
    tb_bus_close(bus);
    gpu_fake()->break_device(1, 0);
    CHECK_CUDA(tb__cuda()->stream_destroy((tb__stream)doomed));
    gpu_stream_end(healthy);
    gpu_brake_end(&brake);
}

static const struct test tests[] = {
    TEST(a_reader_on_a_peer_reads_in_place, 30),
    TEST(a_reader_on_a_device_that_cannot_reach_it_is_told, 30),
    TEST(streams_of_both_devices_publish_into_one_pool, 60),
    TEST(frames_of_a_healthy_device_go_on_beside_a_broken_one, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

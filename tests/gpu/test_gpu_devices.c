/* Two devices: streams and readers of one with pools on the other. */
#include "cuda/copy.h"
#include "cuda/order.h"
#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 16)
#define FRAME_WORDS ((int64_t)1 << 18) /* of the producer */

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

static void a_reader_on_a_device_without_virtual_memory_is_told(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_reader *reader;
    gpu_need_fake();
    gpu_machine("devices=2;peer=0-1;no_vmm=1");
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    CHECK_STATUS(open_on(consumer.bus, TB_CUDA(1), 1, &reader), TB_E_UNSUPPORTED);
    CHECK_HAS(tb_last_error_text(), "cuda:1 (Fake GPU 1) cannot import memory by descriptor");
    consumer_end(&consumer);
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
        tb_tensor tensor = gpu_words((void *)(uintptr_t)memory[i], TB_CUDA(i), WORDS);
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

/* Plain memory with an IPC handle, which the driver does not open to the process that has it. */
static void a_reader_on_a_peer_in_the_owners_own_process(void)
{
    gpu_machine("devices=2;peer=0-1;no_vmm=all");
    const struct tb__gpu *first = gpu_begin();
    const struct tb__gpu *second = gpu_second();
    int can;
    CHECK_OK(tb__gpu_peer(second, first, &can));
    if (!can) {
        harness_skip("the devices do not reach each other");
    }
    tb_cuda_stream stream = gpu_stream();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, 2);
    tb_reader *readers[2];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(open_on(bus, TB_CUDA(1), 0, &readers[i]));
    }
    for (uint32_t n = 1; n <= 3; n++) {
        tb_frame *frame;
        gpu_publish(pool, n, stream, NULL);
        for (int i = 0; i < 2 && readers[i] != NULL; i++) {
            CHECK_OK(tb_reader_next(readers[i], TB_SECONDS(5), &frame));
            CHECK_EQ(tb_frame_tensor(frame)->device, TB_CUDA(1));
            gpu_check(tb_frame_tensor(frame), n);
            tb_frame_release(frame);
        }
        if (n == 2) {
            tb_reader_close(readers[0]);
            readers[0] = readers[1];
            readers[1] = NULL;
        }
    }
    tb_pool_close(pool); /* before its reader */
    tb_reader_close(readers[0]);
    gpu_stream_end(stream);
    tb_bus_close(bus);
}

/* Peers that are switched off are none: copies go through the host, readers are told. */
static void peers_can_be_switched_off(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_reader *reader;
    gpu_machine("devices=2;peer=0-1");
    setenv("TENSORBUS_GPU_PEERS", "0", 1);
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    const struct tb__gpu *second = gpu_second();
    tb_memory *memory;
    int can = 1;
    CHECK_OK(tb__gpu_peer(second, consumer.gpu, &can));
    CHECK_EQ(can, 0);
    CHECK_STATUS(open_on(consumer.bus, TB_CUDA(1), 1, &reader), TB_E_UNSUPPORTED);
    CHECK_OK(tb_alloc(&(tb_memory_options){.size = sizeof(tb_memory_options),
                                           .kind = TB_MEMORY_DEVICE,
                                           .device = TB_CUDA(1),
                                           .bytes = FRAME_WORDS * 4},
                      &memory));
    tb_tensor there = gpu_words(tb_memory_data(memory), TB_CUDA(1), FRAME_WORDS);
    for (uint32_t n = 1; n <= 3; n++) {
        struct tb__copy_result result;
        producer_must(&producer, DO_PUBLISH, 0, n);
        tb_frame *frame = consumer_next(&consumer, n);
        const tb_tensor *here = tb_frame_tensor(frame);
        CHECK_OK(tb_frame_copy_on(frame, &there, NULL));
        CHECK_OK(tb__stream_synchronize(NULL, consumer.gpu));
        gpu_check(&there, n);
        const struct tb__copy job = {.dst = {(uint64_t)(uintptr_t)there.data, second, 0},
                                     .src = {(uint64_t)(uintptr_t)here->data, consumer.gpu, 0},
                                     .bytes = FRAME_WORDS * 4};
        CHECK_OK(tb__gpu_copy(&job, NULL, &result));
        CHECK_EQ(result.path, TB__PATH_STAGED);
        CHECK_OK(tb__stream_synchronize(NULL, second));
        CHECK_OK(tb_frame_release_on(frame, NULL));
        CHECK_WITHIN_MS(gpu_reader_stats(consumer.reader).held == 0, 5000);
    }
    tb_memory_free(memory);
    tb__copy_trim();
    consumer_end(&consumer);
    producer_end(&producer);
}

static void plain_memory_of_a_peer_that_is_switched_off(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    tb_reader *reader;
    gpu_need_fake();
    gpu_machine("devices=2;peer=0-1;no_vmm=all");
    setenv("TENSORBUS_GPU_PEERS", "0", 1);
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(open_on(consumer.bus, TB_CUDA(1), 1, &reader), TB_E_UNSUPPORTED);
        CHECK_HAS(tb_last_error_text(), "on cuda:0, which cuda:1 cannot reach");
    }
    tb_pool *pool = gpu_register(consumer.bus, "frames", TB_CUDA(0), WORDS, 2);
    tb_reader_options options = {.size = sizeof options, .device = TB_CUDA(1)};
    CHECK_STATUS(tb_reader_open(consumer.bus, "consumer/frames", &options, &reader),
                 TB_E_UNSUPPORTED);
    CHECK_HAS(tb_last_error_text(), "cuda:1 cannot reach the memory of cuda:0");
    tb_pool_close(pool);
    consumer_end(&consumer);
    producer_end(&producer);
}

/* A pool with streams of two devices, one of which will break. */
struct ill {
    const struct tb__gpu *first;
    const struct tb__gpu *second;
    tb_cuda_stream healthy;
    tb_cuda_stream doomed;
    tb_bus *bus;
    tb_pool *pool;
    struct gpu_brake brake;
};

static void ill_begin(struct ill *ill)
{
    gpu_need_fake();
    gpu_machine("devices=2");
    ill->first = gpu_begin();
    ill->second = gpu_second();
    ill->healthy = gpu_stream_on(ill->first);
    ill->doomed = gpu_stream_on(ill->second);
    ill->bus = gpu_open_bus("producer");
    ill->pool = gpu_register(ill->bus, "frames", TB_CUDA(0), WORDS, 3);
    gpu_brake_init(&ill->brake);
}

static void ill_end(struct ill *ill)
{
    gpu_synchronize(ill->healthy);
    tb_bus_close(ill->bus);
    gpu_fake()->break_device(1, 0);
    CHECK_CUDA(tb__cuda()->stream_destroy((tb__stream)ill->doomed));
    gpu_stream_end(ill->healthy);
    gpu_brake_end(&ill->brake);
}

/* One device's context breaks: frames of the other one go on in the same pool. */
static void frames_of_a_healthy_device_go_on_beside_a_broken_one(void)
{
    struct ill ill;
    ill_begin(&ill);
    tb_reader *reader = gpu_open_reader(ill.bus, "producer/frames", 1);
    tb_reader *plain = gpu_open_reader(ill.bus, "producer/frames", 0);
    tb_loan *loan;
    tb_frame *frame;
    gpu_publish(ill.pool, 1, ill.healthy, NULL);
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    tb_frame_release(frame);
    gpu_brake_put(&ill.brake, ill.second, ill.doomed);
    CHECK_OK(tb_pool_loan(ill.pool, TB_POLL, &loan));
    CHECK_OK(tb_loan_publish_on(loan, ill.doomed, NULL));
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
    gpu_fake()->break_device(1, TB__CUDA_ILLEGAL_ADDRESS);
    CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_E_INCOMPLETE, 2000);
    tb_frame_release(frame);
    for (uint32_t n = 3; n <= 10; n++) {
        gpu_publish(ill.pool, n, ill.healthy, NULL);
        CHECK_OK(tb_reader_newest(plain, TB_SECONDS(5), &frame));
        CHECK_EQ(gpu_info(frame).sequence, n);
        gpu_check(tb_frame_tensor(frame), n);
        tb_frame_release(frame);
    }
    CHECK_OK(tb_pool_loan(ill.pool, TB_SECONDS(5), &loan));
    CHECK_STATUS(tb_loan_publish_on(loan, ill.doomed, NULL), TB_E_SYSTEM);
    gpu_publish(ill.pool, 11, ill.healthy, NULL);
    CHECK_OK(tb_reader_newest(plain, TB_SECONDS(5), &frame));
    gpu_check(tb_frame_tensor(frame), 11);
    tb_frame_release(frame);
    ill_end(&ill);
}

/* A handle may be waited for while the GPU is still at work. */
static void acknowledgements_of_frames_under_way_are_waited_for(void)
{
    struct ill ill;
    ill_begin(&ill);
    tb_reader_options options = {.size = sizeof options, .wait_ns = TB_SECONDS(5), .ack = 1};
    tb_reader *reader;
    tb_loan *loan;
    tb_frame *frame;
    tb_handle handle;
    CHECK_OK(tb_reader_open(ill.bus, "producer/frames", &options, &reader));
    gpu_brake_put(&ill.brake, ill.first, ill.healthy);
    gpu_publish(ill.pool, 1, ill.healthy, &handle);
    CHECK_STATUS(tb_pool_wait_acked(ill.pool, &handle, TB_MILLIS(30)), TB_E_NOT_ACKED);
    gpu_brake_off(&ill.brake);
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &frame));
    CHECK_OK(tb_reader_ack(reader, frame));
    tb_frame_release(frame);
    CHECK_OK(tb_pool_wait_acked(ill.pool, &handle, TB_POLL));
    handle.generation += 2;
    CHECK_STATUS(tb_pool_wait_acked(ill.pool, &handle, TB_POLL), TB_E_INVALID);
    gpu_brake_put(&ill.brake, ill.second, ill.doomed);
    CHECK_OK(tb_pool_loan(ill.pool, TB_POLL, &loan));
    CHECK_OK(tb_loan_publish_on(loan, ill.doomed, &handle));
    CHECK_STATUS(tb_pool_wait_acked(ill.pool, &handle, TB_MILLIS(30)), TB_E_NOT_ACKED);
    gpu_fake()->break_device(1, TB__CUDA_ILLEGAL_ADDRESS);
    CHECK_STATUS(tb_pool_wait_acked(ill.pool, &handle, TB_SECONDS(5)), TB_E_INCOMPLETE);
    ill_end(&ill);
}

/* `cuda` without a number. */
static void the_current_device_is_the_one_of_the_current_context(void)
{
    gpu_machine("devices=2;peer=0-1");
    const struct tb__gpu *first = gpu_begin();
    const struct tb__gpu *const gpus[] = {first, gpu_second()};
    tb_bus *bus = gpu_open_bus("producer");
    for (int i = 1; i >= 0; i--) {
        struct tb__gpu_scope scope;
        tb_reader *reader;
        tb_loan *loan;
        tb_frame *frame;
        CHECK_OK(tb__gpu_enter(gpus[i], &scope));
        tb_pool *pool = gpu_register(bus, "frames", TB_CUDA_CURRENT, 16, 2);
        CHECK_OK(open_on(bus, TB_CUDA_CURRENT, 0, &reader));
        CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
        CHECK_EQ(tb_loan_tensor(loan)->device, TB_CUDA(i));
        CHECK_OK(tb_loan_publish(loan, NULL));
        CHECK_OK(tb_reader_newest(reader, TB_POLL, &frame));
        CHECK_EQ(tb_frame_tensor(frame)->device, TB_CUDA(i));
        tb_frame_release(frame);
        tb_reader_close(reader);
        tb_pool_close(pool);
        tb__gpu_leave(&scope);
    }
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(the_current_device_is_the_one_of_the_current_context, 30),
    TEST(a_reader_on_a_peer_reads_in_place, 30),
    TEST(a_reader_on_a_device_that_cannot_reach_it_is_told, 30),
    TEST(a_reader_on_a_device_without_virtual_memory_is_told, 30),
    TEST(streams_of_both_devices_publish_into_one_pool, 60),
    TEST(a_reader_on_a_peer_in_the_owners_own_process, 30),
    TEST(peers_can_be_switched_off, 30),
    TEST(plain_memory_of_a_peer_that_is_switched_off, 30),
    TEST(frames_of_a_healthy_device_go_on_beside_a_broken_one, 30),
    TEST(acknowledgements_of_frames_under_way_are_waited_for, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

/* Two devices: copies and writes from one to the other, and whose stream they follow. */
#include "cuda/copy.h"
#include "cuda/order.h"
#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 16)
#define FRAME_WORDS ((int64_t)1 << 18) /* of the producer */

/* The default stream is the current device's for a pool in host memory, and what the other device
 * copies is in its order: a frame is not there before it is copied, nor free before it is read. */
static void copies_of_the_other_device_are_in_the_default_stream_s_order(void)
{
    gpu_machine("devices=2");
    const struct tb__gpu *first = gpu_begin();
    const struct tb__gpu *second = gpu_second();
    tb_cuda_stream stream = gpu_stream_on(second);
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "host", TB_CPU, WORDS, 4);
    tb_reader *ordered = gpu_open_reader(bus, "producer/host", 1);
    struct gpu_brake brake;
    tb_memory *memory;
    tb_frame *frame;
    gpu_brake_init(&brake);
    CHECK_OK(tb_alloc(&(tb_memory_options){.size = sizeof(tb_memory_options),
                                           .kind = TB_MEMORY_DEVICE,
                                           .device = TB_CUDA(1),
                                           .bytes = WORDS * 4},
                      &memory));
    tb_tensor tensor = gpu_words(tb_memory_data(memory), TB_CUDA(1), WORDS);
    for (uint32_t n = 1; n <= 9; n++) {
        /* The first frame page-locks the pool; then the one and the other device is held up. */
        const struct tb__gpu *braked = n == 1 ? NULL : n % 2 == 0 ? second : first;
        uint32_t value = n;
        gpu_fill(&tensor, value, stream);
        gpu_synchronize(stream);
        if (braked != NULL) {
            gpu_brake_put(&brake, braked, NULL);
        }
        CHECK_OK(tb_pool_write_on(pool, &tensor, NULL, TB_SECONDS(5), NULL));
        CHECK_OK(tb_reader_next(ordered, TB_POLL, &frame));
        if (braked == first) { /* what the copy has not begun to read may change */
            value += 100;
            gpu_fill(&tensor, value, stream);
            gpu_synchronize(stream);
        }
        if (braked != NULL) {
            CHECK_STATUS(tb__stream_query(NULL, first), TB_AGAIN);
            CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
            gpu_brake_off(&brake);
        }
        CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 5000);
        const uint32_t *words = tb_frame_tensor(frame)->data;
        CHECK_EQ(words[0], value);
        CHECK_EQ(words[WORDS - 1], value);
        gpu_fill(&tensor, 0, stream);
        gpu_synchronize(stream);
        if (braked != NULL) {
            gpu_brake_put(&brake, braked, NULL);
        }
        CHECK_OK(tb_frame_copy_on(frame, &tensor, NULL));
        CHECK_OK(tb_frame_release_on(frame, NULL));
        if (braked != NULL) {
            CHECK_EQ(gpu_reader_stats(ordered).held, 1);
            gpu_brake_off(&brake);
        }
        CHECK_WITHIN_MS(gpu_reader_stats(ordered).held == 0, 5000);
        gpu_check(&tensor, value);
    }
    tb_bus_close(bus);
    tb_memory_free(memory);
    gpu_stream_end(stream);
    gpu_brake_end(&brake);
}

static void one_tensor_on_each(tb_memory *memory[2], tb_tensor tensors[2])
{
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tb_alloc(&(tb_memory_options){.size = sizeof(tb_memory_options),
                                               .kind = TB_MEMORY_DEVICE,
                                               .device = TB_CUDA(i),
                                               .bytes = WORDS * 4},
                          &memory[i]));
        tensors[i] = gpu_words(tb_memory_data(memory[i]), TB_CUDA(i), WORDS);
    }
}

/* A copy between two devices is done when tb_copy() and tb_pool_write() return. */
static void a_copy_between_two_devices_is_waited_for(void)
{
    gpu_machine("devices=2;slow=20000");
    const struct tb__gpu *first = gpu_begin();
    gpu_second();
    tb_cuda_stream stream = gpu_stream_on(first);
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(1), WORDS, 2);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 0);
    tb_memory *memory[2];
    tb_tensor tensors[2];
    one_tensor_on_each(memory, tensors);
    for (uint32_t n = 1; n <= 3; n++) {
        tb_frame *frame;
        gpu_fill(&tensors[0], n, stream);
        gpu_synchronize(stream);
        CHECK_OK(tb_copy(&tensors[1], &tensors[0]));
        CHECK_OK(tb_pool_write(pool, &tensors[0], TB_SECONDS(5), NULL));
        gpu_fill(&tensors[0], 0, stream); /* the source is ours again */
        gpu_synchronize(stream);
        gpu_check(&tensors[1], n);
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        gpu_check(tb_frame_tensor(frame), n);
        tb_frame_release(frame);
    }
    tb_bus_close(bus);
    tb_memory_free(memory[0]);
    tb_memory_free(memory[1]);
    tb__copy_trim();
    gpu_stream_end(stream);
}

/* A tensor of the other device is copied behind what its default stream has, and is free for what
 * that stream gets next. */
static void a_source_on_the_other_device_is_in_its_default_stream_s_order(void)
{
    gpu_machine("devices=2;peer=0-1");
    const struct tb__gpu *first = gpu_begin();
    const struct tb__gpu *second = gpu_second();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, 4);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_memory *memory[2];
    tb_tensor tensors[2];
    struct gpu_brake brake;
    struct tb__gpu_scope scope;
    gpu_brake_init(&brake);
    one_tensor_on_each(memory, tensors);
    for (uint32_t n = 1; n <= 5; n++) {
        tb_frame *frame;
        int braked = n > 1; /* the first of all opens what the devices need of each other */
        CHECK_OK(tb__gpu_enter(second, &scope));
        if (braked) {
            gpu_brake_put(&brake, second, NULL);
        }
        gpu_fill(&tensors[1], n, NULL);
        CHECK_OK(tb_pool_write_on(pool, &tensors[1], NULL, TB_SECONDS(5), NULL));
        CHECK_OK(tb_copy_on(&tensors[0], &tensors[1], NULL));
        gpu_fill(&tensors[1], n + 100, NULL); /* behind both copies */
        tb__gpu_leave(&scope);
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        if (braked) {
            CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
            CHECK_STATUS(tb__stream_query(NULL, first), TB_AGAIN);
            gpu_brake_off(&brake);
        }
        CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 5000);
        gpu_check(tb_frame_tensor(frame), n);
        gpu_check(&tensors[0], n);
        gpu_check(&tensors[1], n + 100);
        tb_frame_release(frame);
    }
    tb_bus_close(bus);
    for (int i = 0; i < 2; i++) {
        tb_memory_free(memory[i]);
    }
    tb__copy_trim();
    gpu_brake_end(&brake);
}

/* A frame of the other device that is written on into a pool of our own on this one, as it is and
 * in rows: directly, whatever context is current. */
static void frames_are_written_on_into_a_pool_on_the_other_device(void)
{
    struct producer producer = {.words = FRAME_WORDS};
    struct consumer consumer;
    gpu_machine("devices=2;peer=0-1");
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    const struct tb__gpu *second = gpu_second();
    const struct tb__gpu *const currents[] = {consumer.gpu, second};
    tb_cuda_stream streams[] = {NULL, consumer.stream, gpu_stream_on(second)};
    tb_pool *pool = gpu_register(consumer.bus, "copies", TB_CUDA(1), FRAME_WORDS / 2, 4);
    tb_reader *reader = gpu_open_reader(consumer.bus, "consumer/copies", 0);
    const int64_t strides[] = {2};
    int can;
    CHECK_OK(tb__gpu_peer(second, consumer.gpu, &can));
    unsigned long staged = gpu_fake() != NULL ? gpu_fake()->calls("cuMemcpyDtoHAsync_v2") : 0;
    uint32_t n = 0;
    for (int current = 0; current < 2; current++) {
        for (int stream = 0; stream < 4; stream++) { /* 3: the driver's own waiting copy */
            for (int rows = 0; rows < 2; rows++) {
                struct tb__gpu_scope scope;
                producer_must(&producer, DO_PUBLISH, 0, ++n);
                tb_frame *frame = consumer_next(&consumer, n);
                tb_tensor half = *tb_frame_tensor(frame);
                half.shape[0] /= 2;
                half.strides = rows ? strides : NULL;
                CHECK_OK(tb__gpu_enter(currents[current], &scope));
                CHECK_OK(tb_frame_wait_on(frame, streams[stream % 3]));
                gpu_synchronize(streams[stream % 3]);
                CHECK_OK(stream == 3
                             ? tb_pool_write(pool, &half, TB_SECONDS(5), NULL)
                             : tb_pool_write_on(pool, &half, streams[stream], TB_SECONDS(5), NULL));
                tb__gpu_leave(&scope);
                tb_frame *copy;
                CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &copy));
                if (can && gpu_fake() != NULL) {
                    CHECK_EQ(gpu_fake()->calls("cuMemcpyDtoHAsync_v2"), staged);
                }
                gpu_check(tb_frame_tensor(copy), n);
                staged = gpu_fake() != NULL ? gpu_fake()->calls("cuMemcpyDtoHAsync_v2") : 0;
                tb_frame_release(copy);
                tb_frame_release(frame);
            }
        }
    }
    consumer_end(&consumer);
    gpu_stream_end(streams[2]);
    tb__copy_trim();
    producer_end(&producer);
}

/* The default stream is the current device's, also where the copy is all between others. */
static void a_copy_of_another_device_is_in_the_current_device_s_default_order(void)
{
    gpu_machine("devices=2");
    const struct tb__gpu *first = gpu_begin(); /* is current */
    const struct tb__gpu *second = gpu_second();
    tb_cuda_stream stream = gpu_stream_on(second);
    uint32_t *words = gpu_pinned(WORDS * 4);
    tb_memory *memory[2];
    tb_tensor tensors[2];
    struct gpu_brake brake;
    gpu_brake_init(&brake);
    one_tensor_on_each(memory, tensors);
    tb_tensor host = tensors[1];
    host.data = words;
    host.device = TB_CPU;
    for (uint32_t n = 1; n <= 4; n++) {
        const struct tb__gpu *braked = n == 1 ? NULL : n % 2 == 0 ? first : second;
        uint32_t value = n;
        gpu_fill(&tensors[1], value, stream);
        gpu_synchronize(stream);
        if (braked != NULL) {
            gpu_brake_put(&brake, braked, NULL);
        }
        CHECK_OK(tb_copy_on(&host, &tensors[1], NULL));
        if (braked == first) { /* the copy has not begun */
            value += 100;
            gpu_fill(&tensors[1], value, stream);
            gpu_synchronize(stream);
        }
        if (braked != NULL) {
            CHECK_STATUS(tb__stream_query(NULL, first), TB_AGAIN);
            gpu_brake_off(&brake);
        }
        CHECK_OK(tb__stream_synchronize(NULL, first));
        CHECK_EQ(words[0], value);
        CHECK_EQ(words[WORDS - 1], value);
    }
    for (int i = 0; i < 2; i++) {
        tb_memory_free(memory[i]);
    }
    gpu_pinned_end(words);
    gpu_stream_end(stream);
    gpu_brake_end(&brake);
    tb__copy_trim();
}

static const struct test tests[] = {
    TEST(copies_of_the_other_device_are_in_the_default_stream_s_order, 30),
    TEST(a_copy_between_two_devices_is_waited_for, 30),
    TEST(a_source_on_the_other_device_is_in_its_default_stream_s_order, 30),
    TEST(frames_are_written_on_into_a_pool_on_the_other_device, 60),
    TEST(a_copy_of_another_device_is_in_the_current_device_s_default_order, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

/* Pools in host memory that a GPU fills or reads, ordered on the GPU like those on one. */
#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 16)

struct host {
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_pool *pool;
    tb_cuda_stream stream;
    struct gpu_brake brake;
    tb_tensor device; /* uint32[WORDS] on the GPU */
};

static void host_begin(struct host *host, uint32_t slots, uint32_t pinned)
{
    uint64_t memory;
    host->gpu = gpu_begin();
    host->bus = gpu_open_bus("producer");
    tb_pool_options options = gpu_words_options("frames", TB_CPU, WORDS, slots);
    options.pinned = pinned;
    CHECK_OK(tb_pool_register(host->bus, &options, &host->pool));
    host->stream = gpu_stream();
    gpu_brake_init(&host->brake);
    CHECK_CUDA(tb__cuda()->mem_alloc(&memory, WORDS * 4));
    host->device = gpu_words((void *)(uintptr_t)memory, TB_CUDA(0), WORDS);
}

static void host_end(struct host *host)
{
    tb_bus_close(host->bus);
    gpu_brake_off(&host->brake);
    gpu_stream_end(host->stream);
    gpu_brake_end(&host->brake);
    CHECK_CUDA(tb__cuda()->mem_free((uint64_t)(uintptr_t)host->device.data));
}

static void check_words(const tb_frame *frame, uint32_t value)
{
    const tb_tensor *tensor = tb_frame_tensor(frame);
    const uint32_t *words = tensor->data;
    CHECK_EQ(tensor->device, TB_CPU);
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        CHECK_EQ(words[i], value);
    }
}

/* ------------------------------------------------------------------ a GPU writes */

/* Reads in a process of its own, by its CPU: what it sees is complete. */
static void cpu_consumer(void *argument)
{
    const unsigned long *frames = argument;
    tb_bus *bus = gpu_open_bus("consumer");
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 0);
    uint64_t newest = 0;
    parent_reached("attached");
    while (newest < *frames) {
        tb_frame *frame;
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
        CHECK_LT(newest, gpu_info(frame).sequence);
        newest = gpu_info(frame).sequence;
        CHECK_EQ(gpu_info(frame).copies, 1);
        check_words(frame, (uint32_t)newest);
        tb_frame_release(frame);
    }
    tb_bus_close(bus);
}

static void a_gpu_writes_frames_that_a_cpu_reads(void)
{
    unsigned long frames = harness_scale(100, 3000);
    struct child child;
    struct host host;
    child_start(&child, "consumer", cpu_consumer, &frames);
    host_begin(&host, 4, 0);
    child_await(&child, "attached");
    for (uint32_t n = 1; n <= frames; n++) {
        gpu_fill(&host.device, n, host.stream);
        CHECK_OK(tb_pool_write_on(host.pool, &host.device, host.stream, TB_SECONDS(20), NULL));
    }
    gpu_synchronize(host.stream);
    child_join(&child);
    CHECK_WITHIN_MS(gpu_pool_stats(host.pool).frames == frames, 2000);
    CHECK_EQ(gpu_pool_stats(host.pool).copies, frames);
    host_end(&host);
}

/* Nothing is seen before the copy is done. */
static void a_frame_on_its_way_to_the_host_is_pending(void)
{
    struct host host;
    tb_frame *frame;
    tb_frame *pending;
    host_begin(&host, 3, 1);
    tb_reader *plain = gpu_open_reader(host.bus, "producer/frames", 0);
    tb_reader *ordered = gpu_open_reader(host.bus, "producer/frames", 1);
    gpu_brake_put(&host.brake, host.gpu, host.stream);
    gpu_fill(&host.device, 12, host.stream);
    CHECK_OK(tb_pool_write_on(host.pool, &host.device, host.stream, TB_POLL, NULL));
    CHECK_STATUS(tb_reader_next(plain, TB_MILLIS(20), &frame), TB_AGAIN);
    CHECK_OK(tb_reader_next(ordered, TB_POLL, &pending));
    CHECK_STATUS(tb_frame_poll(pending), TB_AGAIN);
    gpu_brake_off(&host.brake);
    CHECK_OK(tb_reader_next(plain, TB_SECONDS(5), &frame));
    check_words(frame, 12);
    CHECK_OK(tb_frame_poll(pending));
    check_words(pending, 12);
    tb_frame_release(frame);
    tb_frame_release(pending);
    host_end(&host);
}

/* The user's own copies, into a loan. */
static void a_loan_in_host_memory_is_published_on_a_stream(void)
{
    struct host host;
    host_begin(&host, 2, 1);
    tb_reader *plain = gpu_open_reader(host.bus, "producer/frames", 0);
    for (uint32_t n = 1; n <= 10; n++) {
        tb_loan *loan;
        tb_frame *frame;
        CHECK_OK(tb_pool_loan(host.pool, TB_SECONDS(5), &loan));
        gpu_fill(&host.device, n, host.stream);
        CHECK_CUDA(tb__cuda()->memcpy_dtoh_async(tb_loan_tensor(loan)->data,
                                                 (uint64_t)(uintptr_t)host.device.data, WORDS * 4,
                                                 (tb__stream)host.stream));
        CHECK_OK(tb_loan_publish_on(loan, host.stream, NULL));
        CHECK_OK(tb_reader_next(plain, TB_SECONDS(5), &frame));
        check_words(frame, n);
        CHECK_EQ(gpu_info(frame).copies, 0); /* none of ours */
        tb_frame_release(frame);
    }
    CHECK_EQ(gpu_pool_stats(host.pool).copied_bytes, 0);
    host_end(&host);
}

static void a_frame_of_varying_shape_is_written_on_a_stream(void)
{
    struct host host;
    tb_pool *pools[2];
    host_begin(&host, 2, 0);
    for (int i = 0; i < 2; i++) {
        tb_pool_options options = gpu_words_options(i == 0 ? "varying-host" : "varying-device",
                                                    i == 0 ? TB_CPU : TB_CUDA(0), 8, 3);
        options.capacity_bytes = WORDS * 4;
        CHECK_OK(tb_pool_register(host.bus, &options, &pools[i]));
    }
    gpu_fill(&host.device, 99, host.stream);
    for (int i = 0; i < 2; i++) {
        tb_reader *reader = gpu_open_reader(
            host.bus, i == 0 ? "producer/varying-host" : "producer/varying-device", 1);
        for (int64_t rows = 1; rows <= 64; rows *= 4) {
            tb_frame *frame;
            tb_tensor tensor = host.device;
            tensor.ndim = 2;
            tensor.shape[0] = rows;
            tensor.shape[1] = 100;
            gpu_brake_put(&host.brake, host.gpu, host.stream);
            CHECK_OK(tb_pool_write_on(pools[i], &tensor, host.stream, TB_SECONDS(5), NULL));
            CHECK_OK(tb_reader_next(reader, TB_POLL, &frame)); /* its shape is known at once */
            CHECK_EQ(tb_frame_tensor(frame)->ndim, 2);
            CHECK_EQ(tb_frame_tensor(frame)->shape[0], rows);
            CHECK_EQ(tb_frame_tensor(frame)->shape[1], 100);
            gpu_brake_off(&host.brake);
            CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 2000);
            gpu_check(tb_frame_tensor(frame), 99);
            tb_frame_release(frame);
        }
    }
    host_end(&host);
}

/* ------------------------------------------------------------------ a GPU reads */

static void publish_by_cpu(tb_pool *pool, uint32_t value)
{
    tb_loan *loan;
    CHECK_OK(tb_pool_loan(pool, TB_SECONDS(5), &loan));
    uint32_t *words = tb_loan_tensor(loan)->data;
    for (int64_t i = 0; i < WORDS; i++) {
        words[i] = value;
    }
    CHECK_OK(tb_loan_publish(loan, NULL));
}

/* Frames of the CPU, copied to the GPU behind their completion; the slot is kept that long. */
static void a_stream_reads_frames_of_the_host(void)
{
    struct host host;
    tb_frame *frame;
    tb_loan *loan;
    host_begin(&host, 2, 0);
    tb_reader *ordered = gpu_open_reader(host.bus, "producer/frames", 1);
    for (uint32_t n = 1; n <= 24; n += 2) {
        publish_by_cpu(host.pool, n);
        CHECK_OK(tb_reader_newest(ordered, TB_POLL, &frame));
        gpu_brake_put(&host.brake, host.gpu, host.stream);
        CHECK_OK(tb_frame_copy_on(frame, &host.device, host.stream));
        CHECK_OK(tb_frame_release_on(frame, host.stream));
        publish_by_cpu(host.pool, n + 1); /* the other slot, and now the newest */
        CHECK_STATUS(tb_pool_loan(host.pool, TB_MILLIS(3), &loan), TB_AGAIN);
        gpu_brake_off(&host.brake);
        CHECK_OK(tb_pool_loan(host.pool, TB_SECONDS(5), &loan));
        gpu_synchronize(host.stream);
        gpu_check(&host.device, n);
        tb_loan_cancel(loan);
    }
    host_end(&host);
}

/* A mismatch is told before anything is enqueued, and the frame stays the caller's. */
static void a_copy_that_does_not_fit_is_refused(void)
{
    struct host host;
    tb_frame *frame;
    host_begin(&host, 2, 0);
    tb_reader *reader = gpu_open_reader(host.bus, "producer/frames", 1);
    gpu_fill(&host.device, 1, host.stream);
    CHECK_OK(tb_pool_write_on(host.pool, &host.device, host.stream, TB_POLL, NULL));
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &frame));
    tb_tensor wrong[3] = {host.device, host.device, host.device};
    wrong[0].shape[0] = WORDS / 2;
    wrong[1].dtype = TB_I32;
    wrong[2].ndim = 2;
    wrong[2].shape[1] = 1;
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(tb_frame_copy_on(frame, &wrong[i], host.stream), TB_E_MISMATCH);
        CHECK_HAS(tb_last_error_text(), "uint32[65536]");
        CHECK_STATUS(tb_copy_on(&wrong[i], &host.device, host.stream), TB_E_MISMATCH);
    }
    CHECK_STATUS(tb_frame_copy_on(NULL, &wrong[0], host.stream), TB_E_INVALID);
    CHECK_STATUS(tb_frame_copy_on(frame, NULL, host.stream), TB_E_INVALID);
    CHECK_OK(tb_frame_copy_on(frame, &host.device, host.stream));
    CHECK_OK(tb_frame_release_on(frame, host.stream));
    host_end(&host);
}

/* A frame of a GPU into the host's memory, pageable and page-locked, while it is pending. */
static void a_pending_frame_is_copied_to_the_host(void)
{
    struct producer producer = {.words = WORDS};
    struct consumer consumer;
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    uint32_t *pinned = gpu_pinned(WORDS * 4);
    const tb_tensor destination = gpu_words(pinned, TB_CPU, WORDS);
    for (uint32_t n = 1; n <= 5; n++) {
        producer_must(&producer, DO_BRAKE, 0, 0);
        producer_must(&producer, DO_PUBLISH, 0, n);
        tb_frame *frame = consumer_next(&consumer, n);
        CHECK_OK(tb_frame_copy_on(frame, &destination, consumer.stream));
        CHECK_OK(tb_frame_release_on(frame, consumer.stream));
        CHECK_EQ(gpu_is_idle(consumer.stream), 0);
        producer_must(&producer, DO_RELEASE, 0, 0);
        gpu_synchronize(consumer.stream);
        CHECK_EQ(pinned[0], n);
        CHECK_EQ(pinned[WORDS - 1], n);
    }
    uint32_t *pageable = malloc(WORDS * 4);
    const tb_tensor slow = gpu_words(pageable, TB_CPU, WORDS);
    producer_must(&producer, DO_PUBLISH, 0, 6);
    tb_frame *frame = consumer_next(&consumer, 6);
    CHECK_OK(tb_frame_copy_on(frame, &slow, consumer.stream));
    CHECK_OK(tb_frame_release_on(frame, consumer.stream));
    gpu_synchronize(consumer.stream);
    CHECK_EQ(pageable[0], 6);
    CHECK_EQ(pageable[WORDS - 1], 6);
    free(pageable);
    gpu_pinned_end(pinned);
    consumer_end(&consumer);
    producer_end(&producer);
}

static unsigned long registrations(void)
{
    return gpu_fake()->calls("cuMemHostRegister_v2");
}

/* A frame of the host is a tensor like any other for a write, and its memory, which this process
 * has mapped for good, is registered whole, once: a reader's, or that of a pool of one's own. */
static void a_frame_that_is_written_to_a_gpu_is_registered_once(void)
{
    struct host host;
    tb_frame *frame, *copied;
    gpu_need_fake();
    host_begin(&host, 3, 0);
    tb_pool *device = gpu_register(host.bus, "device", TB_CUDA(0), WORDS, 3);
    tb_reader *plain = gpu_open_reader(host.bus, "producer/frames", 0);
    tb_reader *seen = gpu_open_reader(host.bus, "producer/device", 1);
    tb_loan *loan;
    uint32_t *foreign = calloc(1, WORDS * 4);
    /* Words that streams write are registered, too: with the first frame of all. */
    gpu_fill(&host.device, 0, host.stream);
    CHECK_OK(tb_pool_write_on(device, &host.device, host.stream, TB_SECONDS(5), NULL));
    CHECK_OK(tb_reader_next(seen, TB_SECONDS(5), &copied));
    CHECK_OK(tb_frame_wait_on(copied, host.stream));
    CHECK_OK(tb_frame_release_on(copied, host.stream));
    unsigned long before = registrations();
    for (uint32_t n = 1; n <= 6; n++) {
        publish_by_cpu(host.pool, n);
        CHECK_OK(tb_reader_newest(plain, TB_POLL, &frame));
        if (n % 2 == 1) {
            CHECK_OK(
                tb_pool_write_on(device, tb_frame_tensor(frame), host.stream, TB_SECONDS(5), NULL));
        } else {
            CHECK_OK(tb_pool_write(device, tb_frame_tensor(frame), TB_SECONDS(5), NULL));
        }
        CHECK_EQ(registrations(), before + 1);
        gpu_synchronize(host.stream);
        tb_frame_release(frame);
        CHECK_OK(tb_reader_newest(seen, TB_SECONDS(5), &copied));
        CHECK_OK(tb_frame_copy_on(copied, &host.device, host.stream));
        CHECK_OK(tb_frame_release_on(copied, host.stream));
        gpu_synchronize(host.stream);
        gpu_check(&host.device, n);
    }
    CHECK_OK(tb_pool_loan(host.pool, TB_SECONDS(5), &loan));
    memset(tb_loan_tensor(loan)->data, 7, WORDS * 4);
    before = registrations();
    CHECK_OK(tb_pool_write(device, tb_loan_tensor(loan), TB_SECONDS(5), NULL));
    CHECK_EQ(registrations(), before + 1); /* the owner's own mapping */
    CHECK_OK(tb_pool_write(device, tb_loan_tensor(loan), TB_SECONDS(5), NULL));
    CHECK_EQ(registrations(), before + 1);
    tb_loan_cancel(loan);
    const tb_tensor other = gpu_words(foreign, TB_CPU, WORDS);
    CHECK_OK(tb_pool_write(device, &other, TB_SECONDS(5), NULL));
    free(foreign);
    host_end(&host);
}

/* G17: nothing adopts memory of these kinds; what is written from it is a copy, and right. */
static void G17_memory_that_cannot_be_exported_is_copied(void)
{
    struct host host;
    uint64_t managed;
    tb_frame *frame;
    host_begin(&host, 3, 0);
    tb_pool *device = gpu_register(host.bus, "device", TB_CUDA(0), WORDS, 3);
    tb_reader *readers[2] = {gpu_open_reader(host.bus, "producer/frames", 1),
                             gpu_open_reader(host.bus, "producer/device", 1)};
    if (!host.gpu->managed) {
        harness_skip("the device has no managed memory");
    }
    CHECK_CUDA(tb__cuda()->mem_alloc_managed(&managed, WORDS * 4, 1 /* global */));
    const tb_tensor tensor = gpu_words((void *)(uintptr_t)managed, TB_CUDA(0), WORDS);
    gpu_fill(&tensor, 17, host.stream);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(
            tb_pool_write_on(i == 0 ? host.pool : device, &tensor, host.stream, TB_POLL, NULL));
        CHECK_OK(tb_reader_next(readers[i], TB_SECONDS(5), &frame));
        CHECK_EQ(gpu_info(frame).copies, 1);
        CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 2000);
        gpu_check(tb_frame_tensor(frame), 17);
        tb_frame_release(frame);
    }
    gpu_synchronize(host.stream);
    CHECK_CUDA(tb__cuda()->mem_free(managed));
    host_end(&host);
}

static const struct test tests[] = {
    TEST(a_gpu_writes_frames_that_a_cpu_reads, 120),
    TEST(a_frame_on_its_way_to_the_host_is_pending, 30),
    TEST(a_loan_in_host_memory_is_published_on_a_stream, 30),
    TEST(a_frame_of_varying_shape_is_written_on_a_stream, 30),
    TEST(a_stream_reads_frames_of_the_host, 30),
    TEST(a_copy_that_does_not_fit_is_refused, 30),
    TEST(a_pending_frame_is_copied_to_the_host, 30),
    TEST(a_frame_that_is_written_to_a_gpu_is_registered_once, 30),
    TEST(G17_memory_that_cannot_be_exported_is_copied, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

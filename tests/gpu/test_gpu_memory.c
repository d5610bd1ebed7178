/* A GPU's memory between processes: G05, G07, G09, G11, G13, G14. */
#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 16)

/* ------------------------------------------------------------------ G05 */

struct rounds {
    unsigned long count;
    int64_t words;
};

/* Registers and frees a pool as often as it is told to. */
static void registering(void *argument)
{
    const struct rounds *rounds = argument;
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_cuda_stream stream = gpu_stream();
    parent_reached("ready");
    for (unsigned long i = 0; i < rounds->count; i++) {
        tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), rounds->words, 2);
        gpu_publish(pool, (uint32_t)i, stream, NULL);
        parent_pause("registered");
        tb_pool_close(pool);
        parent_reached("closed");
    }
    tb_bus_close(bus);
    gpu_stream_end(stream);
}

static void consume_once(void *argument)
{
    tb_frame *frame;
    const uint32_t *value = argument;
    gpu_begin();
    tb_bus *bus = gpu_open_bus(NULL);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_cuda_stream stream = gpu_stream();
    struct gpu_seen seen;
    gpu_seen_init(&seen);
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
    CHECK_OK(tb_frame_wait_on(frame, stream));
    gpu_look_on(frame, stream, &seen);
    gpu_synchronize(stream);
    gpu_check_seen(&seen, *value);
    parent_pause("holds");
    CHECK_OK(tb_frame_release_on(frame, stream));
    gpu_stream_end(stream);
    gpu_seen_end(&seen);
    tb_bus_close(bus);
}

static void tell_free_memory(void *argument)
{
    (void)argument;
    uint64_t free_mib = gpu_free_mib(gpu_begin());
    parent_tell(&free_mib, sizeof free_mib);
}

/* What a process that has just come sees. */
static uint64_t free_memory_mib(void)
{
    struct child child;
    uint64_t free_mib;
    child_start(&child, "measure", tell_free_memory, NULL);
    child_hear(&child, &free_mib, sizeof free_mib);
    child_join(&child);
    return free_mib;
}

static void register_with_a_consumer_each_time(unsigned long count, int64_t words, int kill)
{
    struct rounds rounds = {count, words};
    struct child producer;
    uint64_t free_before = 0;
    child_start(&producer, "producer", registering, &rounds);
    child_await(&producer, "ready");
    for (uint32_t i = 0; i < count; i++) {
        struct child consumer;
        child_await(&producer, "registered");
        child_start(&consumer, "consumer", consume_once, &i);
        child_await(&consumer, "holds");
        if (kill) {
            child_kill(&consumer);
        } else {
            child_go(&consumer);
            child_join(&consumer);
        }
        child_go(&producer);
        child_await(&producer, "closed");
        free_before = i == 1 ? free_memory_mib() : free_before; /* warm by now */
    }
    CHECK_LE(free_before, free_memory_mib() + 64);
    child_join(&producer); /* which leaves nothing with its driver */
}

static void G05_pools_come_and_go_with_a_consumer_each_time(void)
{
    register_with_a_consumer_each_time(harness_scale(8, 500),
                                       harness_full() ? (int64_t)128 << 20 : WORDS, 0);
}

static void G05_pools_come_and_go_with_a_consumer_killed_each_time(void)
{
    register_with_a_consumer_each_time(harness_scale(8, 500),
                                       harness_full() ? (int64_t)128 << 20 : WORDS, 1);
}

/* The same within two processes that live on: the device's memory is counted. */
static void G05_device_memory_is_as_before(void)
{
    struct rounds rounds = {harness_scale(20, 500), harness_full() ? (int64_t)128 << 20 : WORDS};
    struct child producer;
    child_start(&producer, "producer", registering, &rounds);
    const struct tb__gpu *gpu = gpu_begin();
    child_await(&producer, "ready");
    tb_bus *bus = gpu_open_bus("consumer");
    tb_cuda_stream stream = gpu_stream();
    struct gpu_seen seen;
    gpu_seen_init(&seen);
    uint64_t before = 0;
    for (uint32_t i = 0; i < rounds.count; i++) {
        tb_frame *frame;
        child_await(&producer, "registered");
        tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
        CHECK_OK(tb_frame_wait_on(frame, stream));
        gpu_look_on(frame, stream, &seen);
        CHECK_OK(tb_frame_release_on(frame, stream));
        tb_reader_close(reader);
        gpu_synchronize(stream);
        gpu_check_seen(&seen, i);
        child_go(&producer);
        child_await(&producer, "closed");
        before = i == 2 ? gpu_free_mib(gpu) : before; /* warm by now */
    }
    CHECK_LE(before, gpu_free_mib(gpu) + 64); /* a driver keeps a little */
    tb_bus_close(bus);
    gpu_stream_end(stream);
    gpu_seen_end(&seen);
    child_join(&producer);
}

/* ------------------------------------------------------------------ G07 */

static void vandal(void *argument)
{
    tb_frame *frame;
    (void)argument;
    gpu_need(); /* its context may break */
    tb_bus *bus = gpu_open_bus("vandal");
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_cuda_stream stream = gpu_stream();
    parent_pause("attached");
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
    CHECK_OK(tb_frame_wait_on(frame, stream));
    gpu_synchronize(stream);
    uint64_t data = (uint64_t)(uintptr_t)tb_frame_tensor(frame)->data;
    int refused = gpu_fill_call()(data, 666, 1024, stream) != 0;
    refused = tb__cuda()->stream_synchronize((tb__stream)stream) != 0 || refused;
    CHECK(refused);
    parent_reached("refused");
    _exit(0); /* with whatever is left of its context */
}

static void G07_a_write_through_a_readers_mapping_is_refused(void)
{
    struct producer producer = {0};
    struct consumer consumer;
    struct child child;
    producer_start(&producer);
    child_start(&child, "vandal", vandal, NULL);
    consumer_begin(&consumer, &producer);
    child_await(&child, "attached");
    producer_must(&producer, DO_PUBLISH, 0, 70);
    tb_frame *frame = consumer_next(&consumer, 1);
    CHECK_OK(tb_frame_wait_on(frame, consumer.stream));
    child_go(&child);
    child_await(&child, "refused");
    child_join(&child);
    harness_allow_sockets();
    gpu_look_on(frame, consumer.stream, &consumer.seen);
    consumer_saw(&consumer, 70);
    CHECK_OK(tb_frame_release_on(frame, consumer.stream));
    for (uint32_t n = 2; n <= 8; n++) { /* nobody else notices */
        producer_must(&producer, DO_PUBLISH, 0, 70 + n);
        consumer_use(&consumer, consumer_next(&consumer, n));
        consumer_saw(&consumer, 70 + n);
    }
    consumer_end(&consumer);
    producer_end(&producer);
}

/* ------------------------------------------------------------------ G09 */

static const tb_dtype dtypes[] = {TB_BF16,
                                  TB_F16,
                                  TB_U16,
                                  TB_BOOL,
                                  TB_C64,
                                  TB_DTYPE(TB_CODE_FLOAT8_E4M3FN, 8, 1),
                                  TB_DTYPE(TB_CODE_FLOAT8_E5M2, 8, 1),
                                  TB_I64,
                                  TB_F64};
#define DTYPES (sizeof dtypes / sizeof dtypes[0])
#define ELEMENTS 1000

static void fill_bits(uint8_t *bytes, size_t count, size_t seed)
{
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(i * 37 + (i >> 7) + seed * 11);
    }
}

static void typed_producer(void *argument)
{
    (void)argument;
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_cuda_stream stream = gpu_stream();
    for (size_t d = 0; d < DTYPES; d++) {
        char name[16];
        tb_pool *pool;
        snprintf(name, sizeof name, "type-%zu", d);
        tb_pool_options options = {.size = sizeof options,
                                   .name = name,
                                   .dtype = dtypes[d],
                                   .ndim = 2,
                                   .shape = {4, ELEMENTS / 4},
                                   .device = TB_CUDA(0),
                                   .slots = 2};
        CHECK_OK(tb_pool_register(bus, &options, &pool));
        tb_tensor tensor = {
            .device = TB_CPU, .dtype = dtypes[d], .ndim = 2, .shape = {4, ELEMENTS / 4}};
        size_t bytes;
        CHECK_OK(tb_tensor_bytes(&tensor, &bytes));
        uint8_t *bits = malloc(bytes);
        tensor.data = bits;
        fill_bits(bits, bytes, d);
        CHECK_OK(tb_pool_write(pool, &tensor, TB_POLL, NULL));
        free(bits);
    }
    parent_pause("written");
    tb_bus_close(bus);
    gpu_stream_end(stream);
}

static void G09_dtypes_and_bits_arrive_unchanged(void)
{
    struct child producer;
    child_start(&producer, "producer", typed_producer, NULL);
    gpu_begin();
    child_await(&producer, "written");
    tb_bus *bus = gpu_open_bus("consumer");
    for (size_t d = 0; d < DTYPES; d++) {
        char path[32];
        tb_frame *frame;
        snprintf(path, sizeof path, "producer/type-%zu", d);
        tb_reader *reader = gpu_open_reader(bus, path, d % 2);
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &frame));
        tb_tensor copy = *tb_frame_tensor(frame);
        CHECK_EQ(copy.dtype, dtypes[d]);
        CHECK_EQ(copy.device, TB_CUDA(0));
        CHECK_EQ(copy.ndim, 2);
        CHECK_EQ(copy.shape[1], ELEMENTS / 4);
        size_t bytes;
        CHECK_OK(tb_tensor_bytes(&copy, &bytes));
        uint8_t *got = malloc(bytes);
        uint8_t *right = malloc(bytes);
        copy.device = TB_CPU;
        copy.data = got;
        CHECK_OK(tb_copy(&copy, tb_frame_tensor(frame)));
        fill_bits(right, bytes, d);
        CHECK_EQ(memcmp(got, right, bytes), 0);
        free(got);
        free(right);
        tb_frame_release(frame);
    }
    tb_bus_close(bus);
    child_go(&producer);
    child_join(&producer);
}

/* ------------------------------------------------------------------ G11 */

/* One process, one bus or two: its own pool is the pointer that it has. */
static void read_own_pool(int two_buses)
{
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_bus *other = two_buses ? gpu_open_bus("consumer") : bus;
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, 3);
    tb_cuda_stream stream = gpu_stream();
    tb_cuda_stream reading = gpu_stream();
    struct gpu_seen seen;
    unsigned long imports =
        gpu_fake() != NULL ? gpu_fake()->calls("cuMemImportFromShareableHandle") : 0;
    gpu_seen_init(&seen);
    tb_reader *ordered = gpu_open_reader(other, "producer/frames", 1);
    tb_reader *plain = gpu_open_reader(other, "producer/frames", 0);
    for (uint32_t n = 1; n <= 9; n++) {
        tb_frame *frame;
        tb_loan *loan;
        CHECK_OK(tb_pool_loan(pool, TB_SECONDS(5), &loan));
        const void *data = tb_loan_tensor(loan)->data;
        gpu_fill(tb_loan_tensor(loan), n, stream);
        tb_handle handle;
        CHECK_OK(tb_loan_publish_on(loan, stream, &handle));
        CHECK_OK(tb_reader_next(ordered, TB_POLL, &frame));
        CHECK(tb_frame_tensor(frame)->data == data);
        CHECK_OK(tb_frame_wait_on(frame, reading));
        gpu_look_on(frame, reading, &seen);
        CHECK_OK(tb_frame_release_on(frame, reading));
        gpu_synchronize(reading);
        gpu_check_seen(&seen, n);
        CHECK_OK(tb_reader_next(plain, TB_SECONDS(5), &frame));
        CHECK(tb_frame_tensor(frame)->data == data);
        tb_frame_release(frame);
        CHECK_OK(tb_frame_open(other, &handle, 0, &frame));
        CHECK(tb_frame_tensor(frame)->data == data);
        tb_frame_release(frame);
    }
    if (gpu_fake() != NULL) {
        CHECK_EQ(gpu_fake()->calls("cuMemImportFromShareableHandle"), imports);
    }
    if (two_buses) {
        tb_bus_close(other);
    }
    tb_bus_close(bus);
    gpu_stream_end(stream);
    gpu_stream_end(reading);
    gpu_seen_end(&seen);
}

static void G11_a_process_reads_its_own_pool_by_its_own_pointer(void)
{
    read_own_pool(0);
}

static void G11_two_buses_of_one_process_share_the_pointer(void)
{
    read_own_pool(1);
}

/* The owner's bus goes first: the reader's frame stays. */
static void G11_the_memory_stays_for_the_other_bus(void)
{
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_bus *other = gpu_open_bus("consumer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, 3);
    tb_cuda_stream stream = gpu_stream();
    tb_reader *reader = gpu_open_reader(other, "producer/frames", 1);
    tb_frame *frame;
    gpu_publish(pool, 77, stream, NULL);
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    tb_bus_close(bus);
    CHECK_OK(tb_frame_poll(frame));
    gpu_check(tb_frame_tensor(frame), 77);
    CHECK_OK(tb_frame_release_on(frame, stream));
    CHECK_STATUS(tb_reader_next(reader, TB_SECONDS(5), &frame), TB_CLOSED);
    tb_bus_close(other);
    gpu_stream_end(stream);
}

/* ------------------------------------------------------------------ G13 */

static unsigned long address_space_mib(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long pages = 0;
    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages >> 8;
}

static void G13_imports_of_short_lived_pools_stay_bounded(void)
{
    struct rounds rounds = {harness_scale(120, 10000), WORDS};
    struct child producer;
    unsigned fds = 0;
    unsigned long space_mib = 0;
    child_start(&producer, "producer", registering, &rounds);
    gpu_begin();
    child_await(&producer, "ready");
    tb_bus *bus = gpu_open_bus("consumer");
    for (uint32_t i = 0; i < rounds.count; i++) {
        tb_frame *frame;
        child_await(&producer, "registered");
        if (i == rounds.count / 4) { /* warm by now */
            fds = harness_fd_count();
            space_mib = address_space_mib();
        }
        tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
        tb_reader_close(i % 2 ? reader : NULL); /* the half of them by its end, the other ... */
        child_go(&producer);
        child_await(&producer, "closed");
        tb_reader_close(i % 2 ? NULL : reader); /* ... after its owner's */
    }
    CHECK_LE(harness_fd_count(), fds + 2);
    CHECK_LE(address_space_mib(), space_mib + 128);
    tb_bus_close(bus);
    child_join(&producer);
}

/* ------------------------------------------------------------------ G14 */

/* A slice that begins 1,000,000 bytes into an allocation, written with a copy. */
static void G14_a_slice_of_an_allocation_arrives_as_that_slice(void)
{
    enum { OFFSET = 1000000, BYTES = 4 << 20, COUNT = 100000 };
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), COUNT, 2);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_cuda_stream stream = gpu_stream();
    uint64_t memory;
    tb_frame *frame;
    uint32_t *words = malloc(BYTES);
    uint32_t *got = malloc(COUNT * 4);
    for (uint32_t i = 0; i < BYTES / 4; i++) {
        words[i] = i * 2654435761u;
    }
    CHECK_CUDA(tb__cuda()->mem_alloc(&memory, BYTES));
    tb_tensor all = gpu_words((void *)(uintptr_t)memory, TB_CUDA(0), BYTES / 4);
    tb_tensor host = all;
    host.data = words;
    host.device = TB_CPU;
    CHECK_OK(tb_copy(&all, &host));
    tb_tensor slice = all;
    slice.data = (uint8_t *)all.data + OFFSET;
    slice.shape[0] = COUNT;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(i == 0 ? tb_pool_write_on(pool, &slice, stream, TB_POLL, NULL)
                        : tb_pool_write(pool, &slice, TB_SECONDS(5), NULL));
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &frame));
        gpu_synchronize(stream);
        tb_tensor copy = gpu_words(got, TB_CPU, COUNT);
        CHECK_OK(tb_copy(&copy, tb_frame_tensor(frame)));
        CHECK_EQ(memcmp(got, &words[OFFSET / 4], COUNT * 4), 0);
        CHECK_EQ(gpu_info(frame).copies, 1);
        tb_frame_release(frame);
    }
    free(words);
    free(got);
    CHECK_CUDA(tb__cuda()->mem_free(memory));
    tb_bus_close(bus);
    gpu_stream_end(stream);
}

static const struct test tests[] = {
    TEST(G05_pools_come_and_go_with_a_consumer_each_time, 1200),
    TEST(G05_pools_come_and_go_with_a_consumer_killed_each_time, 1200),
    TEST(G05_device_memory_is_as_before, 1200),
    TEST(G07_a_write_through_a_readers_mapping_is_refused, 30),
    TEST(G09_dtypes_and_bits_arrive_unchanged, 30),
    TEST(G11_a_process_reads_its_own_pool_by_its_own_pointer, 30),
    TEST(G11_two_buses_of_one_process_share_the_pointer, 30),
    TEST(G11_the_memory_stays_for_the_other_bus, 30),
    TEST(G13_imports_of_short_lived_pools_stay_bounded, 1200),
    TEST(G14_a_slice_of_an_allocation_arrives_as_that_slice, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

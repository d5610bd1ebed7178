/* What a frame costs: calls of the driver, system calls, copies, wake-ups. */
#include <limits.h>
#include <time.h>

#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 16)
#define FRAMES 32

/* Driver calls that are allowed for one frame, contexts and queries included. */
#define PUBLISH_CALLS 14
#define PUBLISH_CALLS_CPU_READER 17
#define TAKE_CALLS 12

struct counted {
    tb_bus *bus;
    tb_pool *pool;
    tb_cuda_stream stream;
    tb_cuda_stream reading;
};

static void counted_begin(struct counted *counted, uint32_t slots)
{
    gpu_need_fake();
    gpu_begin();
    counted->bus = gpu_open_bus("producer");
    counted->pool = gpu_register(counted->bus, "frames", TB_CUDA(0), WORDS, slots);
    counted->stream = gpu_stream();
    counted->reading = gpu_stream();
}

static void counted_end(struct counted *counted)
{
    tb_bus_close(counted->bus);
    gpu_stream_end(counted->stream);
    gpu_stream_end(counted->reading);
}

static unsigned long calls_of_publish(struct counted *counted)
{
    tb_loan *loan;
    CHECK_OK(tb_pool_loan(counted->pool, TB_SECONDS(5), &loan));
    unsigned long before = gpu_fake()->calls(NULL);
    CHECK_OK(tb_loan_publish_on(loan, counted->stream, NULL));
    return gpu_fake()->calls(NULL) - before;
}

/* The watching thread asks the driver, too, while a frame is pending: the least of several counts.
 */
static unsigned long least(unsigned long a, unsigned long b)
{
    return a < b ? a : b;
}

static void check_most(const char *what, unsigned long calls, unsigned long most)
{
    fprintf(stderr, "%s: %lu driver calls\n", what, calls);
    if (calls > most) {
        FAIL("%s: %lu driver calls, at most %lu", what, calls, most);
    }
}

static void a_frame_for_an_ordered_reader_makes_few_driver_calls(void)
{
    struct counted counted;
    unsigned long publish = ULONG_MAX;
    unsigned long take = ULONG_MAX;
    struct gpu_brake brake;
    counted_begin(&counted, 4);
    tb_reader *reader = gpu_open_reader(counted.bus, "producer/frames", 1);
    const struct tb__gpu *gpu;
    CHECK_OK(tb__gpu_get(0, &gpu));
    gpu_brake_init(&brake);
    for (int i = 0; i < FRAMES; i++) {
        tb_frame *frame;
        gpu_brake_put(&brake, gpu, counted.stream);
        publish = least(publish, calls_of_publish(&counted));
        unsigned long before = gpu_fake()->calls(NULL);
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        CHECK_OK(tb_frame_wait_on(frame, counted.reading));
        CHECK_OK(tb_frame_release_on(frame, counted.reading));
        take = least(take, gpu_fake()->calls(NULL) - before);
        gpu_brake_off(&brake);
        gpu_synchronize(counted.reading);
    }
    check_most("publishing for a reader that is ordered on the GPU", publish, PUBLISH_CALLS);
    check_most("taking, waiting for and releasing a pending frame", take, TAKE_CALLS);
    CHECK_LT(0, take);
    counted_end(&counted);
    gpu_brake_end(&brake);
}

static void more_ordered_readers_cost_no_more_driver_calls(void)
{
    struct counted counted;
    unsigned long one = ULONG_MAX;
    unsigned long many = ULONG_MAX;
    counted_begin(&counted, 4);
    gpu_open_reader(counted.bus, "producer/frames", 1);
    for (int i = 0; i < FRAMES; i++) {
        one = least(one, calls_of_publish(&counted));
        gpu_synchronize(counted.stream);
    }
    for (int i = 0; i < 7; i++) {
        gpu_open_reader(counted.bus, "producer/frames", 1);
    }
    for (int i = 0; i < FRAMES; i++) {
        many = least(many, calls_of_publish(&counted));
        gpu_synchronize(counted.stream);
    }
    check_most("publishing for eight readers", many, one);
    counted_end(&counted);
}

static void a_frame_for_a_cpu_reader_makes_few_driver_calls(void)
{
    struct counted counted;
    unsigned long publish = ULONG_MAX;
    tb_frame *frame;
    counted_begin(&counted, 4);
    tb_reader *reader = gpu_open_reader(counted.bus, "producer/frames", 0);
    for (int i = 0; i < FRAMES; i++) {
        publish = least(publish, calls_of_publish(&counted));
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &frame));
        unsigned long before = gpu_fake()->calls(NULL);
        CHECK_OK(tb_frame_wait_on(frame, counted.reading));
        CHECK_OK(tb_frame_poll(frame));
        tb_frame_release(frame);
        CHECK_EQ(gpu_fake()->calls(NULL), before); /* it is complete */
    }
    check_most("publishing for a reader of the CPU", publish, PUBLISH_CALLS_CPU_READER);
    counted_end(&counted);
}

/* Nothing is mapped, registered, allocated or created for a frame. */
static void a_frame_takes_nothing_from_the_driver(void)
{
    static const char *const calls[] = {
        "cuMemHostRegister_v2", "cuMemAlloc_v2",
        "cuMemCreate",          "cuMemMap",
        "cuEventCreate",        "cuStreamCreate",
        "cuMemcpyDtoDAsync_v2", "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2", "cuMemcpyPeerAsync",
        "cuMemcpy2DAsync_v2",   "cuStreamSynchronize",
        "cuCtxSynchronize",     "cuEventSynchronize",
        "cuMemHostAlloc",
    };
    unsigned long before[sizeof calls / sizeof calls[0]];
    struct counted counted;
    tb_frame *frame;
    counted_begin(&counted, 4);
    tb_reader *readers[2] = {gpu_open_reader(counted.bus, "producer/frames", 1),
                             gpu_open_reader(counted.bus, "producer/frames", 0)};
    for (int round = 0; round < 4 * FRAMES; round++) {
        if (round == 3 * FRAMES) { /* warm by now */
            for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
                before[i] = gpu_fake()->calls(calls[i]);
            }
        }
        gpu_publish(counted.pool, (uint32_t)round, counted.stream, NULL);
        CHECK_OK(tb_reader_next(readers[0], TB_SECONDS(5), &frame));
        CHECK_EQ(gpu_info(frame).copies, 0);
        CHECK_EQ(gpu_info(frame).lane, TB_LANE_DIRECT);
        CHECK_OK(tb_frame_wait_on(frame, counted.reading));
        CHECK_OK(tb_frame_release_on(frame, counted.reading));
        CHECK_OK(tb_reader_next(readers[1], TB_SECONDS(5), &frame));
        tb_frame_release(frame);
    }
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (gpu_fake()->calls(calls[i]) != before[i]) {
            FAIL("%lu calls of %s for %d frames", gpu_fake()->calls(calls[i]) - before[i], calls[i],
                 FRAMES);
        }
    }
    CHECK_EQ(gpu_pool_stats(counted.pool).copies, 0);
    CHECK_EQ(gpu_pool_stats(counted.pool).copied_bytes, 0);
    counted_end(&counted);
}

/* ------------------------------------------------------------------ system calls */

/* Takes frames that are complete; with these no call of the driver is due, and none of the system.
 */
static void stepped_consumer(void *argument)
{
    const int *rounds = argument;
    tb_frame *frame;
    gpu_begin();
    tb_bus *bus = gpu_open_bus("consumer");
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_cuda_stream stream = gpu_stream();
    parent_pause("attached");
    steps_begin();
    for (int i = 0; i < *rounds; i++) {
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        CHECK_OK(tb_frame_wait_on(frame, stream));
        CHECK_OK(tb_frame_poll(frame));
        tb_frame_release(frame);
    }
    steps_end();
}

static unsigned long stops_of_consumer(int rounds)
{
    struct producer producer = {.slots = 8};
    struct child child;
    unsigned long stops = 0;
    producer_start(&producer);
    child_start(&child, "consumer", stepped_consumer, &rounds);
    producer_ready(&producer);
    child_await(&child, "attached");
    for (uint32_t n = 1; n <= 4; n++) {
        producer_must(&producer, DO_WRITE, 0, n);
    }
    child_go(&child);
    CHECK_EQ(child_kill_after_calls(&child, 10000, &stops), 0);
    producer_end(&producer);
    return stops;
}

static void taking_complete_frames_makes_no_system_call(void)
{
    /* The first frame of a thread asks for its id. */
    CHECK_EQ(stops_of_consumer(4), stops_of_consumer(1));
}

/* ------------------------------------------------------------------ time */

static int64_t thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Our part of the processor time per frame; the user's own launches do not count. */
static void G10_a_frame_costs_less_than_10_us_of_the_host(void)
{
    gpu_begin();
    if (gpu_fake() != NULL) {
        harness_skip("the fake driver's time tells nothing");
    }
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), (int64_t)16 << 20, 8);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_cuda_stream stream = gpu_stream();
    tb_cuda_stream reading = gpu_stream();
    int64_t publish_ns = 0;
    int64_t take_ns = 0;
    unsigned long frames = harness_scale(2000, 10000);
    for (uint32_t n = 1; n <= frames; n++) {
        tb_loan *loan;
        tb_frame *frame;
        CHECK_OK(tb_pool_loan(pool, TB_SECONDS(20), &loan)); /* may wait for the GPU */
        gpu_fill(tb_loan_tensor(loan), n, stream);
        int64_t before_ns = thread_cpu_ns();
        CHECK_OK(tb_loan_publish_on(loan, stream, NULL));
        publish_ns += thread_cpu_ns() - before_ns;
        before_ns = thread_cpu_ns();
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        CHECK_OK(tb_frame_wait_on(frame, reading));
        CHECK_OK(tb_frame_release_on(frame, reading));
        take_ns += thread_cpu_ns() - before_ns;
        if (n % 4 == 0) {
            gpu_synchronize(reading);
        }
    }
    fprintf(stderr, "publish %lld ns, take %lld ns per frame\n",
            (long long)(publish_ns / (int64_t)frames), (long long)(take_ns / (int64_t)frames));
    CHECK_LT(publish_ns / (int64_t)frames, 10000);
    CHECK_LT(take_ns / (int64_t)frames, 10000);
    tb_bus_close(bus);
    gpu_stream_end(stream);
    gpu_stream_end(reading);
}

static const struct test tests[] = {
    TEST(a_frame_for_an_ordered_reader_makes_few_driver_calls, 30),
    TEST(more_ordered_readers_cost_no_more_driver_calls, 30),
    TEST(a_frame_for_a_cpu_reader_makes_few_driver_calls, 30),
    TEST(a_frame_takes_nothing_from_the_driver, 30),
    TEST(taking_complete_frames_makes_no_system_call, 30),
    TEST(G10_a_frame_costs_less_than_10_us_of_the_host, 120),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

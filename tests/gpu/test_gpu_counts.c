/* What a frame costs: calls of the driver, system calls, copies, wake-ups. */
#include <limits.h>
#include <time.h>

#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 16)
#define FRAMES 32

/* Driver calls of one public call, contexts and queries included: which context the stream is of
 * and which one is current; then the event, the side stream's wait for it, the words that it
 * writes; for readers of the CPU a host function. */
#define PUBLISH_CALLS 5
#define PUBLISH_CALLS_CPU_READER 6
#define WAIT_CALLS 3

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

/* Driver calls of a piece of work, the least of several times: the watching thread may ask, too. */
#define CALLS(least, work)                                                                         \
    do {                                                                                           \
        unsigned long calls_before = gpu_fake()->calls(NULL);                                      \
        work;                                                                                      \
        unsigned long calls_made = gpu_fake()->calls(NULL) - calls_before;                         \
        (least) = calls_made < (least) ? calls_made : (least);                                     \
    } while (0)

static void check_calls(const char *what, unsigned long calls, unsigned long wanted)
{
    fprintf(stderr, "%s: %lu driver calls\n", what, calls);
    if (calls != wanted) {
        FAIL("%s: %lu driver calls, not %lu", what, calls, wanted);
    }
}

struct calls {
    unsigned long loan, publish, next, poll, wait, release;
};

static const struct calls many_calls = {ULONG_MAX, ULONG_MAX, ULONG_MAX,
                                        ULONG_MAX, ULONG_MAX, ULONG_MAX};

/* Frames that are pending when they are taken. */
static struct calls count_frames(struct counted *counted, tb_reader *reader, int frames)
{
    struct calls calls = many_calls;
    struct gpu_brake brake;
    const struct tb__gpu *gpu;
    CHECK_OK(tb__gpu_get(0, &gpu));
    gpu_brake_init(&brake);
    for (int i = 0; i < frames; i++) {
        tb_frame *frame;
        tb_loan *loan;
        tb_status polled = TB_OK;
        gpu_brake_put(&brake, gpu, counted->stream);
        CALLS(calls.loan, CHECK_OK(tb_pool_loan(counted->pool, TB_SECONDS(5), &loan)));
        CALLS(calls.publish, CHECK_OK(tb_loan_publish_on(loan, counted->stream, NULL)));
        CALLS(calls.next, CHECK_OK(tb_reader_next(reader, TB_POLL, &frame)));
        CALLS(calls.poll, polled = tb_frame_poll(frame));
        CHECK_EQ(polled, TB_AGAIN);
        CALLS(calls.wait, CHECK_OK(tb_frame_wait_on(frame, counted->reading)));
        CALLS(calls.release, CHECK_OK(tb_frame_release_on(frame, counted->reading)));
        gpu_brake_off(&brake);
        gpu_synchronize(counted->reading);
    }
    gpu_brake_end(&brake);
    return calls;
}

static void check_frames(const struct calls *calls, unsigned long publish, unsigned long of_stream)
{
    check_calls("tb_pool_loan()", calls->loan, 0);
    check_calls("tb_loan_publish_on()", calls->publish, publish);
    check_calls("tb_reader_next()", calls->next, 0);
    check_calls("tb_frame_poll()", calls->poll, 0);
    check_calls("tb_frame_wait_on()", calls->wait, of_stream);
    check_calls("tb_frame_release_on()", calls->release, of_stream);
}

static void a_frame_for_an_ordered_reader_makes_few_driver_calls(void)
{
    struct counted counted;
    counted_begin(&counted, 4);
    tb_reader *reader = gpu_open_reader(counted.bus, "producer/frames", 1);
    struct calls calls = count_frames(&counted, reader, FRAMES);
    check_frames(&calls, PUBLISH_CALLS, WAIT_CALLS);
    counted_end(&counted);
}

/* Default streams belong to the context that is current: its device is asked for instead. */
static void a_default_stream_makes_as_few_driver_calls(void)
{
    struct counted counted;
    counted_begin(&counted, 4);
    tb_cuda_stream own[2] = {counted.stream, counted.reading};
    tb_reader *reader = gpu_open_reader(counted.bus, "producer/frames", 1);
    counted.stream = (tb_cuda_stream)TB__STREAM_PER_THREAD;
    struct calls calls = count_frames(&counted, reader, FRAMES);
    check_frames(&calls, PUBLISH_CALLS, WAIT_CALLS);
    counted.stream = own[0];
    counted_end(&counted);
}

/* Streams of a context that the user has made for himself: a question more; and two to change over
 * where another context is current. */
typedef int context_create_function(tb__context *out, unsigned flags, int device);
typedef int context_destroy_function(tb__context context);

static void streams_of_the_users_own_context(void)
{
    struct counted counted;
    tb__context own, popped;
    tb__stream streams[2];
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    counted_begin(&counted, 4);
    tb_reader *reader = gpu_open_reader(counted.bus, "producer/frames", 1);
    tb_cuda_stream primary[2] = {counted.stream, counted.reading};
    CHECK_CUDA(((context_create_function *)dlsym(library, "cuCtxCreate_v2"))(&own, 0, 0));
    for (int i = 0; i < 2; i++) {
        CHECK_CUDA(tb__cuda()->stream_create(&streams[i], 1));
    }
    counted.stream = (tb_cuda_stream)streams[0];
    counted.reading = (tb_cuda_stream)streams[1];
    struct calls calls = count_frames(&counted, reader, FRAMES);
    check_frames(&calls, PUBLISH_CALLS + 1, WAIT_CALLS + 1);
    CHECK_CUDA(tb__cuda()->ctx_pop(&popped));
    calls = count_frames(&counted, reader, FRAMES);
    check_frames(&calls, PUBLISH_CALLS + 3, WAIT_CALLS + 3);
    /* Both kinds of streams in turn, for each slot: what is right for one is not for the other. */
    for (int i = 0; i < 4 * FRAMES; i++) {
        tb_frame *frame;
        tb_handle handle;
        int users = i / 3 % 2;
        gpu_publish(counted.pool, (uint32_t)i, users ? counted.stream : primary[0], &handle);
        CHECK_OK(tb_reader_frame(reader, &handle, &frame));
        CHECK_OK(tb_frame_wait_on(frame, users ? primary[1] : counted.reading));
        CHECK_OK(tb_frame_release_on(frame, users ? primary[1] : counted.reading));
        gpu_synchronize(users ? primary[1] : counted.reading);
    }
    for (int i = 0; i < 2; i++) {
        CHECK_CUDA(tb__cuda()->stream_synchronize(streams[i]));
        CHECK_CUDA(tb__cuda()->stream_destroy(streams[i]));
    }
    counted.stream = primary[0];
    counted.reading = primary[1];
    counted_end(&counted);
    CHECK_CUDA(((context_destroy_function *)dlsym(library, "cuCtxDestroy_v2"))(own));
}

static void more_ordered_readers_cost_no_more_driver_calls(void)
{
    struct counted counted;
    unsigned long calls = ULONG_MAX;
    counted_begin(&counted, 4);
    for (int i = 0; i < 8; i++) {
        gpu_open_reader(counted.bus, "producer/frames", 1);
    }
    for (int i = 0; i < FRAMES; i++) {
        tb_loan *loan;
        CHECK_OK(tb_pool_loan(counted.pool, TB_SECONDS(5), &loan));
        CALLS(calls, CHECK_OK(tb_loan_publish_on(loan, counted.stream, NULL)));
        gpu_synchronize(counted.stream);
    }
    check_calls("tb_loan_publish_on() for eight readers", calls, PUBLISH_CALLS);
    counted_end(&counted);
}

static void a_frame_for_a_cpu_reader_makes_few_driver_calls(void)
{
    struct counted counted;
    struct calls calls = many_calls;
    tb_frame *frame;
    tb_loan *loan;
    counted_begin(&counted, 4);
    tb_reader *reader = gpu_open_reader(counted.bus, "producer/frames", 0);
    for (int i = 0; i < FRAMES; i++) {
        CALLS(calls.loan, CHECK_OK(tb_pool_loan(counted.pool, TB_SECONDS(5), &loan)));
        CALLS(calls.publish, CHECK_OK(tb_loan_publish_on(loan, counted.stream, NULL)));
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &frame));
        /* It is complete. */
        CALLS(calls.wait, CHECK_OK(tb_frame_wait_on(frame, counted.reading)));
        CALLS(calls.poll, CHECK_OK(tb_frame_poll(frame)));
        CALLS(calls.release, tb_frame_release(frame));
    }
    check_calls("tb_pool_loan()", calls.loan, 0);
    check_calls("tb_loan_publish_on() with a reader of the CPU", calls.publish,
                PUBLISH_CALLS_CPU_READER);
    check_calls("tb_frame_wait_on() of a complete frame", calls.wait, 0);
    check_calls("tb_frame_poll()", calls.poll, 0);
    check_calls("tb_frame_release()", calls.release, 0);
    counted_end(&counted);
}

/* Which context is current, twice; then import, reserve, map, give access. */
static void attaching_makes_few_driver_calls(void)
{
    struct producer producer = {0};
    unsigned long calls = ULONG_MAX;
    gpu_need_fake();
    producer_start(&producer);
    gpu_begin();
    producer_ready(&producer);
    tb_bus *bus = gpu_open_bus("consumer");
    for (int i = 0; i < 3; i++) {
        tb_reader *reader = NULL;
        CALLS(calls, reader = gpu_open_reader(bus, "producer/frames", 1));
        tb_reader_close(reader);
    }
    check_calls("tb_reader_open()", calls, 6);
    tb_bus_close(bus);
    producer_end(&producer);
}

/* Where streams cannot write words they call a function, for every frame; and clear a lease so. */
static void a_frame_that_the_cpu_is_told_of_makes_few_driver_calls(void)
{
    struct counted counted;
    struct calls calls = many_calls;
    setenv("TENSORBUS_GPU_ORDER", "cpu", 1);
    counted_begin(&counted, 4);
    tb_reader *reader = gpu_open_reader(counted.bus, "producer/frames", 1);
    for (int i = 0; i < FRAMES; i++) {
        tb_frame *frame;
        tb_loan *loan;
        unsigned long called = gpu_fake()->calls("cuLaunchHostFunc");
        CHECK_OK(tb_pool_loan(counted.pool, TB_SECONDS(5), &loan));
        CALLS(calls.publish, CHECK_OK(tb_loan_publish_on(loan, counted.stream, NULL)));
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 2000);
        CALLS(calls.wait, CHECK_OK(tb_frame_wait_on(frame, counted.reading)));
        CALLS(calls.release, CHECK_OK(tb_frame_release_on(frame, counted.reading)));
        gpu_synchronize(counted.reading);
        CHECK_EQ(gpu_fake()->calls("cuLaunchHostFunc") - called, 2);
    }
    CHECK_EQ(gpu_fake()->calls("cuStreamBatchMemOp_v2"), 0);
    CHECK_EQ(gpu_fake()->calls("cuStreamWriteValue64_v2"), 0);
    check_calls("tb_loan_publish_on()", calls.publish, 5);
    check_calls("tb_frame_wait_on() of a complete frame", calls.wait, 0);
    check_calls("tb_frame_release_on()", calls.release, 3);
    counted_end(&counted);
}

/* Whether its stream has failed is asked again and again while a frame is pending for long. */
static void the_watching_thread_asks_about_slow_frames(void)
{
    struct counted counted;
    struct gpu_brake brake;
    const struct tb__gpu *gpu;
    counted_begin(&counted, 4);
    CHECK_OK(tb__gpu_get(0, &gpu));
    gpu_brake_init(&brake);
    gpu_brake_put(&brake, gpu, counted.stream);
    unsigned long asked = gpu_fake()->calls("cuEventQuery");
    gpu_publish(counted.pool, 1, counted.stream, NULL);
    CHECK_WITHIN_MS(gpu_fake()->calls("cuEventQuery") >= asked + 3, 2000);
    gpu_brake_off(&brake);
    counted_end(&counted);
    gpu_brake_end(&brake);
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
    gpu_skip_under(NULL, "the time under a tool tells nothing");
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
    TEST(a_default_stream_makes_as_few_driver_calls, 30),
    TEST(streams_of_the_users_own_context, 60),
    TEST(more_ordered_readers_cost_no_more_driver_calls, 30),
    TEST(attaching_makes_few_driver_calls, 30),
    TEST(a_frame_that_the_cpu_is_told_of_makes_few_driver_calls, 30),
    TEST(the_watching_thread_asks_about_slow_frames, 30),
    TEST(a_frame_for_a_cpu_reader_makes_few_driver_calls, 30),
    TEST(a_frame_takes_nothing_from_the_driver, 30),
    TEST(taking_complete_frames_makes_no_system_call, 30),
    TEST(G10_a_frame_costs_less_than_10_us_of_the_host, 120),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

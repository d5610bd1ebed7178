/* Readers that order themselves on a GPU are woken before the frame is there: rings for nothing. */
#include <poll.h>
#include <stdatomic.h>
#include <time.h>

#include "gpu/gpu_roles.h"
#include "pool/order.h"
#include "pool/state.h"
#include "pool/wake.h"

#define WORDS ((int64_t)1 << 16)
#define FRAMES 200
#define NOBODY_MS 30

/* A process with everything: the owner and its readers are threads of it. */
struct scene {
    tb_bus *bus;
    tb_pool *pool;
    tb_cuda_stream stream;
};

static void scene_begin(struct scene *scene, tb_policy policy)
{
    gpu_begin();
    scene->bus = gpu_open_bus("producer");
    tb_pool_options options = gpu_words_options("frames", TB_CUDA(0), WORDS, 4);
    options.policy = policy;
    CHECK_OK(tb_pool_register(scene->bus, &options, &scene->pool));
    scene->stream = gpu_stream();
}

static void scene_end(struct scene *scene)
{
    tb_bus_close(scene->bus);
    gpu_stream_end(scene->stream);
}

static uint64_t wakeups(const struct scene *scene)
{
    return gpu_pool_stats(scene->pool).wakeups;
}

/* The next frame, which is there or soon will be. */
static tb_frame *take(tb_reader *reader)
{
    tb_frame *frame;
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
    CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 5000);
    return frame;
}

/* ---- somebody who sleeps until there is a frame ---- */

struct sleeper {
    tb_reader *reader;
    pthread_t thread;
    _Atomic int is_done;
    tb_status status;
    tb_frame *frame;
};

static void *sleeper_run(void *argument)
{
    struct sleeper *sleeper = argument;
    sleeper->status = tb_reader_next(sleeper->reader, TB_SECONDS(20), &sleeper->frame);
    atomic_store(&sleeper->is_done, 1);
    return NULL;
}

static uint64_t sleeps(const struct sleeper *sleeper)
{
    return gpu_reader_stats(sleeper->reader).waits;
}

/* Returns when it is asleep, or will be whatever happens: it is armed. */
static void sleeper_start(struct sleeper *sleeper, tb_reader *reader)
{
    *sleeper = (struct sleeper){.reader = reader};
    uint64_t before = sleeps(sleeper);
    CHECK_EQ(pthread_create(&sleeper->thread, NULL, sleeper_run, sleeper), 0);
    CHECK_WITHIN_MS(sleeps(sleeper) > before, 5000);
}

static void sleeper_gets(struct sleeper *sleeper, uint32_t value)
{
    CHECK_EQ(pthread_join(sleeper->thread, NULL), 0);
    CHECK_OK(sleeper->status);
    CHECK_WITHIN_MS(tb_frame_poll(sleeper->frame) == TB_OK, 5000);
    gpu_check(tb_frame_tensor(sleeper->frame), value);
    tb_frame_release(sleeper->frame);
}

/* ---- publishers that take long, or fail ---- */

struct publisher {
    struct scene *scene;
    uint32_t value;
    pthread_t thread;
};

static void *publisher_run(void *argument)
{
    const struct publisher *publisher = argument;
    gpu_need(); /* its context, on this thread */
    gpu_publish(publisher->scene->pool, publisher->value, publisher->scene->stream, NULL);
    return NULL;
}

/* The publisher stands still after its first ring, for longer than a reader looks for the frame. */
static void a_reader_that_was_woken_too_early_sleeps_again_and_is_woken_again(void)
{
    struct scene scene;
    struct sleeper sleeper;
    scene_begin(&scene, TB_LATEST);
    tb_reader *reader = gpu_open_reader(scene.bus, "producer/frames", 1);
    gpu_publish(scene.pool, 0, scene.stream, NULL);
    tb_frame_release(take(reader));
    for (uint32_t n = 1; n <= 20; n++) {
        struct publisher publisher = {.scene = &scene, .value = n};
        struct tb__order *order = atomic_load(&scene.pool->order);
        sleeper_start(&sleeper, reader);
        uint64_t slept = sleeps(&sleeper);
        uint64_t woken = wakeups(&scene);
        tb__order_lock(order);
        CHECK_EQ(pthread_create(&publisher.thread, NULL, publisher_run, &publisher), 0);
        CHECK_WITHIN_MS(wakeups(&scene) == woken + 1, 5000);
        CHECK_WITHIN_MS(sleeps(&sleeper) == slept + 1, 5000);
        CHECK(!atomic_load(&sleeper.is_done));
        tb__order_unlock(order);
        CHECK_EQ(pthread_join(publisher.thread, NULL), 0);
        sleeper_gets(&sleeper, n);
        CHECK_EQ(wakeups(&scene), woken + 2);
    }
    scene_end(&scene);
}

/* Its n-th driver call fails, for each: none, or the first frame that is seen, is the next one. */
static void a_publisher_that_fails_after_its_ring_leaves_readers_asleep(void)
{
    struct scene scene;
    struct sleeper sleeper;
    gpu_need_fake();
    scene_begin(&scene, TB_LATEST);
    tb_reader *reader = gpu_open_reader(scene.bus, "producer/frames", 1);
    gpu_publish(scene.pool, 0, scene.stream, NULL);
    tb_frame_release(take(reader));
    for (uint32_t n = 1; n <= 5; n++) {
        tb_loan *loan;
        char rule[32];
        CHECK_OK(tb_pool_loan(scene.pool, TB_SECONDS(5), &loan));
        gpu_fill(tb_loan_tensor(loan), 100 + n, scene.stream);
        sleeper_start(&sleeper, reader);
        uint64_t slept = sleeps(&sleeper);
        uint64_t woken = wakeups(&scene);
        snprintf(rule, sizeof rule, "*:%u:%d", n, TB__CUDA_OUT_OF_MEMORY);
        gpu_fake()->fail(rule);
        tb_status status = tb_loan_publish_on(loan, scene.stream, NULL);
        gpu_fake()->fail(NULL);
        if (status == TB_OK) { /* a question whose answer is not needed */
            sleeper_gets(&sleeper, 100 + n);
            continue;
        }
        CHECK_LE(woken + 1, wakeups(&scene));
        CHECK_WITHIN_MS(sleeps(&sleeper) > slept, 5000);
        CHECK(!atomic_load(&sleeper.is_done));
        gpu_publish(scene.pool, n, scene.stream, NULL);
        sleeper_gets(&sleeper, n);
    }
    scene_end(&scene);
}

/* Event loops, and readers that see complete frames only, would look for nothing. */
static void only_ordered_readers_that_sleep_are_woken_early(void)
{
    struct scene scene;
    struct sleeper plain;
    tb_frame *frame;
    tb_loan *loan;
    int fd;
    gpu_need_fake();
    scene_begin(&scene, TB_LATEST);
    tb_reader *polled = gpu_open_reader(scene.bus, "producer/frames", 1);
    CHECK_OK(tb_reader_fd(polled, &fd));
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    CHECK_STATUS(tb_reader_next(polled, TB_POLL, &frame), TB_AGAIN);
    sleeper_start(&plain, gpu_open_reader(scene.bus, "producer/frames", 0));
    CHECK_OK(tb_pool_loan(scene.pool, TB_SECONDS(5), &loan));
    gpu_fake()->fail("*:1:2");
    CHECK(tb_loan_publish_on(loan, scene.stream, NULL) < 0);
    gpu_fake()->fail(NULL);
    CHECK_EQ(wakeups(&scene), 0);
    CHECK_EQ(poll(&entry, 1, NOBODY_MS), 0);
    CHECK_EQ(sleeps(&plain), 1);
    gpu_publish(scene.pool, 1, scene.stream, NULL);
    CHECK_EQ(poll(&entry, 1, 5000), 1);
    tb_frame_release(take(polled));
    sleeper_gets(&plain, 1);
    CHECK_EQ(wakeups(&scene), 2);
    scene_end(&scene);
}

/* ---- rings without end ---- */

struct ringer {
    tb_pool *pool;
    _Atomic int end;
};

/* As a publisher rings before it has a frame. */
static void *ringer_run(void *argument)
{
    struct ringer *ringer = argument;
    while (!atomic_load(&ringer->end)) {
        tb__wake_early(ringer->pool, TB__WAKE_GATED);
        harness_sleep_us(50);
    }
    return NULL;
}

struct series {
    struct scene *scene;
    unsigned pause_us; /* now and then, so that readers sleep */
};

static void *publish_series(void *argument)
{
    const struct series *series = argument;
    gpu_need();
    for (uint32_t n = 1; n <= FRAMES; n++) {
        gpu_publish(series->scene->pool, n, series->scene->stream, NULL);
        if (n % 4 == 0) {
            harness_sleep_us(series->pause_us);
        }
    }
    return NULL;
}

static void take_series(tb_reader *reader)
{
    for (uint32_t n = 1; n <= FRAMES; n++) {
        tb_frame *frame;
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
        CHECK_EQ(gpu_info(frame).sequence, n);
        CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 5000);
        gpu_check(tb_frame_tensor(frame), n);
        tb_frame_release(frame);
    }
}

static tb_reader *open_every(const struct scene *scene)
{
    tb_reader *reader;
    tb_reader_options options = {
        .size = sizeof options, .stream_ordered = 1, .every = 1, .start_next = 1};
    CHECK_OK(tb_reader_open(scene->bus, "producer/frames", &options, &reader));
    return reader;
}

static void rings_for_nothing_do_no_harm(void)
{
    struct scene scene;
    scene_begin(&scene, TB_EVERY);
    struct ringer ringer = {.pool = scene.pool};
    struct series series = {.scene = &scene, .pause_us = 400};
    pthread_t rings, publishes;
    tb_frame *frame;
    tb_reader *reader = open_every(&scene);
    CHECK_EQ(pthread_create(&rings, NULL, ringer_run, &ringer), 0);
    int64_t begun_ns = harness_now_ns();
    CHECK_STATUS(tb_reader_next(reader, TB_MILLIS(NOBODY_MS), &frame), TB_AGAIN);
    CHECK_LE(NOBODY_MS * 1000000LL, harness_now_ns() - begun_ns);
    CHECK_LT(3, wakeups(&scene));
    CHECK_EQ(pthread_create(&publishes, NULL, publish_series, &series), 0);
    take_series(reader);
    CHECK_EQ(pthread_join(publishes, NULL), 0);
    atomic_store(&ringer.end, 1);
    CHECK_EQ(pthread_join(rings, NULL), 0);
    CHECK_EQ(gpu_reader_stats(reader).missed, 0);
    scene_end(&scene);
}

/* ---- what looking for frames costs ---- */

static int64_t thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Even after frames that came one right after the other. */
static void a_reader_without_frames_sleeps(void)
{
    struct scene scene;
    scene_begin(&scene, TB_EVERY);
    struct series series = {.scene = &scene};
    pthread_t publishes;
    tb_frame *frame;
    tb_reader *reader = open_every(&scene);
    for (int round = 0; round < 2; round++) {
        int64_t before_ns = thread_cpu_ns();
        CHECK_STATUS(tb_reader_next(reader, TB_MILLIS(300), &frame), TB_AGAIN);
        CHECK_LT(thread_cpu_ns() - before_ns, 10000000LL * harness_slowness());
        if (round == 0) {
            CHECK_EQ(pthread_create(&publishes, NULL, publish_series, &series), 0);
            take_series(reader);
            CHECK_EQ(pthread_join(publishes, NULL), 0);
        }
    }
    scene_end(&scene);
}

/* Frames one right after the other until the end. */
struct stream_of_frames {
    struct scene *scene;
    _Atomic int end;
};

static void *publish_until(void *argument)
{
    struct stream_of_frames *frames = argument;
    gpu_need();
    for (uint32_t n = 1; !atomic_load(&frames->end); n++) {
        tb_loan *loan;
        if (tb_pool_loan(frames->scene->pool, TB_POLL, &loan) == TB_OK) {
            CHECK_OK(tb_loan_publish_on(loan, frames->scene->stream, NULL));
        }
    }
    return NULL;
}

/* Whether to look before it sleeps: after frames that came at once, and no more when they do not.
 */
static void a_reader_learns_at_what_pace_frames_come(void)
{
    struct scene scene;
    scene_begin(&scene, TB_LATEST);
    struct stream_of_frames frames = {.scene = &scene};
    pthread_t publishes;
    tb_reader *reader = open_every(&scene);
    CHECK_EQ(pthread_create(&publishes, NULL, publish_until, &frames), 0);
    int64_t until_ns = harness_now_ns() + 20000000000LL;
    while (tb__a32_load_relaxed(&reader->brisk) < 2 && harness_now_ns() < until_ns) {
        tb_frame_release(take(reader));
    }
    CHECK_EQ(tb__a32_load_relaxed(&reader->brisk), 2);
    atomic_store(&frames.end, 1);
    CHECK_EQ(pthread_join(publishes, NULL), 0);
    tb_frame *frame;
    while (tb_reader_next(reader, TB_POLL, &frame) == TB_OK) {
        tb_frame_release(frame);
    }
    for (uint32_t n = 1; n <= 3; n++) {
        struct sleeper sleeper;
        sleeper_start(&sleeper, reader);
        harness_sleep_us(1000);
        gpu_publish(scene.pool, n, scene.stream, NULL);
        sleeper_gets(&sleeper, n);
        CHECK_EQ(tb__a32_load_relaxed(&reader->brisk), n < 2 ? 1 : 0);
    }
    scene_end(&scene);
}

static const struct test tests[] = {
    TEST(a_reader_that_was_woken_too_early_sleeps_again_and_is_woken_again, 60),
    TEST(a_publisher_that_fails_after_its_ring_leaves_readers_asleep, 60),
    TEST(only_ordered_readers_that_sleep_are_woken_early, 30),
    TEST(rings_for_nothing_do_no_harm, 60),
    TEST(a_reader_without_frames_sleeps, 60),
    TEST(a_reader_learns_at_what_pace_frames_come, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

/* Everything at once: two streams publish, readers of both kinds come, go and die. No frame is ever
 * torn, none hangs, every slot comes back. And pools whose readers want every frame. */
#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 14)

struct plan {
    unsigned long frames; /* of each thread */
    uint32_t slots;
};

/* ------------------------------------------------------------------ the producer */

struct publisher {
    tb_pool *pool;
    uint32_t number;
    unsigned long frames;
};

/* Frame values: the publisher's number above its own count. */
static void *publish_all(void *argument)
{
    const struct publisher *publisher = argument;
    const struct tb__gpu *gpu;
    CHECK_OK(tb__gpu_get(0, &gpu));
    tb_cuda_stream stream = gpu_stream_on(gpu);
    struct tb__gpu_scope scope;
    CHECK_OK(tb__gpu_enter(gpu, &scope));
    for (uint32_t n = 1; n <= publisher->frames; n++) {
        gpu_publish(publisher->pool, publisher->number << 24 | n, stream, NULL);
        if (n % 64 == 0) {
            gpu_synchronize(stream);
        }
    }
    gpu_stream_end(stream);
    tb__gpu_leave(&scope);
    return NULL;
}

static void busy_producer(void *argument)
{
    const struct plan *plan = argument;
    struct publisher publishers[2];
    pthread_t threads[2];
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, plan->slots);
    parent_pause("registered");
    for (uint32_t i = 0; i < 2; i++) {
        publishers[i] = (struct publisher){pool, i + 1, plan->frames};
        CHECK_EQ(pthread_create(&threads[i], NULL, publish_all, &publishers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    /* The last frame is complete soon, and nobody keeps a slot but the newest's. */
    CHECK_WITHIN_MS(gpu_pool_stats(pool).frames == 2 * plan->frames, 5000);
    parent_pause("published");
    CHECK_WITHIN_MS(gpu_pool_stats(pool).held == 0, 5000);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ consumers */

struct order_seen {
    uint64_t sequence;
    uint32_t newest[3]; /* of each publisher */
};

static void check_order(struct order_seen *seen, const tb_frame *frame, const uint32_t words[2])
{
    uint32_t publisher = words[0] >> 24;
    CHECK_EQ(words[0], words[1]);
    CHECK(publisher == 1 || publisher == 2);
    CHECK_LT(seen->newest[publisher], words[0]);
    seen->newest[publisher] = words[0];
    if (frame != NULL) {
        CHECK_LT(seen->sequence, gpu_info(frame).sequence);
        seen->sequence = gpu_info(frame).sequence;
    }
}

/* Until the producer says goodbye. */
static void ordered_consumer(void *argument)
{
    const struct tb__gpu *gpu = gpu_begin();
    tb_bus *bus = gpu_open_bus(NULL);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 1);
    tb_cuda_stream stream = gpu_stream_on(gpu);
    struct order_seen seen = {0};
    struct gpu_seen looks[4];
    unsigned pending = 0;
    tb_frame *frame;
    (void)argument;
    for (int i = 0; i < 4; i++) {
        gpu_seen_init(&looks[i]);
    }
    parent_reached("attached");
    while (tb_reader_next(reader, TB_SECONDS(20), &frame) == TB_OK) {
        CHECK_OK(tb_frame_wait_on(frame, stream));
        gpu_look_on(frame, stream, &looks[pending++]);
        CHECK_OK(tb_frame_release_on(frame, stream));
        if (pending == 4) {
            gpu_synchronize(stream);
            for (unsigned i = 0; i < pending; i++) {
                check_order(&seen, NULL, looks[i].words);
            }
            pending = 0;
        }
    }
    gpu_stream_end(stream);
    CHECK_EQ(gpu_reader_stats(reader).incomplete, 0);
    tb_bus_close(bus);
    for (int i = 0; i < 4; i++) {
        gpu_seen_end(&looks[i]);
    }
}

static void plain_consumer(void *argument)
{
    gpu_begin();
    tb_bus *bus = gpu_open_bus(NULL);
    tb_reader *reader = gpu_open_reader(bus, "producer/frames", 0);
    struct order_seen seen = {0};
    uint32_t *words = gpu_pinned(WORDS * 4);
    tb_tensor copy = gpu_words(words, TB_CPU, WORDS);
    tb_frame *frame;
    (void)argument;
    parent_reached("attached");
    while (tb_reader_next(reader, TB_SECONDS(20), &frame) == TB_OK) {
        CHECK_OK(tb_copy(&copy, tb_frame_tensor(frame)));
        for (int64_t i = 1; i < WORDS; i++) {
            CHECK_EQ(words[i], words[0]);
        }
        check_order(&seen, frame, words);
        tb_frame_release(frame);
    }
    tb_bus_close(bus);
    gpu_pinned_end(words);
}

static void run_all(const char *machine)
{
    struct plan plan = {harness_scale(400, 20000), 8};
    struct child producer;
    struct child consumers[4];
    struct child victim;
    /* Under a tool a process takes seconds to begin. */
    int victims = getenv("TB_TEST_TOOL") != NULL ? 2 : 6;
    gpu_machine(machine);
    child_start(&producer, "producer", busy_producer, &plan);
    child_await(&producer, "registered");
    for (int i = 0; i < 4; i++) {
        child_start(&consumers[i], "consumer", i < 2 ? ordered_consumer : plain_consumer, NULL);
        child_await(&consumers[i], "attached");
    }
    child_go(&producer);
    for (int i = 0; i < victims; i++) {
        child_start(&victim, "victim", i % 2 ? ordered_consumer : plain_consumer, NULL);
        child_await(&victim, "attached");
        harness_sleep_us(3000);
        child_kill(&victim);
    }
    child_await(&producer, "published");
    child_go(&producer);
    for (int i = 0; i < 4; i++) {
        child_join(&consumers[i]);
    }
    child_join(&producer);
}

static void two_streams_and_readers_that_come_go_and_die(void)
{
    run_all("devices=1");
}

static void the_same_on_a_slow_device(void)
{
    if (gpu_fake() == NULL) {
        harness_skip("a real device is as fast as it is");
    }
    run_all("devices=1;slow=100");
}

/* ------------------------------------------------------------------ every frame */

/* TB_EVERY: a slow stream loses no frame, the writer waits for it. */
static void every_frame_reaches_a_slow_stream(void)
{
    const struct tb__gpu *gpu = gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool;
    tb_reader *reader;
    tb_loan *loan;
    tb_frame *frame;
    struct gpu_brake brake;
    struct gpu_seen seen;
    tb_pool_options options = gpu_words_options("frames", TB_CUDA(0), WORDS, 3);
    options.policy = TB_EVERY;
    tb_reader_options every = {.size = sizeof every, .every = 1, .stream_ordered = 1};
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    CHECK_OK(tb_reader_open(bus, "producer/frames", &every, &reader));
    tb_cuda_stream stream = gpu_stream();
    tb_cuda_stream reading = gpu_stream();
    gpu_brake_init(&brake);
    gpu_seen_init(&seen);
    for (uint32_t round = 0; round < 5; round++) {
        gpu_brake_put(&brake, gpu, stream); /* all three are pending */
        for (uint32_t n = 1; n <= 3; n++) {
            gpu_publish(pool, round * 3 + n, stream, NULL);
        }
        CHECK_STATUS(tb_pool_loan(pool, TB_MILLIS(3), &loan), TB_AGAIN);
        gpu_brake_off(&brake);
        gpu_synchronize(stream);
        CHECK_STATUS(tb_pool_loan(pool, TB_MILLIS(3), &loan), TB_AGAIN); /* none was taken */
        for (uint32_t n = 1; n <= 3; n++) {
            CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
            CHECK_EQ(gpu_info(frame).sequence, round * 3 + n);
            CHECK_EQ(gpu_info(frame).missed, 0);
            CHECK_OK(tb_frame_wait_on(frame, reading));
            gpu_look_on(frame, reading, &seen);
            CHECK_OK(tb_frame_release_on(frame, reading));
            gpu_synchronize(reading);
            gpu_check_seen(&seen, round * 3 + n);
        }
    }
    tb_bus_close(bus);
    gpu_stream_end(stream);
    gpu_stream_end(reading);
    gpu_brake_end(&brake);
    gpu_seen_end(&seen);
}

static const struct test tests[] = {
    TEST(two_streams_and_readers_that_come_go_and_die, 120),
    TEST(the_same_on_a_slow_device, 120),
    TEST(every_frame_reaches_a_slow_stream, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

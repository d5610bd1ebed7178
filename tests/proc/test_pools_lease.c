/* P04, P21, P22, P23, P26: a held frame never changes, whatever the owner does meanwhile. */
#include "proc/pool_support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* ------------------------------------------------------------------ P04 */

#define P04_ELEMENTS (1 << 17) /* 1 MiB */

/* What the slow consumer saw in one round. */
struct slow_look {
    int64_t first;
    int64_t second;
    uint64_t sequence;
};

static int64_t sum_of(const tb_frame *frame)
{
    const tb_tensor *tensor = tb_frame_tensor(frame);
    const int64_t *words = tensor->data;
    int64_t sum = 0;
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        sum += words[i];
    }
    return sum;
}

/* Hold the newest frame and sum it twice, 50 ms apart; the owner writes meanwhile. */
static void slow_consumer(void *argument)
{
    int rounds = *(int *)argument;
    tb_bus *bus = open_bus("consumer");
    tb_reader *reader = open_reader(bus, "owner/frames");
    for (int i = 0; i < rounds; i++) {
        tb_frame *frame;
        CHECK_OK(tb_reader_newest(reader, TB_SECONDS(5), &frame));
        struct slow_look look = {.sequence = info_of(frame).sequence};
        parent_reached("holding");
        look.first = sum_of(frame);
        harness_sleep_us(50000 * harness_slowness());
        look.second = sum_of(frame);
        parent_tell(&look, sizeof look);
        tb_frame_release(frame);
        parent_pause("released");
    }
    tb_bus_close(bus);
}

/* While the consumer holds a frame write 100 more without waiting. */
static void write_while_held(struct child *consumer, tb_pool *pool, uint32_t slots, int64_t *value)
{
    tb_pool_stats before = stats_of(pool);
    child_await(consumer, "holding");
    unsigned written = 0;
    for (int i = 0; i < 100; i++) {
        tb_status status = write_words(pool, *value + 1, TB_POLL, NULL);
        if (status == TB_OK) {
            written++;
            *value += 1;
        } else {
            CHECK_STATUS(status, TB_AGAIN);
        }
    }
    tb_pool_stats after = stats_of(pool);
    CHECK_EQ(after.frames - before.frames, written);
    CHECK_EQ(after.drops - before.drops, 100 - written);
    /* One slot is the held one; with two the other becomes the newest, which is not overwritten. */
    CHECK_EQ(written, slots == 1 ? 0 : slots == 2 ? 1 : 100);
    CHECK(!child_has_spoken(consumer, 0)); /* all this was during the hold */
    struct slow_look look;
    child_hear(consumer, &look, sizeof look);
    CHECK_EQ(look.first, look.second);
    CHECK_EQ(look.first, (int64_t)look.sequence * P04_ELEMENTS);
    child_await(consumer, "released");
    CHECK_OK(write_words(pool, ++*value, TB_POLL, NULL)); /* for the next round */
    child_go(consumer);
}

static void P04_slow_consumer(void)
{
    static const uint32_t slot_counts[] = {1, 2, 3, 8};
    int rounds = 3;
    for (size_t i = 0; i < sizeof slot_counts / sizeof slot_counts[0]; i++) {
        struct child consumer;
        child_start(&consumer, "consumer", slow_consumer, &rounds);
        tb_bus *bus = open_bus("owner");
        tb_pool *pool = register_words(bus, "frames", P04_ELEMENTS, slot_counts[i]);
        int64_t value = 1;
        CHECK_OK(write_words(pool, value, TB_POLL, NULL));
        for (int round = 0; round < rounds; round++) {
            write_while_held(&consumer, pool, slot_counts[i], &value);
        }
        child_join(&consumer);
        tb_bus_close(bus);
    }
}

/* One slot: a write with a timeout waits for the consumer, and wakes when it lets go. */
static void P04_one_slot_waits(void)
{
    int rounds = 1;
    struct child consumer;
    child_start(&consumer, "consumer", slow_consumer, &rounds);
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", P04_ELEMENTS, 1);
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    child_await(&consumer, "holding");
    int64_t begin = harness_now_ns();
    CHECK_STATUS(write_words(pool, 2, TB_MILLIS(5), NULL), TB_AGAIN);
    CHECK_HAS(tb_last_error_text(), "consumer"); /* the holder */
    CHECK_LE(5000000, harness_now_ns() - begin);
    CHECK_OK(write_words(pool, 2, TB_SECONDS(5), NULL));
    CHECK_LE(30000000, harness_now_ns() - begin);
    CHECK_LT(harness_now_ns() - begin, 1000000000LL * harness_slowness());
    tb_pool_stats stats = stats_of(pool);
    CHECK_EQ(stats.drops, 1);
    CHECK_LE(1, stats.waits);
    struct slow_look look;
    child_hear(&consumer, &look, sizeof look);
    CHECK_EQ(look.first, P04_ELEMENTS);
    CHECK_EQ(look.second, P04_ELEMENTS);
    child_await(&consumer, "released");
    child_go(&consumer);
    child_join(&consumer);
    tb_bus_close(bus);
}

/* A free-running owner and a consumer that checks every element of what it gets. */
static void fast_consumer(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("consumer");
    tb_reader *reader = open_reader(bus, "owner/frames");
    uint64_t last = 0;
    tb_status status;
    tb_frame *frame;
    while ((status = tb_reader_next(reader, TB_SECONDS(10), &frame)) == TB_OK) {
        tb_frame_info info = info_of(frame);
        CHECK_EQ(words_value(frame), (int64_t)info.sequence);
        CHECK_LT(last, info.sequence);
        CHECK_EQ(info.sequence, last + 1 + info.missed);
        last = info.sequence;
        tb_frame_release(frame);
    }
    CHECK_STATUS(status, TB_CLOSED);
    parent_tell(&last, sizeof last);
    tb_bus_close(bus);
}

static void P04_never_torn_at_full_speed(void)
{
    static const uint32_t slot_counts[] = {1, 2, 3, 8};
    for (size_t i = 0; i < sizeof slot_counts / sizeof slot_counts[0]; i++) {
        struct child consumer;
        child_start(&consumer, "consumer", fast_consumer, NULL);
        tb_bus *bus = open_bus("owner");
        tb_pool *pool = register_words(bus, "frames", 4096, slot_counts[i]);
        CHECK_WITHIN_MS(stats_of(pool).readers == 1, 5000);
        int64_t end = harness_now_ns() + 500000000;
        int64_t value = 0;
        while (harness_now_ns() < end) {
            if (write_words(pool, value + 1, TB_MILLIS(100), NULL) == TB_OK) {
                value++;
            }
        }
        tb_bus_close(bus);
        uint64_t last;
        child_hear(&consumer, &last, sizeof last);
        CHECK_EQ(last, value); /* the newest outlives its owner */
        child_join(&consumer);
    }
}

/* Leasing and claiming as close together as can be: tiny frames, no pause on either side. A frame
 * that was leased is looked at three times. */
static void grasping_consumer(void *argument)
{
    (void)argument;
    uint64_t leases = 0;
    char stop;
    tb_bus *bus = open_bus("consumer");
    tb_reader *reader = open_reader(bus, "owner/frames");
    parent_reached("attached");
    while (!parent_has_spoken()) {
        for (int i = 0; i < 500; i++) {
            tb_frame *frame;
            tb_status status = tb_reader_newest(reader, TB_POLL, &frame);
            if (status != TB_OK) {
                CHECK_STATUS(status, TB_AGAIN);
                continue;
            }
            int64_t sequence = (int64_t)info_of(frame).sequence;
            for (int look = 0; look < 3; look++) {
                CHECK_EQ(words_value(frame), sequence);
            }
            tb_frame_release(frame);
            leases++;
        }
    }
    parent_hear(&stop, 1);
    parent_tell(&leases, sizeof leases);
    tb_bus_close(bus);
}

static void P04_lease_against_claim(void)
{
    for (uint32_t slots = 1; slots <= 3; slots++) {
        struct child consumer;
        uint64_t leases;
        child_start(&consumer, "consumer", grasping_consumer, NULL);
        tb_bus *bus = open_bus("owner");
        tb_pool *pool = register_words(bus, "frames", 8, slots);
        child_await(&consumer, "attached");
        int64_t end = harness_now_ns() + (harness_full() ? 20000000000LL : 1500000000LL);
        int64_t value = 0;
        while (harness_now_ns() < end) {
            for (int i = 0; i < 500; i++) {
                value += write_words(pool, value + 1, TB_POLL, NULL) == TB_OK;
            }
        }
        child_go(&consumer);
        child_hear(&consumer, &leases, sizeof leases);
        /* Between cores that share no cache a lease rarely wins while the writer never pauses. */
        CHECK_LT(10 / harness_slowness(), leases);
        child_join(&consumer);
        tb_bus_close(bus);
    }
}

/* ------------------------------------------------------------------ P21 */

#define P21_ELEMENTS 512

/* Stores that bypass the cache are not ordered by a release store. */
static void fill_past_the_cache(const tb_tensor *tensor, int64_t value)
{
    long long *words = tensor->data;
    for (int i = 0; i < P21_ELEMENTS; i++) {
#if defined(__SSE2__)
        _mm_stream_si64(&words[i], value);
#else
        words[i] = value;
#endif
    }
}

static void counting_consumer(void *argument)
{
    int64_t count = *(int64_t *)argument;
    unsigned late = 0;
    tb_bus *bus = open_bus("consumer");
    tb_reader *reader = open_every(bus, "owner/frames");
    for (int64_t i = 1; i <= count; i++) {
        tb_frame *frame;
        int64_t begin = harness_now_ns();
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
        late += harness_now_ns() - begin > 200000000;
        CHECK_EQ(words_value(frame), i);
        tb_frame_release(frame);
    }
    /* A missed wake-up is made good by the next look, a quarter of a second later; a machine that
     * was busy elsewhere looks the same, but not often. */
    CHECK_LE(late, 2 * harness_slowness());
    tb_bus_close(bus);
}

static void P21_stores_past_the_cache(void)
{
    int64_t count = (int64_t)harness_scale(200000, 1000000);
    struct child consumer;
    child_start(&consumer, "consumer", counting_consumer, &count);
    tb_bus *bus = open_bus("owner");
    tb_pool *pool;
    tb_pool_options options = words_options("frames", P21_ELEMENTS, 2);
    options.policy = TB_EVERY;
    options.wait_readers = 1;
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    for (int64_t i = 1; i <= count; i++) {
        tb_loan *loan;
        CHECK_OK(tb_pool_loan(pool, TB_SECONDS(20), &loan));
        fill_past_the_cache(tb_loan_tensor(loan), i);
        CHECK_OK(tb_loan_publish(loan, NULL));
    }
    child_join(&consumer);
    CHECK_EQ(stats_of(pool).frames, count);
    CHECK_EQ(stats_of(pool).overwrites, 0);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ P22 */

static void *release_frame(void *argument)
{
    tb_frame_release(argument);
    return NULL;
}

static void P22_two_holds_of_one_frame(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 1000, 1);
    tb_reader *reader = open_reader(bus, "owner/frames");
    tb_handle handle;
    for (int by_handle = 0; by_handle < 2; by_handle++) {
        tb_frame *first;
        tb_frame *second;
        CHECK_OK(write_words(pool, 5, TB_SECONDS(1), &handle));
        CHECK_OK(tb_reader_newest(reader, TB_SECONDS(1), &first));
        if (by_handle) {
            CHECK_OK(tb_reader_frame(reader, &handle, &second));
        } else {
            CHECK_OK(tb_frame_hold(first, &second));
        }
        CHECK_EQ(stats_of(pool).held, 2);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, release_frame, first) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK_EQ(stats_of(pool).held, 1);
        /* The caller's own process holds the only slot: it may also be told that. */
        tb_status status = write_words(pool, 6, TB_POLL, NULL);
        CHECK(status == TB_AGAIN || status == TB_E_DEADLOCK);
        CHECK_EQ(words_value(second), 5);
        tb_frame_release(second);
        CHECK_EQ(stats_of(pool).held, 0);
        CHECK_OK(write_words(pool, 6, TB_POLL, NULL));
        CHECK_STATUS(tb_reader_frame(reader, &handle, &second), TB_E_STALE);
    }
    tb_bus_close(bus);
}

/* All leases in use is an error of its own, and goes away with a release. */
static void P22_leases_are_bounded(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 10, 2);
    tb_reader *reader;
    tb_reader_options options = {.size = sizeof options, .max_leases = 7};
    CHECK_OK(tb_reader_open(bus, "owner/frames", &options, &reader));
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    tb_frame *frames[8];
    CHECK_OK(tb_reader_newest(reader, TB_POLL, &frames[0]));
    for (int i = 1; i < 7; i++) {
        CHECK_OK(tb_frame_hold(frames[0], &frames[i]));
    }
    CHECK_STATUS(tb_frame_hold(frames[0], &frames[7]), TB_E_BUSY);
    tb_frame_release(frames[3]);
    CHECK_OK(tb_frame_hold(frames[0], &frames[3]));
    for (int i = 0; i < 7; i++) {
        tb_frame_release(frames[i]);
    }
    CHECK_EQ(stats_of(pool).held, 0);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ P23 */

/* Keeps the frame where it is. */
static void holder(void *argument)
{
    (void)argument;
    tb_handle handle;
    tb_bus *bus = open_bus("holder");
    tb_reader *reader = open_reader(bus, "owner/frames");
    parent_hear(&handle, sizeof handle);
    tb_frame *frame;
    CHECK_OK(tb_reader_frame(reader, &handle, &frame));
    parent_pause("holding");
    CHECK_EQ(words_value(frame), 1);
    tb_frame_release(frame);
    tb_bus_close(bus);
}

/* Reads one handle over and over until it is told to stop. */
static void handle_reader(void *argument)
{
    (void)argument;
    tb_handle handle;
    uint64_t reads = 0;
    char stop;
    tb_bus *bus = open_bus("reader");
    tb_reader *reader = open_reader(bus, "owner/frames");
    parent_hear(&handle, sizeof handle);
    while (reads % 256 != 0 || !parent_has_spoken()) {
        tb_frame *frame;
        tb_status status = tb_reader_frame(reader, &handle, &frame);
        if (status != TB_OK) {
            FAIL("read %llu: %s: %s", (unsigned long long)reads, tb_status_name(status),
                 tb_last_error_text());
        }
        CHECK_EQ(words_value(frame), 1);
        tb_frame_release(frame);
        reads++;
    }
    parent_hear(&stop, 1);
    parent_tell(&reads, sizeof reads);
    tb_bus_close(bus);
}

static void P23_handle_of_a_frame_that_stays(void)
{
    for (uint32_t slots = 1; slots <= 3; slots++) {
        struct child keeper;
        struct child reader;
        tb_handle handle;
        uint64_t reads;
        child_start(&keeper, "holder", holder, NULL);
        child_start(&reader, "reader", handle_reader, NULL);
        tb_bus *bus = open_bus("owner");
        tb_pool *pool = register_words(bus, "frames", 16, slots);
        CHECK_OK(write_words(pool, 1, TB_POLL, &handle));
        child_tell(&keeper, &handle, sizeof handle);
        child_await(&keeper, "holding");
        child_tell(&reader, &handle, sizeof handle);
        /* Probe the held slot again and again; the others are written meanwhile. */
        uint64_t probes = 0;
        int64_t end = harness_now_ns() + (harness_full() ? 20000000000LL : 1000000000LL);
        while (harness_now_ns() < end) {
            for (int i = 0; i < 64; i++, probes++) {
                tb_status status = write_words(pool, 2, TB_POLL, NULL);
                CHECK(status == TB_OK || status == TB_AGAIN);
            }
        }
        child_go(&reader);
        child_hear(&reader, &reads, sizeof reads);
        CHECK_LT(10000 / harness_slowness(), probes);
        CHECK_LT(10000 / harness_slowness(), reads);
        child_go(&keeper);
        child_join(&reader);
        child_join(&keeper);
        tb_bus_close(bus);
    }
}

/* ------------------------------------------------------------------ P26 */

static void P26_waiting_for_oneself(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 10, 3);
    tb_loan *loans[3];
    tb_loan *more;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(tb_pool_loan(pool, TB_POLL, &loans[i]));
    }
    int64_t begin = harness_now_ns();
    CHECK_STATUS(tb_pool_loan(pool, TB_FOREVER, &more), TB_E_DEADLOCK);
    CHECK_LT(harness_now_ns() - begin, 100000000LL * harness_slowness());
    CHECK_HAS(tb_last_error_text(), "frames");
    tb_loan_cancel(loans[1]);
    CHECK_OK(tb_pool_loan(pool, TB_FOREVER, &loans[1]));
    for (int i = 0; i < 3; i++) {
        tb_loan_cancel(loans[i]);
    }
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(P04_slow_consumer, 20),
    TEST(P04_one_slot_waits, 10),
    TEST(P04_never_torn_at_full_speed, 20),
    TEST(P04_lease_against_claim, 90),
    TEST(P21_stores_past_the_cache, 120),
    TEST(P22_two_holds_of_one_frame, 10),
    TEST(P22_leases_are_bounded, 10),
    TEST(P23_handle_of_a_frame_that_stays, 120),
    TEST(P26_waiting_for_oneself, 10),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

/* Promised frames: their handles travel before they are published. Whoever opens one waits, and is
 * told how it ends: published, given up, freed, closed, dead. */
#include <stdio.h>
#include <string.h>

#include <tensorbus/embed.h>

#include "proc/pool_support.h"

#define ELEMENTS 4096

struct answer {
    tb_status status;
    int64_t value;
    uint64_t stamp_ns;
    char text[200];
};

/* Open the handle that comes; tell what came of it. */
static void opener(void *argument)
{
    (void)argument;
    tb_handle handle;
    tb_frame *frame = NULL;
    struct answer answer = {.value = 0};
    tb_bus *bus = open_bus("opener");
    for (int i = 0; i < 2; i++) { /* the first to attach: what comes then is the wait alone */
        parent_hear(&handle, sizeof handle);
        parent_reached("opening");
        answer.status = tb_frame_open(bus, &handle, TB_POLL, &frame);
        if (answer.status == TB_OK) {
            answer.value = words_value(frame);
            answer.stamp_ns = info_of(frame).stamp_ns;
            CHECK_EQ(info_of(frame).sequence, tb_handle_sequence(&handle));
            tb_frame_release(frame);
        } else {
            snprintf(answer.text, sizeof answer.text, "%s", tb_last_error_text());
        }
        parent_tell(&answer, sizeof answer);
    }
    tb_bus_close(bus);
}

struct scene {
    struct child child;
    tb_bus *bus;
    tb_pool *pool;
    tb_loan *loan;
    tb_handle handle;
};

/* A frame is promised, and the opener waits for it. */
static void begin(struct scene *scene)
{
    tb_handle first;
    struct answer answer;
    child_start(&scene->child, "opener", opener, NULL);
    scene->bus = open_bus("owner");
    scene->pool = register_words(scene->bus, "frames", ELEMENTS, 3);
    CHECK_OK(write_words(scene->pool, 1, TB_POLL, &first));
    child_tell(&scene->child, &first, sizeof first);
    child_await(&scene->child, "opening");
    child_hear(&scene->child, &answer, sizeof answer);
    CHECK_EQ(answer.status, TB_OK);
    CHECK_EQ(answer.value, 1);
    CHECK_OK(tb_pool_loan(scene->pool, TB_POLL, &scene->loan));
    CHECK_OK(tb_loan_promise(scene->loan, &scene->handle));
    child_tell(&scene->child, &scene->handle, sizeof scene->handle);
    child_await(&scene->child, "opening");
    CHECK(!child_has_spoken(&scene->child, 100));
}

/* What the opener was told, before long. */
static struct answer end(struct scene *scene)
{
    struct answer answer;
    int64_t begun_ns = harness_now_ns();
    child_hear(&scene->child, &answer, sizeof answer);
    CHECK_LT(harness_now_ns() - begun_ns, TB_SECONDS(3));
    child_join(&scene->child);
    return answer;
}

static void a_promised_frame_is_waited_for(void)
{
    struct scene scene;
    tb_handle again, published;
    begin(&scene);
    CHECK_OK(tb_loan_promise(scene.loan, &again));
    fill_words(tb_loan_tensor(scene.loan), 7);
    CHECK(!child_has_spoken(&scene.child, 50));
    CHECK_OK(tb_loan_publish(scene.loan, &published));
    struct answer answer = end(&scene);
    CHECK_EQ(answer.status, TB_OK);
    CHECK_EQ(answer.value, 7);
    CHECK_EQ(answer.stamp_ns, scene.handle.stamp_ns);
    CHECK(memcmp(&again, &scene.handle, sizeof again) == 0);
    CHECK(memcmp(&published, &scene.handle, sizeof published) == 0);
    CHECK_EQ(stats_of(scene.pool).frames, 2);
    tb_bus_close(scene.bus);
}

static void one_that_is_given_up_is_stale(void)
{
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < 3; i++) {
        struct scene scene;
        begin(&scene);
        int64_t begun_ns = harness_now_ns();
        tb_loan_cancel(scene.loan);
        struct answer answer = end(&scene);
        int64_t took_ns = harness_now_ns() - begun_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
        CHECK_EQ(answer.status, TB_E_STALE);
        CHECK_HAS(answer.text, "frame 2 of pool `owner/frames` was never finished");
        tb_bus_close(scene.bus);
    }
    /* Who is not rung looks by itself after a quarter of a second, of which begin() takes 100 ms.
     */
    CHECK_LT(best_ns, 100000000);
}

static void one_of_a_freed_pool_is_freed(void)
{
    struct scene scene;
    begin(&scene);
    CHECK_OK(tb_pool_free(scene.pool));
    CHECK_EQ(end(&scene).status, TB_E_FREED);
    CHECK_STATUS(tb_loan_publish(scene.loan, NULL), TB_E_FREED);
    tb_bus_close(scene.bus);
}

static void one_of_a_closed_owner_is_closed(void)
{
    struct scene scene;
    begin(&scene);
    tb_bus_close(scene.bus);
    tb_status status = end(&scene).status;
    CHECK(status == TB_CLOSED || status == TB_E_FREED || status == TB_E_STALE);
}

static void promising_owner(void *argument)
{
    (void)argument;
    tb_loan *loan;
    tb_handle handle;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", ELEMENTS, 3);
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    CHECK_OK(tb_loan_promise(loan, &handle));
    parent_tell(&handle, sizeof handle);
    parent_pause("promised");
    tb_bus_close(bus);
}

static void one_of_a_dead_owner_is_told_so(void)
{
    struct child owner;
    struct child reader;
    struct answer answer;
    tb_handle handle;
    child_start(&owner, "owner", promising_owner, NULL);
    child_hear(&owner, &handle, sizeof handle);
    child_await(&owner, "promised");
    child_start(&reader, "opener", opener, NULL);
    child_tell(&reader, &handle, sizeof handle);
    child_await(&reader, "opening");
    CHECK(!child_has_spoken(&reader, 200));
    int64_t begun_ns = harness_now_ns();
    child_kill(&owner);
    child_hear(&reader, &answer, sizeof answer);
    CHECK_LT(harness_now_ns() - begun_ns, TB_SECONDS(1));
    CHECK_EQ(answer.status, TB_E_OWNER_DIED);
    child_kill(&reader);
}

static void waiting_for_oneself_is_an_error(void)
{
    tb_loan *loan;
    tb_handle handle;
    tb_frame *frame;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", ELEMENTS, 3);
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    CHECK_OK(tb_loan_promise(loan, &handle));
    CHECK_STATUS(tb_frame_open(bus, &handle, TB_POLL, &frame), TB_E_DEADLOCK);
    CHECK_HAS(tb_last_error_text(), "frame 1 of pool `owner/frames` was promised by this thread");
    fill_words(tb_loan_tensor(loan), 3);
    CHECK_OK(tb_loan_publish(loan, NULL));
    CHECK_OK(tb_frame_open(bus, &handle, TB_POLL, &frame));
    CHECK_EQ(words_value(frame), 3);
    tb_frame_release(frame);
    tb_bus_close(bus);
}

static int stop_at_once(void *context)
{
    (void)context;
    return 1;
}

static void the_wait_can_be_interrupted(void)
{
    struct child owner;
    tb_handle handle;
    tb_frame *frame;
    child_start(&owner, "owner", promising_owner, NULL);
    child_hear(&owner, &handle, sizeof handle);
    child_await(&owner, "promised");
    tb_bus *bus = open_bus("reader");
    tb_set_interrupt(stop_at_once, NULL);
    int64_t begun_ns = harness_now_ns();
    CHECK_STATUS(tb_frame_open(bus, &handle, TB_POLL, &frame), TB_AGAIN);
    tb_set_interrupt(NULL, NULL);
    CHECK_LT(harness_now_ns() - begun_ns, TB_SECONDS(3));
    child_go(&owner);
    child_join(&owner);
    tb_bus_close(bus);
}

/* Readers in order see no gap: what is published later waits behind the promise, however it ends.
 */
static void frames_stay_in_order(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", ELEMENTS, 4);
    tb_reader *reader = open_reader(bus, "owner/frames");
    for (int64_t round = 0; round < 2; round++) {
        tb_loan *loan;
        tb_handle handle;
        tb_frame *frame;
        CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
        CHECK_OK(tb_loan_promise(loan, &handle));
        CHECK_OK(write_words(pool, 20 + round, TB_POLL, NULL));
        CHECK_STATUS(tb_reader_next(reader, TB_POLL, &frame), TB_AGAIN);
        CHECK_STATUS(tb_reader_newest(reader, TB_POLL, &frame), TB_AGAIN);
        if (round == 0) {
            fill_words(tb_loan_tensor(loan), 10);
            CHECK_OK(tb_loan_publish(loan, NULL));
            CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
            CHECK_EQ(words_value(frame), 10);
            tb_frame_release(frame);
        } else {
            tb_loan_cancel(loan);
        }
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        CHECK_EQ(words_value(frame), 20 + round);
        CHECK_EQ(info_of(frame).missed, (uint64_t)round);
        tb_frame_release(frame);
    }
    tb_bus_close(bus);
}

/* Numbers that were given up hold no slot: they are bounded while an earlier promise stands. */
static void promises_that_are_given_up_are_bounded(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 16, 4);
    tb_loan *standing, *loan;
    tb_handle handle;
    tb_status status = TB_OK;
    int given_up = 0;
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &standing));
    CHECK_OK(tb_loan_promise(standing, &handle));
    while (status == TB_OK && given_up < 1000) {
        CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
        status = tb_loan_promise(loan, &handle);
        given_up += status == TB_OK;
        tb_loan_cancel(loan);
    }
    CHECK_EQ(status, TB_E_LIMIT);
    CHECK_LE(100, given_up);
    CHECK_HAS(tb_last_error_text(), "while frame 1 is not published");
    CHECK_OK(write_words(pool, 5, TB_POLL, NULL)); /* without a promise it goes on */
    fill_words(tb_loan_tensor(standing), 1);
    CHECK_OK(tb_loan_publish(standing, NULL));
    tb_reader *reader = open_reader(bus, "owner/frames");
    for (int64_t n = 0; n < 1000; n++) {
        tb_frame *frame;
        CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
        CHECK_OK(tb_loan_promise(loan, &handle));
        fill_words(tb_loan_tensor(loan), n);
        CHECK_OK(tb_loan_publish(loan, NULL));
        CHECK_OK(tb_reader_newest(reader, TB_POLL, &frame));
        CHECK_EQ(words_value(frame), n);
        tb_frame_release(frame);
    }
    tb_bus_close(bus);
}

static void a_promise_keeps_its_size(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool_options options = words_options("frames", 16, 3);
    options.capacity_bytes = 1024;
    tb_pool *pool;
    tb_loan *loan;
    tb_handle handle;
    const int64_t small[] = {3}, other[] = {4}, same[] = {1, 3};
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    CHECK_OK(tb_loan_reshape(loan, 1, small, NULL));
    CHECK_OK(tb_loan_promise(loan, &handle));
    CHECK_EQ(handle.bytes, 24);
    CHECK_STATUS(tb_loan_reshape(loan, 1, other, NULL), TB_E_MISMATCH);
    CHECK_HAS(tb_last_error_text(), "promised with 24 bytes, 32 are another frame");
    CHECK_OK(tb_loan_reshape(loan, 2, same, NULL));
    int64_t words[3] = {4, 5, 6};
    tb_tensor tensor = {.data = words, .dtype = TB_I64, .device = TB_CPU, .ndim = 1, .shape = {3}};
    CHECK_OK(tb_loan_write(loan, &tensor));
    CHECK_OK(tb_loan_publish(loan, NULL));
    tb_frame *frame;
    CHECK_OK(tb_frame_open(bus, &handle, TB_POLL, &frame));
    CHECK(memcmp(tb_frame_tensor(frame)->data, words, sizeof words) == 0);
    CHECK_EQ(info_of(frame).copies, 1);
    tb_frame_release(frame);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(a_promised_frame_is_waited_for, 20),
    TEST(one_that_is_given_up_is_stale, 20),
    TEST(one_of_a_freed_pool_is_freed, 20),
    TEST(one_of_a_closed_owner_is_closed, 20),
    TEST(one_of_a_dead_owner_is_told_so, 20),
    TEST(waiting_for_oneself_is_an_error, 20),
    TEST(the_wait_can_be_interrupted, 20),
    TEST(frames_stay_in_order, 20),
    TEST(promises_that_are_given_up_are_bounded, 20),
    TEST(a_promise_keeps_its_size, 20),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

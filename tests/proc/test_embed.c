/* What <tensorbus/embed.h> gives to runtimes that embed the library: waits that can be interrupted,
 * memory that outlives its bus. */
#include "proc/pool_support.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <tensorbus/embed.h>

static _Atomic int wanted;
static int asked;

static int end_when_wanted(void *context)
{
    asked += context == &asked;
    return wanted;
}

static void want_end(int signal_number)
{
    (void)signal_number;
    wanted = 1;
}

/* What a waiting call does while `end` asks for its end: how long it took, in ms. */
static int64_t interrupted_ms(tb_status (*call)(void *), void *context, tb_status status,
                              void (*end)(void))
{
    wanted = 0;
    asked = 0;
    tb_set_interrupt(end_when_wanted, &asked);
    int64_t began = harness_now_ns();
    if (end != NULL) {
        end();
    }
    CHECK_STATUS(call(context), status);
    tb_set_interrupt(NULL, NULL);
    CHECK_LT(0, asked);
    return (harness_now_ns() - began) / 1000000;
}

static void by_alarm(void)
{
    struct sigaction action = {.sa_handler = want_end};
    CHECK_EQ(sigaction(SIGALRM, &action, NULL), 0);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    CHECK_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    struct itimerspec soon = {.it_value.tv_nsec = 120000000};
    CHECK_EQ(timer_settime(timer, 0, &soon, NULL), 0);
}

static void at_once(void)
{
    wanted = 1; /* no signal: the check is asked in the course of the wait */
}

static tb_status loan_for_ever(void *pool)
{
    tb_loan *loan;
    return tb_pool_loan(pool, TB_FOREVER, &loan);
}

static tb_status next_for_ever(void *reader)
{
    tb_frame *frame;
    return tb_reader_next(reader, TB_FOREVER, &frame);
}

static tb_status open_for_ever(void *bus)
{
    tb_reader *reader;
    tb_reader_options options = {.size = sizeof options, .wait_ns = TB_FOREVER};
    return tb_reader_open(bus, "nobody/nothing", &options, &reader);
}

static tb_status open_absent_pool(void *bus)
{
    tb_reader *reader;
    tb_reader_options options = {.size = sizeof options, .wait_ns = TB_FOREVER};
    return tb_reader_open(bus, "owner/nothing", &options, &reader);
}

static void a_wait_for_a_slot_ends_and_counts_once(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool_options options = words_options("words", 8, 2);
    options.policy = TB_EVERY;
    options.wait_readers = 1; /* which never come */
    tb_pool *pool;
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    CHECK_LT(interrupted_ms(loan_for_ever, pool, TB_AGAIN, at_once), 100);
    CHECK_EQ(stats_of(pool).drops, 1);
    /* At a signal it asks at once, not at the end of a slice (150 ms). */
    int64_t best_ms = INT64_MAX;
    for (int i = 0; i < 5; i++) {
        int64_t ms = interrupted_ms(loan_for_ever, pool, TB_AGAIN, by_alarm);
        CHECK_LE(119, ms);
        best_ms = ms < best_ms ? ms : best_ms;
    }
    CHECK_LT(best_ms, 135);
    tb_bus_close(bus);
}

static void waits_of_readers_end(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "words", 8, 2);
    tb_reader *reader = open_reader(bus, "owner/words");
    CHECK_LT(interrupted_ms(next_for_ever, reader, TB_AGAIN, at_once), 100);
    CHECK_LT(interrupted_ms(next_for_ever, reader, TB_AGAIN, by_alarm), 220);
    CHECK_LT(interrupted_ms(open_for_ever, bus, TB_E_NOT_FOUND, at_once), 100);
    CHECK_LT(interrupted_ms(open_absent_pool, bus, TB_E_NOT_FOUND, at_once), 150);
    /* A check that lets it go on, on a wait of several slices; and none. */
    wanted = 0;
    tb_set_interrupt(end_when_wanted, &asked);
    tb_reader_options options = {.size = sizeof options, .wait_ns = TB_MILLIS(180)};
    int64_t began = harness_now_ns();
    tb_reader *none;
    CHECK_STATUS(tb_reader_open(bus, "owner/nothing", &options, &none), TB_E_NOT_FOUND);
    CHECK_LE(180, (harness_now_ns() - began) / 1000000);
    tb_set_interrupt(NULL, NULL);
    tb_frame *frame;
    began = harness_now_ns();
    CHECK_STATUS(tb_reader_next(reader, TB_MILLIS(80), &frame), TB_AGAIN);
    CHECK_LE(80, (harness_now_ns() - began) / 1000000);
    CHECK_OK(write_words(pool, 7, TB_POLL, NULL));
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    tb_frame_release(frame);
    tb_bus_close(bus);
}

static void look_after_the_close(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "words", 1024, 2);
    tb_reader *reader = open_reader(bus, "owner/words");
    CHECK_OK(write_words(pool, 7, TB_POLL, NULL));
    tb_frame *frame;
    tb_loan *loan;
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    volatile int64_t *seen = tb_frame_tensor(frame)->data;
    volatile int64_t *written = tb_loan_tensor(loan)->data;
    CHECK_OK(tb_bus_keep_mapped(bus));
    tb_bus_close(bus);
    CHECK_EQ(seen[1023], 7);
    written[1023] = 8;
    CHECK_EQ(written[1023], 8);
    _exit(0); /* before anybody looks for mappings that are left */
}

static void what_was_mapped_stays_when_asked_for(void)
{
    struct child child; /* whose end takes the memory */
    child_start(&child, "keeper", look_after_the_close, NULL);
    child_join(&child);
    CHECK_STATUS(tb_bus_keep_mapped(NULL), TB_E_INVALID);
}

static void a_loan_is_filled_by_copy(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool_options options = words_options("words", 8, 2);
    options.capacity_bytes = 64;
    tb_pool *pool;
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    int64_t words[6] = {1, 2, 3, 4, 5, 6};
    int64_t backwards[1] = {-2};
    tb_tensor tensor = {
        .data = &words[5], .dtype = TB_I64, .ndim = 1, .shape = {3}, .strides = backwards};
    tb_loan *loan;
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    tensor.shape[0] = 9; /* too large: the loan is as it was */
    tensor.strides = NULL;
    CHECK_STATUS(tb_pool_check(pool, &tensor), TB_E_MISMATCH);
    CHECK_STATUS(tb_loan_write(loan, &tensor), TB_E_MISMATCH);
    CHECK_EQ(tb_loan_tensor(loan)->shape[0], 8);
    tensor.shape[0] = 3;
    tensor.strides = backwards;
    CHECK_OK(tb_pool_check(pool, &tensor));
    CHECK_STATUS(tb_pool_check(NULL, &tensor), TB_E_INVALID);
    CHECK_OK(tb_loan_write(loan, &tensor));
    CHECK_STATUS(tb_loan_write(NULL, &tensor), TB_E_INVALID);
    CHECK_OK(tb_loan_publish(loan, NULL));
    tb_reader *reader = open_reader(bus, "owner/words");
    tb_frame *frame;
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    const int64_t *got = tb_frame_tensor(frame)->data;
    CHECK_EQ(tb_frame_tensor(frame)->shape[0], 3);
    CHECK(got[0] == 6 && got[1] == 4 && got[2] == 2);
    CHECK_EQ(info_of(frame).copies, 1);
    CHECK_EQ(stats_of(pool).copies, 1);
    CHECK_EQ(stats_of(pool).copied_bytes, 24);
    tb_frame_release(frame);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(a_wait_for_a_slot_ends_and_counts_once, 10),
    TEST(waits_of_readers_end, 10),
    TEST(what_was_mapped_stays_when_asked_for, 10),
    TEST(a_loan_is_filled_by_copy, 10),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

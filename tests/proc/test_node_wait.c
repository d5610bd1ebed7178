/* Waiting for everything at once (F16): each source alone wakes a sleeping node, and sleeping costs
 * nothing. */
#include <sys/resource.h>

#include "proc/node_runner.h"
#include "proc/node_support.h"

/* Sends number n when it is told to. */
static void told_source(void *argument)
{
    const char *id = argument;
    char outputs[40];
    snprintf(outputs, sizeof outputs, "out=waiter/%s", id);
    tb_node *node = open_node(id, "", outputs);
    uint64_t number;
    for (;;) {
        parent_hear(&number, sizeof number);
        if (number == 0) {
            break;
        }
        /* The waiter sleeps by now. */
        harness_sleep_us(30000);
        int64_t sent_ns = harness_now_ns();
        CHECK_OK(
            tb_node_send(node, "out", tb_bytes(&sent_ns, sizeof sent_ns), NULL, TB_SECONDS(20)));
    }
    tb_node_close(node);
}

static void tell(struct child *child, uint64_t number)
{
    child_tell(child, &number, sizeof number);
}

static int64_t cpu_ns(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return ((int64_t)usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000 +
           ((int64_t)usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
}

static long switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
}

static void send_stop_later(void *argument)
{
    struct test_runner runner;
    (void)argument;
    runner_open(&runner);
    parent_reached("runner");
    runner_await(&runner, "waiter");
    uint64_t go;
    parent_hear(&go, sizeof go);
    harness_sleep_us(30000);
    runner_stop(&runner, "waiter");
    parent_hear(&go, sizeof go);
    runner_close(&runner);
}

/* Three inputs, two timers and STOP. The first timer is due first, the second an hour later. */
static void f16_each_alone_wakes(void)
{
    static const char *const names[] = {"a", "b", "c"};
    struct child sources[3];
    struct child runner;
    tb_node *node;
    child_start(&runner, "runner", send_stop_later, NULL);
    child_await(&runner, "runner");
    for (int i = 0; i < 3; i++) {
        child_start(&sources[i], names[i], told_source, (void *)(uintptr_t)names[i]);
    }
    node_environment("waiter",
                     "a=a/out\nb=b/out\nc=c/out\nsoon=tensorbus/timer/millis/1500;queue=1\n"
                     "late=tensorbus/timer/secs/3600",
                     "", "_runner");
    CHECK_OK(tb_node_open(&node));
    int64_t opened_ns = harness_now_ns();
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 3; i++) {
            tell(&sources[i], 1);
            tb_event *event = next_event(node, TB_EVENT_INPUT, names[i]);
            int64_t late_ns = harness_now_ns() - (int64_t)event_number(event);
            CHECK_LE(late_ns, 50000000LL * harness_slowness());
            CHECK_LE((int64_t)event_number(event), tb_event_stamp_ns(event));
            tb_event_release(event);
        }
    }
    tb_event *event = next_event(node, TB_EVENT_INPUT, "soon");
    CHECK_LE(opened_ns + 1400000000, harness_now_ns());
    CHECK_LE(harness_now_ns() - tb_event_stamp_ns(event), 50000000LL * harness_slowness());
    CHECK(tb_event_tensor(event) != NULL);
    CHECK_EQ(tb_event_tensor(event)->shape[0], 0);
    tb_event_release(event);
    uint64_t go = 1;
    child_tell(&runner, &go, sizeof go);
    int64_t before = harness_now_ns();
    expect_event(node, TB_EVENT_STOP, "");
    CHECK_LE(harness_now_ns() - before, 500000000LL * harness_slowness());
    expect_end(node);
    for (int i = 0; i < 3; i++) {
        tell(&sources[i], 0);
        child_join(&sources[i]);
    }
    tb_node_close(node);
    child_tell(&runner, &go, sizeof go);
    child_join(&runner);
}

/* A second of waiting for three inputs and a timer costs next to no processor time and wakes no
 * more than the doorbell's slices. */
static void f16_waiting_is_no_polling(void)
{
    static const char *const names[] = {"a", "b", "c"};
    struct child sources[3];
    for (int i = 0; i < 3; i++) {
        child_start(&sources[i], names[i], told_source, (void *)(uintptr_t)names[i]);
    }
    setenv("TENSORBUS_EXIT_WHEN_NODES_FINISH", "1", 1);
    tb_node *node =
        open_node("waiter", "a=a/out\nb=b/out\nc=c/out\nlate=tensorbus/timer/secs/3600", "");
    tb_event *event;
    CHECK_STATUS(tb_node_next(node, TB_MILLIS(1), &event), TB_AGAIN);
    int64_t cpu_before = cpu_ns();
    long switches_before = switches();
    int64_t before = harness_now_ns();
    CHECK_STATUS(tb_node_next(node, TB_SECONDS(1), &event), TB_AGAIN);
    int64_t waited = harness_now_ns() - before;
    CHECK_LE(1000000000, waited);
    CHECK_LE(waited, 1000000000 + 200000000LL * harness_slowness());
    CHECK_LE(cpu_ns() - cpu_before, 5000000LL * harness_slowness());
    CHECK_LE(switches() - switches_before, 12 * (long)harness_slowness());
    /* A poll does not wait, and a full queue is found at once. */
    before = harness_now_ns();
    CHECK_STATUS(tb_node_next(node, TB_POLL, &event), TB_AGAIN);
    CHECK_LE(harness_now_ns() - before, 20000000LL * harness_slowness());
    for (int i = 0; i < 3; i++) {
        tell(&sources[i], 0);
        child_join(&sources[i]);
        expect_event(node, TB_EVENT_INPUT_CLOSED, names[i]);
    }
    expect_end(node);
    tb_node_close(node);
}

/* A timer keeps its node alive when all other inputs are closed, unless the flow says otherwise; a
 * node with timers alone goes on in any case. */
static void timers_and_the_end(void)
{
    static const struct {
        const char *setting;
        const char *inputs;
        int ends;
    } cases[] = {{NULL, "a=a/out\ntick=tensorbus/timer/millis/20", 0},
                 {"0", "a=a/out\ntick=tensorbus/timer/millis/20", 0},
                 {"1", "a=a/out\ntick=tensorbus/timer/millis/20", 1},
                 {"1", "tick=tensorbus/timer/millis/20", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct child source;
        int has_source = cases[i].inputs[0] == 'a';
        if (has_source) {
            child_start(&source, "a", told_source, (void *)(uintptr_t) "a");
        }
        unsetenv("TENSORBUS_EXIT_WHEN_NODES_FINISH");
        if (cases[i].setting != NULL) {
            setenv("TENSORBUS_EXIT_WHEN_NODES_FINISH", cases[i].setting, 1);
        }
        tb_node *node = open_node("waiter", cases[i].inputs, "");
        tb_event *event;
        if (has_source) {
            tell(&source, 0);
            tb_event_type type = TB_EVENT_INPUT;
            while (type != TB_EVENT_INPUT_CLOSED) {
                CHECK_OK(tb_node_next(node, TB_SECONDS(20), &event));
                type = tb_event_get_type(event);
                tb_event_release(event);
            }
        }
        for (int n = 0; n < 5 && !cases[i].ends; n++) {
            expect_event(node, TB_EVENT_INPUT, "tick");
        }
        if (cases[i].ends) {
            expect_end(node);
        }
        tb_node_close(node);
        if (has_source) {
            child_join(&source);
        }
    }
}

/* A lost wake-up shows as a wait of a whole slice. */
#define PINGS 20000

static void ponger(void *argument)
{
    (void)argument;
    tb_node *node = open_node("pong", "in=ping/out;queue=1", "out=ping/in");
    tb_event *event;
    while (tb_node_next(node, TB_SECONDS(20), &event) == TB_OK) {
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            CHECK_OK(send_number(node, "out", event_number(event), 0));
        }
        tb_event_release(event);
    }
    tb_node_close(node);
}

static void f16_no_wake_up_is_lost(void)
{
    struct child pong;
    child_start(&pong, "pong", ponger, NULL);
    tb_node *node = open_node("ping", "in=pong/out;queue=1", "out=pong/in");
    unsigned long pings = harness_scale(PINGS, PINGS * 10);
    unsigned slow = 0;
    for (uint64_t n = 1; n <= pings; n++) {
        int64_t before = harness_now_ns();
        CHECK_OK(send_number(node, "out", n, 0));
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(event_number(event), n);
        tb_event_release(event);
        slow += harness_now_ns() - before >= 240000000;
    }
    CHECK_EQ(slow, 0);
    CHECK_OK(tb_node_close_output(node, "out"));
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    tb_node_close(node);
    child_join(&pong);
}

/* ---- order, silence ---- */

/* Waiting messages come in the order in which they were sent, whichever input is named first. */
static void f16_the_oldest_first(void)
{
    static const char *const order = "abbacabcca";
    static const char *const names[] = {"a", "b", "c"};
    struct child sources[3];
    for (int i = 0; i < 3; i++) {
        child_start(&sources[i], names[i], told_source, (void *)(uintptr_t)names[i]);
    }
    tb_node *node = open_node("waiter", "c=c/out\na=a/out\nb=b/out", "");
    for (const char *at = order; *at != '\0'; at++) {
        tell(&sources[*at - 'a'], 1);
        harness_sleep_us(60000 * harness_slowness()); /* told_source() waits for 30 ms first */
    }
    for (const char *at = order; *at != '\0'; at++) {
        expect_event(node, TB_EVENT_INPUT, names[*at - 'a']);
    }
    for (int i = 0; i < 3; i++) {
        tell(&sources[i], 0);
        child_join(&sources[i]);
    }
    tb_node_close(node);
}

static void flooding_source(void *argument)
{
    (void)argument;
    tb_node *node = open_node("flood", "", "out=waiter/flood");
    parent_reached("floods");
    for (;;) { /* until it is killed */
        CHECK_OK(send_number(node, "out", 1, TB_SECONDS(20)));
    }
}

/* An input that always has something does not keep another one, or a timer, waiting. */
static void f16_nobody_starves(void)
{
    struct child flood;
    struct child source;
    child_start(&flood, "flood", flooding_source, NULL);
    child_start(&source, "quiet", told_source, (void *)(uintptr_t) "quiet");
    tb_node *node = open_node("waiter",
                              "flood=flood/out;queue=1000\nquiet=quiet/out\n"
                              "tick=tensorbus/timer/millis/20",
                              "");
    child_await(&flood, "floods");
    tell(&source, 1);
    int quiet = 0;
    int ticks = 0;
    int floods = 0;
    int64_t end = harness_now_ns() + 20000000000LL;
    while ((quiet == 0 || ticks < 5 || floods < 1000) && harness_now_ns() < end) {
        tb_event *event;
        CHECK_OK(tb_node_next(node, TB_SECONDS(20), &event));
        const char *id = tb_event_id(event);
        quiet += id[0] == 'q';
        ticks += id[0] == 't';
        floods += id[0] == 'f';
        tb_event_release(event);
    }
    CHECK_EQ(quiet, 1);
    CHECK_LE(5, ticks);
    CHECK_LE(1000, floods);
    child_kill(&flood);
    tell(&source, 0);
    tb_node_close(node);
    child_join(&source);
}

/* input_timeout: one ERROR for a silence, again after the next message. */
static void silence_is_an_error_event(void)
{
    struct child source;
    child_start(&source, "a", told_source, (void *)(uintptr_t) "a");
    tb_node *node = open_node("waiter", "a=a/out;timeout_ns=100000000", "");
    for (int round = 0; round < 2; round++) {
        int64_t before = harness_now_ns();
        tb_event *event = next_event(node, TB_EVENT_ERROR, "a");
        CHECK_HAS(tb_event_text(event), "`a`");
        CHECK_HAS(tb_event_text(event), "`a/out`");
        CHECK_LE(harness_now_ns() - before, 100000000 + 100000000LL * harness_slowness());
        tb_event_release(event);
        CHECK_STATUS(tb_node_next(node, TB_MILLIS(200), &event), TB_AGAIN);
        tell(&source, 1);
        expect_event(node, TB_EVENT_INPUT, "a");
    }
    tell(&source, 0);
    tb_event *event;
    tb_status status;
    while ((status = tb_node_next(node, TB_SECONDS(20), &event)) == TB_OK) {
        CHECK_NE(tb_event_get_type(event), TB_EVENT_INPUT);
        tb_event_release(event);
    }
    CHECK_STATUS(status, TB_CLOSED);
    tb_node_close(node);
    child_join(&source);
}

static const struct test tests[] = {
    TEST(f16_each_alone_wakes, 60),    TEST(f16_waiting_is_no_polling, 60),
    TEST(f16_no_wake_up_is_lost, 120), TEST(f16_nobody_starves, 60),
    TEST(f16_the_oldest_first, 60),    TEST(silence_is_an_error_event, 60),
    TEST(timers_and_the_end, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

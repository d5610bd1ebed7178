/* Waits of a node that a runtime interrupts (embed.h): opening, the next event, room in a queue. */
#include "proc/node_support.h"

#include <tensorbus/embed.h>

static int asked;

static int end_at_third(void *context)
{
    (void)context;
    return ++asked >= 3;
}

/* The call must come back before long, and not before it was told so. */
static int64_t begin(void)
{
    asked = 0;
    tb_set_interrupt(end_at_third, NULL);
    return harness_now_ns();
}

static void end(int64_t begun_ns)
{
    tb_set_interrupt(NULL, NULL);
    CHECK_LE(3, asked);
    CHECK_LT(harness_now_ns() - begun_ns, 3000000000);
}

static void opening_ends_while_a_source_is_missing(void)
{
    tb_node *node;
    node_environment("sink", "in=nobody/out", "", NULL);
    int64_t begun_ns = begin();
    CHECK_STATUS(tb_node_open(&node), TB_AGAIN);
    CHECK_HAS(tb_last_error_text(), "`nobody/out`");
    end(begun_ns);
    node = open_node("sink", "", ""); /* nothing is left of it */
    tb_node_close(node);
}

static void opening_ends_while_a_subscriber_is_missing(void)
{
    tb_node *node;
    node_environment("source", "", "out=nobody/in", NULL);
    int64_t begun_ns = begin();
    CHECK_STATUS(tb_node_open(&node), TB_AGAIN);
    CHECK_HAS(tb_last_error_text(), "`nobody/in`");
    end(begun_ns);
    node = open_node("source", "", "");
    tb_node_close(node);
}

static void the_next_event_is_not_waited_for(void)
{
    tb_event *event;
    tb_node *node = open_node("sink", "tick=tensorbus/timer/millis/400", "");
    expect_event(node, TB_EVENT_INPUT, "tick");
    int64_t begun_ns = begin();
    CHECK_STATUS(tb_node_next(node, TB_FOREVER, &event), TB_AGAIN);
    end(begun_ns);
    expect_event(node, TB_EVENT_INPUT, "tick"); /* nothing is lost */
    tb_node_close(node);
}

static void sleepy_sink(void *argument)
{
    (void)argument;
    tb_node *node = open_node("sink", "in=source/out;queue=1;policy=backpressure", "");
    parent_pause("open");
    for (uint64_t i = 0; i < 3; i++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(event_number(event), i);
        tb_event_release(event);
    }
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    tb_node_close(node);
}

static void room_is_not_waited_for(void)
{
    struct child sink;
    child_start(&sink, "sink", sleepy_sink, NULL);
    tb_node *node = open_node("source", "", "out=sink/in");
    child_await(&sink, "open");
    uint64_t sent = 0;
    while (send_number(node, "out", sent, 0) == TB_OK) {
        sent++;
    }
    int64_t begun_ns = begin();
    CHECK_STATUS(send_number(node, "out", sent, TB_FOREVER), TB_AGAIN);
    end(begun_ns);
    child_go(&sink);
    for (; sent < 3; sent++) {
        CHECK_OK(send_number(node, "out", sent, TB_FOREVER)); /* it was not sent before */
    }
    tb_node_close(node);
    child_join(&sink);
}

static const struct test tests[] = {
    TEST(opening_ends_while_a_source_is_missing, 30),
    TEST(opening_ends_while_a_subscriber_is_missing, 30),
    TEST(the_next_event_is_not_waited_for, 30),
    TEST(room_is_not_waited_for, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

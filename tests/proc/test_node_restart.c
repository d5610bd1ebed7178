/* Lives of a restarted subscriber: what it missed in between is counted, whatever its queue. */
#include "proc/node_support.h"

struct life {
    const char *inputs;
    uint64_t take; /* messages, then it waits for its end */
    uint64_t first;
    uint64_t dropped; /* that its first event reports */
};

/* Forked before the source uses the library; begins when it is told to. */
static void sink(void *argument)
{
    const struct life *life = argument;
    char go;
    parent_hear(&go, sizeof go);
    tb_node *node = open_node("sink", life->inputs, "");
    parent_reached("open");
    for (uint64_t i = 0; i < life->take; i++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(event_number(event), life->first + i);
        CHECK_EQ(tb_event_dropped(event), i == 0 ? life->dropped : 0);
        tb_event_release(event);
    }
    parent_pause("taken");
    tb_node_close(node);
}

static void send_up_to(tb_node *node, uint64_t *sent, uint64_t last)
{
    while (*sent < last) {
        CHECK_OK(send_number(node, "out", ++*sent, TB_SECONDS(20)));
    }
}

static void begin(struct child *child)
{
    child_tell(child, "g", 1);
    child_await(child, "open");
}

static void run_lives(const char *inputs)
{
    struct life lives[] = {
        {inputs, 3, 1, 0},  /* takes 1 to 3 of 6 */
        {inputs, 0, 0, 0},  /* comes after 9, takes nothing of 10 */
        {inputs, 2, 12, 8}, /* comes after 11 */
        {inputs, 1, 14, 0}, /* nothing was sent while it was away */
    };
    struct child children[4];
    uint64_t sent = 0;
    for (int i = 0; i < 4; i++) {
        child_start(&children[i], "sink", sink, &lives[i]);
    }
    child_tell(&children[0], "g", 1);
    tb_node *node = open_node("source", "", "out=sink/in");
    child_await(&children[0], "open");
    send_up_to(node, &sent, 6);
    child_await(&children[0], "taken");
    child_kill(&children[0]);
    send_up_to(node, &sent, 9);
    begin(&children[1]);
    send_up_to(node, &sent, 10);
    child_await(&children[1], "taken");
    child_kill(&children[1]);
    send_up_to(node, &sent, 11);
    begin(&children[2]);
    send_up_to(node, &sent, 13);
    child_await(&children[2], "taken");
    child_go(&children[2]);
    child_join(&children[2]); /* this life ends in order */
    begin(&children[3]);
    send_up_to(node, &sent, 14);
    child_await(&children[3], "taken");
    child_go(&children[3]);
    child_join(&children[3]);
    tb_node_close(node);
}

static void what_a_restart_missed_of_backpressure(void)
{
    run_lives("in=source/out;queue=10;policy=backpressure");
}

static void what_a_restart_missed_of_drop_oldest(void)
{
    run_lives("in=source/out;queue=10");
}

/* Another subscriber of the same output is not disturbed. */
static void other(void *argument)
{
    (void)argument;
    tb_node *node = open_node("other", "in=source/out;queue=100", "");
    parent_reached("open");
    for (uint64_t n = 1; n <= 14; n++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(event_number(event), n);
        CHECK_EQ(tb_event_dropped(event), 0);
        tb_event_release(event);
    }
    parent_pause("taken");
    tb_node_close(node);
}

static void a_neighbour_misses_nothing(void)
{
    struct life lives[] = {{"in=source/out;queue=100", 3, 1, 0},
                           {"in=source/out;queue=100", 1, 14, 10}};
    struct child children[2];
    struct child neighbour;
    uint64_t sent = 0;
    for (int i = 0; i < 2; i++) {
        child_start(&children[i], "sink", sink, &lives[i]);
    }
    child_start(&neighbour, "other", other, NULL);
    child_tell(&children[0], "g", 1);
    tb_node *node = open_node("source", "", "out=sink/in,other/in");
    child_await(&children[0], "open");
    child_await(&neighbour, "open");
    send_up_to(node, &sent, 6);
    child_await(&children[0], "taken");
    child_kill(&children[0]);
    send_up_to(node, &sent, 13);
    begin(&children[1]);
    send_up_to(node, &sent, 14);
    child_await(&children[1], "taken");
    child_await(&neighbour, "taken");
    child_go(&children[1]);
    child_go(&neighbour);
    child_join(&children[1]);
    child_join(&neighbour);
    tb_node_close(node);
}

static const struct test tests[] = {
    TEST(what_a_restart_missed_of_backpressure, 60),
    TEST(what_a_restart_missed_of_drop_oldest, 60),
    TEST(a_neighbour_misses_nothing, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

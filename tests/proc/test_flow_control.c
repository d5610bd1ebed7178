/* The runner's endpoint, with children that speak to it as nodes and tools do: STOP, the word that
 * a neighbour has ended, pools that nobody freed, requests to stop, and peers that break the rules.
 */
#include "proc/control_support.h"

#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "endpoint/bus.h"
#include "flow/run_environment.h"

#define FLOW_ID "f10f10f1"

static const char flow_text[] = "nodes:\n"
                                "  - {id: source, path: x, outputs: [out]}\n"
                                "  - {id: sink, path: x, inputs: {in: source/out}}\n"
                                "  - {id: other, path: x}\n";
enum { SOURCE, SINK, OTHER };

/* ------------------------------------------------------------------ the runner's side */

/* A message that holds the runner's service thread up until it is let go. */
#define HOLD TB__MSG_STREAM_FIRST
static sem_t held;
static sem_t let_go;

static void on_hold(void *context, struct tb__lifeline *line, struct tb__msg *msg)
{
    (void)context;
    (void)line;
    (void)msg;
    sem_post(&held);
    sem_wait(&let_go);
}

static tb_status can_be_held(tb_bus *bus)
{
    if (strcmp(tb_bus_name(bus), TB__RUNNER_ENDPOINT) == 0) {
        tb__bus_handle(bus, HOLD, HOLD, on_hold, NULL);
    }
    return TB_OK;
}

static void open_control(struct fixture *it)
{
    open_control_of(it, FLOW_ID, flow_text);
}

/* Wait for news. */
static struct tb__control_news await_news(struct fixture *it)
{
    struct tb__control_news news;
    struct pollfd fd = {.fd = tb__control_fd(it->control), .events = POLLIN};
    CHECK_EQ(poll(&fd, 1, 5000), 1);
    tb__control_take(it->control, &news);
    CHECK_EQ(poll(&fd, 1, 0), 0); /* said once */
    return news;
}

/* ------------------------------------------------------------------ a node's side */

struct heard {
    uint32_t stops;
    uint32_t gones;
    char gone[4][TB__NAME_SIZE];
};
static struct heard heard; /* under the bus's mutex: the service thread writes it */

static void on_word(void *context, struct tb__lifeline *line, struct tb__msg *msg)
{
    (void)line;
    tb__bus_lock(context);
    if (msg->type == TB__MSG_STOP) {
        heard.stops++;
    } else if (msg->type == TB__MSG_NODE_GONE && heard.gones < 4) {
        struct tb__name_wire body;
        CHECK_OK(tb__wire_body(msg, &body, sizeof body, 0));
        tb__name_copy(heard.gone[heard.gones++], body.name);
    }
    tb__bus_unlock(context);
}

struct peer {
    tb_bus *bus;
    struct tb__lifeline *runner;
};

static void connect_peer(struct peer *peer, const char *name)
{
    const tb_bus_options options = {.size = sizeof options, .name = name, .flow = FLOW_ID};
    CHECK_OK(tb_bus_open(&options, &peer->bus));
    tb__bus_handle(peer->bus, TB__MSG_STOP, TB__MSG_NODE_GONE, on_word, peer->bus);
    CHECK_OK(tb__bus_connect(peer->bus, TB__RUNNER_ENDPOINT, 0, tb__deadline_ns(TB_SECONDS(5)),
                             &peer->runner));
}

static void close_peer(struct peer *peer)
{
    tb__lifeline_unref(peer->runner);
    tb_bus_close(peer->bus);
}

static void say_ready(struct peer *peer)
{
    CHECK_OK(tb__lifeline_send(peer->runner, TB__MSG_NODE_READY, NULL, 0));
}

static void say_pool(struct peer *peer, uint16_t type, const char *name)
{
    struct tb__name_wire body = {{0}};
    tb__name_copy(body.name, name);
    CHECK_OK(tb__lifeline_send(peer->runner, type, &body, sizeof body));
}

/* Children are forked before the endpoint opens (its thread does not live on in them), and begin
 * when they are told to. */
static void await_begin(void)
{
    char command;
    parent_hear(&command, 1);
    CHECK_EQ(command, 'b');
}

static void begin(struct child *child)
{
    child_tell(child, "b", 1);
}

/* A node that reports, then tells its parent what it has heard when it is asked; with 'h' holds the
 * runner up before; ends at 'q'. */
static void node_role(void *argument)
{
    struct peer peer;
    char command;
    await_begin();
    connect_peer(&peer, argument);
    say_ready(&peer);
    for (parent_hear(&command, 1); command != 'q'; parent_hear(&command, 1)) {
        if (command == 'h') {
            CHECK_OK(tb__lifeline_send(peer.runner, HOLD, NULL, 0));
        }
        tb__bus_lock(peer.bus);
        struct heard answer = heard;
        tb__bus_unlock(peer.bus);
        parent_tell(&answer, sizeof answer);
    }
    close_peer(&peer);
}

static struct heard ask_with(struct child *node, const char *command)
{
    struct heard answer;
    child_tell(node, command, 1);
    child_hear(node, &answer, sizeof answer);
    return answer;
}

static struct heard ask(struct child *node)
{
    return ask_with(node, "?");
}

static void quit(struct child *node)
{
    child_tell(node, "q", 1);
    child_join(node);
}

static void fork_node(struct child *child, const char *name)
{
    child_start(child, name, node_role, (void *)name);
}

static void begin_node(struct fixture *it, struct child *child, uint32_t index)
{
    begin(child);
    CHECK_EQ(await_news(it).reachable[index], 1);
}

/* ------------------------------------------------------------------ tests */

static void stop_reaches_a_node_that_has_reported(void)
{
    struct fixture it;
    struct child sink;
    fork_node(&sink, "sink");
    open_control(&it);
    CHECK_EQ(tb__control_stop(it.control, SINK), 0); /* not there yet */
    begin_node(&it, &sink, SINK);
    CHECK_EQ(tb__control_stop(it.control, SINK), 1);
    CHECK_EQ(tb__control_stop(it.control, SOURCE), 0);
    CHECK_WITHIN_MS(ask(&sink).stops == 1, 1000);
    unsigned descriptors = harness_fd_count() - 2; /* the line, and the child's channel */
    quit(&sink);
    CHECK_WITHIN_MS(harness_fd_count() == descriptors, 1000);
    CHECK_EQ(tb__control_stop(it.control, SINK), 1); /* it is ending, and needs no STOP */
    tb__control_started(it.control, SINK);
    CHECK_EQ(tb__control_stop(it.control, SINK), 0); /* its next process has not reported */
    close_control(&it);
}

/* It has closed in good order, and the service thread has not noticed yet: it is ending as well. */
static void a_node_that_hangs_up_just_now_needs_no_stop(void)
{
    struct fixture it;
    struct child sink;
    fork_node(&sink, "sink");
    tb__bus_on_open(can_be_held);
    CHECK(sem_init(&held, 0, 0) == 0 && sem_init(&let_go, 0, 0) == 0);
    open_control(&it);
    begin_node(&it, &sink, SINK);
    ask_with(&sink, "h");
    CHECK_EQ(sem_wait(&held), 0);
    quit(&sink);
    CHECK_EQ(tb__control_stop(it.control, SINK), 1);
    sem_post(&let_go);
    close_control(&it);
}

static void a_killed_node_is_forgotten(void)
{
    struct fixture it;
    struct child sink;
    struct child again;
    fork_node(&sink, "sink");
    fork_node(&again, "sink");
    open_control(&it);
    unsigned descriptors = harness_fd_count() - 1; /* the first child's channel goes with it */
    begin_node(&it, &sink, SINK);
    child_kill(&sink);
    CHECK_WITHIN_MS(harness_fd_count() == descriptors, 1000);
    tb__control_started(it.control, SINK);
    CHECK_EQ(tb__control_stop(it.control, SINK), 0);
    begin_node(&it, &again, SINK); /* restarted under the same name */
    CHECK_EQ(tb__control_stop(it.control, SINK), 1);
    CHECK_WITHIN_MS(ask(&again).stops == 1, 1000);
    quit(&again);
    close_control(&it);
}

static void neighbours_hear_who_has_ended(void)
{
    struct fixture it;
    struct child sink;
    struct child late_sink;
    struct child source;
    struct child other;
    fork_node(&sink, "sink");
    fork_node(&late_sink, "sink");
    fork_node(&source, "source");
    fork_node(&other, "other");
    open_control(&it);
    begin_node(&it, &sink, SINK);
    begin_node(&it, &other, OTHER);
    tb__control_gone(it.control, SOURCE);
    CHECK_WITHIN_MS(ask(&sink).gones == 1, 1000);
    CHECK_STR(ask(&sink).gone[0], "source");
    CHECK_EQ(ask(&other).gones, 0); /* has nothing to do with it */
    /* One that reports later hears what it missed. */
    quit(&sink);
    begin_node(&it, &late_sink, SINK);
    CHECK_WITHIN_MS(ask(&late_sink).gones == 1, 1000);
    CHECK_STR(ask(&late_sink).gone[0], "source");
    /* The other way round: the source of a sink that has ended. */
    tb__control_gone(it.control, SINK);
    begin_node(&it, &source, SOURCE);
    CHECK_WITHIN_MS(ask(&source).gones == 1, 1000);
    CHECK_STR(ask(&source).gone[0], "sink");
    quit(&late_sink);
    quit(&source);
    quit(&other);
    close_control(&it);
}

/* Registers three pools, frees one. */
static void pools_role(void *argument)
{
    struct peer peer;
    char command;
    await_begin();
    connect_peer(&peer, argument);
    say_pool(&peer, TB__MSG_POOL_ADDED, "one");
    say_pool(&peer, TB__MSG_POOL_ADDED, "two");
    say_pool(&peer, TB__MSG_POOL_ADDED, "two"); /* again is not another */
    say_pool(&peer, TB__MSG_POOL_ADDED, "three");
    say_pool(&peer, TB__MSG_POOL_REMOVED, "one");
    say_pool(&peer, TB__MSG_POOL_REMOVED, "one");
    say_pool(&peer, TB__MSG_POOL_REMOVED, "never_was");
    say_ready(&peer);
    parent_reached("said");
    parent_hear(&command, 1);
    close_peer(&peer);
}

static void pools_that_nobody_freed_are_counted(void)
{
    struct fixture it;
    struct child source;
    struct child sink;
    struct child stranger;
    child_start(&source, "source", pools_role, (void *)"source");
    child_start(&sink, "sink", pools_role, (void *)"sink");
    child_start(&stranger, "stranger", pools_role, (void *)"stranger");
    open_control(&it);
    CHECK_EQ(tb__control_pools(it.control), 0);
    begin(&source);
    CHECK_EQ(await_news(&it).reachable[SOURCE], 1);
    CHECK_EQ(tb__control_pools(it.control), 2);
    begin(&sink); /* the same names of another node */
    CHECK_EQ(await_news(&it).reachable[SINK], 1);
    CHECK_EQ(tb__control_pools(it.control), 4);
    begin(&stranger); /* no node of the flow */
    child_await(&source, "said");
    child_await(&sink, "said");
    child_await(&stranger, "said");
    quit(&stranger);
    CHECK_EQ(tb__control_pools(it.control), 4);
    quit(&source); /* ending is not freeing */
    child_kill(&sink);
    CHECK_EQ(tb__control_pools(it.control), 4);
    close_control(&it);
}

/* A tool in a process of its own. */
static void stop_role(void *argument)
{
    await_begin();
    CHECK_OK(tb__control_ask_stop(FLOW_ID, *(int *)argument, TB_SECONDS(10)));
}

static void tools_ask_and_wait(void)
{
    for (int kill = 0; kill <= 1; kill++) {
        struct fixture it;
        struct child tool;
        child_start(&tool, "tool", stop_role, &kill);
        open_control(&it);
        begin(&tool);
        struct tb__control_news news = await_news(&it);
        CHECK_EQ(news.stop, !kill);
        CHECK_EQ(news.kill, kill);
        CHECK_EQ(child_has_spoken(&tool, 100), 0);
        close_control(&it); /* only now is it gone */
        child_join(&tool);
    }
}

static void nobody_to_ask(void)
{
    CHECK_STATUS(tb__control_ask_stop(FLOW_ID, 0, TB_SECONDS(10)), TB_E_NOT_FOUND);
    CHECK_STATUS(tb__control_ask_stop("../x", 0, TB_SECONDS(10)), TB_E_INVALID);
    struct fixture it;
    open_control(&it);
    CHECK_STATUS(tb__control_ask_stop(FLOW_ID, 0, TB_MILLIS(50)), TB_AGAIN);
    close_control(&it);
}

/* Each of these ends the connection, and nothing else. */
static void wrong_role(void *argument)
{
    static const struct {
        uint16_t type;
        uint32_t bytes;
    } wrong[] = {
        {TB__MSG_POOL_ADDED, 0},   {TB__MSG_POOL_ADDED, 127},   {TB__MSG_POOL_ADDED, 128},
        {TB__MSG_POOL_REMOVED, 4}, {TB__MSG_NODE_READY, 1},     {TB__MSG_FLOW_STOP, 8},
        {TB__MSG_FLOW_KILL, 1},    {TB__MSG_STOP, 0},           {TB__MSG_NODE_GONE, 128},
        {TB__MSG_LAST, 0},         {TB__MSG_POOL_ADDED, 60000},
    };
    static uint8_t body[60000];
    memset(body, 0xff, sizeof body); /* a name without an end */
    (void)argument;
    await_begin();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct peer peer;
        connect_peer(&peer, "sink");
        CHECK_OK(tb__lifeline_send(peer.runner, wrong[i].type, body, wrong[i].bytes));
        CHECK_WITHIN_MS(tb__lifeline_is_dead(peer.runner), 2000);
        close_peer(&peer);
    }
}

static void peers_that_break_the_rules(void)
{
    struct fixture it;
    struct child wrong;
    struct child node;
    struct tb__control_news news;
    fork_node(&node, "source");
    child_start(&wrong, "wrong", wrong_role, NULL);
    open_control(&it);
    begin_node(&it, &node, SOURCE);
    begin(&wrong);
    child_join(&wrong);
    tb__control_take(it.control, &news);
    CHECK_EQ(news.stop + news.kill + news.reachable[SINK], 0);
    CHECK_EQ(tb__control_pools(it.control), 0);
    CHECK_EQ(tb__control_stop(it.control, SOURCE), 1); /* others are served throughout */
    CHECK_WITHIN_MS(ask(&node).stops == 1, 1000);
    quit(&node);
    close_control(&it);
}

static const struct test tests[] = {
    TEST(stop_reaches_a_node_that_has_reported, 20),
    TEST(a_node_that_hangs_up_just_now_needs_no_stop, 20),
    TEST(a_killed_node_is_forgotten, 20),
    TEST(neighbours_hear_who_has_ended, 20),
    TEST(pools_that_nobody_freed_are_counted, 20),
    TEST(tools_ask_and_wait, 20),
    TEST(nobody_to_ask, 20),
    TEST(peers_that_break_the_rules, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

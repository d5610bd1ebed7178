/* The extension channel between a runner's endpoint and real nodes: values of all sizes, who is
 * told of drops and when, what the end of a node and of the runner takes with it. Peers that break
 * the rules are in test_extension_hostile.c. */
#include "proc/extension_support.h"

#include <pthread.h>

#define MIB (UINT64_C(1) << 20)

static void values_of_all_sizes(void)
{
    static const uint64_t sizes[] = {0, 1, 32768, 32769, MIB, 64 * MIB};
    struct fixture it;
    struct child nodes[2];
    struct child *a = &nodes[A], *b = &nodes[B];
    begin_nodes(&it, nodes, 2);
    unsigned descriptors = harness_fd_count();
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK_EQ(store(a, "k", sizes[i], i), TB_OK);
        expect(b, "k", sizes[i], i);
        expect(a, "k", sizes[i], i);
        CHECK_EQ(harness_fd_count(), descriptors + (sizes[i] > 32768));
    }
    /* Who has loaded a value has it, whatever becomes of its key. */
    CHECK_EQ(store(a, "k", 3 * MIB, 77), TB_OK);
    CHECK_EQ(tell(b, on_key('k', "k")).status, TB_OK);
    CHECK_EQ(store(a, "k", 5, 78), TB_OK);
    CHECK_EQ(drop(a, "k"), TB_OK);
    CHECK_EQ(load_status(b, "k"), TB_AGAIN);
    CHECK_EQ(harness_fd_count(), descriptors);
    struct answer answer = tell(b, (struct command){.op = 'v', .seed = 77});
    CHECK_EQ(answer.equal, 1);
    CHECK_EQ(answer.size, 3 * MIB);
    struct command large = on_key('s', "large");
    large.size = 64 * MIB + 1;
    answer = tell(a, large);
    CHECK_EQ(answer.status, TB_E_LIMIT);
    CHECK_HAS(answer.text, "`test/large` has 67108865 bytes, at most 67108864");
    end_nodes(&it, nodes, 2);
}

static void refusals_come_back(void)
{
    struct fixture it;
    struct child nodes[2];
    struct child *a = &nodes[A], *b = &nodes[B];
    begin_nodes(&it, nodes, 2);
    CHECK_EQ(store(a, "k", 1, 1), TB_OK);
    struct answer answer = tell(b, on_key('s', "k"));
    CHECK_EQ(answer.status, TB_E_DENIED);
    CHECK_STR(answer.text, "extension key `test/k` is owned by node `a`; node `b` may not "
                           "overwrite it");
    answer = tell(b, (struct command){.op = 'r'});
    CHECK_EQ(answer.status, TB_E_NOT_FOUND);
    CHECK_HAS(answer.text, "no extension registered under \"test\" on this daemon");
    answer = tell(b, (struct command){.op = 'm', .space = "many", .count = 8192});
    CHECK_EQ(answer.status, TB_E_LIMIT);
    CHECK_HAS(answer.text, "extension table full for this dataflow (8192 entries); node `b` cannot "
                           "store `many/8191`");
    CHECK_EQ(store(a, "l", 1, 1), TB_OK); /* it has not used them up */
    end_nodes(&it, nodes, 2);
}

static void drops_are_told(void)
{
    struct fixture it;
    struct child nodes[3];
    struct child *a = &nodes[A], *b = &nodes[B], *c = &nodes[C];
    begin_nodes(&it, nodes, 3);
    CHECK_EQ(store(a, "k", 1, 1), TB_OK);
    expect(b, "k", 1, 1);
    CHECK_EQ(drain_for(b, 0).status, TB_AGAIN);
    CHECK_EQ(drop(c, "k"), TB_OK); /* anybody may */
    expect_dropped(a, TB_SECONDS(5), "k");
    expect_dropped(b, TB_SECONDS(5), "k");
    CHECK_EQ(drain_for(c, TB_MILLIS(50)).status, TB_AGAIN); /* it had nothing to do with it */
    CHECK_EQ(drop(c, "k"), TB_OK);                          /* nothing is there */
    CHECK_EQ(drain_for(b, TB_MILLIS(50)).status, TB_AGAIN);
    /* Who drops is told when the call returns. */
    for (int i = 0; i < 200; i++) {
        CHECK_EQ(store(a, "mine", 1, 1), TB_OK);
        CHECK_EQ(drop(a, "mine"), TB_OK);
        expect_dropped(a, 0, "mine");
    }
    struct command take = on_key('l', "taken");
    take.remove = 1;
    CHECK_EQ(store(a, "taken", 1, 1), TB_OK);
    CHECK_EQ(tell(b, take).status, TB_OK);
    expect_dropped(b, 0, "taken");
    expect_dropped(a, TB_SECONDS(5), "taken");
    CHECK_EQ(tell(b, take).status, TB_AGAIN);
    /* Other spaces' keys wait for their own call. */
    struct command other = on_key('s', "k");
    snprintf(other.space, sizeof other.space, "best"); /* as long as the other name */
    CHECK_EQ(tell(a, other).status, TB_OK);
    CHECK_EQ(store(a, "k", 1, 1), TB_OK);
    other.op = 'd';
    CHECK_EQ(tell(a, other).status, TB_OK);
    CHECK_EQ(drop(a, "k"), TB_OK);
    expect_dropped(a, 0, "k");
    CHECK_EQ(drain_for(a, 0).status, TB_AGAIN);
    other.op = 'n';
    CHECK_EQ(tell(a, other).count, 1);
    end_nodes(&it, nodes, 3);
}

/* A node that ends takes its values with it, however it ends. */
static void the_end_of_a_node_drops_its_values(void)
{
    struct fixture it;
    struct child a;
    struct child again;
    struct child b;
    fork_node(&a, "a");
    fork_node(&again, "a");
    fork_node(&b, "b");
    open_control(&it);
    begin_node(&a);
    begin_node(&b);
    unsigned descriptors = harness_fd_count();
    CHECK_EQ(store(&a, "k", 2 * MIB, 1), TB_OK);
    CHECK_EQ(store(&b, "of b", 1, 1), TB_OK);
    expect(&b, "k", 2 * MIB, 1);
    expect(&a, "of b", 1, 1);
    CHECK_EQ(harness_fd_count(), descriptors + 1);
    child_kill(&a);
    expect_dropped(&b, TB_SECONDS(5), "k");
    CHECK_EQ(load_status(&b, "k"), TB_AGAIN);
    CHECK_WITHIN_MS(harness_fd_count() == descriptors - 2, 1000); /* its line, its channel */
    /* Its next life begins with none, and is not told of what the former one had read. */
    tb__control_started(it.control, A);
    begin_node(&again);
    CHECK_EQ(load_status(&again, "k"), TB_AGAIN);
    CHECK_EQ(drop(&b, "of b"), TB_OK);
    expect_dropped(&b, 0, "of b");
    CHECK_EQ(drain_for(&again, TB_MILLIS(50)).status, TB_AGAIN);
    CHECK_EQ(store(&again, "k", 1, 2), TB_OK);
    expect(&b, "k", 1, 2);
    quit(&again); /* in good order is no other end */
    expect_dropped(&b, TB_SECONDS(5), "k");
    quit(&b);
    close_control(&it);
}

/* An heir of the socket hides the hang-up: the runner has seen the process's end itself, or starts
 * another one. */
static void an_end_without_a_hangup(void)
{
    static void (*const runner_sees[])(struct tb__control *, uint32_t) = {tb__control_ended,
                                                                          tb__control_started};
    for (unsigned i = 0; i < 2; i++) {
        struct fixture it;
        struct child nodes[2];
        struct child *a = &nodes[A], *b = &nodes[B];
        begin_nodes(&it, nodes, 2);
        CHECK_EQ(store(a, "k", 1, 3), TB_OK);
        expect(b, "k", 1, 3);
        CHECK_EQ(tell(a, (struct command){.op = 'h'}).status, TB_OK);
        child_kill(a);
        CHECK_EQ(drain_for(b, TB_MILLIS(100)).status, TB_AGAIN); /* as if it lived */
        runner_sees[i](it.control, A);
        expect_dropped(b, TB_SECONDS(1), "k"); /* the heir lives longer */
        quit(b);
        close_control(&it);
    }
}

/* A node that stands still holds nobody up, and misses no more than the bound says. */
static void a_node_that_stands_still(void)
{
    struct fixture it;
    struct child nodes[2];
    struct child *a = &nodes[A], *b = &nodes[B];
    begin_nodes(&it, nodes, 2);
    CHECK_EQ(tell(a, (struct command){.op = 'm', .count = 5000}).status, TB_OK);
    for (int i = 0; i < 5000; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        CHECK_EQ(load_status(b, key), TB_OK);
    }
    child_stop(b);
    for (int i = 0; i < 5000; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        CHECK_EQ(drop(a, key), TB_OK);
    }
    /* This one was running all the while, and asked for none of them. */
    struct answer answer = drain_for(a, 0);
    CHECK_EQ(answer.count, 4096);
    CHECK_EQ(answer.lost, 904);
    CHECK_STR(answer.first, "904");
    CHECK_STR(answer.last, "4999");
    child_signal(b, SIGCONT);
    uint64_t count = 0;
    uint64_t lost = 0;
    while (count + lost < 5000) {
        answer = drain_for(b, TB_SECONDS(5));
        CHECK_EQ(answer.status, TB_OK);
        count += answer.count;
        lost += answer.lost;
    }
    CHECK_STR(answer.last, "4999");
    CHECK_LE(4096, count); /* taken while they came, more than one list may have got through */
    CHECK_EQ(count + lost, 5000);
    end_nodes(&it, nodes, 2);
}

/* ------------------------------------------------------------------ threads of one node */

#define THREADS 4
#define ROUNDS 500

struct racer {
    tb_node *node;
    unsigned index;
    unsigned taken;
};

/* Each stores its own keys, and all try to take all. */
static void *race(void *argument)
{
    struct racer *racer = argument;
    for (unsigned i = 0; i < ROUNDS; i++) {
        char key[32];
        snprintf(key, sizeof key, "%u-%u", racer->index, i);
        CHECK_OK(tb_extension_store(racer->node, SPACE, key, key, strlen(key)));
        for (unsigned j = 0; j < THREADS; j++) {
            tb_extension_value *value;
            snprintf(key, sizeof key, "%u-%u", j, i);
            tb_status status = tb_extension_load(racer->node, SPACE, key, 1, &value);
            CHECK(status == TB_OK || status == TB_AGAIN);
            if (status == TB_OK) {
                size_t size;
                const void *bytes = tb_extension_value_bytes(value, &size);
                CHECK_EQ(size, strlen(key));
                CHECK(memcmp(bytes, key, size) == 0);
                tb_extension_value_release(value);
                racer->taken++;
            }
        }
    }
    return NULL;
}

static void threads_share_a_node(void)
{
    struct fixture it;
    struct racer racers[THREADS];
    pthread_t threads[THREADS];
    unsigned taken = 0;
    uint64_t told = 0;
    open_control(&it);
    tb_node *node = open_flow_node("a");
    for (unsigned i = 0; i < THREADS; i++) {
        racers[i] = (struct racer){.node = node, .index = i};
        CHECK_EQ(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    /* What a faster thread has left behind. */
    for (unsigned i = 0; i < THREADS * ROUNDS; i++) {
        char key[32];
        tb_extension_value *value;
        snprintf(key, sizeof key, "%u-%u", i / ROUNDS, i % ROUNDS);
        if (tb_extension_load(node, SPACE, key, 1, &value) == TB_OK) {
            tb_extension_value_release(value);
            taken++;
        }
    }
    for (unsigned i = 0; i < THREADS; i++) {
        taken += racers[i].taken;
    }
    CHECK_EQ(taken, THREADS * ROUNDS); /* each once */
    while (told < THREADS * ROUNDS) {
        tb_extension_keys *keys;
        CHECK_OK(tb_extension_drain(node, SPACE, TB_SECONDS(5), &keys));
        told += tb_extension_keys_count(keys);
        CHECK_EQ(tb_extension_keys_lost(keys), 0);
        tb_extension_keys_destroy(keys);
    }
    CHECK_EQ(told, THREADS * ROUNDS);
    tb_node_close(node);
    close_control(&it);
}

struct waiter {
    tb_node *node;
    tb_status status;
    int64_t ended_ns;
};

static void *wait_for_a_key(void *argument)
{
    struct waiter *waiter = argument;
    tb_extension_keys *keys;
    waiter->status = tb_extension_drain(waiter->node, SPACE, TB_FOREVER, &keys);
    waiter->ended_ns = harness_now_ns();
    if (waiter->status == TB_OK) {
        CHECK_EQ(tb_extension_keys_count(keys), 1);
        tb_extension_keys_destroy(keys);
    }
    return NULL;
}

/* Who waits for a key is woken by it; who does not wait for one is not. */
static void only_who_waits_is_woken(void)
{
    struct fixture it;
    struct child b;
    pthread_t thread;
    fork_node(&b, "b");
    open_control(&it);
    tb_node *node = open_flow_node("a");
    begin_node(&b);
    struct waiter waiter = {.node = node};
    CHECK_OK(tb_extension_store(node, SPACE, "k", "v", 1));
    uint32_t bell = tb__bus_bell(tb_node_bus(node));
    CHECK_EQ(drop(&b, "k"), TB_OK);
    tb_extension_keys *keys = NULL;
    CHECK_WITHIN_MS(tb_extension_drain(node, SPACE, 0, &keys) == TB_OK, 2000);
    CHECK_EQ(tb__bus_bell(tb_node_bus(node)), bell);
    CHECK_STR(tb_extension_keys_at(keys, 0), "k");
    CHECK_STR(tb_extension_keys_at(keys, 1), "");
    tb_extension_keys_destroy(keys);

    /* Asleep, it would look again by itself after a quarter of a second. */
    int64_t fastest = TB_SECONDS(60);
    for (int i = 0; i < 5; i++) {
        CHECK_OK(tb_extension_store(node, SPACE, "k", "v", 1));
        CHECK_EQ(pthread_create(&thread, NULL, wait_for_a_key, &waiter), 0);
        harness_sleep_us(50000);
        int64_t begin = harness_now_ns();
        CHECK_EQ(drop(&b, "k"), TB_OK);
        pthread_join(thread, NULL);
        CHECK_OK(waiter.status);
        fastest = waiter.ended_ns - begin < fastest ? waiter.ended_ns - begin : fastest;
    }
    CHECK_LT(fastest, TB_MILLIS(100));
    quit(&b);
    tb_node_close(node);
    close_control(&it);
}

/* ------------------------------------------------------------------ the runner's end */

static void runner_role(void *argument)
{
    (void)argument;
    struct fixture it;
    char word;
    open_control(&it);
    parent_reached("open");
    parent_hear(&word, 1);
    close_control(&it);
}

static void check_runner_gone(tb_node *node, tb_status status)
{
    tb_extension_value *value;
    tb_extension_keys *keys;
    CHECK_STATUS(tb_extension_store(node, SPACE, "k", "v", 1), status);
    CHECK_STATUS(tb_extension_load(node, SPACE, "k", 0, &value), status);
    CHECK_STATUS(tb_extension_drop(node, SPACE, "k"), status);
    CHECK_STATUS(tb_extension_request(node, SPACE, "v", 1, &value), status);
    CHECK_STATUS(tb_extension_drain(node, SPACE, 0, &keys), status);
    CHECK_HAS(tb_last_error_text(), "extension values with it");
}

static void the_end_of_the_runner(void)
{
    for (int kill = 0; kill <= 1; kill++) {
        struct child runner;
        tb_event *event;
        tb_extension_keys *keys;
        pthread_t thread;
        char word = 1;
        child_start(&runner, "runner", runner_role, NULL);
        child_await(&runner, "open");
        tb_node *node = open_flow_node("a");
        struct waiter waiter = {.node = node};
        struct command other = {.space = "other"};
        CHECK_OK(tb_extension_store(node, other.space, "k", "v", 1));
        CHECK_OK(tb_extension_drop(node, other.space, "k"));
        CHECK_EQ(pthread_create(&thread, NULL, wait_for_a_key, &waiter), 0);
        harness_sleep_us(20000); /* asleep or not */
        if (kill) {
            child_kill(&runner);
        } else {
            child_tell(&runner, &word, 1);
            child_join(&runner);
        }
        int64_t begin = harness_now_ns();
        pthread_join(thread, NULL);
        CHECK_EQ(waiter.status, kill ? TB_E_OWNER_DIED : TB_CLOSED);
        CHECK_LT(waiter.ended_ns - begin, TB_MILLIS(500) * harness_slowness());
        /* What was told before is not lost. */
        CHECK_OK(tb_extension_drain(node, other.space, 0, &keys));
        CHECK_STR(tb_extension_keys_at(keys, 0), "k");
        tb_extension_keys_destroy(keys);
        check_runner_gone(node, kill ? TB_E_OWNER_DIED : TB_CLOSED);
        CHECK_OK(tb_node_next(node, TB_SECONDS(5), &event));
        CHECK_EQ(tb_event_get_type(event), TB_EVENT_STOP);
        tb_event_release(event);
        tb_node_close(node);
    }
}

/* Polling for keys asks nobody; a call gives up after 10 s. */
static void a_runner_that_stands_still(void)
{
    struct child runner;
    tb_extension_keys *keys;
    child_start(&runner, "runner", runner_role, NULL);
    child_await(&runner, "open");
    tb_node *node = open_flow_node("a");
    child_stop(&runner);
    int64_t begin = harness_now_ns();
    CHECK_STATUS(tb_extension_drain(node, SPACE, 0, &keys), TB_AGAIN);
    CHECK_LT(harness_now_ns() - begin, TB_MILLIS(50) * harness_slowness());
    CHECK_STATUS(tb_extension_store(node, SPACE, "k", "v", 1), TB_E_NOT_FOUND);
    CHECK_HAS(tb_last_error_text(), "does not answer: is it stopped?");
    CHECK_LE(TB_SECONDS(10), harness_now_ns() - begin);
    child_signal(&runner, SIGCONT);
    CHECK_OK(tb_extension_store(node, SPACE, "k", "v", 1));
    tb_node_close(node);
    char word = 1;
    child_tell(&runner, &word, 1);
    child_join(&runner);
}

static void a_node_without_a_runner(void)
{
    tb_extension_value *value;
    tb_extension_keys *keys;
    tb_node *node = open_node("lone", "", "");
    CHECK_STATUS(tb_extension_store(node, SPACE, "k", "v", 1), TB_E_NOT_FOUND);
    CHECK_HAS(tb_last_error_text(), "node `lone` has no runner");
    CHECK_STATUS(tb_extension_load(node, SPACE, "k", 0, &value), TB_E_NOT_FOUND);
    CHECK_STATUS(tb_extension_drop(node, SPACE, "k"), TB_E_NOT_FOUND);
    CHECK_STATUS(tb_extension_drain(node, SPACE, TB_SECONDS(10), &keys), TB_E_NOT_FOUND);
    CHECK_STATUS(tb_extension_request(node, SPACE, NULL, 0, &value), TB_E_NOT_FOUND);
    tb_node_close(node);
}

static void wrong_arguments(void)
{
    struct fixture it;
    tb_extension_value *value;
    tb_extension_keys *keys;
    char long_key[TB_EXTENSION_KEY_MAX + 2];
    memset(long_key, 'k', sizeof long_key);
    long_key[sizeof long_key - 1] = '\0';
    open_control(&it);
    tb_node *node = open_flow_node("a");
    CHECK_STATUS(tb_extension_store(node, NULL, "k", "v", 1), TB_E_INVALID);
    CHECK_STATUS(tb_extension_store(node, SPACE, NULL, "v", 1), TB_E_INVALID);
    CHECK_STATUS(tb_extension_store(node, SPACE, "k", NULL, 1), TB_E_INVALID);
    CHECK_STATUS(tb_extension_store(node, SPACE, long_key, "v", 1), TB_E_INVALID);
    CHECK_HAS(tb_last_error_text(), "more than 1024 bytes");
    CHECK_STATUS(tb_extension_store(node, long_key + TB_EXTENSION_KEY_MAX - 255, "k", "v", 1),
                 TB_E_INVALID);
    CHECK_HAS(tb_last_error_text(), "more than 255 bytes");
    CHECK_STATUS(tb_extension_store(node, SPACE, "\xff", "v", 1), TB_E_INVALID);
    CHECK_STATUS(tb_extension_load(node, SPACE, "k", 0, NULL), TB_E_INVALID);
    CHECK_STATUS(tb_extension_drain(node, SPACE, 0, NULL), TB_E_INVALID);
    CHECK_STATUS(tb_extension_request(node, SPACE, NULL, 0, NULL), TB_E_INVALID);
    CHECK_STATUS(tb_extension_load(NULL, SPACE, "k", 0, &value), TB_E_INVALID);
    CHECK_STATUS(tb_extension_drain(NULL, SPACE, 0, &keys), TB_E_INVALID);
    /* Everything at its limit is fine. */
    long_key[TB_EXTENSION_KEY_MAX] = '\0';
    CHECK_OK(tb_extension_store(node, long_key + TB_EXTENSION_KEY_MAX - 255, long_key, NULL, 0));
    CHECK_OK(tb_extension_load(node, long_key + TB_EXTENSION_KEY_MAX - 255, long_key, 0, &value));
    size_t size = 1;
    CHECK(tb_extension_value_bytes(value, &size) != NULL);
    CHECK_EQ(size, 0);
    tb_extension_value_release(value);
    tb_node_close(node);
    close_control(&it);
}

static const struct test tests[] = {
    TEST(values_of_all_sizes, 60),     TEST(refusals_come_back, 60),
    TEST(drops_are_told, 30),          TEST(the_end_of_a_node_drops_its_values, 30),
    TEST(an_end_without_a_hangup, 30), TEST(a_node_that_stands_still, 60),
    TEST(threads_share_a_node, 60),    TEST(only_who_waits_is_woken, 30),
    TEST(the_end_of_the_runner, 30),   TEST(a_runner_that_stands_still, 40),
    TEST(a_node_without_a_runner, 20), TEST(wrong_arguments, 20),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

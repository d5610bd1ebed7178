/* Kills between any two instructions of storing, loading and dropping extension values: nothing of
 * the dead node is left with the runner, and its reader is told. */
#include "proc/extension_support.h"

#define LARGE 100000 /* bytes: carried */

static void dying_node(void *argument)
{
    static uint8_t large[LARGE];
    tb_extension_value *value;
    tb_extension_keys *keys;
    struct command begin;
    (void)argument;
    parent_hear(&begin, sizeof begin);
    tb_node *node = open_flow_node("a");
    CHECK_OK(tb_extension_store(node, SPACE, "read", "v", 1));
    parent_pause("open");
    steps_begin();
    CHECK_OK(tb_extension_store(node, SPACE, "small", "v", 1));
    CHECK_OK(tb_extension_store(node, SPACE, "large", large, sizeof large));
    CHECK_OK(tb_extension_load(node, SPACE, "large", 0, &value));
    tb_extension_value_release(value);
    CHECK_OK(tb_extension_load(node, SPACE, "of b", 1, &value));
    tb_extension_value_release(value);
    CHECK_OK(tb_extension_drop(node, SPACE, "small"));
    CHECK_OK(tb_extension_drain(node, SPACE, 0, &keys));
    tb_extension_keys_destroy(keys);
    CHECK_OK(tb_extension_store(node, SPACE, "large", "small now", 9));
    steps_end();
}

static void expect_nothing_of(tb_node *reader)
{
    static const char *const names[] = {"read", "small", "large"};
    tb_extension_value *value;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_STATUS(tb_extension_load(reader, SPACE, names[i], 0, &value), TB_AGAIN);
        CHECK_OK(tb_extension_store(reader, SPACE, names[i], "mine", 4)); /* it is nobody's */
    }
}

/* What the reader is told: what it had read, and its own value if that was taken. */
static void expect_told(tb_node *reader)
{
    int read = 0;
    int64_t end = harness_now_ns() + TB_SECONDS(5);
    while (!read) {
        tb_extension_keys *keys;
        CHECK_LT(harness_now_ns(), end);
        CHECK_OK(tb_extension_drain(reader, SPACE, TB_SECONDS(5), &keys));
        for (size_t i = 0; i < tb_extension_keys_count(keys); i++) {
            const char *key = tb_extension_keys_at(keys, i);
            CHECK(strcmp(key, "read") == 0 || strcmp(key, "of b") == 0);
            read |= strcmp(key, "read") == 0;
        }
        tb_extension_keys_destroy(keys);
    }
}

/* Returns 1 when it was killed before the end. */
static int kill_once(int by_calls, unsigned long count, unsigned long *out_count)
{
    struct fixture it;
    struct child child;
    struct command begin = {.op = 'o'};
    tb_extension_value *value;
    child_start(&child, "dying", dying_node, NULL);
    open_control(&it);
    tb_node *reader = open_flow_node("b");
    CHECK_OK(tb_extension_store(reader, SPACE, "of b", "v", 1));
    unsigned descriptors = harness_fd_count() - 1; /* the child's channel goes with it */
    child_tell(&child, &begin, sizeof begin);
    child_await(&child, "open");
    CHECK_OK(tb_extension_load(reader, SPACE, "read", 0, &value));
    tb_extension_value_release(value);
    child_go(&child);
    int killed = by_calls ? child_kill_after_calls(&child, count, out_count)
                          : child_kill_after_steps(&child, count, out_count);
    expect_told(reader);
    CHECK_WITHIN_MS(harness_fd_count() == descriptors, 2000);
    expect_nothing_of(reader);
    tb_node_close(reader);
    close_control(&it);
    return killed;
}

static void nothing_of_a_killed_node_is_left(void)
{
#if defined(__SANITIZE_THREAD__)
    harness_skip("too many instructions under ThreadSanitizer");
#endif
    unsigned long total;
    unsigned long done;
    CHECK_EQ(kill_once(0, (unsigned long)-1, &total), 0); /* to the end: how long is it? */
    unsigned long points = harness_scale(20, 2000);
    for (unsigned long steps = 0; steps < total; steps += total / points + 1) {
        kill_once(0, steps, &done);
    }
    CHECK_EQ(kill_once(1, (unsigned long)-1, &total), 0);
    for (unsigned long stops = 1; stops <= total; stops++) {
        kill_once(1, stops, &done);
    }
}

static const struct test tests[] = {
    TEST(nothing_of_a_killed_node_is_left, 120),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

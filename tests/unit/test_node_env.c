/* The environment of a node: what the runner writes is read back, everything else is refused with
 * the variable's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/env.h"

#define OK(call) assert_int_equal((call), TB_OK)

static void all_of_it(void **state)
{
    (void)state;
    struct tb__node_env env = {
        .node = "detector",
        .runner = "runner",
        .inputs = "image=camera/front;queue=1000;policy=backpressure;timeout_ns=5000000;restart=1\n"
                  "tick=tensorbus/timer/nanos/2000000;queue=3\n\n"
                  "old=dora/timer/millis/100\n"
                  "plain=a.b/c-d_e;policy=drop_oldest;restart=0\n",
        .outputs = "boxes=monitor/boxes,recorder/in\nnobody=\n",
    };
    struct tb__node_config config;
    OK(tb__node_config_parse(&env, &config));
    assert_string_equal(config.node, "detector");
    assert_string_equal(config.runner, "runner");
    assert_int_equal(config.input_count, 4);
    const struct tb__input_config *input = &config.inputs[0];
    assert_string_equal(input->name, "image");
    assert_string_equal(input->source_node, "camera");
    assert_string_equal(input->source_output, "front");
    assert_int_equal(input->period_ns, 0);
    assert_int_equal(input->queue_size, 1000);
    assert_int_equal(input->policy, TB__BACKPRESSURE);
    assert_int_equal(input->timeout_ns, 5000000);
    assert_int_equal(input->restart, 1);
    assert_int_equal(config.inputs[1].period_ns, 2000000);
    assert_string_equal(config.inputs[1].source_node, "");
    assert_int_equal(config.inputs[1].queue_size, 3);
    assert_int_equal(config.inputs[2].period_ns, 100000000);
    assert_int_equal(config.inputs[2].queue_size, 10);
    assert_string_equal(config.inputs[3].source_node, "a.b");
    assert_int_equal(config.inputs[3].policy, TB__DROP_OLDEST);
    assert_int_equal(config.output_count, 2);
    assert_string_equal(config.outputs[0].name, "boxes");
    assert_int_equal(config.outputs[0].subscriber_count, 2);
    assert_string_equal(config.outputs[0].subscribers[1].node, "recorder");
    assert_string_equal(config.outputs[0].subscribers[1].input, "in");
    assert_int_equal(config.outputs[1].subscriber_count, 0);
    tb__node_config_fini(&config);
}

static void as_little_as_possible(void **state)
{
    (void)state;
    struct tb__node_config config;
    OK(tb__node_config_parse(&(struct tb__node_env){.node = "n"}, &config));
    assert_int_equal(config.input_count, 0);
    assert_int_equal(config.output_count, 0);
    assert_string_equal(config.runner, "");
    tb__node_config_fini(&config);
    assert_int_equal(tb__node_config_parse(&(struct tb__node_env){0}, &config), TB_E_NOT_FOUND);
    assert_non_null(strstr(tb_last_error_text(), "TENSORBUS_NODE"));
}

static void timers(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        int64_t period_ns;
    } cases[] = {
        {"tensorbus/timer/secs/2", 2000000000}, {"dora/timer/millis/100", 100000000},
        {"tensorbus/timer/micros/5", 5000},     {"tensorbus/timer/nanos/1", 1},
        {"dora/timer/hz/30", 33333333},         {"tensorbus/timer/hz/1000000000", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[100];
        snprintf(line, sizeof line, "t=%s", cases[i].source);
        struct tb__node_config config;
        OK(tb__node_config_parse(&(struct tb__node_env){.node = "n", .inputs = line}, &config));
        assert_int_equal(config.inputs[0].period_ns, cases[i].period_ns);
        tb__node_config_fini(&config);
    }
}

static void refused(void **state)
{
    (void)state;
    static const char *const inputs[] = {
        "x",
        "=a/b",
        ".x=a/b",
        "x=",
        "x=a",
        "x=a/",
        "x=/b",
        "x=a/b/c",
        "x=a/b;",
        "x=a/b;queue",
        "x=a/b;queue=0",
        "x=a/b;queue=65537",
        "x=a/b;queue=-1",
        "x=a/b;queue=99999999999999999999",
        "x=a/b;queue=",
        "x=a/b;policy=",
        "x=a/b;policy=newest",
        "x=a/b;timeout_ns=1s",
        "x=a/b;restart=2",
        "x=a/b;colour=red",
        "x=a/b\nx=c/d",
        "x=tensorbus/timer",
        "x=tensorbus/timer/millis",
        "x=tensorbus/timer/millis/0",
        "x=tensorbus/timer/millis/-5",
        "x=tensorbus/timer/millis/1.5",
        "x=tensorbus/timer/weeks/1",
        "x=tensorbus/timer/hz/1000000001",
        "x=tensorbus/timer/secs/9223372036854775807",
        "x=dora/logs",
    };
    static const char *const outputs[] = {"x", "=a/b", "x=a", "x=a/b,c", "x=a/b\nx=", "x=a/b/c"};
    struct tb__node_config config;
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        struct tb__node_env env = {.node = "n", .inputs = inputs[i]};
        if (tb__node_config_parse(&env, &config) != TB_E_INVALID ||
            strstr(tb_last_error_text(), "TENSORBUS_INPUTS") == NULL) {
            fail_msg("`%s`: %s", inputs[i], tb_last_error_text());
        }
    }
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        struct tb__node_env env = {.node = "n", .outputs = outputs[i]};
        if (tb__node_config_parse(&env, &config) != TB_E_INVALID ||
            strstr(tb_last_error_text(), "TENSORBUS_OUTPUTS") == NULL) {
            fail_msg("`%s`: %s", outputs[i], tb_last_error_text());
        }
    }
    assert_int_equal(tb__node_config_parse(&(struct tb__node_env){.node = "a b"}, &config),
                     TB_E_INVALID);
    assert_int_equal(
        tb__node_config_parse(&(struct tb__node_env){.node = "a", .runner = "../x"}, &config),
        TB_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_it),
        cmocka_unit_test(as_little_as_possible),
        cmocka_unit_test(timers),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The graph as text: every node, every arrow once, and no text of the file can break out of its
 * quotes. */
#include "flow/flow.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char text[] =
    "nodes:\n"
    "  - {id: a, name: 'A \"1\" <b>', description: \"two\\nlines\\\\\", path: p, "
    "outputs: [image]}\n"
    "  - id: end\n"
    "    path: q\n"
    "    outputs: [out]\n"
    "    inputs:\n"
    "      image: {source: a/image, queue_policy: backpressure}\n"
    "      tick: dora/timer/millis/100\n"
    "  - id: c\n"
    "    path: r\n"
    "    inputs: {x: end/out, t: tensorbus/timer/hz/10, u: dora/timer/secs/2}\n";

static char *draw_text(const char *flow_text, tb_status (*write)(const struct tb__flow *, FILE *))
{
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    char *drawn = NULL;
    size_t size = 0;
    assert_int_equal(tb__flow_parse(flow_text, strlen(flow_text), "f.yml", NULL, &problems, &flow),
                     TB_OK);
    FILE *out = open_memstream(&drawn, &size);
    assert_int_equal(write(flow, out), TB_OK);
    fclose(out);
    tb__flow_destroy(flow);
    tb__flow_problems_fini(&problems);
    return drawn;
}

static char *draw(tb_status (*write)(const struct tb__flow *, FILE *))
{
    return draw_text(text, write);
}

static void mermaid_is_drawn(void **state)
{
    char *drawn = draw(tb__flow_graph_mermaid);
    (void)state;
    assert_string_equal(drawn,
                        "flowchart LR\n"
                        "    n0[\"A #34;1#34; #60;b#62;<br/><small>two<br/>lines\\</small>\"]\n"
                        "    n1[\"end\"]\n"
                        "    n2[\"c\"]\n"
                        "    n0 ==>|\"image\"| n1\n"
                        "    t100000000([\"every 100 ms\"])\n"
                        "    t100000000 -->|\"tick\"| n1\n"
                        "    n1 -->|\"out → x\"| n2\n"
                        "    t100000000 -->|\"t\"| n2\n"
                        "    t2000000000([\"every 2 s\"])\n"
                        "    t2000000000 -->|\"u\"| n2\n");
    free(drawn);
}

/* As a person would say it. */
static void periods_are_readable(void **state)
{
    static const struct {
        const char *timer;
        const char *words;
    } cases[] = {
        {"hz/30", "\"30 Hz\""},
        {"hz/60", "\"60 Hz\""},
        {"hz/29.97", "\"every 33.3667"},
        {"hz/10", "\"every 100 ms\""},
        {"millis/1500", "\"every 1.5 s\""},
        {"micros/250", "\"every 250 us\""},
        {"nanos/1499", "\"every 1.499 us\""},
        {"millis/1.5", "\"every 1.5 ms\""},
        {"secs/90", "\"every 90 s\""},
        {"micros/1", "\"every 1 us\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char flow[160];
        snprintf(flow, sizeof flow,
                 "nodes:\n  - {id: a, path: p, inputs: {t: tensorbus/timer/%s}}\n", cases[i].timer);
        char *drawn = draw_text(flow, tb__flow_graph_mermaid);
        assert_non_null(strstr(drawn, cases[i].words));
        free(drawn);
    }
}

static void dot_is_drawn(void **state)
{
    char *drawn = draw(tb__flow_graph_dot);
    (void)state;
    assert_non_null(strstr(drawn, "    n0 [label=\"A \\\"1\\\" <b>\\ntwo\\nlines\\\\\"];\n"));
    assert_non_null(strstr(drawn, "    n0 -> n1 [label=\"image\", style=bold, penwidth=2];\n"));
    assert_non_null(strstr(drawn, "    n1 -> n2 [label=\"out → x\"];\n"));
    assert_non_null(strstr(drawn, "    t100000000 [shape=oval, label=\"every 100 ms\"];\n"));
    assert_ptr_equal(strstr(strstr(drawn, "t100000000 [") + 1, "t100000000 ["), NULL);
    assert_non_null(strstr(drawn, "    t2000000000 -> n2 [label=\"u\"];\n}\n"));
    free(drawn);
}

static void a_full_disk_is_an_error(void **state)
{
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    FILE *full = fopen("/dev/full", "w");
    (void)state;
    assert_non_null(full);
    assert_int_equal(tb__flow_parse(text, sizeof text - 1, "f.yml", NULL, &problems, &flow), TB_OK);
    assert_int_equal(tb__flow_graph_mermaid(flow, full), TB_E_SYSTEM);
    tb_error error;
    tb_last_error(&error);
    assert_int_equal(error.errno_value, ENOSPC);
    assert_int_equal(tb__flow_graph_dot(flow, full), TB_E_SYSTEM);
    fclose(full);
    tb__flow_destroy(flow);
    tb__flow_problems_fini(&problems);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mermaid_is_drawn),
        cmocka_unit_test(periods_are_readable),
        cmocka_unit_test(dot_is_drawn),
        cmocka_unit_test(a_full_disk_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

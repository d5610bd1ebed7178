/* Every mistake that a flow file can hold, each with the place and the words that it must be told
 * in; then what valid files become (F01, F02, F09, F10). */
#include "flow/flow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *const environment[] = {(char *)"HOME=/home/ada", (char *)"SPACED=a b",
                                    (char *)"EMPTY=", NULL};

static tb_status parse(const char *text, size_t length, struct tb__flow_problems *problems,
                       struct tb__flow **out)
{
    const struct tb__flow_options options = {.environment = environment, .machine = "A"};
    return tb__flow_parse(text, length, "dir/f.yml", &options, problems, out);
}

static struct tb__flow *valid(const char *text)
{
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    if (parse(text, strlen(text), &problems, &flow) != TB_OK) {
        tb__flow_problems_print(&problems, stderr);
        fail_msg("not valid: %s", text);
    }
    assert_int_equal(problems.count, 0);
    tb__flow_problems_fini(&problems);
    return flow;
}

#define NODE "nodes:\n  - id: a\n    path: p\n"
#define TWO "nodes:\n  - {id: a, path: p, outputs: [image, info]}\n  - id: b\n    path: q\n"

struct mistake {
    const char *text;
    uint32_t line, column; /* of the first problem */
    const char *says;
};

static const struct mistake mistakes[] = {
    /* The file as a whole (F01). */
    {"", 1, 1, "the file is empty"},
    {"\n# only a comment\n", 1, 1, "the file is empty"},
    {"env: {A: 1}\n", 1, 1, "`nodes` is missing"},
    {"nodes:\n", 1, 7, "must be a list of at least one node (`- id: ...`), this is empty"},
    {"nodes: []\n", 1, 8, "this is an empty list"},
    {"nodes: {a: 1}\n", 1, 8, "this is a map"},
    {"- a\n", 1, 1, "a flow is a map with `nodes:`, this is a list"},
    {"hello\n", 1, 1, "this is text"},
    {"nodes:\n\t- id: a\n", 2, 1, "a tab as indentation"},
    {"nodes:\n  - id: a\n  \t  path: b\n", 3, 3, "a tab as indentation"},
    {"nodes: [\n", 2, 1, "not valid YAML"},
    {NODE "    env: {A: ${HOME}/x}\n", 4, 15, "a value with `${` in a {...} wants quotes"},
    {"nodes: \"x\n", 2, 1, "found unexpected end of stream while scanning a quoted scalar"},
    {"a: \xff\n", 1, 4, "byte 0xff is not UTF-8"},
    {"\xc3\xa9: \xc0\x80\n", 1, 4, "byte 0xc0 is not UTF-8"},
    {"a: \xed\xa0\x80\n", 1, 4, "not UTF-8"},
    {"a: \x1b[31m\n", 1, 4, "byte 0x1b has no place in a text file"},
    {"a: \xef\xbf\xbe\n", 1, 4, "control characters are not allowed"},
    {"a: \"x\\0y\"\n", 1, 4, "no text may hold a NUL"},
    {"nodes: &x 1\n", 1, 8, "anchors (`&x`) are not supported"},
    {"nodes: *x\n", 1, 8, "aliases (`*x`) are not supported"},
    {"nodes: !x 1\n", 1, 8, "tags (`!x`) are not supported"},
    {"---\na: 1\n---\nb: 1\n", 3, 1, "a second document"},
    {"a: [[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]\n", 1, 19, "nested deeper than 16 levels"},
    {"[a]: 1\n", 1, 1, "a list as a key"},

    /* Keys: unknown at each level, and twice (F01). */
    {NODE "node: 1\n", 4, 1, "unknown key `node` in the root of the file; did you mean `nodes`?"},
    {NODE "zzz: 1\n", 4, 1, "its keys are: env, exit_when_nodes_finish, nodes"},
    {NODE "    ouputs: [x]\n", 4, 5, "unknown key `ouputs` in node `a`; did you mean `outputs`?"},
    {NODE "    operators: []\n", 4, 5, "unknown key `operators` in node `a`; its keys are: id, "},
    {NODE "    max_restart_delay: 1\n", 4, 5,
     "restart_delay, deploy (this one is dora's: leave it out)"},
    {NODE "debug: {x: y}\n", 4, 1,
     "exit_when_nodes_finish, nodes (this one is dora's: leave it out)"},
    {NODE "    deploy: {machin: x}\n", 4, 14,
     "unknown key `machin` in `deploy` of node `a`; did you mean `machine`?"},
    {TWO "    inputs: {i: {source: a/image, queue_sise: 1}}\n", 5, 35,
     "unknown key `queue_sise` in input `i` of node `b`; did you mean `queue_size`?"},
    {NODE "    path: q\n", 4, 5, "key `path` twice in one map: first in line 3"},
    {"nodes: [{id: a, path: p}]\nnodes: []\n", 2, 1, "key `nodes` twice"},

    /* Nodes. */
    {"nodes:\n  - 7\n", 2, 5, "node 1 must be a map"},
    {"nodes:\n  - path: p\n", 2, 5, "node 1 has no `id`"},
    {"nodes:\n  - id: a\n", 2, 5, "node `a` has no `path`"},
    {"nodes:\n  - {id: , path: p}\n", 2, 10, "`id` of node 1 is empty"},
    {"nodes:\n  - {id: [a], path: p}\n", 2, 10, "`id` of node 1 must be a text, this is a list"},
    {"nodes:\n  - {id: a b, path: p}\n", 2, 10, "node id `a b` is not a valid name"},
    {"nodes:\n  - {id: .a, path: p}\n", 2, 10, "node id `.a` is not a valid name"},
    {"nodes:\n  - {id: dora, path: p}\n", 2, 10, "node id `dora` is reserved"},
    {"nodes:\n  - {id: tensorbus, path: p}\n", 2, 10, "node id `tensorbus` is reserved"},
    {"nodes:\n  - {id: _runner, path: p}\n", 2, 10, "node id `_runner` is reserved"},
    {NODE "  - {id: a, path: q}\n", 4, 10, "node id `a` twice: first in line 2"},
    {"nodes:\n  - {id: a, path: dynamic}\n", 2, 19, "`dynamic` stands for a kind of node"},
    {"nodes:\n  - {id: a, path: shell}\n", 2, 19, "`shell` stands for a kind of node"},
    {"nodes:\n  - {id: a, path: \"\"}\n", 2, 19, "`` is empty"},
    {"nodes:\n  - {id: a, path: ~/x}\n", 2, 19, "write $HOME"},
    {"nodes:\n  - {id: a, path: https://x/y}\n", 2, 19, "nothing is downloaded"},
    {"nodes:\n  - {id: a, path: x/}\n", 2, 19, "is a directory"},
    {NODE "    name: [x]\n", 4, 11, "`name` of node `a` must be a text"},
    {NODE "    description: {x: 1}\n", 4, 18, "`description` of node `a` must be a text"},
    {NODE "    restart_policy: onfailure\n", 4, 21,
     "cannot be `onfailure`; did you mean `on-failure`?; it is one of: never, on-failure, always"},
    {NODE "    max_restarts: -1\n", 4, 19, "a whole number from 0 to 1000000, this is `-1`"},
    {NODE "    max_restarts: 1.0\n", 4, 19, "this is `1.0`"},
    {NODE "    max_restarts: 99999999999999999999999\n", 4, 19, "a whole number"},
    {NODE "    max_restarts: 18446744073709551621\n", 4, 19,
     "a whole number"}, /* 5 when it wraps */
    {NODE "    restart_delay: soon\n", 4, 20, "must be seconds, such as 0.5"},
    {NODE "    restart_delay: .\n", 4, 20, "must be seconds"},
    {NODE "    restart_delay: 31536000\n", 4, 20, "less than 31536000"},
    {NODE "    restart_delay: nan\n", 4, 20, "must be seconds"},
    {NODE "exit_when_nodes_finish: yes\n", 4, 25, "cannot be `yes`; it is one of: false, true"},
    {NODE "    deploy: x\n", 4, 13, "`deploy` of node `a` must be a map"},
    {NODE "    deploy: {machine: B}\n", 4, 23,
     "machine `B`, and another machine is not supported yet: remove `deploy: machine` or set it "
     "to `local`"},
    {NODE "    deploy: {working_dir: ~/x}\n", 4, 27, "write $HOME"},

    /* Outputs, inputs and their other ends (F02). */
    {NODE "    outputs: x\n", 4, 14,
     "`outputs` of node `a` must be a list (`- name`), this is text"},
    {NODE "    outputs: [x, x]\n", 4, 18, "output `x` of node `a` twice: first in line 4"},
    {NODE "    outputs: [x/y]\n", 4, 15, "`x/y` is not a valid name"},
    {NODE "    inputs: [x]\n", 4, 13, "`inputs` of node `a` must be a map"},
    {TWO "    inputs: {a b: a/image}\n", 5, 14, "`a b` is not a valid name"},
    {TWO "    inputs: {i: image}\n", 5, 17, "`image`, which is not of the form `node/output`"},
    {TWO "    inputs: {i: /image}\n", 5, 17, "not of the form"},
    {TWO "    inputs: {i: a/}\n", 5, 17, "not of the form"},
    {TWO "    inputs: {i: a/b/c}\n", 5, 17, "not of the form"},
    {TWO "    inputs: {i: }\n", 5, 17, "`source` of input `i` of node `b` is empty"},
    {TWO "    inputs: {i: [a/image]}\n", 5, 17, "must be a text, this is a list"},
    {TWO "    inputs: {i: {queue_size: 1}}\n", 5, 17, "input `i` of node `b` has no `source"},
    {TWO "    inputs: {i: aa/image}\n", 5, 17,
     "input `i` of node `b` takes `aa/image`, but there is no node `aa`; did you mean `a`?; nodes: "
     "a, b"},
    {TWO "    inputs: {i: a/imge}\n", 5, 17,
     "input `i` of node `b` takes `a/imge`, but node `a` has no output `imge`; did you mean "
     "`image`?; its outputs: image, info"},
    {TWO "    inputs: {i: {source: b/x}}\n", 5, 26,
     "takes `b/x`, an output of the same node: a node cannot send to itself"},
    {NODE "  - {id: b, path: q, inputs: {i: a/x}}\n", 4, 34,
     "has no output `x`; its outputs: none"},
    {TWO "    inputs: {i: {source: a/image, queue_size: 0}}\n", 5, 47,
     "`queue_size` of input `i` of node `b` must be a whole number from 1 to 65536"},
    {TWO "    inputs: {i: {source: a/image, queue_size: 65537}}\n", 5, 47, "from 1 to 65536"},
    {TWO "    inputs: {i: {source: a/image, queue_policy: drop}}\n", 5, 49,
     "it is one of: drop_oldest, backpressure"},
    {TWO "    inputs: {i: {source: a/image, input_timeout: -1}}\n", 5, 50, "must be seconds"},

    /* Timers. */
    {NODE "    inputs: {t: tensorbus/timer/millis/0}\n", 4, 17, "needs a number above 0"},
    {NODE "    inputs: {t: tensorbus/timer/millis/x}\n", 4, 17, "needs a number above 0"},
    {NODE "    inputs: {t: tensorbus/timer/millis/}\n", 4, 17, "needs a number above 0"},
    {NODE "    inputs: {t: tensorbus/timer/nanos/999}\n", 4, 17, "1 microsecond to 1 year"},
    {NODE "    inputs: {t: tensorbus/timer/secs/31536001}\n", 4, 17, "1 microsecond to 1 year"},
    {NODE "    inputs: {t: tensorbus/timer/secs/99999999999999999999}\n", 4, 17, "1 year"},
    {NODE "    inputs: {t: tensorbus/timer/secs/18446744073709551615}\n", 4, 17, "1 year"},
    {NODE "    inputs: {t: tensorbus/timer/hz/0}\n", 4, 17, "needs a number above 0"},
    {NODE "    inputs: {t: tensorbus/timer/hz/2000000}\n", 4, 17, "1 microsecond to 1 year"},
    {NODE "    inputs: {t: dora/timer/milis/5}\n", 4, 17,
     "has no unit `milis`; did you mean `millis`?; units: secs, millis, micros, nanos, hz"},
    {NODE "    inputs: {t: dora/logs}\n", 4, 17, "the only built-in sources are timers"},
    {NODE "    inputs: {t: tensorbus/timer/5}\n", 4, 17, "the only built-in sources are timers"},
    {NODE "    inputs: {t: {source: dora/timer/hz/5, queue_policy: backpressure}}\n", 4, 57,
     "a timer does not wait"},

    /* Environment and variables (F09, F10). */
    {"env: {TENSORBUS_FLOW: x}\n" NODE, 1, 7, "may not set `TENSORBUS_FLOW`"},
    {NODE "    env: {TENSORBUS_NODE: x}\n", 4, 11,
     "`env` of node `a` may not set `TENSORBUS_NODE`: the runner itself uses TENSORBUS_ variables"},
    {NODE "    env: {TENSORBUS_DIR: x}\n", 4, 11, "may not set `TENSORBUS_DIR`"},
    {NODE "    env: {TENSORBUS_LOGS: x}\n", 4, 11,
     "may not set `TENSORBUS_LOGS`: the runner itself uses TENSORBUS_ variables to reach its nodes "
     "(settings are TENSORBUS_LOG, TENSORBUS_GPU_ORDER, TENSORBUS_GPU_PEERS and "
     "TENSORBUS_GPU_PIN_MIN)"},
    {NODE "    env: {TENSORBUS_GPU_PEER: 0}\n", 4, 11, "may not set `TENSORBUS_GPU_PEER`: "},
    {NODE "    env: {TENSORBUS_GPU_: 0}\n", 4, 11, "may not set `TENSORBUS_GPU_`: "},
    {NODE "    env: {TENSORBUS_: 0}\n", 4, 11, "may not set `TENSORBUS_`: "},
    {NODE "    env: {LD_PRELOAD: x}\n", 4, 11, "may not set `LD_PRELOAD`"},
    {NODE "    env: {LD_AUDIT: x}\n", 4, 11, "may not set `LD_AUDIT`"},
    {NODE "    env: {2X: x}\n", 4, 11, "`2X` is no variable name"},
    {NODE "    env: {\"\": x}\n", 4, 11, "`` is no variable name"},
    {NODE "    env: {\"A=B\": x}\n", 4, 11, "`A=B` is no variable name"},
    {NODE "    env: {A: }\n", 4, 14, "`env: A` of node `a` has no value: write \"\""},
    {NODE "    env: {A: [1]}\n", 4, 14, "`env: A` of node `a` must be a text, this is a list"},
    {NODE "    env: [A]\n", 4, 10, "`env` of node `a` must be a map"},
    {NODE "    env: {A: $B, B: 1}\n", 4, 14, "variable `B` is not defined above"},
    {"nodes:\n  - {id: a, path: $NOPE/x}\n", 2, 19,
     "`path` of node `a`: variable `NOPE` is not defined above, nor in the environment"},
    {NODE "    args: --x ${NOPE}\n", 4, 11, "`args` of node `a`: variable `NOPE` is not defined"},
    {NODE "    args: [x, $NOPE]\n", 4, 15, "variable `NOPE` is not defined"},
    {NODE "    build: make $NOPE\n", 4, 12, "`build` of node `a`: variable `NOPE` is not defined"},
    {NODE "    build: |\n      make\n\n      make $NOPE\n", 7, 1, "variable `NOPE`"},
    {NODE "    deploy: {working_dir: $NOPE}\n", 4, 27,
     "`deploy: working_dir` of node `a`: variable"},
    {NODE "    args: ${HOME:-x}\n", 4, 11, "close the brace after the name, give no default"},
    {NODE "    args: cost $5\n", 4, 11, "`$5` is no variable; write `$$` for a dollar sign"},
    {NODE "    args: x $\n", 4, 11, "`$` is no variable"},
    {NODE "    args: $(ls)\n", 4, 11, "commands are not run here"},
    {NODE "    args: 'x \"y'\n", 4, 11, "a \" that is never closed"},
    {NODE "    args: \"x 'y\"\n", 4, 11, "a ' that is never closed"},
    {NODE "    args: x\\\n", 4, 11, "a \\ that is never closed"},
    {NODE "    build: a && b\n", 4, 12, "`&` needs a shell"},
    {NODE "    build: a | b\n", 4, 12, "`|` needs a shell"},
    {NODE "    build: a > b\n", 4, 12, "`>` needs a shell"},
    {NODE "    build: a `b`\n", 4, 12, "needs a shell"},
    {NODE "    build: \"a\\eb\"\n", 4, 12, "`build` of node `a` has a control character: a?b"},
    {NODE "    build: {x: 1}\n", 4, 12, "`build` of node `a` must be a text, this is a map"},
};

static int is_told(const struct mistake *mistake)
{
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    tb_status status = parse(mistake->text, strlen(mistake->text), &problems, &flow);
    const struct tb__flow_problem *first = &problems.list[0];
    int told = status == TB_E_INVALID && flow == NULL && problems.count > 0 &&
               first->place.line == mistake->line && first->place.column == mistake->column &&
               strstr(first->text, mistake->says) != NULL &&
               strstr(tb_last_error_text(), first->text) != NULL;
    if (!told) {
        fprintf(stderr, "status %d, expected %u:%u: ...%s... for\n%s", status, mistake->line,
                mistake->column, mistake->says, mistake->text);
        tb__flow_problems_print(&problems, stderr);
    }
    tb__flow_destroy(flow);
    tb__flow_problems_fini(&problems);
    return told;
}

static void mistakes_are_told(void **state)
{
    (void)state;
    size_t untold = 0;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        untold += !is_told(&mistakes[i]);
    }
    assert_int_equal(untold, 0);
}

/* One mistake is one problem: nothing that follows from it is told as well. */
static void one_mistake_is_told_once(void **state)
{
    static const char *const once[] = {
        TWO "    inputs: {i: aa/image}\n",
        NODE "    outputs: {x: 1}\n  - {id: b, path: q, inputs: {i: a/x}}\n",
        NODE "    env: {A: $NOPE, B: $A}\n",
        NODE "    args: ${NOPE $ALSO\n",
        "nodes:\n  - path: p\n    outputs: [x]\n",
        NODE "    args: '\"$NOPE'\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++) {
        struct tb__flow_problems problems = {0};
        struct tb__flow *flow = NULL;
        assert_int_equal(parse(once[i], strlen(once[i]), &problems, &flow), TB_E_INVALID);
        if (problems.count != 1) {
            tb__flow_problems_print(&problems, stderr);
            fail_msg("%u problems for\n%s", problems.count, once[i]);
        }
        tb__flow_problems_fini(&problems);
    }
}

static void all_mistakes_are_listed_in_order(void **state)
{
    char text[4096] = "nodes:\n";
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    (void)state;
    for (int i = 0; i < 25; i++) {
        char node[64];
        snprintf(node, sizeof node, "  - {id: n%d, path: p, kee: 1}\n", i);
        strcat(text, node);
    }
    assert_int_equal(parse(text, strlen(text), &problems, &flow), TB_E_INVALID);
    assert_int_equal(problems.count, TB__FLOW_PROBLEMS_MAX);
    assert_int_equal(problems.unlisted, 5);
    for (uint32_t i = 0; i < problems.count; i++) {
        assert_int_equal(problems.list[i].place.line, i + 2);
    }
    char *printed = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&printed, &size);
    tb__flow_problems_print(&problems, out);
    fclose(out);
    assert_non_null(strstr(printed, "dir/f.yml:2:23: unknown key `kee` in node `n0`"));
    assert_non_null(strstr(printed, "dir/f.yml: and 5 more\n"));
    assert_non_null(strstr(tb_last_error_text(), "(and 24 more)"));
    free(printed);
    tb__flow_problems_fini(&problems);
}

/* A file cannot send escape sequences to the terminal of whoever validates it. */
static void problems_hold_no_control_characters(void **state)
{
    const char text[] = "nodes: [{id: a, path: p, \"k\\e[31m\\n\\x9b\": 1}]\n";
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    (void)state;
    assert_int_equal(parse(text, sizeof text - 1, &problems, &flow), TB_E_INVALID);
    for (const char *at = problems.list[0].text; *at != '\0'; at++) {
        assert_true((unsigned char)*at >= 0x20 && *at != 0x7f);
    }
    assert_null(strstr(problems.list[0].text, "\xc2\x9b"));
    tb__flow_problems_fini(&problems);
}

static void every_key_is_taken(void **state)
{
    (void)state;
    struct tb__flow *flow = valid("env: {RATE: 30, PATH2: $HOME/bin}\n"
                                  "exit_when_nodes_finish: true\n"
                                  "nodes:\n"
                                  "  - id: camera\n"
                                  "    name: Front camera\n"
                                  "    description: |\n"
                                  "      reads\n"
                                  "    path: ${HOME}/camera\n"
                                  "    args: --rate=$RATE 'a b'\n"
                                  "    build: |\n"
                                  "      # by CMake\n"
                                  "      cmake -B \"$HOME/b\"\n"
                                  "\n"
                                  "      cmake --build b\n"
                                  "    outputs: [image]\n"
                                  "    env: {RATE: \"${RATE}0\", ON: true, F: 1.50}\n"
                                  "    restart_policy: on-failure\n"
                                  "    max_restarts: 3\n"
                                  "    restart_delay: 0.25\n"
                                  "    deploy: {machine: A, working_dir: sub}\n"
                                  "  - id: sink\n"
                                  "    path: sink.py\n"
                                  "    inputs:\n"
                                  "      short: camera/image\n"
                                  "      long: {source: camera/image, queue_size: 3, queue_policy: "
                                  "backpressure, input_timeout: 1.5}\n"
                                  "      tick: dora/timer/hz/50\n");
    const struct tb__flow_node *camera = &flow->nodes[0];
    const struct tb__flow_node *sink = &flow->nodes[1];
    assert_string_equal(flow->name, "f");
    assert_string_equal(flow->directory, "dir");
    assert_int_equal(flow->exit_when_nodes_finish, 1);
    assert_int_equal(flow->nodes_count, 2);
    assert_string_equal(camera->name, "Front camera");
    assert_string_equal(camera->description, "reads\n");
    assert_string_equal(camera->path, "/home/ada/camera");
    assert_int_equal(camera->args_count, 2);
    assert_string_equal(camera->args[0], "--rate=300"); /* the node's own env comes first */
    assert_string_equal(camera->args[1], "a b");
    assert_null(camera->args[2]);
    assert_int_equal(camera->build_count, 2);
    assert_string_equal(camera->build[0].text, "cmake -B \"$HOME/b\"");
    assert_string_equal(camera->build[0].argv[2], "/home/ada/b");
    assert_int_equal(camera->build[1].place.line, 14);
    assert_int_equal(camera->env_count, 4);
    assert_string_equal(camera->env[0].key, "RATE"); /* replaced in place */
    assert_string_equal(camera->env[0].value, "300");
    assert_string_equal(camera->env[1].value, "/home/ada/bin");
    assert_string_equal(camera->env[2].value, "true");
    assert_string_equal(camera->env[3].value, "1.50");
    assert_string_equal(flow->env[0].value, "30"); /* the root's is untouched */
    assert_int_equal(camera->restart_policy, TB__FLOW_RESTART_ON_FAILURE);
    assert_int_equal(camera->max_restarts, 3);
    assert_int_equal(camera->restart_delay_ns, 250000000);
    assert_string_equal(camera->working_dir, "dir/sub");
    assert_string_equal(sink->name, "sink");
    assert_int_equal(sink->env_count, 2);
    assert_int_equal(sink->inputs[0].source_node, 0);
    assert_int_equal(sink->inputs[0].queue_size, TB__FLOW_QUEUE_DEFAULT);
    assert_int_equal(sink->inputs[0].queue_policy, TB__FLOW_DROP_OLDEST);
    assert_int_equal(sink->inputs[1].queue_size, 3);
    assert_int_equal(sink->inputs[1].queue_policy, TB__FLOW_BACKPRESSURE);
    assert_int_equal(sink->inputs[1].input_timeout_ns, 1500000000);
    assert_int_equal(sink->inputs[2].source_node, -1);
    assert_int_equal(sink->inputs[2].period_ns, 20000000);
    tb__flow_destroy(flow);
}

static void empty_values_of_maps_and_lists_are_absent(void **state)
{
    (void)state;
    struct tb__flow *flow = valid("env:\n" NODE "    env:\n    inputs:\n    outputs:\n    args:\n"
                                  "    build:\n    deploy:\n    description:\n");
    assert_int_equal(flow->nodes[0].inputs_count + flow->nodes[0].outputs_count, 0);
    assert_int_equal(flow->nodes[0].args_count + flow->nodes[0].build_count, 0);
    tb__flow_destroy(flow);
    flow = valid(NODE "    deploy: {machine: }\n");
    tb__flow_destroy(flow);
    flow = valid(NODE "    deploy: {machine: \"\"}\n");
    tb__flow_destroy(flow);
    flow = valid(NODE "    deploy: {machine: local}\n    env: {TENSORBUS_LOG: debug, "
                      "TENSORBUS_GPU_PEERS: 0, TENSORBUS_GPU_ORDER: cpu, TENSORBUS: x, "
                      "tensorbus_dir: x, TENSORBUS_GPU_PIN_MIN: 1000000}\n");
    tb__flow_destroy(flow);
}

static void inputs_find_their_outputs(void **state)
{
    (void)state;
    struct tb__flow *flow = valid(TWO "    inputs: {i: a/info, j: a/image}\n"
                                      "    outputs: [back]\n"
                                      "  - {id: c, path: r, outputs: [x], inputs: {i: b/back}}\n");
    assert_int_equal(flow->nodes[1].inputs[0].source_node, 0);
    assert_int_equal(flow->nodes[1].inputs[0].source_output, 1);
    assert_int_equal(flow->nodes[1].inputs[1].source_output, 0);
    assert_int_equal(flow->nodes[2].inputs[0].source_node, 1);
    tb__flow_destroy(flow);
}

static void timers_have_exact_periods(void **state)
{
    static const struct {
        const char *source;
        int64_t period_ns;
    } cases[] = {
        {"tensorbus/timer/secs/1", 1000000000},
        {"tensorbus/timer/secs/0.5", 500000000},
        {"tensorbus/timer/secs/31536000", 31536000000000000},
        {"tensorbus/timer/millis/100", 100000000},
        {"tensorbus/timer/micros/1.5", 1500},
        {"tensorbus/timer/nanos/1000", 1000},
        {"dora/timer/hz/30", 33333333},
        {"dora/timer/hz/0.1", 10000000000},
        {"dora/timer/hz/1000000", 1000},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, NODE "    inputs: {t: %s}\n", cases[i].source);
        struct tb__flow *flow = valid(text);
        assert_int_equal(flow->nodes[0].inputs[0].period_ns, cases[i].period_ns);
        tb__flow_destroy(flow);
    }
}

static void flows_have_valid_names(void **state)
{
    static const struct {
        const char *file, *name;
    } cases[] = {
        {"f.yml", "f"},
        {"a/b/cpu2cpu.yaml", "cpu2cpu"},
        {"my flow.yml", "my_flow"},
        {".yml", "flow"},
        {".hidden.yml", "_hidden"},
        {"noext", "noext"},
        {"a.b.yml", "a.b"},
        {"x.txt", "x.txt"},
        {"\xc3\xa9.yml", "__"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tb__flow_problems problems = {0};
        struct tb__flow *flow = NULL;
        assert_int_equal(tb__flow_parse(NODE, strlen(NODE), cases[i].file, NULL, &problems, &flow),
                         TB_OK);
        assert_string_equal(flow->name, cases[i].name);
        tb__flow_destroy(flow);
        tb__flow_problems_fini(&problems);
    }
}

static void the_loader_env_can_be_allowed(void **state)
{
    const struct tb__flow_options options = {.allow_loader_env = 1};
    const char text[] = NODE "    env: {LD_PRELOAD: /x.so}\n";
    struct tb__flow_problems problems = {0};
    struct tb__flow *flow = NULL;
    (void)state;
    assert_int_equal(tb__flow_parse(text, sizeof text - 1, "f", &options, &problems, &flow), TB_OK);
    assert_string_equal(flow->nodes[0].env[0].value, "/x.so");
    tb__flow_destroy(flow);
    tb__flow_problems_fini(&problems);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_are_told),
        cmocka_unit_test(one_mistake_is_told_once),
        cmocka_unit_test(all_mistakes_are_listed_in_order),
        cmocka_unit_test(problems_hold_no_control_characters),
        cmocka_unit_test(every_key_is_taken),
        cmocka_unit_test(empty_values_of_maps_and_lists_are_absent),
        cmocka_unit_test(inputs_find_their_outputs),
        cmocka_unit_test(timers_have_exact_periods),
        cmocka_unit_test(flows_have_valid_names),
        cmocka_unit_test(the_loader_env_can_be_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

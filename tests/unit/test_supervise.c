/* The rules of a running flow, with operations that only take notes and a clock that is a number.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "flow/supervise.h"

#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)
#define NODES 3
#define EXITED(code) ((code) << 8) /* wait statuses */
#define SIGNALED(number) (number)

/* What the operations did, as text: "start 0, term 1, " and so on. */
static char notes[2048];
static int can_tell[NODES];
static int group_alive[NODES];
static int start_fails[NODES];
static struct tb__supervise run;
static struct tb__supervise_node nodes[NODES];

static void note(const char *what, uint32_t node)
{
    size_t used = strlen(notes);
    snprintf(notes + used, sizeof notes - used, "%s%s %u", used > 0 ? ", " : "", what, node);
}

static tb_status op_start(void *context, uint32_t node)
{
    (void)context;
    note("start", node);
    return start_fails[node] ? TB__FAIL(TB_E_NOT_FOUND, "no such program") : TB_OK;
}

static int op_stop(void *context, uint32_t node)
{
    (void)context;
    if (can_tell[node]) {
        note("stop", node);
    }
    return can_tell[node];
}

static void op_signal(void *context, uint32_t node, int number)
{
    (void)context;
    note(number == SIGTERM ? "term" : number == SIGKILL ? "kill" : "signal", node);
}

static int op_group_alive(void *context, uint32_t node)
{
    (void)context;
    return group_alive[node];
}

static void op_group_empty(void *context, uint32_t node)
{
    (void)context;
    note("empty", node);
}

static void op_gone(void *context, uint32_t node)
{
    (void)context;
    note("gone", node);
}

static void op_note(void *context, uint32_t node, const char *text)
{
    (void)context;
    (void)node;
    (void)text;
}

static const struct tb__supervise_ops ops = {
    .start = op_start,
    .stop = op_stop,
    .signal = op_signal,
    .group_alive = op_group_alive,
    .group_empty = op_group_empty,
    .gone = op_gone,
    .note = op_note,
};

static int begin(void **state)
{
    (void)state;
    memset(nodes, 0, sizeof nodes);
    memset(group_alive, 0, sizeof group_alive);
    memset(start_fails, 0, sizeof start_fails);
    for (int i = 0; i < NODES; i++) {
        can_tell[i] = 1;
    }
    notes[0] = '\0';
    tb__supervise_init(&run, &ops, nodes, NODES);
    return 0;
}

/* Compare what was done since the last time. */
static void did(const char *expected)
{
    assert_string_equal(notes, expected);
    notes[0] = '\0';
}

static void describes(uint32_t node, const char *expected)
{
    char text[96];
    tb__supervise_describe(&run, node, text, sizeof text);
    assert_string_equal(text, expected);
}

static void start_all(int64_t now)
{
    tb__supervise_start(&run, now);
    did("start 0, start 1, start 2");
}

static void all_end_by_themselves(void **state)
{
    (void)state;
    start_all(0);
    assert_int_equal(tb__supervise_step(&run, 0), INT64_MAX);
    tb__supervise_exited(&run, 1, EXITED(0), 5);
    did("empty 1, gone 1");
    tb__supervise_exited(&run, 0, EXITED(0), 7);
    assert_int_equal(run.phase, TB__PHASE_RUNNING);
    tb__supervise_exited(&run, 2, EXITED(0), 9);
    assert_int_equal(run.phase, TB__PHASE_ENDED);
    assert_int_equal(tb__supervise_exit_code(&run), 0);
    assert_int_equal(nodes[1].total_ns, 5);
    describes(1, "exit 0");
}

static void a_failure_stops_the_others_in_order(void **state)
{
    (void)state;
    can_tell[2] = 0;
    start_all(0);
    tb__supervise_exited(&run, 0, EXITED(3), SECOND);
    did("empty 0, gone 0, stop 1, term 2");
    assert_int_equal(run.failed_node, 0);
    /* Nothing happens within the grace period; then SIGTERM, then SIGKILL. */
    assert_int_equal(tb__supervise_step(&run, SECOND), 11 * SECOND);
    assert_int_equal(tb__supervise_step(&run, 11 * SECOND - 1), 11 * SECOND);
    did("");
    assert_int_equal(tb__supervise_step(&run, 11 * SECOND), 13 * SECOND);
    did("term 1, term 2");
    tb__supervise_exited(&run, 2, SIGNALED(SIGTERM), 12 * SECOND);
    tb__supervise_step(&run, 13 * SECOND - 1);
    did("empty 2, gone 2");
    tb__supervise_step(&run, 13 * SECOND);
    did("kill 1");
    tb__supervise_exited(&run, 1, SIGNALED(SIGKILL), 13 * SECOND + 1);
    assert_int_equal(run.phase, TB__PHASE_ENDED);
    assert_int_equal(tb__supervise_exit_code(&run), 1);
    describes(0, "exit 3");
    describes(1, "killed after grace");
    describes(2, "stopped by SIGTERM");
}

static void what_counts_as_failed(void **state)
{
    static const struct {
        int sent_term;
        int sent_kill;
        int status;
        int failed;
        const char *text;
    } cases[] = {
        {0, 0, EXITED(0), 0, "exit 0"},
        {0, 0, EXITED(1), 1, "exit 1"},
        {0, 0, EXITED(143), 1, "exit 143"},
        {0, 0, SIGNALED(SIGSEGV), 1, "killed by SIGSEGV"},
        {0, 0, SIGNALED(SIGSEGV) | 0x80, 1, "killed by SIGSEGV (core dumped)"},
        {0, 0, SIGNALED(SIGTERM), 1, "killed by SIGTERM"},
        {0, 0, SIGNALED(SIGKILL), 1, "killed by SIGKILL"},
        {0, 0, SIGNALED(40), 1, "killed by signal 40"},
        {1, 0, EXITED(0), 0, "exit 0"},
        {1, 0, EXITED(2), 1, "exit 2"},
        {1, 0, EXITED(143), 0, "stopped by SIGTERM"},
        {1, 0, SIGNALED(SIGTERM), 0, "stopped by SIGTERM"},
        {1, 0, SIGNALED(SIGSEGV), 1, "killed by SIGSEGV"},
        {1, 1, SIGNALED(SIGKILL), 1, "killed after grace"},
        {1, 1, EXITED(0), 0, "exit 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(state);
        nodes[0] = (struct tb__supervise_node){
            .state = TB__NODE_ENDED,
            .has_status = 1,
            .status = cases[i].status,
            .sent_term = cases[i].sent_term,
            .sent_kill = cases[i].sent_kill,
        };
        assert_int_equal(tb__supervise_node_failed(&nodes[0]), cases[i].failed);
        describes(0, cases[i].text);
    }
}

static void restarts_double_their_delay(void **state)
{
    (void)state;
    nodes[0].restart = TB__RESTART_ON_FAILURE;
    nodes[0].restart_delay_ns = 20 * SECOND;
    start_all(0);
    int64_t now = SECOND;
    static const int64_t delays[] = {20, 40, 60, 60}; /* seconds; the doubling ends at 60 */
    for (size_t i = 0; i < 4; i++) {
        tb__supervise_exited(&run, 0, EXITED(1), now);
        did("empty 0");
        assert_int_equal(nodes[0].state, TB__NODE_BACKOFF);
        assert_int_equal(tb__supervise_step(&run, now), now + delays[i] * SECOND);
        did("");
        now += delays[i] * SECOND;
        tb__supervise_step(&run, now);
        did("start 0");
        assert_int_equal(nodes[0].restarts, i + 1);
        now += SECOND;
    }
    /* A long run starts the doubling anew. */
    now += 60 * SECOND;
    tb__supervise_exited(&run, 0, EXITED(1), now);
    did("empty 0");
    assert_int_equal(tb__supervise_step(&run, now), now + 20 * SECOND);
    /* A good end is no failure. */
    now += 20 * SECOND;
    tb__supervise_step(&run, now);
    did("start 0");
    tb__supervise_exited(&run, 0, EXITED(0), now + 1);
    did("empty 0, gone 0");
}

static void a_delay_of_nothing_does_not_spin(void **state)
{
    (void)state;
    nodes[0].restart = TB__RESTART_ALWAYS;
    start_all(0);
    tb__supervise_exited(&run, 0, EXITED(0), 0);
    assert_int_equal(tb__supervise_step(&run, 0), TB__RESTART_DELAY_MIN_NS);
}

static void restarts_end_at_their_number(void **state)
{
    (void)state;
    nodes[0].restart = TB__RESTART_ON_FAILURE;
    nodes[0].max_restarts = 1;
    start_all(0);
    tb__supervise_exited(&run, 0, EXITED(1), 0);
    tb__supervise_step(&run, SECOND);
    did("empty 0, start 0");
    tb__supervise_exited(&run, 0, EXITED(1), 2 * SECOND);
    did("empty 0, gone 0, stop 1, stop 2");
    assert_int_equal(run.reason, TB__REASON_FAILED);
}

static void nothing_is_restarted_while_stopping(void **state)
{
    (void)state;
    nodes[0].restart = nodes[1].restart = TB__RESTART_ALWAYS;
    start_all(0);
    tb__supervise_exited(&run, 0, EXITED(1), 0);
    did("empty 0");
    tb__supervise_stop(&run, TB__REASON_REQUESTED, 1); /* node 0 waits for its restart */
    did("stop 1, stop 2, gone 0");
    tb__supervise_exited(&run, 1, EXITED(0), 2);
    did("empty 1, gone 1");
    tb__supervise_exited(&run, 2, EXITED(0), 3);
    assert_int_equal(run.phase, TB__PHASE_ENDED);
    assert_int_equal(tb__supervise_exit_code(&run), 1); /* of node 0's last end */
}

static void leftovers_are_ended_before_the_node_is(void **state)
{
    (void)state;
    start_all(0);
    group_alive[0] = 1;
    tb__supervise_exited(&run, 0, EXITED(0), SECOND);
    did("term 0");
    assert_int_equal(nodes[0].state, TB__NODE_LEFTOVER);
    assert_true(tb__supervise_step(&run, SECOND) <= SECOND + 50 * MS);
    tb__supervise_step(&run, 3 * SECOND - 1);
    did("");
    tb__supervise_step(&run, 3 * SECOND);
    did("kill 0");
    group_alive[0] = 0;
    tb__supervise_step(&run, 3 * SECOND + 20 * MS);
    did("empty 0, gone 0");
    describes(0, "exit 0, left processes behind");
    assert_false(tb__supervise_node_failed(&nodes[0]));
}

/* The group was signalled with the node: that another of it ends a moment later says nothing. */
static void a_signalled_group_ends_in_any_order(void **state)
{
    (void)state;
    can_tell[0] = 0;
    start_all(0);
    tb__supervise_stop(&run, TB__REASON_REQUESTED, 0);
    group_alive[0] = 1;
    tb__supervise_exited(&run, 0, SIGNALED(SIGTERM), 1);
    describes(0, "stopped by SIGTERM");
    tb__supervise_step(&run, 2 * SECOND + 1); /* but this one does not heed SIGTERM */
    describes(0, "stopped by SIGTERM, left processes behind");
    tb__supervise_kill(&run, TB__REASON_REQUESTED, 3 * SECOND);
    group_alive[1] = 1;
    tb__supervise_exited(&run, 1, SIGNALED(SIGKILL), 3 * SECOND);
    describes(1, "killed on request");
    tb__supervise_step(&run, 6 * SECOND);
    describes(1, "killed on request");
}

static void leftovers_delay_a_restart(void **state)
{
    (void)state;
    nodes[0].restart = TB__RESTART_ALWAYS;
    start_all(0);
    group_alive[0] = 1;
    tb__supervise_exited(&run, 0, EXITED(0), 0);
    tb__supervise_step(&run, SECOND);
    did("term 0");
    group_alive[0] = 0;
    tb__supervise_step(&run, SECOND + 1);
    did("empty 0");
    assert_int_equal(nodes[0].state, TB__NODE_BACKOFF);
}

static void killing_at_once(void **state)
{
    (void)state;
    start_all(0);
    group_alive[1] = 1;
    tb__supervise_exited(&run, 1, EXITED(0), 0);
    did("term 1");
    tb__supervise_stop(&run, TB__REASON_INTERRUPTED, 1);
    did("stop 0, stop 2");
    tb__supervise_kill(&run, TB__REASON_INTERRUPTED, 2);
    did("kill 0, kill 1, kill 2");
    tb__supervise_kill(&run, TB__REASON_INTERRUPTED, 3);
    did("");
    tb__supervise_exited(&run, 0, SIGNALED(SIGKILL), 3);
    tb__supervise_exited(&run, 2, SIGNALED(SIGKILL), 3);
    group_alive[1] = 0;
    tb__supervise_step(&run, 4);
    assert_int_equal(run.phase, TB__PHASE_ENDED);
    assert_int_equal(tb__supervise_exit_code(&run), 130);
    describes(0, "killed on request");
}

static void what_cannot_be_killed_is_left(void **state)
{
    (void)state;
    start_all(0);
    tb__supervise_kill(&run, TB__REASON_REQUESTED, 0);
    notes[0] = '\0';
    tb__supervise_exited(&run, 0, SIGNALED(SIGKILL), 1);
    tb__supervise_exited(&run, 1, SIGNALED(SIGKILL), 1);
    tb__supervise_step(&run, TB__KILL_PATIENCE_NS - 1);
    assert_int_equal(run.phase, TB__PHASE_KILLING);
    tb__supervise_step(&run, TB__KILL_PATIENCE_NS);
    assert_int_equal(run.phase, TB__PHASE_ENDED);
    describes(2, "cannot be killed");
    assert_int_equal(tb__supervise_exit_code(&run), 1);
}

static void a_node_that_cannot_be_started(void **state)
{
    (void)state;
    start_fails[1] = 1;
    tb__supervise_start(&run, 0);
    did("start 0, start 1, gone 1, stop 0, gone 2"); /* node 2 is not started any more */
    describes(1, "could not be started");
    describes(2, "not started");
    assert_string_equal(nodes[1].error, "no such program");
    tb__supervise_exited(&run, 0, EXITED(0), 1);
    assert_int_equal(run.phase, TB__PHASE_ENDED);
    assert_int_equal(tb__supervise_exit_code(&run), 1);
    assert_false(tb__supervise_node_failed(&nodes[2]));
}

static void a_node_that_reports_late_is_told(void **state)
{
    (void)state;
    can_tell[0] = 0;
    start_all(0);
    tb__supervise_reachable(&run, 0);
    did(""); /* the flow runs */
    tb__supervise_stop(&run, TB__REASON_REQUESTED, 0);
    did("term 0, stop 1, stop 2");
    can_tell[0] = 1;
    tb__supervise_reachable(&run, 0);
    tb__supervise_reachable(&run, 0);
    did("stop 0");
}

static void stopping_twice_is_once(void **state)
{
    (void)state;
    start_all(0);
    tb__supervise_exited(&run, 0, EXITED(1), 0);
    notes[0] = '\0';
    tb__supervise_stop(&run, TB__REASON_INTERRUPTED, 5 * SECOND);
    did("");
    assert_int_equal(run.reason, TB__REASON_FAILED);
    assert_int_equal(run.deadline_ns, TB__GRACE_NS);
    tb__supervise_exited(&run, 0, EXITED(0), 6 * SECOND); /* it has ended already */
    did("");
    assert_int_equal(nodes[0].status, EXITED(1));
}

static void no_nodes_is_an_end(void **state)
{
    (void)state;
    tb__supervise_init(&run, &ops, nodes, 0);
    tb__supervise_start(&run, 0);
    assert_int_equal(run.phase, TB__PHASE_ENDED);
    assert_int_equal(tb__supervise_exit_code(&run), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(all_end_by_themselves, begin),
        cmocka_unit_test_setup(a_failure_stops_the_others_in_order, begin),
        cmocka_unit_test_setup(what_counts_as_failed, begin),
        cmocka_unit_test_setup(restarts_double_their_delay, begin),
        cmocka_unit_test_setup(a_delay_of_nothing_does_not_spin, begin),
        cmocka_unit_test_setup(restarts_end_at_their_number, begin),
        cmocka_unit_test_setup(nothing_is_restarted_while_stopping, begin),
        cmocka_unit_test_setup(leftovers_are_ended_before_the_node_is, begin),
        cmocka_unit_test_setup(a_signalled_group_ends_in_any_order, begin),
        cmocka_unit_test_setup(leftovers_delay_a_restart, begin),
        cmocka_unit_test_setup(killing_at_once, begin),
        cmocka_unit_test_setup(what_cannot_be_killed_is_left, begin),
        cmocka_unit_test_setup(a_node_that_cannot_be_started, begin),
        cmocka_unit_test_setup(a_node_that_reports_late_is_told, begin),
        cmocka_unit_test_setup(stopping_twice_is_once, begin),
        cmocka_unit_test_setup(no_nodes_is_an_end, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

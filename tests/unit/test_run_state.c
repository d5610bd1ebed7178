/* The state file of a flow: what is written is read back, and what is malformed is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "flow/run_directory.h"
#include "flow/run_find.h"

static void fill(struct tb__state *state, struct tb__state_node nodes[2])
{
    memset(state, 0, sizeof *state);
    memset(nodes, 0, 2 * sizeof *nodes);
    strcpy(state->flow, "0a1b2c3d");
    strcpy(state->name, "camera");
    strcpy(state->phase, "running");
    strcpy(state->file, "/a path/with %, \\ and\nnewline \xc3\xa9.yml");
    strcpy(state->log_directory, "/out");
    state->pid = 4711;
    state->started_ns = 123456789012345;
    state->count = 2;
    state->nodes = nodes;
    strcpy(nodes[0].id, "motion");
    strcpy(nodes[0].state, "running");
    nodes[0].pid = 4712;
    nodes[0].restarts = 3;
    nodes[0].started_ns = 5;
    strcpy(nodes[1].id, "a.b-c_d");
    strcpy(nodes[1].state, "ended");
    strcpy(nodes[1].cause, "killed by SIGSEGV (core dumped), left processes behind");
}

static void round_trip(void **unused)
{
    (void)unused;
    char directory[] = "/tmp/tb-state-XXXXXX";
    struct tb__state_node nodes[2];
    struct tb__state written;
    struct tb__state read;
    fill(&written, nodes);
    assert_non_null(mkdtemp(directory));
    int root = open(directory, O_RDONLY | O_DIRECTORY);
    assert_int_equal(mkdirat(root, "0a1b2c3d", 0700), 0);
    int fd = openat(root, "0a1b2c3d", O_RDONLY | O_DIRECTORY);
    assert_int_equal(tb__state_write(fd, &written), TB_OK);
    assert_int_equal(tb__state_read(root, "0a1b2c3d", &read), TB_OK);
    assert_string_equal(read.flow, written.flow);
    assert_string_equal(read.name, written.name);
    assert_string_equal(read.phase, written.phase);
    assert_string_equal(read.file, written.file);
    assert_string_equal(read.log_directory, written.log_directory);
    assert_int_equal(read.pid, written.pid);
    assert_int_equal(read.started_ns, written.started_ns);
    assert_int_equal(read.count, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(read.nodes[i].id, nodes[i].id);
        assert_string_equal(read.nodes[i].state, nodes[i].state);
        assert_string_equal(read.nodes[i].cause, nodes[i].cause);
        assert_int_equal(read.nodes[i].pid, nodes[i].pid);
        assert_int_equal(read.nodes[i].restarts, nodes[i].restarts);
        assert_int_equal(read.nodes[i].started_ns, nodes[i].started_ns);
    }
    tb__state_fini(&read);
    /* Nobody holds the runner's lock: it is not listed. */
    struct tb__state *list;
    uint32_t count;
    uint32_t unreadable;
    assert_int_equal(tb__state_list(root, &list, &count, &unreadable), TB_OK);
    assert_int_equal(count + unreadable, 0);
    tb__state_list_free(list, count);
    assert_int_equal(tb__state_find(root, "camera", &read), TB_E_NOT_FOUND);
    tb__run_directory_remove(root, "0a1b2c3d");
    close(fd);
    close(root);
    assert_int_equal(rmdir(directory), 0);
}

#define HEAD "tensorbus-flow 1\nflow f\nname n\n"

static void refused(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        tb_status status;
        const char *why;
    } cases[] = {
        {HEAD "end\n", TB_OK, ""},
        {HEAD "end\nwhat follows is not read", TB_OK, ""},
        {HEAD "node a 1 2 3 running \nend\n", TB_OK, ""},
        {HEAD "node a 1 2 3 running exit%200\nend\n", TB_OK, ""},
        {"", TB_E_CORRUPT, "too early"},
        {"tensorbus-flow 2\nend\n", TB_E_CORRUPT, "line 1"},
        {"tensorbus-flow 1\nend\n", TB_E_CORRUPT, "missing"},
        {HEAD, TB_E_CORRUPT, "too early"},
        {HEAD "end", TB_E_CORRUPT, "too early"},
        {HEAD "unknown 1\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "pid 1 2\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "pid\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "pid -1\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "pid +1\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "pid 4294967296\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "pid 9223372036854775808\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "pid 1x\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "node a 1 2 3\nend\n", TB_OK, ""}, /* state and cause may be empty */
        {HEAD "node a 1 2\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "node .. 1 2 3 s c\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "node a 1 2 3 s c d\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "file a%0\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "file a%0g\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "file a%00\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "file a%0a\nend\n", TB_E_CORRUPT, "line 4"},
        {HEAD "file a\tb\nend\n", TB_E_CORRUPT, "line 4"},
        {"tensorbus-flow 1\nflow a/b\n", TB_E_CORRUPT, "line 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tb__state state;
        tb_status status = tb__state_parse(cases[i].text, strlen(cases[i].text), &state);
        if (status != cases[i].status) {
            fail_msg("case %zu: %s, %s is due", i, tb_status_name(status),
                     tb_status_name(cases[i].status));
        }
        if (status == TB_OK) {
            tb__state_fini(&state);
        } else {
            assert_non_null(strstr(tb_last_error_text(), cases[i].why));
        }
    }
}

/* Every cut of a good file is refused, and no byte behind the cut is read. */
static void half_written(void **unused)
{
    (void)unused;
    static const char text[] = HEAD "phase running\npid 1\nnode a 1 2 3 running exit%200\nend\n";
    for (size_t length = 0; length < sizeof text - 1; length++) {
        char *copy = malloc(length + 1); /* one more, since malloc(0) may be NULL */
        memcpy(copy, text, length);
        struct tb__state state;
        assert_int_equal(tb__state_parse(copy, length, &state), TB_E_CORRUPT);
        free(copy);
    }
}

static void too_many_nodes(void **unused)
{
    (void)unused;
    static char text[65536];
    struct tb__state state;
    for (int extra = 0; extra <= 1; extra++) {
        size_t used = (size_t)snprintf(text, sizeof text, HEAD);
        for (unsigned i = 0; i < TB__FLOW_NODES_MAX + (unsigned)extra; i++) {
            used += (size_t)snprintf(text + used, sizeof text - used, "node n%u 1 2 3 s c\n", i);
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "end\n");
        assert_int_equal(tb__state_parse(text, used, &state), extra ? TB_E_CORRUPT : TB_OK);
        if (!extra) {
            assert_int_equal(state.count, TB__FLOW_NODES_MAX);
            tb__state_fini(&state);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(refused),
        cmocka_unit_test(half_written),
        cmocka_unit_test(too_many_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

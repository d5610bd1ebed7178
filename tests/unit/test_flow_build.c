/* Loading from disk, finding programs, running build steps: in a directory of this test's own. */
#include "flow/flow.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"

static char directory[] = "/tmp/tb-flow-XXXXXX";
static char flow_file[64];
static struct tb__flow_problems problems;

static void put_file(const char *name, mode_t mode, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static const char *file_text(const char *name)
{
    static char text[4096];
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "r");
    size_t got = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    text[got] = '\0';
    if (file != NULL) {
        fclose(file);
    }
    return text;
}

static struct tb__flow *load(const char *text)
{
    struct tb__flow *flow = NULL;
    put_file("f.yml", 0600, text);
    tb_status status = tb__flow_load(flow_file, NULL, &problems, &flow);
    if (status != TB_OK) {
        tb__flow_problems_print(&problems, stderr);
    }
    assert_int_equal(status, TB_OK);
    return flow;
}

static int make_directory(void **state)
{
    (void)state;
    if (mkdtemp(directory) == NULL) {
        return -1;
    }
    snprintf(flow_file, sizeof flow_file, "%s/f.yml", directory);
    setenv("TEST_DIRECTORY", directory, 1);
    put_file("tool", 0755, "#!/bin/sh\n");
    put_file("plain", 0644, "x");
    put_file("node.py", 0644, "");
    char sub[64];
    snprintf(sub, sizeof sub, "%s/sub", directory);
    return mkdir(sub, 0755);
}

static int remove_directory(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    return system(command);
}

static int forget_problems(void **state)
{
    (void)state;
    tb__flow_problems_fini(&problems);
    return 0;
}

/* F01: what cannot be a flow is refused before it is read. */
static void unreadable_files_are_refused(void **state)
{
    char big[64], fifo[64];
    struct tb__flow *flow = NULL;
    (void)state;
    snprintf(big, sizeof big, "%s/big.yml", directory);
    snprintf(fifo, sizeof fifo, "%s/fifo.yml", directory);
    put_file("big.yml", 0600, "nodes:\n");
    assert_int_equal(truncate(big, 100000000), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const struct {
        const char *path;
        tb_status status;
        const char *says;
    } cases[] = {
        {"/nonexistent/f.yml", TB_E_NOT_FOUND, "cannot be read: No such file or directory"},
        {directory, TB_E_INVALID, "is a directory: name a YAML file"},
        {fifo, TB_E_INVALID, "is not a regular file"},
        {big, TB_E_LIMIT, "the file has 100000000 bytes, a flow has at most 1048576 (1 MiB)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(tb__flow_load(cases[i].path, NULL, &problems, &flow), cases[i].status);
        assert_null(flow);
        assert_int_equal(problems.count, 1);
        assert_string_equal(problems.file, cases[i].path);
        assert_non_null(strstr(problems.list[0].text, cases[i].says));
        tb__flow_problems_fini(&problems);
    }
}

static void the_directory_is_that_of_the_file(void **state)
{
    struct tb__flow *flow = load("nodes: [{id: a, path: p, deploy: {working_dir: sub}}]\n");
    char sub[64], before[512];
    (void)state;
    assert_string_equal(flow->directory, directory);
    snprintf(sub, sizeof sub, "%s/sub", directory);
    assert_string_equal(flow->nodes[0].working_dir, sub);
    tb__flow_destroy(flow);
    flow = NULL;
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(directory), 0);
    assert_int_equal(tb__flow_load("f.yml", NULL, &problems, &flow), TB_OK);
    assert_string_equal(flow->directory, directory); /* absolute for a relative name too */
    tb__flow_destroy(flow);
    assert_int_equal(chdir(before), 0);
}

static void programs_are_found(void **state)
{
    struct tb__flow *flow = load("nodes:\n"
                                 "  - {id: a, path: ./tool, args: x 'y z'}\n"
                                 "  - {id: b, path: tool}\n"
                                 "  - {id: c, path: ../tool, deploy: {working_dir: sub}}\n"
                                 "  - {id: d, path: sh}\n"
                                 "  - {id: e, path: node.py, args: [1]}\n"
                                 "  - {id: f, path: tool, deploy: {working_dir: sub}, "
                                 "env: {PATH: \"relative:/nowhere:$TEST_DIRECTORY\"}}\n");
    char expected[128];
    (void)state;
    assert_null(flow->nodes[0].argv);
    assert_int_equal(tb__flow_resolve(flow, NULL, &problems), TB_OK);
    snprintf(expected, sizeof expected, "%s/./tool", directory);
    assert_string_equal(flow->nodes[0].program, expected);
    assert_string_equal(flow->nodes[0].argv[0], expected);
    assert_string_equal(flow->nodes[0].argv[2], "y z");
    assert_null(flow->nodes[0].argv[3]);
    snprintf(expected, sizeof expected, "%s/tool", directory);
    assert_string_equal(flow->nodes[1].program, expected);
    snprintf(expected, sizeof expected, "%s/sub/../tool", directory);
    assert_string_equal(flow->nodes[2].program, expected);
    assert_int_equal(flow->nodes[3].program[0], '/');
    assert_non_null(strstr(flow->nodes[4].argv[0], "/python3"));
    assert_string_equal(flow->nodes[4].argv[1], "-u");
    snprintf(expected, sizeof expected, "%s/node.py", directory);
    assert_string_equal(flow->nodes[4].argv[2], expected);
    assert_string_equal(flow->nodes[4].argv[3], "1");
    assert_null(flow->nodes[4].argv[4]);
    snprintf(expected, sizeof expected, "%s/tool", directory);
    assert_string_equal(flow->nodes[5].program, expected); /* on the node's own PATH */
    tb__flow_destroy(flow);
}

/* F03: all that is missing is told before anything starts. */
static void missing_programs_are_told(void **state)
{
    struct tb__flow *flow = load("nodes:\n"
                                 "  - {id: a, path: ./no}\n"
                                 "  - {id: b, path: no-such-program}\n"
                                 "  - {id: c, path: plain}\n"
                                 "  - {id: d, path: sub}\n"
                                 "  - {id: e, path: gone.py}\n"
                                 "  - {id: f, path: tool, deploy: {working_dir: gone}}\n"
                                 "  - {id: g, path: ./later, build: make later}\n"
                                 "  - {id: h, path: node.py, env: {PATH: /nowhere}}\n");
    static const char *const says[] = {
        "program of node `a`: `./no` does not exist",
        "program of node `b`: `no-such-program` is neither there nor on PATH",
        "program of node `c`: `plain` is not executable: chmod +x it",
        "program of node `d`: `sub` is a directory",
        "program of node `e`: `gone.py` is neither there nor on PATH",
        "working directory of node `f`: ",
        "program of node `g`: `./later` does not exist",
        "node `h` is a Python file, and python3 is not on PATH",
    };
    (void)state;
    assert_int_equal(tb__flow_resolve(flow, NULL, &problems), TB_E_INVALID);
    assert_int_equal(problems.count, 8);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(problems.list[i].place.line, i + 2);
        assert_ptr_equal(strstr(problems.list[i].text, says[i]), problems.list[i].text);
        assert_null(flow->nodes[i].argv);
    }
    assert_non_null(
        strstr(problems.list[0].text,
               "build it first, give this node `build` steps of its own, or correct `path`"));
    assert_non_null(strstr(problems.list[6].text, "run `tensorbus build`"));
    tb__flow_problems_fini(&problems);
    const struct tb__flow_build_options before_build = {.unbuilt_allowed = 1};
    assert_int_equal(tb__flow_resolve(flow, &before_build, &problems), TB_E_INVALID);
    assert_int_equal(problems.count, 7); /* all but g, which has build steps */
    tb__flow_destroy(flow);
}

/* A relative entry of PATH would mean another program in every directory: it counts for nothing. */
static void relative_path_entries_are_passed_over(void **state)
{
    struct tb__flow *flow = load("env: {PATH: \"sub::.:\"}\nnodes: [{id: a, path: only-in-sub}]\n");
    char before[512];
    (void)state;
    put_file("sub/only-in-sub", 0755, "#!/bin/sh\n");
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(directory), 0);
    assert_int_equal(tb__flow_resolve(flow, NULL, &problems), TB_E_INVALID);
    assert_int_equal(chdir(before), 0);
    tb__flow_destroy(flow);
}

static void steps_run_in_order_in_their_place(void **state)
{
    struct tb__flow *flow =
        load("env: {WHO: root}\n"
             "nodes:\n"
             "  - id: a\n"
             "    path: p\n"
             "    build: |\n"
             "      sh -c 'pwd >log; echo \"$WHO $MINE\" >>log'\n"
             "      sh -c 'echo \"$1\" >>log' x \"a $MINE\"\n"
             "    env: {MINE: 'b  c'}\n"
             "    deploy: {working_dir: sub}\n"
             "  - {id: b, path: p, build: [./tool, sh -c 'echo $WHO >>log']}\n");
    char expected[256];
    (void)state;
    assert_int_equal(tb__flow_build(flow, NULL), TB_OK);
    snprintf(expected, sizeof expected, "%s/sub\nroot b  c\na b  c\n", directory);
    assert_string_equal(file_text("sub/log"), expected);
    assert_string_equal(file_text("log"), "root\n");
    tb__flow_destroy(flow);
}

static void failing_steps_are_named(void **state)
{
    static const struct {
        const char *step;
        tb_status status;
        const char *says;
    } cases[] = {
        {"sh -c 'exit 3'", TB_E_INVALID,
         "/f.yml:5: build of node `a`: `sh -c 'exit 3'` ended with exit code 3"},
        {"sh -c 'kill -9 $$'", TB_E_INVALID, "was ended by signal 9 (Killed)"},
        {"cd sub", TB_E_NOT_FOUND,
         "`cd` is not on PATH (build steps run without a shell: for `cd`"},
        {"./plain", TB_E_NOT_FOUND, "`./plain` is not executable"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "nodes:\n  - id: a\n    path: p\n    build: |\n      %s\n      touch after\n",
                 cases[i].step);
        struct tb__flow *flow = load(text);
        assert_int_equal(tb__flow_build(flow, NULL), cases[i].status);
        if (strstr(tb_last_error_text(), cases[i].says) == NULL) {
            fail_msg("expected %s: %s", cases[i].says, tb_last_error_text());
        }
        assert_int_equal(access(directory, F_OK), 0);
        char after[64];
        snprintf(after, sizeof after, "%s/after", directory);
        assert_int_equal(access(after, F_OK), -1); /* nothing runs after a failure */
        tb__flow_destroy(flow);
    }
}

/* Ctrl-C ends a step that waits, with all its children, and the build; a step that ignores it too.
 */
static void ctrl_c_ends_the_build(void **state)
{
    static const char *const steps[] = {
        "sh -c '(trap \"\" INT; echo >ready; exec sleep 60) & echo $! >pid; while [ ! -e ready ]; "
        "do "
        ":; done; kill -INT '$PARENT'; wait'",
        "sh -c 'trap \"\" INT; echo $$ >pid; kill -INT '$PARENT'; kill -INT '$PARENT'; sleep 60'",
    };
    char parent[32];
    (void)state;
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    setenv("PARENT", parent, 1);
    for (size_t i = 0; i < 2; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "nodes:\n  - id: a\n    path: p\n    build: |\n      %s\n      touch after\n",
                 steps[i]);
        struct tb__flow *flow = load(text);
        int64_t start_ns = tb__now_ns();
        assert_int_equal(tb__flow_build(flow, NULL), TB_CLOSED);
        assert_true(tb__now_ns() - start_ns < 20 * INT64_C(1000000000));
        pid_t left = (pid_t)atoi(file_text("pid"));
        assert_true(left > 1);
        for (int tries = 0; kill(left, 0) == 0 && tries < 1000; tries++) {
            usleep(10000); /* an orphan's new parent may take a moment to collect it */
        }
        assert_int_equal(kill(left, 0), -1);
        tb__flow_destroy(flow);
    }
}

/* Stands in for uv: writes what it was asked, and makes a bin/python. */
static const char fake_uv[] = "#!/bin/sh\n"
                              "echo \"$@ | $VIRTUAL_ENV\" >>\"$UV_LOG\"\n"
                              "[ \"$1\" = venv ] || exit 0\n"
                              "for last; do :; done\n"
                              "mkdir -p \"$last/bin\" && cp \"$UV_PYTHON\" \"$last/bin/python\"\n";

static void uv_makes_an_environment_per_node(void **state)
{
    char out[64], log_file[64], tool[64], text[512], expected[512], venv[128];
    (void)state;
    snprintf(out, sizeof out, "%s/my out", directory);
    snprintf(log_file, sizeof log_file, "%s/uv.log", directory);
    snprintf(tool, sizeof tool, "%s/tool", directory);
    snprintf(venv, sizeof venv, "%s/f/venv/py", out);
    setenv("UV_LOG", log_file, 1);
    setenv("UV_PYTHON", tool, 1);
    put_file("sub/uv", 0755, fake_uv);
    snprintf(text, sizeof text,
             "env: {PATH: \"%s/sub:/usr/bin:/bin\"}\n"
             "nodes:\n"
             "  - {id: py, path: node.py, args: x, build: [pip install \"a b\", sh -c 'echo $PATH "
             ">path']}\n"
             "  - {id: c, path: tool, build: sh -c 'test -z \"$VIRTUAL_ENV\"'}\n",
             directory);
    struct tb__flow *flow = load(text);
    const struct tb__flow_build_options options = {.out_directory = out, .uv = 1};
    assert_int_equal(tb__flow_resolve(flow, &options, &problems), TB_E_INVALID);
    assert_non_null(strstr(problems.list[0].text, "run `tensorbus build --uv "));
    tb__flow_problems_fini(&problems);
    for (int again = 0; again < 2; again++) { /* the second time the environment is there */
        assert_int_equal(tb__flow_build(flow, &options), TB_OK);
    }
    snprintf(expected, sizeof expected,
             "venv --quiet --system-site-packages %s | \n"
             "pip install a b | %s\n"
             "pip install a b | %s\n",
             venv, venv, venv);
    assert_string_equal(file_text("uv.log"), expected);
    snprintf(expected, sizeof expected, "%s/bin:%s/sub:/usr/bin:/bin\n", venv, directory);
    assert_string_equal(file_text("path"), expected);
    assert_int_equal(tb__flow_resolve(flow, &options, &problems), TB_OK);
    snprintf(expected, sizeof expected, "%s/bin/python", venv);
    assert_string_equal(flow->nodes[0].argv[0], expected);
    assert_string_equal(flow->nodes[0].argv[1], "-u");
    assert_string_equal(flow->nodes[0].venv, venv);
    assert_null(flow->nodes[1].venv);
    tb__flow_destroy(flow);
}

static void a_missing_uv_is_told_with_the_way_out(void **state)
{
    const struct tb__flow_build_options options = {.out_directory = directory, .uv = 1};
    struct tb__flow *flow = load("env: {PATH: /nowhere}\nnodes: [{id: a, path: node.py}]\n");
    (void)state;
    assert_int_equal(tb__flow_build(flow, &options), TB_E_NOT_FOUND);
    assert_non_null(strstr(tb_last_error_text(), "pip install uv"));
    tb__flow_destroy(flow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(unreadable_files_are_refused, forget_problems),
        cmocka_unit_test_teardown(the_directory_is_that_of_the_file, forget_problems),
        cmocka_unit_test_teardown(programs_are_found, forget_problems),
        cmocka_unit_test_teardown(missing_programs_are_told, forget_problems),
        cmocka_unit_test_teardown(relative_path_entries_are_passed_over, forget_problems),
        cmocka_unit_test_teardown(steps_run_in_order_in_their_place, forget_problems),
        cmocka_unit_test_teardown(failing_steps_are_named, forget_problems),
        cmocka_unit_test_teardown(ctrl_c_ends_the_build, forget_problems),
        cmocka_unit_test_teardown(uv_makes_an_environment_per_node, forget_problems),
        cmocka_unit_test_teardown(a_missing_uv_is_told_with_the_way_out, forget_problems),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}

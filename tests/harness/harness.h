/* A small forking harness for tests across processes.
 *
 * A file has a table of tests and calls harness_main(). Each test runs in a forked process of its
 * own (the "test process") that leads a process group and has its own runtime directory in
 * $TENSORBUS_DIR; a time limit kills the whole group. A test forks roles with child_start(), talks
 * to them through child_*() and parent_*() and kills them with child_kill(). After the function has
 * returned, the test process must have the descriptors, threads and memfd mappings that it began
 * with and must have awaited all its children; when it has ended, no process may be left, nothing
 * in the runtime directory but empty directories and lock files (and sockets, when a process was
 * killed), and no new dora_pool_* file that nobody uses.
 *
 * What a test writes to standard error is shown only when it fails; harness_log_count() looks into
 * it. TB_TEST=pattern (or an argument) runs a subset, --list names the tests, TB_TEST_FULL=1 asks
 * for full sizes. Closes with "N passed, N failed"; the exit status is 1 when one failed. */
#ifndef TB_TESTS_HARNESS_H
#define TB_TESTS_HARNESS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include <tensorbus/status.h>

struct test {
    const char *name;
    void (*run)(void);
    unsigned limit_s; /* stretched under sanitizers */
};

#define TEST(function, seconds)                                                                    \
    {                                                                                              \
#function, function, seconds                                                               \
    }
#define TEST_COUNT(tests) (sizeof(tests) / sizeof((tests)[0]))

int harness_main(int argc, char **argv, const struct test *tests, size_t count);

/* 1 when TB_TEST_FULL asks for the sizes of the case's text. */
int harness_full(void);

/* `full` when asked for; else `quick`, a tenth of it under a sanitizer (at least 1). */
unsigned long harness_scale(unsigned long quick, unsigned long full);

/* How many times slower than usual this build may be: 1, or more under a sanitizer. */
unsigned harness_slowness(void);

/* Skip: the test prints `ok name (skipped: why)` and ends here. Only for what the machine lacks. */
_Noreturn void harness_skip(const char *why);

/* ------------------------------------------------------------------ checks (check.c) */

_Noreturn void harness_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define FAIL(...) harness_fail(__FILE__, __LINE__, __VA_ARGS__)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            FAIL("not true: %s", #condition);                                                      \
        }                                                                                          \
    } while (0)

void harness_check_int(const char *file, int line, const char *texts, long long left, int relation,
                       long long right);
void harness_check_text(const char *file, int line, const char *what, const char *got,
                        const char *wanted, int within);
void harness_check_status(const char *file, int line, const char *call, tb_status got,
                          tb_status wanted);

/* Integers; a failure shows both values. Relations: '=' '!' '<' 'l' (<=). */
#define CHECK_EQ(left, right)                                                                      \
    harness_check_int(__FILE__, __LINE__, #left " == " #right, (long long)(left), '=',             \
                      (long long)(right))
#define CHECK_NE(left, right)                                                                      \
    harness_check_int(__FILE__, __LINE__, #left " != " #right, (long long)(left), '!',             \
                      (long long)(right))
#define CHECK_LT(left, right)                                                                      \
    harness_check_int(__FILE__, __LINE__, #left " < " #right, (long long)(left), '<',              \
                      (long long)(right))
#define CHECK_LE(left, right)                                                                      \
    harness_check_int(__FILE__, __LINE__, #left " <= " #right, (long long)(left), 'l',             \
                      (long long)(right))

#define CHECK_STR(got, wanted) harness_check_text(__FILE__, __LINE__, #got, (got), (wanted), 0)
#define CHECK_HAS(got, part) harness_check_text(__FILE__, __LINE__, #got, (got), (part), 1)

/* A call's status; a failure shows both names and the thread's last error. */
#define CHECK_STATUS(call, wanted) harness_check_status(__FILE__, __LINE__, #call, (call), (wanted))
#define CHECK_OK(call) CHECK_STATUS(call, TB_OK)

/* Poll until the condition holds, or fail. For what another process brings about in its own time.
 */
#define CHECK_WITHIN_MS(condition, milliseconds)                                                   \
    do {                                                                                           \
        int64_t check_end =                                                                        \
            harness_now_ns() + (int64_t)(milliseconds)*1000000 * (int64_t)harness_slowness();      \
        while (!(condition)) {                                                                     \
            if (harness_now_ns() > check_end) {                                                    \
                FAIL("not within %d ms: %s", (int)(milliseconds), #condition);                     \
            }                                                                                      \
            harness_sleep_us(200);                                                                 \
        }                                                                                          \
    } while (0)

int64_t harness_now_ns(void);
void harness_sleep_us(unsigned microseconds);

/* How often `text` stands in what the test (children included) has written to standard error. */
unsigned harness_log_count(const char *text);

/* The runtime directory of this test. */
const char *harness_dir(void);

/* ------------------------------------------------------------------ leaks (leak.c) */

unsigned harness_fd_count(void);            /* open descriptors of this process */
unsigned harness_thread_count(void);        /* threads of this process */
int harness_thread_named(const char *name); /* whether this process has such a thread */
unsigned long harness_rss_kib(void);        /* resident memory of this process */
unsigned harness_memfd_count(void);         /* memfd mappings of this process */

/* Call in a test that leaves sockets behind on purpose without child_kill(). */
void harness_allow_sockets(void);

/* Call in a process that opens a GPU's driver: its descriptors and threads stay until the end. */
void harness_allow_driver(void);

/* Bytes of files in the runtime directory tree, and how many sockets it holds. */
unsigned harness_socket_count(void);

/* ------------------------------------------------------------------ children (child.c) */

struct child {
    pid_t pid; /* 0 when not running */
    int channel_fd;
    char role[32];
};

/* Fork a role; it ends when the function returns. Fork before the library is used where possible:
 * a child must not use its parent's bus. */
void harness_before_fork(void); /* skips where a sanitizer cannot follow; child_start() calls it */
void child_start(struct child *child, const char *role, void (*run)(void *argument),
                 void *argument);

/* Expect the child to end by itself with status 0; by a signal; or end it. */
void child_join(struct child *child);
void child_join_signal(struct child *child, int signal);
void child_kill(struct child *child); /* SIGKILL, awaited */
void child_signal(struct child *child, int signal);

/* Messages, each of a fixed size up to CHILD_MESSAGE_MAX; both sides know what comes. */
#define CHILD_MESSAGE_MAX 1024
void child_tell(struct child *child, const void *data, size_t bytes);
void child_hear(struct child *child, void *data, size_t bytes);
void parent_tell(const void *data, size_t bytes);
void parent_hear(void *data, size_t bytes);
int parent_has_spoken(void); /* without waiting */

/* Named points: the role says that it has reached one and goes on, or waits for child_go(). The
 * parent waits for a point by its name; another name is a failure. */
void parent_reached(const char *point);
void parent_pause(const char *point);
void child_await(struct child *child, const char *point);
void child_go(struct child *child);

/* Whether the child has said something that was not heard yet; waits up to the timeout. */
int child_has_spoken(struct child *child, unsigned milliseconds);

/* ------------------------------------------------------------------ kills by step (step.c)
 *
 * A role encloses what it does in steps_begin() and steps_end(). The parent runs that thread for a
 * number of machine instructions and kills the process there: "any process may die between any two
 * instructions". */
void steps_begin(void);
void steps_end(void);

/* Run the child for `steps` instructions and kill it. Returns 1 when it was killed there, 0 when it
 * came to steps_end() before (it is killed there). *out_steps is the number really run. */
int child_kill_after_steps(struct child *child, unsigned long steps, unsigned long *out_steps);

/* The same, counting stops before and after each system call: far faster, for long ways. */
int child_kill_after_calls(struct child *child, unsigned long stops, unsigned long *out_stops);

#endif

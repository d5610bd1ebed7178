/* The harness itself: each thing that it promises to notice is done on purpose in an inner run,
 * whose verdict is read back. */
#include "harness/harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------ tests for the inner run */

static void inner_passes(void)
{
    CHECK(1);
    CHECK_EQ(2, 2);
}

static void inner_values(void)
{
    int three = 3;
    CHECK_EQ(three, 4);
}

static void inner_status(void)
{
    CHECK_STATUS(TB_E_STALE, TB_OK);
}

static void inner_descriptor(void)
{
    CHECK(open("/dev/null", O_RDONLY) >= 0);
}

static void inner_mapping(void)
{
    int fd = memfd_create("kept", MFD_CLOEXEC);
    CHECK(ftruncate(fd, 4096) == 0);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
    close(fd);
}

static void *sleep_on(void *argument)
{
    sleep(100);
    return argument;
}

static void inner_thread(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sleep_on, NULL) == 0);
    CHECK(pthread_detach(thread) == 0);
}

static void inner_process(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        setsid(); /* leaves the group: found all the same */
        sleep(100);
        _exit(0);
    }
    while (getsid(pid) != pid) {
        harness_sleep_us(100); /* before, it would be killed with the group */
    }
}

static void inner_hang(void)
{
    sleep(100);
}

static void inner_signal(void)
{
    raise(SIGSEGV);
}

static void inner_file(void)
{
    char path[200];
    snprintf(path, sizeof path, "%s/kept", harness_dir());
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(write(fd, "x", 1) == 1);
    close(fd);
}

static void leave_socket(void *argument)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%.60s/kept.sock", harness_dir());
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    if (argument != NULL) {
        parent_pause("bound");
    }
    close(fd);
}

static void inner_socket(void)
{
    leave_socket(NULL);
}

static void inner_socket_of_killed(void)
{
    struct child child;
    int yes = 1;
    child_start(&child, "owner", leave_socket, &yes);
    child_await(&child, "bound");
    child_kill(&child);
}

static void fail_in_role(void *argument)
{
    (void)argument;
    FAIL("no luck");
}

static void inner_role(void)
{
    struct child child;
    char byte;
    child_start(&child, "unlucky", fail_in_role, NULL);
    child_hear(&child, &byte, 1);
}

static void wait_in_role(void *argument)
{
    (void)argument;
    parent_pause("here");
}

static void inner_unawaited(void)
{
    struct child child;
    child_start(&child, "waiter", wait_in_role, NULL);
    child_await(&child, "here");
}

static void inner_wrong_point(void)
{
    struct child child;
    child_start(&child, "waiter", wait_in_role, NULL);
    child_await(&child, "there");
}

static void inner_pool_file(void)
{
    char path[100];
    snprintf(path, sizeof path, "/dev/shm/dora_pool_test_harness_%d", (int)getpid());
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    close(fd);
}

/* ------------------------------------------------------------------ the outer tests */

/* Run one inner test and return what the inner runner prints. */
static const char *verdict_of(const struct test *test)
{
    static char text[8192];
    int out_fd = memfd_create("verdict", MFD_CLOEXEC);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char name[] = "inner";
        char *arguments[] = {name, NULL};
        dup2(out_fd, STDOUT_FILENO);
        unsetenv("TB_TEST");
        int failed = harness_main(1, arguments, test, 1);
        fflush(stdout);
        _exit(failed);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    ssize_t got = pread(out_fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    close(out_fd);
    CHECK_EQ(WEXITSTATUS(status), strstr(text, "1 passed, 0 failed\n") == NULL);
    return text;
}

static void notices_everything(void)
{
    static const struct {
        struct test test;
        const char *verdict;
    } cases[] = {
        {TEST(inner_passes, 5), "ok inner_passes ("},
        {TEST(inner_values, 5), "not true: three == 4 (3, 4)"},
        {TEST(inner_status, 5), "TB_E_STALE returned TB_E_STALE, not TB_OK"},
        {TEST(inner_descriptor, 5), "1 descriptors left open:"},
        {TEST(inner_mapping, 5), "1 memfd mappings left"},
        {TEST(inner_thread, 5), "threads left"},
        {TEST(inner_process, 5), "processes left:"},
        {TEST(inner_signal, 5), "ended by signal 11"},
        {TEST(inner_file, 5), "left in the runtime directory: "},
        {TEST(inner_socket, 5), "1 sockets or links left in the runtime directory"},
        {TEST(inner_socket_of_killed, 5), "ok inner_socket_of_killed ("},
        {TEST(inner_role, 5), "unlucky: no luck"},
        {TEST(inner_unawaited, 5), "1 children were not awaited"},
        {TEST(inner_wrong_point, 5), "role waiter is at `here`, not at `there`"},
        {TEST(inner_pool_file, 5), "left in /dev/shm: dora_pool_test_harness_"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        /* The sanitizer takes the signal and exits; it may have threads of its own. */
        if (strcmp(cases[i].test.name, "inner_signal") == 0 ||
            strcmp(cases[i].test.name, "inner_thread") == 0) {
            continue;
        }
#endif
        CHECK_HAS(verdict_of(&cases[i].test), cases[i].verdict);
    }
    /* What was left is told of once, and gone before the next test. */
    CHECK(system("ls /dev/shm/dora_pool_test_harness_* >/dev/null") == 0);
    CHECK_HAS(verdict_of(&cases[0].test), "ok inner_passes (");
    CHECK(system("ls /dev/shm/dora_pool_test_harness_* 2>/dev/null") != 0);
}

static void notices_a_hang(void)
{
    static const struct test hang = {"inner_hang", inner_hang, 1};
    CHECK_HAS(verdict_of(&hang), "FAILED inner_hang: not finished after ");
}

/* ------------------------------------------------------------------ kills by step */

static int *shared_steps;

/* Two plain stores in a row: a kill between them must be possible. */
static void store_twice(void *argument)
{
    volatile int *words = argument;
    steps_begin();
    words[0] = 1;
    words[1] = 1;
    steps_end();
}

static void kills_between_two_stores(void)
{
    int seen_neither = 0;
    int seen_first_only = 0;
    int seen_both = 0;
    shared_steps = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared_steps != MAP_FAILED);
    for (unsigned long steps = 0;; steps++) {
        struct child child;
        unsigned long done;
        shared_steps[0] = shared_steps[1] = 0;
        child_start(&child, "storer", store_twice, shared_steps);
        int killed_inside = child_kill_after_steps(&child, steps, &done);
        seen_neither += !shared_steps[0];
        seen_first_only += shared_steps[0] && !shared_steps[1];
        seen_both += shared_steps[1];
        CHECK(!shared_steps[1] || shared_steps[0]);
        CHECK_LE(done, steps);
        if (!killed_inside || (seen_both && harness_slowness() > 1)) {
            break;
        }
    }
    CHECK_LT(0, seen_neither);
    CHECK_LT(0, seen_first_only);
    CHECK_LT(0, seen_both);
    CHECK(munmap(shared_steps, 4096) == 0);
}

static void reads_the_log(void)
{
    CHECK_EQ(harness_log_count("two words"), 0);
    fprintf(stderr, "two words, two words\n");
    CHECK_EQ(harness_log_count("two words"), 2);
}

static const struct test tests[] = {
    TEST(notices_everything, 60),
    TEST(notices_a_hang, 20),
    TEST(kills_between_two_stores, 30),
    TEST(reads_the_log, 5),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

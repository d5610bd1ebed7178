/* The runner: forks each test into its own group, bounds its time, collects what failed and looks
 * at what was left. One test at a time; single-threaded. */
#include "harness/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
/* Tests fork while the library's thread runs; the child opens a bus of its own. */
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}
#endif

struct outcome {
    char why[1200]; /* "" when it passed */
    char skipped[200];
    int sockets_allowed;
    int log_fd;
    int64_t duration_ns;
};

/* Body of the test process. */
static _Noreturn void test_process(const struct test *test)
{
    struct leak_snapshot before;
    setpgid(0, 0);
    dup2(harness.log_fd, STDERR_FILENO);
    setenv("TENSORBUS_DIR", harness.directory, 1);
    unsetenv("TENSORBUS_FLOW");
    unsetenv("TENSORBUS_NODE");
    signal(SIGPIPE, SIG_DFL);
    leak_snapshot_take(&before);
    test->run();
    leak_snapshot_compare(&before);
    exit(0); /* not _exit: LeakSanitizer looks at the end */
}

/* Processes whose parent is the runner: what a test has left behind, whatever group it is in. */
static unsigned list_children(char *text, size_t size, int kill_them)
{
    DIR *directory = opendir("/proc");
    unsigned count = 0;
    size_t length = 0;
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        char path[300];
        char line[512];
        char name[64];
        char state;
        int parent;
        int pid = atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = pid > 0 ? fopen(path, "re") : NULL;
        if (file == NULL) {
            continue;
        }
        if (fgets(line, sizeof line, file) != NULL &&
            sscanf(line, "%*d (%63[^)]) %c %d", name, &state, &parent) == 3 && parent == getpid() &&
            state != 'Z') {
            count++;
            if (length < size) {
                length += (size_t)snprintf(text + length, size - length, " %d (%s, %c)", pid, name,
                                           state);
            }
            if (kill_them) {
                kill(pid, SIGKILL);
            }
        }
        fclose(file);
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return count;
}

static void add_reason(struct outcome *outcome, const char *reason)
{
    /* Who has skipped leaves everything as it is. */
    if (outcome->why[0] == '\0' && outcome->skipped[0] == '\0') {
        snprintf(outcome->why, sizeof outcome->why, "%s", reason);
    }
}

/* Orphans of the test come to the runner, which is their subreaper. They get a moment to end. */
static void reap_orphans(struct outcome *outcome)
{
    int64_t end = harness_now_ns() + 300 * 1000000LL * harness_slowness();
    int reported = 0;
    for (;;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0 && errno == ECHILD) {
            return;
        }
        if (pid == 0 && harness_now_ns() > end) {
            char left[400] = "";
            char text[500];
            if (list_children(left, sizeof left, 1) != 0 && !reported) {
                reported = 1;
                snprintf(text, sizeof text, "processes left:%s", left);
                add_reason(outcome, text);
            }
        }
        if (pid == 0) {
            harness_sleep_us(500);
        }
    }
}

/* Wait until the test process ends or its time is over; returns its wait status. */
static int await_test(pid_t pid, const struct test *test, struct outcome *outcome)
{
    int64_t limit_ms = (int64_t)test->limit_s * 1000 * harness_slowness();
    int status = 0;
    int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd poller = {.fd = pid_fd, .events = POLLIN};
    int64_t end = harness_now_ns() + limit_ms * 1000000;
    for (;;) {
        int64_t left_ms = (end - harness_now_ns()) / 1000000;
        if (waitpid(pid, &status, WNOHANG) == pid) {
            break;
        }
        if (left_ms <= 0) {
            char text[128];
            snprintf(text, sizeof text, "not finished after %lld ms", (long long)limit_ms);
            add_reason(outcome, text);
            kill(-pid, SIGKILL);
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            break;
        }
        if (pid_fd >= 0) {
            poll(&poller, 1, (int)left_ms + 1);
        } else {
            harness_sleep_us(2000);
        }
    }
    if (pid_fd >= 0) {
        close(pid_fd);
    }
    kill(-pid, SIGKILL);
    return status;
}

/* Read what the processes of the test have reported. */
static void read_result(int result_fd, struct outcome *outcome)
{
    char text[4096];
    ssize_t got = read(result_fd, text, sizeof text - 1);
    text[got > 0 ? got : 0] = '\0';
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, RESULT_SOCKETS, strlen(RESULT_SOCKETS) - 1) == 0) {
            outcome->sockets_allowed = 1;
        } else if (strncmp(line, RESULT_SKIP, strlen(RESULT_SKIP)) == 0) {
            snprintf(outcome->skipped, sizeof outcome->skipped, "%s", line + strlen(RESULT_SKIP));
        } else {
            add_reason(outcome, line);
        }
    }
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *where)
{
    (void)status;
    (void)type;
    (void)where;
    return remove(path);
}

static void look_at_leftovers(const struct leak_shm *shm, struct outcome *outcome)
{
    char text[600];
    if (outcome->why[0] == '\0' &&
        leak_directory(harness.directory, outcome->sockets_allowed, text, sizeof text)) {
        add_reason(outcome, text);
    }
    if (leak_shm_compare(shm, text, sizeof text)) {
        add_reason(outcome, text);
    }
    nftw(harness.directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void run_test(const struct test *test, struct outcome *outcome)
{
    int pipe_fds[2];
    struct leak_shm shm;
    char template[] = "/tmp/tb-test-XXXXXX";
    leak_shm_sweep();
    leak_shm_take(&shm);
    if (mkdtemp(template) == NULL || pipe2(pipe_fds, O_CLOEXEC) != 0) {
        perror("harness");
        exit(1);
    }
    fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
    snprintf(harness.directory, sizeof harness.directory, "%s", template);
    harness.result_fd = pipe_fds[1];
    harness.log_fd = memfd_create("test-log", MFD_CLOEXEC);
    fcntl(harness.log_fd, F_SETFL, O_APPEND);
    outcome->log_fd = harness.log_fd;
    int64_t start = harness_now_ns();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(pipe_fds[0]);
        test_process(test);
    }
    setpgid(pid, pid);
    int status = await_test(pid, test, outcome);
    outcome->duration_ns = harness_now_ns() - start;
    read_result(pipe_fds[0], outcome);
    char how[128] = "";
    if (WIFSIGNALED(status)) {
        snprintf(how, sizeof how, "ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
        add_reason(outcome, how);
    } else if (WEXITSTATUS(status) != 0) {
        snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(status));
        add_reason(outcome, how);
    }
    reap_orphans(outcome);
    look_at_leftovers(&shm, outcome);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

/* Show the end of what a failed test wrote. */
static void show_log(int log_fd)
{
    char text[6001];
    off_t size = lseek(log_fd, 0, SEEK_END);
    off_t from = size > 6000 ? size - 6000 : 0;
    ssize_t got = pread(log_fd, text, 6000, from);
    text[got > 0 ? got : 0] = '\0';
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        printf("    | %s\n", line);
    }
}

static int is_chosen(const char *name, const char *pattern)
{
    if (pattern == NULL || pattern[0] == '\0') {
        return 1;
    }
    return strpbrk(pattern, "*?[") != NULL ? fnmatch(pattern, name, 0) == 0
                                           : strstr(name, pattern) != NULL;
}

int harness_main(int argc, char **argv, const struct test *tests, size_t count)
{
    unsigned passed = 0;
    unsigned failed = 0;
    const char *pattern = argc > 1 ? argv[1] : getenv("TB_TEST");
    if (pattern != NULL && strcmp(pattern, "--list") == 0) {
        for (size_t i = 0; i < count; i++) {
            printf("%s\n", tests[i].name);
        }
        return 0;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (size_t i = 0; i < count; i++) {
        struct outcome outcome = {.log_fd = -1};
        if (!is_chosen(tests[i].name, pattern)) {
            continue;
        }
        run_test(&tests[i], &outcome);
        long long milliseconds = outcome.duration_ns / 1000000;
        if (outcome.why[0] != '\0') {
            failed++;
            printf("FAILED %s: %s (%lld ms)\n", tests[i].name, outcome.why, milliseconds);
            show_log(outcome.log_fd);
        } else if (outcome.skipped[0] != '\0') {
            passed++;
            printf("ok %s (skipped: %s)\n", tests[i].name, outcome.skipped);
        } else {
            passed++;
            printf("ok %s (%lld ms)\n", tests[i].name, milliseconds);
        }
        fflush(stdout);
        close(outcome.log_fd);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}

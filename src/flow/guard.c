/* The guard process.
 *
 * It lives in a session of its own, so that a terminal's Ctrl-C does not reach it, ignores the
 * signals that end sessions, and reads a pipe whose write end the runner alone holds. Over the pipe
 * come the process groups of the nodes. When the runner ends, for whatever reason, the pipe closes:
 * the groups that are left get SIGTERM, two seconds later SIGKILL; the flow's directory is removed;
 * the guard ends. After an orderly run no group is left, and it ends at once.
 *
 * Not covered: a process that left its node's group (setsid, a daemon) and does not end by itself;
 * a kill of runner and guard at the same moment (the kernel still sends the nodes themselves
 * SIGTERM, see process.c; `tensorbus clean` sweeps the directory).
 *
 * The runner may have a second thread when the guard is started again, so the child uses nothing
 * that needs a lock of the parent: fixed arrays, system calls, no stdio. */
#include "flow/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "flow/process.h"
#include "flow/run_directory.h"

#define POLL_NS 20000000
#define STOP_PATIENCE_MS 6000 /* more than SIGTERM and SIGKILL take */

struct record {
    int32_t add; /* 1: add, 0: remove */
    int32_t group;
};

struct guard_state {
    pid_t groups[TB__GUARD_MAX_GROUPS];
    int count;
};

static void apply(struct guard_state *state, const struct record *record)
{
    for (int i = 0; i < state->count; i++) {
        if (state->groups[i] == record->group) {
            state->groups[i] = state->groups[--state->count];
            break;
        }
    }
    if (record->add && state->count < TB__GUARD_MAX_GROUPS) {
        state->groups[state->count++] = record->group;
    }
}

/* Until the runner is gone. Records are smaller than PIPE_BUF, so they arrive whole. */
static void follow(struct guard_state *state, int pipe_fd)
{
    struct record record;
    for (;;) {
        ssize_t got = read(pipe_fd, &record, sizeof record);
        if (got == (ssize_t)sizeof record) {
            apply(state, &record);
        } else if (got == 0 || (got < 0 && errno != EINTR)) {
            return;
        }
    }
}

/* Forget groups that are empty: a number that nobody uses may be given to somebody else. */
static void forget_empty(struct guard_state *state)
{
    for (int i = state->count - 1; i >= 0; i--) {
        if (!tb__process_group_alive(state->groups[i])) {
            state->groups[i] = state->groups[--state->count];
        }
    }
}

static void signal_all(const struct guard_state *state, int signal_number)
{
    for (int i = 0; i < state->count; i++) {
        tb__process_signal_group(state->groups[i], signal_number);
    }
}

static void wait_empty(struct guard_state *state, int64_t timeout_ns)
{
    int64_t deadline = tb__deadline_ns(timeout_ns);
    forget_empty(state);
    while (state->count > 0 && tb__left_ns(deadline) > 0) {
        struct timespec pause = tb__timespec(POLL_NS);
        nanosleep(&pause, NULL);
        forget_empty(state);
    }
}

/* Close all descriptors but three, which move to 3, 4 and 5; 0 to 2 become /dev/null, so that no
 * reader of the runner's output waits for the guard. */
static void keep_only(int *pipe_fd, int *directory_fd, int *lock_fd)
{
    int *kept[3] = {pipe_fd, directory_fd, lock_fd};
    /* Above all final places first, lest one overwrite another. */
    for (int i = 0; i < 3; i++) {
        *kept[i] = fcntl(*kept[i], F_DUPFD_CLOEXEC, 16);
    }
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3; i++) {
        (void)dup2(null_fd, i);
        (void)dup2(*kept[i], 3 + i);
        *kept[i] = 3 + i;
    }
    (void)syscall(SYS_close_range, 6u, ~0u, 0u);
}

static void settle(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP, SIGTTOU};
    (void)setsid();
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        (void)signal(ignored[i], SIG_IGN);
    }
    (void)signal(SIGCHLD, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, 0);
    (void)prctl(PR_SET_NAME, "tensorbus-guard");
    /* Keep no file system busy. */
    if (chdir("/") != 0) {
        return;
    }
}

static _Noreturn void guard_main(const struct tb__guard_options *options, int pipe_fd)
{
    struct guard_state state = {.count = 0};
    int directory_fd = options->directory_fd;
    int lock_fd = options->lock_fd;
    char name[TB__NAME_SIZE];
    tb__name_copy(name, options->directory_name);
    settle();
    keep_only(&pipe_fd, &directory_fd, &lock_fd);
    follow(&state, pipe_fd);
    forget_empty(&state);
    signal_all(&state, SIGTERM);
    wait_empty(&state, options->term_ns);
    signal_all(&state, SIGKILL);
    wait_empty(&state, options->term_ns);
    tb__run_directory_remove(directory_fd, name);
    _exit(0);
}

tb_status tb__guard_start(const struct tb__guard_options *options, struct tb__guard *out)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return TB__FAIL_ERRNO(TB_E_LIMIT, "a pipe for the guard process");
    }
    pid_t pid = fork();
    if (pid == 0) {
        tb__fd_close(&ends[1]);
        guard_main(options, ends[0]);
    }
    tb__fd_close(&ends[0]);
    if (pid < 0) {
        tb_status status = TB__FAIL_ERRNO(TB_E_LIMIT, "starting the guard process");
        tb__fd_close(&ends[1]);
        return status;
    }
    *out = (struct tb__guard){
        .pid = pid,
        .pipe_fd = ends[1],
        .pid_fd = (int)syscall(SYS_pidfd_open, pid, 0),
    };
    return TB_OK;
}

static tb_status tell(struct tb__guard *guard, int add, pid_t group)
{
    struct record record = {.add = add, .group = (int32_t)group};
    ssize_t sent;
    do {
        sent = write(guard->pipe_fd, &record, sizeof record);
    } while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)sizeof record) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "telling the guard process about group %d", (int)group);
    }
    return TB_OK;
}

tb_status tb__guard_add(struct tb__guard *guard, pid_t group)
{
    return tell(guard, 1, group);
}

tb_status tb__guard_remove(struct tb__guard *guard, pid_t group)
{
    return tell(guard, 0, group);
}

void tb__guard_stop(struct tb__guard *guard)
{
    tb__fd_close(&guard->pipe_fd);
    if (guard->pid > 0) {
        struct pollfd ended = {.fd = guard->pid_fd, .events = POLLIN};
        if (poll(&ended, 1, STOP_PATIENCE_MS) == 0) {
            kill(guard->pid, SIGKILL); /* somebody has stopped it (SIGSTOP) */
        }
        while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR) {
        }
        guard->pid = 0;
    }
    tb__fd_close(&guard->pid_fd);
}

int tb__guard_ended(struct tb__guard *guard)
{
    if (guard->pid <= 0 || waitpid(guard->pid, NULL, WNOHANG) == 0) {
        return 0;
    }
    guard->pid = 0;
    tb__fd_close(&guard->pipe_fd);
    tb__fd_close(&guard->pid_fd);
    return 1;
}

/* Roles: forked processes of a test, and the channel between each and its parent. */
#include "harness/internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* In a role: the way to the parent. */
static int parent_fd = -1;

void harness_before_fork(void)
{
#if defined(__SANITIZE_THREAD__)
    if (harness_thread_named("tensorbus")) {
        harness_skip("ThreadSanitizer cannot follow a fork beside the library's thread");
    }
#endif
}

void child_start(struct child *child, const char *role, void (*run)(void *argument), void *argument)
{
    int pair[2];
    harness_before_fork();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        FAIL("socketpair: %s", strerror(errno));
    }
    *child = (struct child){.channel_fd = pair[0]};
    snprintf(child->role, sizeof child->role, "%s", role);
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        FAIL("fork: %s", strerror(errno));
    }
    if (pid == 0) {
        close(pair[0]);
        parent_fd = pair[1];
        snprintf(harness.role, sizeof harness.role, "%s", role);
        harness.started = 0;
        harness.killed = 0;
        struct leak_snapshot before;
        leak_snapshot_take(&before);
        run(argument);
        leak_snapshot_compare(&before);
        exit(0); /* not _exit: LeakSanitizer looks at the end */
    }
    close(pair[1]);
    child->pid = pid;
    harness.started++;
}

/* Await the end and forget the child; returns the wait status. */
static int reap(struct child *child)
{
    int status = 0;
    if (child->pid == 0) {
        FAIL("role %s is not running", child->role);
    }
    while (waitpid(child->pid, &status, 0) != child->pid) {
        if (errno != EINTR) {
            FAIL("waitpid of role %s: %s", child->role, strerror(errno));
        }
    }
    close(child->channel_fd);
    child->pid = 0;
    child->channel_fd = -1;
    harness.started--;
    return status;
}

void child_join(struct child *child)
{
    int status = reap(child);
    if (WIFSIGNALED(status)) {
        FAIL("role %s ended by signal %d", child->role, WTERMSIG(status));
    }
    if (WEXITSTATUS(status) != 0) {
        FAIL("role %s ended with status %d", child->role, WEXITSTATUS(status));
    }
}

void child_join_signal(struct child *child, int signal)
{
    int status = reap(child);
    harness_allow_sockets();
    if (!WIFSIGNALED(status) || WTERMSIG(status) != signal) {
        FAIL("role %s ended with wait status 0x%x, not by signal %d", child->role, status, signal);
    }
}

void child_kill(struct child *child)
{
    child_signal(child, SIGKILL);
    child_join_signal(child, SIGKILL);
}

void child_signal(struct child *child, int signal)
{
    if (child->pid == 0 || kill(child->pid, signal) != 0) {
        FAIL("signal %d to role %s: not running", signal, child->role);
    }
}

static void tell(int fd, const char *to, const void *data, size_t bytes)
{
    if (bytes > CHILD_MESSAGE_MAX) {
        FAIL("message of %zu bytes", bytes);
    }
    ssize_t sent;
    do {
        sent = send(fd, data, bytes, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)bytes) {
        FAIL("message to %s: %s", to, strerror(errno));
    }
}

static void hear(int fd, const char *from, void *data, size_t bytes)
{
    char message[CHILD_MESSAGE_MAX];
    ssize_t got;
    do {
        got = recv(fd, message, sizeof message, 0);
    } while (got < 0 && errno == EINTR);
    if (got == 0) {
        FAIL("%s ended instead of speaking", from);
    }
    if (got != (ssize_t)bytes) {
        FAIL("%s sent %zd bytes (%.*s), not %zu", from, got, got > 0 ? (int)got : 0, message,
             bytes);
    }
    memcpy(data, message, bytes);
}

void child_tell(struct child *child, const void *data, size_t bytes)
{
    tell(child->channel_fd, child->role, data, bytes);
}

void child_hear(struct child *child, void *data, size_t bytes)
{
    hear(child->channel_fd, child->role, data, bytes);
}

void parent_tell(const void *data, size_t bytes)
{
    tell(parent_fd, "the parent", data, bytes);
}

void parent_hear(void *data, size_t bytes)
{
    hear(parent_fd, "the parent", data, bytes);
}

/* Points travel as fixed blocks, so that a wrong name is shown and not just a wrong size. */
struct point {
    char name[48];
};

void parent_reached(const char *name)
{
    struct point point = {{0}};
    snprintf(point.name, sizeof point.name, "%s", name);
    parent_tell(&point, sizeof point);
}

void parent_pause(const char *name)
{
    char go;
    parent_reached(name);
    parent_hear(&go, 1);
}

void child_await(struct child *child, const char *name)
{
    struct point point;
    child_hear(child, &point, sizeof point);
    point.name[sizeof point.name - 1] = '\0';
    if (strcmp(point.name, name) != 0) {
        FAIL("role %s is at `%s`, not at `%s`", child->role, point.name, name);
    }
}

void child_go(struct child *child)
{
    child_tell(child, "g", 1);
}

int child_has_spoken(struct child *child, unsigned milliseconds)
{
    struct pollfd poller = {.fd = child->channel_fd, .events = POLLIN};
    return poll(&poller, 1, (int)milliseconds) == 1;
}

int parent_has_spoken(void)
{
    struct pollfd poller = {.fd = parent_fd, .events = POLLIN};
    return poll(&poller, 1, 0) == 1;
}

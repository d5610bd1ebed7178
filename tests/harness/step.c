/* Kills after a chosen number of machine instructions or system calls, by stepping a role's thread.
 * steps_begin() stops the role as a traced process; the parent drives it from there. */
#include "harness/internal.h"

#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

void steps_begin(void)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
        FAIL("ptrace: %s", strerror(errno));
    }
    raise(SIGSTOP);
}

void steps_end(void)
{
    raise(SIGSTOP);
}

/* Wait for the next stop and return its signal. */
static int await_stop(struct child *child)
{
    int status;
    while (waitpid(child->pid, &status, 0) != child->pid) {
        if (errno != EINTR) {
            FAIL("waitpid of role %s: %s", child->role, strerror(errno));
        }
    }
    if (!WIFSTOPPED(status)) {
        child->pid = 0;
        FAIL("role %s ended with wait status 0x%x while it was stepped", child->role, status);
    }
    return WSTOPSIG(status);
}

/* Let the child go on `count` times with a ptrace request, then kill it. */
static int kill_after(struct child *child, enum __ptrace_request request, unsigned long count,
                      unsigned long *out_done)
{
    if (await_stop(child) != SIGSTOP) {
        FAIL("role %s did not stop at steps_begin()", child->role);
    }
    unsigned long done = 0;
    int at_end = 0;
    long pass_signal = 0;
    while (done < count) {
        if (ptrace(request, child->pid, NULL, (void *)pass_signal) != 0) {
            FAIL("stepping role %s: %s", child->role, strerror(errno));
        }
        int signal = await_stop(child);
        if (signal == SIGSTOP) {
            at_end = 1;
            break;
        }
        pass_signal = signal == SIGTRAP ? 0 : signal;
        done++;
    }
    kill(child->pid, SIGKILL);
    child_join_signal(child, SIGKILL);
    if (out_done != NULL) {
        *out_done = done;
    }
    return !at_end;
}

int child_kill_after_steps(struct child *child, unsigned long steps, unsigned long *out_steps)
{
    return kill_after(child, PTRACE_SINGLESTEP, steps, out_steps);
}

int child_kill_after_calls(struct child *child, unsigned long stops, unsigned long *out_stops)
{
    return kill_after(child, PTRACE_SYSCALL, stops, out_stops);
}

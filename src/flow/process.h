/* One node's process: started in a group of its own, signalled and measured as a group. */
#ifndef TB_FLOW_PROCESS_H
#define TB_FLOW_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct tb__process_options {
    const char *label;        /* names the node in errors */
    char *const *argv;        /* argv[0] is the program's path */
    char *const *environment; /* whole environment of the child */
    const char *directory;    /* working directory, NULL: the caller's */
};

struct tb__process {
    pid_t pid;     /* also the id of its process group */
    int pid_fd;    /* becomes readable when the process has ended */
    int output_fd; /* read end of its stdout and stderr, non-blocking */
};

/* Start the program: stdin is /dev/null, stdout and stderr share one pipe (so that their order is
 * kept), the soft limits of locked memory and of descriptors are raised to the hard ones, and the
 * kernel sends it SIGTERM when the calling thread ends. (That is why only the main thread of the
 * runner starts nodes.) Failing to execute is an error here, not an exit code of the child. */
tb_status tb__process_start(const struct tb__process_options *options, struct tb__process *out);

/* Close the descriptors; the process itself is not touched. */
void tb__process_fini(struct tb__process *process);

/* Whether the process has ended; its wait status is then in *out_status and it has been reaped. Its
 * group lives on while it has members, and keeps its number so long. */
int tb__process_reap(const struct tb__process *process, int *out_status);

/* Send a signal to all members of a group; a group that is gone is no error. */
void tb__process_signal_group(pid_t group, int signal_number);

/* Whether the group has members that are not zombies. */
int tb__process_group_alive(pid_t group);

/* Raise a soft limit (RLIMIT_...) to the hard one. Async-signal-safe. */
void tb__process_raise_limit(int resource);

struct tb__process_usage {
    uint64_t cpu_ticks;      /* user and system time of all members, in clock ticks */
    uint64_t resident_bytes; /* sum over the members: shared pages are counted in each */
    uint32_t members;
};

/* Add up what the members of a group use, from /proc. */
void tb__process_group_usage(pid_t group, struct tb__process_usage *out);

/* "exit 3", "killed by SIGSEGV (core dumped)" for a wait status. */
void tb__process_describe_status(int status, char *buffer, size_t size);

#endif

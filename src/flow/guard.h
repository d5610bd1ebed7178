/* The guard: a small process that outlives the runner just long enough to clean up after it. */
#ifndef TB_FLOW_GUARD_H
#define TB_FLOW_GUARD_H

#include <sys/types.h>

#include "base/error.h"

#define TB__GUARD_MAX_GROUPS 1024 /* process groups alive at one time */

struct tb__guard {
    pid_t pid;   /* 0: none */
    int pipe_fd; /* write end; the guard acts when it closes */
    int pid_fd;  /* readable when the guard has ended */
};

struct tb__guard_options {
    int directory_fd;           /* borrowed: parent of the flow's directory */
    const char *directory_name; /* of the flow's directory, in it */
    int lock_fd;                /* borrowed: kept open until the guard ends, so that the flow
                                   counts as live while its nodes are being ended */
    int64_t term_ns;            /* from SIGTERM to SIGKILL */
};

/* Fork the guard. Called before the nodes are started (it inherits no pipe of theirs), and again if
 * the guard was killed: it closes whatever it inherited. */
tb_status tb__guard_start(const struct tb__guard_options *options, struct tb__guard *out);

/* Tell it about a node's process group, and that the group is empty. TB_E_SYSTEM when the guard is
 * gone. */
tb_status tb__guard_add(struct tb__guard *guard, pid_t group);
tb_status tb__guard_remove(struct tb__guard *guard, pid_t group);

/* Let it end, and wait for that: milliseconds when all groups were removed. */
void tb__guard_stop(struct tb__guard *guard);

/* Whether it has ended (and reap it). */
int tb__guard_ended(struct tb__guard *guard);

#endif

/* Starting a program of a flow's preparations: a build step, an interpreter that is asked
 * something. */
#ifndef TB_FLOW_SPAWN_H
#define TB_FLOW_SPAWN_H

#include <sys/types.h>

struct tb__spawn {
    const char *program; /* a path */
    char **argv;
    char **environment;
    const char *directory; /* where it runs */
    int output_fd;         /* borrowed: its standard output */
    int quiet;             /* 1: standard error goes to /dev/null; 0: where ours goes */
};

/* In a process group of its own, with no signal blocked or ignored, reading from /dev/null. Returns
 * 0 or an errno. Any thread. */
int tb__spawn(const struct tb__spawn *spawn, pid_t *out_pid);

#endif

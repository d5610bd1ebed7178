/* The runtime directory and a flow's directory in it: made, locked, removed, swept.
 *
 *   <runtime>/                 0700, of this user
 *   <runtime>/<flow>/          one flow: 8 hex digits made by the runner, or `default`
 *       runner.lock            held (flock) by the runner, and by its guard until that ends
 *       flow.state             what runs, see run_state.h
 *       <id>.sock, <name>.sock endpoints of processes, see endpoint
 *
 * Whoever adds to or sweeps a flow's directory holds a lock (flock) on the directory itself. */
#ifndef TB_FLOW_RUN_DIRECTORY_H
#define TB_FLOW_RUN_DIRECTORY_H

#include <stddef.h>

#include "base/error.h"
#include "base/name.h"

#define TB__RUN_PATH_SIZE 8192 /* of a path below the runtime directory */
#define TB__RUN_STATE_FILE "flow.state"
#define TB__RUN_LOCK_FILE "runner.lock"

/* Open the runtime directory, which must be this user's and closed to others. It is created if
 * `create`; else a missing one is TB_E_NOT_FOUND. */
tb_status tb__run_root_open(int create, char path[TB__RUN_PATH_SIZE], int *out_take_fd);

/* Create a flow's directory and take its lock. Both descriptors are the caller's. */
tb_status tb__run_directory_create(int root_fd, const char *name, int *out_take_fd,
                                   int *out_take_lock_fd);

/* Remove a flow's directory with what is in it (one level). What is gone already is no error. Uses
 * no stdio and no lock: also called in a forked child. */
void tb__run_directory_remove(int root_fd, const char *name);

/* Whether the runner's lock in a flow's directory is held. */
int tb__run_directory_locked(int directory_fd);

struct tb__sweep {
    unsigned directories; /* removed */
    unsigned sockets;     /* removed */
    unsigned live;        /* directories that somebody uses, left alone */
    unsigned failed;      /* could not be removed */
};

/* Remove what a kill of everything left behind: directories that nobody uses, and in the others
 * sockets that refuse connections. `report` (may be NULL) is called for each thing removed. */
tb_status tb__run_root_sweep(int root_fd, void (*report)(const char *what, const char *name),
                             struct tb__sweep *out);

#endif

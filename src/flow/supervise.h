/* Who runs, who is restarted, who is stopped next: the rules of a running flow. */
#ifndef TB_FLOW_SUPERVISE_H
#define TB_FLOW_SUPERVISE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Limits that users meet, see docs/flows.md. */
#define TB__GRACE_NS INT64_C(10000000000)         /* after STOP, before SIGTERM */
#define TB__TERM_NS INT64_C(2000000000)           /* after SIGTERM, before SIGKILL */
#define TB__KILL_PATIENCE_NS INT64_C(10000000000) /* after SIGKILL, before giving up */
#define TB__RESTART_DELAY_MIN_NS INT64_C(100000000)
#define TB__RESTART_DELAY_MAX_NS INT64_C(60000000000) /* of the doubling */
#define TB__RESTART_FORGET_NS INT64_C(60000000000)    /* a run that long starts the doubling anew */

enum tb__supervise_restart {
    TB__RESTART_NEVER = 0,
    TB__RESTART_ON_FAILURE = 1,
    TB__RESTART_ALWAYS = 2,
};

enum tb__supervise_state {
    TB__NODE_WAITING = 0, /* not started yet */
    TB__NODE_RUNNING = 1,
    TB__NODE_LEFTOVER = 2, /* its process has ended, others of its group have not */
    TB__NODE_BACKOFF = 3,  /* waits for its restart */
    TB__NODE_ENDED = 4,    /* for good */
};

enum tb__supervise_phase {
    TB__PHASE_RUNNING = 0,
    TB__PHASE_STOPPING = 1,    /* STOP was sent */
    TB__PHASE_TERMINATING = 2, /* SIGTERM was sent */
    TB__PHASE_KILLING = 3,     /* SIGKILL was sent */
    TB__PHASE_ENDED = 4,
};

enum tb__supervise_reason {
    TB__REASON_FINISHED = 0,    /* all nodes ended by themselves */
    TB__REASON_FAILED = 1,      /* a node failed */
    TB__REASON_REQUESTED = 2,   /* `tensorbus stop` */
    TB__REASON_INTERRUPTED = 3, /* Ctrl-C, SIGTERM, SIGHUP */
};

/* What the rules need done. Calls come from within the tb__supervise_* functions. */
struct tb__supervise_ops {
    tb_status (*start)(void *context, uint32_t node);
    /* Send STOP. 0: the node cannot be told (it is no node of ours, or not yet). */
    int (*stop)(void *context, uint32_t node);
    void (*signal)(void *context, uint32_t node, int signal_number);
    int (*group_alive)(void *context, uint32_t node);
    /* Its group is empty and may be forgotten. */
    void (*group_empty)(void *context, uint32_t node);
    /* It has ended for good. */
    void (*gone)(void *context, uint32_t node);
    /* Something that people want to read. */
    void (*note)(void *context, uint32_t node, const char *text);
    void *context;
};

struct tb__supervise_node {
    /* set by the caller */
    enum tb__supervise_restart restart;
    uint32_t max_restarts; /* 0: no limit */
    int64_t restart_delay_ns;

    enum tb__supervise_state state;
    int status; /* wait status, if has_status */
    int has_status;
    int start_failed;
    int told_stop;
    int sent_term;
    int sent_kill;
    int left_behind; /* processes of its group had to be ended */
    int unkillable;
    uint32_t restarts;
    uint32_t doublings;
    int64_t started_ns; /* of the present or last process */
    int64_t ended_ns;
    int64_t total_ns;    /* run time of all its processes that have ended */
    int64_t deadline_ns; /* of BACKOFF and LEFTOVER */
    char error[512];     /* why it could not be started */
};

struct tb__supervise {
    const struct tb__supervise_ops *ops;
    struct tb__supervise_node *nodes; /* the caller's array */
    uint32_t count;
    int64_t grace_ns;
    int64_t term_ns;
    enum tb__supervise_phase phase;
    enum tb__supervise_reason reason;
    int32_t failed_node; /* the first that failed, -1: none */
    int hurried;         /* killed on request, without the grace */
    int64_t deadline_ns; /* of the phase */
};

void tb__supervise_init(struct tb__supervise *run, const struct tb__supervise_ops *ops,
                        struct tb__supervise_node *nodes, uint32_t count);

/* Start all nodes. A node that cannot be started counts as failed. */
void tb__supervise_start(struct tb__supervise *run, int64_t now_ns);

/* A node's process has ended with this wait status. */
void tb__supervise_exited(struct tb__supervise *run, uint32_t node, int status, int64_t now_ns);

/* Ask all to stop in order; without effect when that has begun. */
void tb__supervise_stop(struct tb__supervise *run, enum tb__supervise_reason reason,
                        int64_t now_ns);

/* Kill all at once. */
void tb__supervise_kill(struct tb__supervise *run, enum tb__supervise_reason reason,
                        int64_t now_ns);

/* A node that missed STOP because it was not there yet can be told now. */
void tb__supervise_reachable(struct tb__supervise *run, uint32_t node);

/* Do what is due. Returns when the next call is due, INT64_MAX: not before something happens. */
int64_t tb__supervise_step(struct tb__supervise *run, int64_t now_ns);

/* Whether the node's end is one that makes the run fail. */
int tb__supervise_node_failed(const struct tb__supervise_node *node);

/* "exit 3", "killed by SIGSEGV", "killed after grace", "running". */
void tb__supervise_describe(const struct tb__supervise *run, uint32_t node, char *buffer,
                            size_t size);

/* Of the ended run: 0, 1 (a node failed) or 130 (interrupted). */
int tb__supervise_exit_code(const struct tb__supervise *run);

#endif

/* A running flow as its runner describes it in <runtime>/<flow>/flow.state, for the tools.
 *
 * Text, one fact per line: a word, a space, the value; control characters, backslash and `%` in
 * values are written as %XX. The last line is `end`: a file without it is half-written. It is
 * replaced as a whole (rename), and believed in nothing: a reader checks every line. */
#ifndef TB_FLOW_RUN_STATE_H
#define TB_FLOW_RUN_STATE_H

#include <stdint.h>

#include "base/error.h"
#include "base/name.h"
#include "flow/flow.h"

#define TB__STATE_PATH_SIZE 4096
#define TB__STATE_TEXT_SIZE 64
#define TB__STATE_FILE_MAX (1u << 20)

struct tb__state_node {
    char id[TB__NAME_SIZE];
    char state[TB__STATE_TEXT_SIZE]; /* "waiting", "running", "restarting", "ended" ... */
    char cause[TB__STATE_TEXT_SIZE]; /* of the last end, "" before */
    int64_t pid;                     /* and process group; 0: none */
    uint64_t restarts;
    int64_t started_ns; /* CLOCK_MONOTONIC; 0: not yet */
};

struct tb__state {
    char flow[TB__NAME_SIZE]; /* the id */
    char name[TB__NAME_SIZE];
    char phase[TB__STATE_TEXT_SIZE]; /* "running", "stopping" */
    char file[TB__STATE_PATH_SIZE];
    char log_directory[TB__STATE_PATH_SIZE];
    int64_t pid; /* of the runner */
    int64_t started_ns;
    uint32_t count;
    struct tb__state_node *nodes; /* heap */
};

void tb__state_fini(struct tb__state *state);

/* Replace the file in a flow's directory. */
tb_status tb__state_write(int directory_fd, const struct tb__state *state);

/* Parse text. TB_E_CORRUPT with the line's number. *out is untouched on failure. */
tb_status tb__state_parse(const char *text, size_t length, struct tb__state *out);

/* Read the state of one flow. TB_E_NOT_FOUND when there is no such file. */
tb_status tb__state_read(int root_fd, const char *flow, struct tb__state *out);

#endif

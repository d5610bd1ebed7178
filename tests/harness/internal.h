/* Between the files of the harness. */
#ifndef TB_TESTS_HARNESS_INTERNAL_H
#define TB_TESTS_HARNESS_INTERNAL_H

#include "harness/harness.h"

/* State of the test process, inherited by its children. */
struct harness_state {
    char directory[64];
    int result_fd;    /* what failed is written here; the runner reads it */
    int log_fd;       /* the memfd behind standard error */
    unsigned started; /* children of this process that were not awaited */
    unsigned killed;  /* children that were killed, sockets may be left */
    char role[32];
};
extern struct harness_state harness;

/* What a process had when it began. */
struct leak_snapshot {
    unsigned char open_fds[1024]; /* 1 where the descriptor of that number is open */
    unsigned threads;
    unsigned memfd_maps;
};
void leak_snapshot_take(struct leak_snapshot *snapshot);

/* Fail when this process has more now. Threads get a moment to end. */
void leak_snapshot_compare(const struct leak_snapshot *snapshot);

/* Describe what is wrong in a runtime directory after its test; returns 0 when nothing is. */
int leak_directory(const char *directory, int sockets_allowed, char *text, size_t size);

/* dora_pool_* files that appeared since and that no living process maps; returns 0 when none. */
struct leak_shm {
    char names[64][80];
    unsigned count;
};
/* Remove what tests of processes that have ended left in /dev/shm: told of before, or killed. */
void leak_shm_sweep(void);
void leak_shm_take(struct leak_shm *before);
int leak_shm_compare(const struct leak_shm *before, char *text, size_t size);

/* Messages from a process of the test to the runner. */
#define RESULT_SOCKETS "\001sockets\n"
#define RESULT_SKIP "\001skip "
void result_write(const char *text);

#endif

/* A run of the hand-over path without a reader that sleeps, in which system calls are counted. */
#ifndef TB_BENCH_WORKER_H
#define TB_BENCH_WORKER_H

#include <stdint.h>

#include "base/error.h"

/* How the calls are counted. */
enum tb__witness {
    TB__WITNESS_SECCOMP, /* a filter in both threads traps every call */
    TB__WITNESS_STRACE,  /* getsid() marks the begin and the end in the trace of all threads */
};

struct tb__worker_result {
    uint64_t frames;    /* published and taken */
    uint64_t calls;     /* by seccomp: of both threads */
    int64_t first_call; /* its number, -1: none */
    int counter_works;  /* a call made on purpose was counted */
};

/* Publish `frames` frames of 6.2 MB, untouched, to a reader that polls in another process. */
tb_status tb__worker_run(enum tb__witness witness, uint64_t frames, struct tb__worker_result *out);

/* The hidden command `tensorbus bench local --worker FRAMES`, run under strace. Returns an exit
 * code. */
int tb__worker_main(uint64_t frames);

#endif

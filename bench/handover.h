/* Measuring one-way hand-overs: any number of ways, alternating in blocks, each side of each way a
 * process of its own on its own core. */
#ifndef TB_BENCH_HANDOVER_H
#define TB_BENCH_HANDOVER_H

#include "bench/processes.h"
#include "bench/stats.h"
#include "bench/ways.h"

#define TB__HANDOVER_MAX_SAMPLES 32768

/* Time stamps in ticks; sent[] is written by the sender, received[] by the receiver. */
struct tb__handover_stamps {
    uint64_t sent[TB__HANDOVER_MAX_SAMPLES];
    _Atomic uint64_t received[TB__HANDOVER_MAX_SAMPLES];
};

struct tb__handover {
    struct tb__way way; /* name, type, bytes, slots, spin_us are set by the caller */
    int asleep;         /* 1: gaps of at least 1 ms, so that the receiver sleeps; 0: busy gaps */
    struct tb__handover_stamps *stamps;
    struct tb__side sender;
    struct tb__side receiver;
    struct tb__series series; /* nanoseconds */
    uint64_t slept;           /* takes that really slept */
    tb_status status;         /* of this way */
};

struct tb__handover_plan {
    int blocks;
    uint32_t samples; /* per block and way */
};

/* Start both sides of all ways, measure, stop them. Returns the first failure; ways whose own
 * status is TB_OK were measured all the same. The series stay for the caller, who calls
 * tb__handover_fini() for each in any case. */
tb_status tb__handover_measure(struct tb__handover *handovers, int count,
                               const struct tb__handover_plan *plan);
void tb__handover_fini(struct tb__handover *handover);

#endif

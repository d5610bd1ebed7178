/* What a row was measured on, and how disturbed it was. */
#ifndef TB_BENCH_MACHINE_H
#define TB_BENCH_MACHINE_H

#include <stddef.h>
#include <stdint.h>

struct tb__machine {
    char processor[96];
    char kernel[96];
    int cpus;      /* that this process may use */
    int first_cpu; /* two of them on different cores; -1 when there is one core alone */
    int second_cpu;
    int realtime;         /* 1: started under a real-time policy, so others cannot interrupt it */
    uint64_t cache_bytes; /* last level */
    uint64_t memory_bytes;
};

void tb__machine_find(struct tb__machine *out);

/* Memory that can still be allocated, by /proc/meminfo. */
uint64_t tb__machine_available_bytes(void);

/* Time stolen by the hypervisor and time that runnable tasks waited, since boot. */
struct tb__disturbance {
    uint64_t steal_ticks; /* of 1/100 s, all processors */
    uint64_t total_ticks;
    uint64_t pressure_us;
    int64_t now_ns;
};

void tb__disturbance_read(struct tb__disturbance *out);

/* Shares of the time between two readings, in percent; pressure is -1 where the kernel has none. */
void tb__disturbance_between(const struct tb__disturbance *before,
                             const struct tb__disturbance *after, double *steal_percent,
                             double *pressure_percent);

#endif

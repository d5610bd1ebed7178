/* The processes of a measurement: forked from a parent that never opens a bus, pinned, commanded
 * over pipes, and ended with their parent whatever happens.
 *
 * A side is one process. It runs a function, which loops: wait for a command, do a block, answer.
 * The parent sleeps meanwhile. Shared memory for time stamps is mapped before the sides are
 * started. */
#ifndef TB_BENCH_PROCESSES_H
#define TB_BENCH_PROCESSES_H

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct tb__side {
    pid_t pid;      /* 0: not started */
    int command_fd; /* parent writes, side reads */
    int answer_fd;  /* side writes, parent reads */
    const char *name;
    struct tb__side_failure *failure; /* shared: why the side gave up */
};

/* What a side runs. Returns a status; its last error travels to the parent. */
typedef tb_status tb__side_main(struct tb__side *side, void *argument);

/* A command of this number ends the side. */
#define TB__SIDE_STOP 0

/* Start a side on a processor (-1: wherever). */
tb_status tb__side_start(struct tb__side *side, const char *name, int cpu, tb__side_main *main,
                         void *argument);

/* Parent: give a command; wait for the answer to it. Fails with the side's own error when it died.
 */
tb_status tb__side_command(struct tb__side *side, uint64_t command);
tb_status tb__side_answer(struct tb__side *side, uint64_t *out);

/* Side: wait for a command (TB__SIDE_STOP also when the parent is gone); answer. */
uint64_t tb__side_wait(struct tb__side *side);
void tb__side_reply(struct tb__side *side, uint64_t value);

/* Parent: end in good order, else by SIGKILL after two seconds. NULL-safe for sides never started.
 */
void tb__side_stop(struct tb__side *side);
/* Parent: SIGKILL. The process is not waited for: tb__side_stop() does that. */
void tb__side_kill(struct tb__side *side);

/* Memory that sides started later share with the parent, zero and touched. NULL on failure. */
void *tb__shared_map(size_t bytes);
void tb__shared_unmap(void *memory, size_t bytes);

/* A runtime directory for the buses of the measurement, given to sides by the environment, and its
 * removal. */
tb_status tb__runtime_create(void);
void tb__runtime_remove(void);

/* Parent, once, before anything else: on Ctrl-C, SIGTERM or a hang-up remove the runtime directory
 * and end. A thread waits for these signals; they are blocked everywhere else. */
void tb__interrupts_watch(void);
/* In every forked child: take them again. */
void tb__interrupts_restore(void);

/* Two processors on different cores, or the reason why the row cannot be measured. */
tb_status tb__two_cpus(int *first, int *second);

/* As many descriptors as the kernel allows this process. */
void tb__raise_descriptors(void);

#endif

/* The counted hand-over: two processes, each with one thread in the loop.
 *
 * By seccomp: the thread installs a filter that turns every system call except its own end into
 * SIGSYS; the handler counts and lets the call return 0 undone. The filter holds for this thread
 * alone, so the calls are those of the publish and acquire path. Nothing in the loop depends on a
 * call. */
#include "bench/worker.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "bench/processes.h"
#include "bench/ways.h"

#define FRAME_BYTES 6220800
#define SLOTS 4
#define WARM_UP_FRAMES 16

struct worker_shm {
    _Alignas(64) _Atomic uint32_t arrived; /* both threads at the next step */
    _Alignas(64) _Atomic uint64_t taken;   /* frames that the reader has released */
    _Alignas(64) _Atomic uint32_t failed;
    _Atomic uint64_t calls;
    _Atomic int64_t first_call;
    _Atomic uint32_t proved;
};

struct worker {
    enum tb__witness witness;
    uint64_t frames;
    struct worker_shm *shm;
    tb_pool *pool;     /* in the owner's process */
    tb_reader *reader; /* in the reader's */
    tb_status status;
};

static struct worker_shm *counting_shm; /* for the signal handler */
static _Thread_local volatile sig_atomic_t counting;
static _Thread_local volatile sig_atomic_t trapped; /* calls of this thread that were counted */

/* Both threads spin until both are here. */
static void meet(struct worker_shm *shm, uint32_t step)
{
    atomic_fetch_add_explicit(&shm->arrived, 1, memory_order_acq_rel);
    while (atomic_load_explicit(&shm->arrived, memory_order_acquire) < 2 * step &&
           atomic_load_explicit(&shm->failed, memory_order_relaxed) == 0) {
    }
}

static void on_trap(int number, siginfo_t *info, void *context)
{
    (void)number;
    ucontext_t *registers = context;
    if (counting) {
        int64_t none = -1;
        trapped++;
        atomic_fetch_add_explicit(&counting_shm->calls, 1, memory_order_relaxed);
        atomic_compare_exchange_strong(&counting_shm->first_call, &none, info->si_syscall);
    }
#if defined(__x86_64__)
    registers->uc_mcontext.gregs[REG_RAX] = 0;
#elif defined(__aarch64__)
    registers->uc_mcontext.regs[0] = 0;
#endif
}

/* A call that neither the library nor the rest of the bench makes. */
static void mark(void)
{
    syscall(SYS_getsid, 0);
}

#define ALLOW(NUMBER)                                                                              \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (NUMBER), 0, 1),                                           \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static tb_status trap_calls(struct worker_shm *shm)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_rt_sigreturn),
        ALLOW(SYS_exit),
        ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    counting_shm = shm;
    sigaction(SIGSYS, &action, NULL);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        return TB__FAIL_ERRNO(TB_E_UNSUPPORTED, "seccomp filters are not allowed here");
    }
    /* Prove that the counter counts; the call is taken off again. */
    counting = 1;
    mark();
    counting = 0;
    if (trapped != 1) {
        return TB__FAIL(TB_E_SYSTEM, "a call made on purpose was not counted");
    }
    atomic_fetch_sub(&shm->calls, 1);
    atomic_store(&shm->first_call, -1);
    atomic_fetch_add(&shm->proved, 1);
    return TB_OK;
}

static tb_status publish_some(struct worker *w, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++) {
        tb_loan *loan;
        TB__TRY(tb_pool_loan(w->pool, TB_POLL, &loan));
        TB__TRY(tb_loan_publish(loan, NULL));
        while (atomic_load_explicit(&w->shm->taken, memory_order_acquire) <= i) {
            if (atomic_load_explicit(&w->shm->failed, memory_order_relaxed) != 0) {
                return TB__FAIL(TB_E_SYSTEM, "the reader gave up");
            }
        }
    }
    return TB_OK;
}

static tb_status take_some(struct worker *w, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++) {
        tb_frame *frame;
        tb_status status;
        while ((status = tb_reader_next(w->reader, TB_POLL, &frame)) == TB_AGAIN) {
            if (atomic_load_explicit(&w->shm->failed, memory_order_relaxed) != 0) {
                return TB__FAIL(TB_E_SYSTEM, "the owner gave up");
            }
        }
        TB__TRY(status);
        tb_frame_release(frame);
        atomic_store_explicit(&w->shm->taken, i + 1, memory_order_release);
    }
    return TB_OK;
}

static tb_status run_some(struct worker *w, uint64_t from, uint64_t to)
{
    return w->pool != NULL ? publish_some(w, from, to) : take_some(w, from, to);
}

/* The thread of either side. The first frames are not counted: what a thread does once, such as
 * asking for its number, is no cost of a frame. The steps between which calls count are met by
 * both. */
static tb_status counted(struct worker *w)
{
    TB__TRY(run_some(w, 0, WARM_UP_FRAMES));
    meet(w->shm, 1);
    if (w->witness == TB__WITNESS_SECCOMP) {
        TB__TRY(trap_calls(w->shm));
    } else {
        mark();
    }
    meet(w->shm, 2);
    counting = w->witness == TB__WITNESS_SECCOMP;
    tb_status status = run_some(w, WARM_UP_FRAMES, WARM_UP_FRAMES + w->frames);
    if (status == TB_OK) {
        meet(w->shm, 3);
    }
    counting = 0;
    if (w->witness == TB__WITNESS_STRACE) {
        mark();
    }
    return status;
}

/* Who has started this thread makes two more calls, and so do the library's threads that have just
 * begun; on the same processor as a loop that spins, strace can see them late, within the counted
 * frames. */
static void *thread_main(void *argument)
{
    const struct timespec others_sleep = {.tv_nsec = 50000000};
    struct worker *w = argument;
    nanosleep(&others_sleep, NULL);
    w->status = counted(w);
    if (w->status != TB_OK) {
        atomic_store(&w->shm->failed, 1);
    }
    return NULL;
}

/* The error of the thread is its own; say at least its name. */
static tb_status run_thread(struct worker *w)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, thread_main, w) != 0) {
        return TB__FAIL(TB_E_NOMEM, "cannot start a thread");
    }
    pthread_join(thread, NULL);
    if (w->status != TB_OK) {
        return TB__FAIL(w->status, "the counted loop failed with %s", tb_status_name(w->status));
    }
    return TB_OK;
}

static tb_status owner_main(struct tb__side *side, void *argument)
{
    struct worker *w = argument;
    tb_bus *bus = NULL;
    TB__TRY(tb__way_register("counted", TB_CPU, FRAME_BYTES, SLOTS, &bus, &w->pool));
    tb__side_reply(side, 1);
    tb__side_wait(side);
    TB__TRY(run_thread(w));
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_pool_close(w->pool);
    tb_bus_close(bus);
    return TB_OK;
}

static tb_status reader_main(struct tb__side *side, void *argument)
{
    struct worker *w = argument;
    tb_bus *bus = NULL;
    TB__TRY(tb__way_attach("counted", 0, &bus, &w->reader));
    tb__side_reply(side, 1);
    tb__side_wait(side);
    TB__TRY(run_thread(w));
    tb__side_reply(side, 1);
    tb__side_wait(side);
    tb_reader_close(w->reader);
    tb_bus_close(bus);
    return TB_OK;
}

static tb_status run_sides(struct worker *w, struct tb__side sides[2])
{
    int cpus[2];
    TB__TRY(tb__two_cpus(&cpus[0], &cpus[1]));
    for (int i = 0; i < 2; i++) {
        TB__TRY(tb__side_start(&sides[i], i ? "reader" : "owner", cpus[i],
                               i ? reader_main : owner_main, w));
        TB__TRY(tb__side_answer(&sides[i], NULL));
    }
    for (int i = 0; i < 2; i++) {
        TB__TRY(tb__side_command(&sides[i], 1));
    }
    for (int i = 0; i < 2; i++) {
        TB__TRY(tb__side_answer(&sides[i], NULL));
    }
    return TB_OK;
}

tb_status tb__worker_run(enum tb__witness witness, uint64_t frames, struct tb__worker_result *out)
{
    struct tb__side sides[2] = {{0}, {0}};
    struct worker w = {.witness = witness, .frames = frames};
    w.shm = tb__shared_map(sizeof *w.shm);
    if (w.shm == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no shared memory");
    }
    atomic_store(&w.shm->first_call, -1);
    tb_status status = run_sides(&w, sides);
    tb__side_stop(&sides[1]);
    tb__side_stop(&sides[0]);
    *out = (struct tb__worker_result){
        .frames = atomic_load(&w.shm->taken) - (status == TB_OK ? WARM_UP_FRAMES : 0),
        .calls = atomic_load(&w.shm->calls),
        .first_call = atomic_load(&w.shm->first_call),
        .counter_works = atomic_load(&w.shm->proved) == 2,
    };
    tb__shared_unmap(w.shm, sizeof *w.shm);
    return status;
}

int tb__worker_main(uint64_t frames)
{
    struct tb__worker_result result;
    tb_status status = tb__runtime_create();
    if (status == TB_OK) {
        status = tb__worker_run(TB__WITNESS_STRACE, frames, &result);
        tb__runtime_remove();
    }
    if (status != TB_OK || result.frames != frames) {
        fprintf(stderr, "tensorbus bench: %s\n", tb_last_error_text());
        return 1;
    }
    return 0;
}

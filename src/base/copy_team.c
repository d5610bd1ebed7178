/* A team of threads for large copies; the copying thread deals out blocks, itself included.
 *
 * Runs on threads of its own, tensorbus-copy, which touch nothing but the team and the two blocks
 * of memory. Faults are not blocked on them: a bad source ends the process with the words of the
 * application's handler, as it would on the caller's thread. */
#include "base/copy_team.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"

/* What is dealt out at a time: small, so that all end together; large, so that each is one run of
 * pages for the hardware's prefetching. 1 MiB and 4 MiB were equal, 256 KiB a tenth slower. */
#define BLOCK_BYTES ((size_t)1 << 20)

#define PART_BYTES ((size_t)256 << 10)

/* The end of the others' last blocks is nearer than a sleep and a wake-up. */
#define SPIN_NS 50000

struct tb__copy_team {
    _Atomic uint32_t busy;    /* a writer has the team */
    _Atomic uint32_t calls;   /* counts copies handed over, and the end: helpers sleep on it */
    _Atomic uint32_t open;    /* there is a copy to help with */
    _Atomic uint32_t inside;  /* helpers that may look at the job; the writer sleeps on it */
    _Atomic uint32_t waiting; /* the writer sleeps, or is about to */
    _Atomic uint32_t ending;
    _Atomic size_t next; /* offset of the next block */
    _Atomic unsigned long helped;
    /* The job: written by who has the team while it is not open and nobody is inside. */
    enum tb__copy_kind kind;
    char *dst;
    const char *src;
    size_t bytes;
    int writer_cpu;    /* where helpers may not run; -1: anywhere */
    cpu_set_t allowed; /* processors that are left to the team, the writer's included */
    cpu_set_t given;   /* those that the helpers have, unless somebody has moved them since */
    unsigned count;    /* helpers */
    pthread_t threads[];
};

static void futex_sleep(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* The pace of a copy of which somebody is to be told. */
struct pace {
    const struct tb__copy_near *near; /* NULL: nobody, or not any more */
    size_t begun_at;  /* of a copy that was begun ahead, where this thread came in */
    int64_t begun_ns; /* 0: not yet */
};

/* Before the block at `at` is copied. */
static void pace_look(struct pace *pace, size_t at, size_t bytes)
{
    if (pace->near == NULL) {
        return;
    }
    int64_t now_ns = tb__now_ns();
    if (pace->begun_ns == 0) {
        pace->begun_at = at;
        pace->begun_ns = now_ns;
        return;
    }
    double took_ns = (double)(now_ns - pace->begun_ns);
    if (took_ns * (double)(bytes - at) <=
        (double)TB__COPY_NEAR_NS * (double)(at - pace->begun_at)) {
        pace->near->tell(pace->near->context);
        pace->near = NULL;
    }
}

/* Copy blocks until none is left; returns how many. Each copy orders its stores itself, also the
 * non-temporal ones (tb__copy_with), so they are done before the caller reports. */
static unsigned long copy_blocks(struct tb__copy_team *team, struct pace *pace)
{
    unsigned long done = 0;
    for (;;) {
        size_t at = atomic_fetch_add_explicit(&team->next, BLOCK_BYTES, memory_order_relaxed);
        if (at >= team->bytes) {
            return done;
        }
        pace_look(pace, at, team->bytes);
        size_t left = team->bytes - at;
        tb__copy_with(team->kind, team->dst + at, team->src + at,
                      left < BLOCK_BYTES ? left : BLOCK_BYTES);
        done++;
    }
}

/* seq_cst throughout: a helper counts itself inside and then looks whether the copy is open; the
 * writer closes it and then looks who is inside. One of the two sees the other. */
static void help(struct tb__copy_team *team)
{
    atomic_fetch_add(&team->inside, 1);
    if (atomic_load(&team->open)) {
        struct pace pace = {0};
        atomic_fetch_add_explicit(&team->helped, copy_blocks(team, &pace), memory_order_relaxed);
    }
    /* The same between leaving and looking for a sleeping writer, against its two steps. */
    if (atomic_fetch_sub(&team->inside, 1) == 1 && atomic_load(&team->waiting)) {
        futex_wake(&team->inside);
    }
}

static void *helper_main(void *argument)
{
    struct tb__copy_team *team = argument;
    uint32_t seen = 0;
    while (!atomic_load(&team->ending)) {
        uint32_t calls = atomic_load(&team->calls);
        if (calls == seen) {
            futex_sleep(&team->calls, seen);
            continue;
        }
        seen = calls;
        help(team);
    }
    return NULL;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_for_helpers(struct tb__copy_team *team)
{
    int64_t until_ns = tb__now_ns() + SPIN_NS;
    while (atomic_load(&team->inside) != 0 && tb__now_ns() < until_ns) {
        relax();
    }
    if (atomic_load(&team->inside) == 0) {
        return;
    }
    atomic_store(&team->waiting, 1);
    uint32_t inside;
    while ((inside = atomic_load(&team->inside)) != 0) {
        futex_sleep(&team->inside, inside);
    }
    atomic_store(&team->waiting, 0);
}

/* Whoever gives the process other processors (taskset, a cpuset) means the helpers, too. That is
 * seen by theirs. They lack the writer's, so what this thread has is added; and processors that are
 * just those that the helpers had are not told from no change. */
static void look_where_allowed(struct tb__copy_team *team)
{
    cpu_set_t now;
    cpu_set_t own;
    if (pthread_getaffinity_np(team->threads[0], sizeof now, &now) != 0 ||
        CPU_EQUAL(&now, &team->given)) {
        return;
    }
    team->given = now;
    team->allowed = now;
    if (sched_getaffinity(0, sizeof own, &own) == 0) {
        CPU_OR(&team->allowed, &now, &own);
    }
}

/* A scheduler likes to wake a thread where its waker runs, which then copies in turn with it
 * instead of beside it. So helpers may run anywhere but there. The writer has the team. */
static void keep_apart(struct tb__copy_team *team)
{
    int here = sched_getcpu();
    if (here < 0 || here >= CPU_SETSIZE || here == team->writer_cpu) {
        return;
    }
    look_where_allowed(team);
    cpu_set_t others = team->allowed;
    CPU_CLR(here, &others);
    team->writer_cpu = here;
    if (CPU_COUNT(&others) == 0) {
        return;
    }
    for (unsigned i = 0; i < team->count; i++) {
        /* It may fail where a cpuset leaves none of them: so be it. */
        (void)pthread_setaffinity_np(team->threads[i], sizeof others, &others);
    }
    /* What a cpuset has left of them. */
    (void)pthread_getaffinity_np(team->threads[0], sizeof team->given, &team->given);
}

int tb__copy_team_begin(struct tb__copy_team *team, void *dst, const void *src, size_t bytes,
                        size_t working_set_bytes)
{
    if (team == NULL || bytes < TB__COPY_TEAM_MIN_BYTES || atomic_exchange(&team->busy, 1)) {
        return 0;
    }
    keep_apart(team);
    team->kind = tb__copy_choose(bytes, working_set_bytes);
    team->dst = dst;
    team->src = src;
    team->bytes = bytes;
    atomic_store(&team->next, 0);
    atomic_store(&team->open, 1);
    atomic_fetch_add(&team->calls, 1);
    futex_wake(&team->calls);
    return 1;
}

static void close_copy(struct tb__copy_team *team)
{
    atomic_store(&team->open, 0);
    wait_for_helpers(team);
    atomic_store(&team->busy, 0);
}

void tb__copy_team_finish(struct tb__copy_team *team, const struct tb__copy_near *near)
{
    struct pace pace = {.near = near};
    copy_blocks(team, &pace);
    close_copy(team);
}

void tb__copy_team_abandon(struct tb__copy_team *team)
{
    atomic_store(&team->next, team->bytes);
    close_copy(team);
}

/* By the caller alone; the last block in parts, so that its end is not seen too late. */
static void copy_alone(char *dst, const char *src, size_t bytes, size_t working_set_bytes,
                       const struct tb__copy_near *near)
{
    enum tb__copy_kind kind = tb__copy_choose(bytes, working_set_bytes);
    struct pace pace = {.near = near};
    size_t at = 0;
    while (at < bytes) {
        size_t left = bytes - at;
        size_t part = left > BLOCK_BYTES ? BLOCK_BYTES : left < PART_BYTES ? left : PART_BYTES;
        pace_look(&pace, at, bytes);
        tb__copy_with(kind, dst + at, src + at, part);
        at += part;
    }
}

void tb__copy_team_store(struct tb__copy_team *team, void *dst, const void *src, size_t bytes,
                         size_t working_set_bytes, const struct tb__copy_near *near)
{
    near = bytes > BLOCK_BYTES ? near : NULL; /* else there is no pace to go by */
    if (tb__copy_team_begin(team, dst, src, bytes, working_set_bytes)) {
        tb__copy_team_finish(team, near);
    } else if (near != NULL) {
        copy_alone(dst, src, bytes, working_set_bytes, near);
    } else {
        tb__copy_store(dst, src, bytes, working_set_bytes);
    }
}

unsigned long tb__copy_team_helped(const struct tb__copy_team *team)
{
    return team != NULL ? atomic_load(&team->helped) : 0;
}

/* Blocks every signal but those that an instruction of the thread itself causes. */
static int start_helper(struct tb__copy_team *team)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked;
    sigset_t before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        sigdelset(&blocked, own[i]);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int failed = pthread_create(&team->threads[team->count], NULL, helper_main, team);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) {
        pthread_setname_np(team->threads[team->count], "tensorbus-copy");
        team->count++;
    }
    return failed;
}

tb_status tb__copy_team_create(unsigned threads, struct tb__copy_team **out)
{
    *out = NULL;
    if (threads <= 1) {
        return TB_OK;
    }
    struct tb__copy_team *team = calloc(1, sizeof *team + (threads - 1) * sizeof team->threads[0]);
    if (team == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for %u copying threads", threads);
    }
    team->writer_cpu = -1;
    if (sched_getaffinity(0, sizeof team->allowed, &team->allowed) != 0) {
        CPU_ZERO(&team->allowed); /* more processors than the set has: they stay where they are */
    }
    team->given = team->allowed; /* threads begin where the one that starts them may run */
    while (team->count < threads - 1) {
        int failed = start_helper(team);
        if (failed) {
            unsigned started = team->count;
            tb__copy_team_destroy(team);
            errno = failed;
            return TB__FAIL_ERRNO(TB_E_SYSTEM, "starting copying thread %u of %u", started + 2,
                                  threads);
        }
    }
    *out = team;
    return TB_OK;
}

void tb__copy_team_destroy(struct tb__copy_team *team)
{
    if (team == NULL) {
        return;
    }
    if (atomic_load(&team->busy)) { /* begun and never ended: its caller is gone */
        tb__copy_team_abandon(team);
    }
    atomic_store(&team->ending, 1);
    atomic_fetch_add(&team->calls, 1);
    futex_wake(&team->calls);
    for (unsigned i = 0; i < team->count; i++) {
        pthread_join(team->threads[i], NULL);
    }
    free(team);
}

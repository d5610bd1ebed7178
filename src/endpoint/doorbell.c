/* Sleeping and waking. A process sleeps on its own doorbell only: nobody else can move it away, and
 * whoever it waits for rings there. Sleeps come in bounded slices, so that a peer that scribbles on
 * the counter costs a moment, never a hang. */
#define TB_LOG_TOPIC "endpoint"
#include "endpoint/doorbell.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef FUTEX_32
#define FUTEX_32 2
#endif

#define SLICE_NS INT64_C(250000000)
/* Without futex_waitv nothing but the clock makes a sleeper look at life words: stay under 10 ms.
 */
#define BLIND_SLICE_NS INT64_C(5000000)

/* The kernel's struct futex_waitv, which older headers lack. */
struct wait_entry {
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
};
_Static_assert(sizeof(struct wait_entry) == 24, "futex_waitv entry");

static tb_status map_bell(struct tb__bell *bell, int borrow_fd)
{
    void *shm =
        mmap(NULL, TB__BELL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, borrow_fd, 0);
    if (shm == MAP_FAILED) {
        return TB__FAIL_ERRNO(TB_E_NOMEM, "mapping a doorbell");
    }
    madvise(shm, TB__BELL_BYTES, MADV_DONTFORK);
    madvise(shm, TB__BELL_BYTES, MADV_DONTDUMP);
    bell->shm = shm;
    return TB_OK;
}

tb_status tb__bell_create(struct tb__bell *bell)
{
    *bell = (struct tb__bell){.fd = -1};
    TB__TRY(tb__memfd_create("tensorbus-bell", TB__BELL_BYTES, &bell->fd));
    tb_status status = tb__memfd_seal(bell->fd, F_SEAL_SEAL);
    if (status == TB_OK) {
        status = map_bell(bell, bell->fd);
    }
    if (status != TB_OK) {
        tb__bell_fini(bell);
    }
    return status;
}

tb_status tb__bell_map(struct tb__bell *bell, int borrow_fd)
{
    uint64_t bytes;
    TB__TRY(tb__memfd_check(borrow_fd, F_SEAL_SHRINK | F_SEAL_GROW, TB__BELL_BYTES, 0, &bytes));
    if (bytes != TB__BELL_BYTES) {
        return TB__FAIL(TB_E_PROTOCOL, "a peer sent a doorbell of %llu bytes, %d are needed",
                        (unsigned long long)bytes, TB__BELL_BYTES);
    }
    bell->fd = -1;
    return map_bell(bell, borrow_fd);
}

void tb__bell_fini(struct tb__bell *bell)
{
    if (bell->shm != NULL) {
        munmap(bell->shm, TB__BELL_BYTES);
        bell->shm = NULL;
    }
    tb__fd_close(&bell->fd);
}

void tb__word_ring(struct tb__a32 *word)
{
    /* Pairs with the sleeper's load of the count before it looks: either it sees the news, or the
     * kernel sees another count and does not let it sleep. */
    tb__a32_add(word, 1);
    syscall(SYS_futex, &word->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void tb__word_wake(const struct tb__a32 *word)
{
    syscall(SYS_futex, &word->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void tb__bell_ring(struct tb__bell *bell)
{
    tb__word_ring(&bell->shm->count);
}

/* Returns 0 when futex_waitv does not exist. *signalled: a signal ended the sleep. */
static int sleep_on_all(struct tb__a32 *word, uint32_t seen, const struct tb__life_watch *lives,
                        uint32_t count, int64_t until_ns, int *signalled)
{
    static struct tb__a32 missing;
    if (tb__a32_load_relaxed(&missing)) {
        return 0;
    }
    struct wait_entry entries[1 + TB__MAX_LIVES];
    entries[0] = (struct wait_entry){seen, (uintptr_t)&word->value, FUTEX_32, 0};
    uint32_t used = 1;
    for (uint32_t i = 0; i < count && i < TB__MAX_LIVES; i++) {
        entries[used++] =
            (struct wait_entry){lives[i].alive, (uintptr_t)&lives[i].word->value, FUTEX_32, 0};
    }
    struct timespec until = tb__timespec(until_ns);
    long woken = syscall(SYS_futex_waitv, entries, used, 0, &until, CLOCK_MONOTONIC);
    if (woken < 0 && (errno == ENOSYS || errno == EPERM)) {
        tb__a32_store_relaxed(&missing, 1);
        return 0;
    }
    *signalled = woken < 0 && errno == EINTR;
    return 1;
}

void tb__word_sleep(struct tb__a32 *word, uint32_t seen, const struct tb__life_watch *lives,
                    uint32_t count, int64_t deadline_ns)
{
    int64_t now = tb__now_ns();
    int64_t until = now + SLICE_NS < deadline_ns ? now + SLICE_NS : deadline_ns;
    until = tb__interrupt_slice(now, until);
    int signalled = 0;
    if (until <= now) {
        return;
    }
    if (!sleep_on_all(word, seen, lives, count, until, &signalled)) {
        until = now + BLIND_SLICE_NS < deadline_ns ? now + BLIND_SLICE_NS : deadline_ns;
        struct timespec at = tb__timespec(until);
        long woken = syscall(SYS_futex, &word->value, FUTEX_WAIT_BITSET, seen, &at, NULL,
                             FUTEX_BITSET_MATCH_ANY);
        signalled = woken < 0 && errno == EINTR;
    }
    tb__interrupt_ask(signalled);
}

void tb__bell_sleep(struct tb__bell *bell, uint32_t seen, const struct tb__life_watch *lives,
                    uint32_t count, int64_t deadline_ns)
{
    tb__word_sleep(&bell->shm->count, seen, lives, count, deadline_ns);
}

/* ---- life words ---- */

_Static_assert(sizeof(struct tb__life_link) == sizeof(struct robust_list), "robust list");
_Static_assert(sizeof(struct tb__life_list) == sizeof(struct robust_list_head), "robust list head");
_Static_assert(offsetof(struct tb__life_list, futex_offset) ==
                   offsetof(struct robust_list_head, futex_offset),
               "offset of the word");
_Static_assert(offsetof(struct tb__life_list, pending) ==
                   offsetof(struct robust_list_head, list_op_pending),
               "pending operation");

/* A robust node in the private page, with the way back that the kernel does not need. */
struct life_node {
    struct tb__life_link link;
    struct life_node *before;
};

static struct life_node *node_of(struct tb__a32 *word)
{
    return (struct life_node *)((uint8_t *)word - TB__PAGE_BYTES);
}

tb_status tb__lives_begin(struct tb__lives *lives)
{
    lives->tid = (uint32_t)syscall(SYS_gettid);
    atomic_init(&lives->list.first.next, &lives->list.first);
    lives->list.futex_offset = TB__PAGE_BYTES;
    lives->list.pending = NULL;
    if (syscall(SYS_set_robust_list, &lives->list, sizeof lives->list) != 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "setting the robust list");
    }
    return TB_OK;
}

/* The list is read by the kernel at this process's end, at any instruction: one store links, and
 * one takes out. The releases are for it, and for whoever loads a life word with acquire. */
void tb__lives_attach(struct tb__lives *lives, struct tb__page_map *map, struct tb__a32 *word)
{
    TB_ASSERT((uint8_t *)word >= map->base + TB__PAGE_BYTES);
    struct life_node *node = node_of(word);
    pthread_mutex_lock(&lives->mutex);
    struct tb__life_link *end = &lives->list.first;
    struct tb__life_link *first = atomic_load_explicit(&end->next, memory_order_relaxed);
    atomic_init(&node->link.next, first);
    node->before = NULL;
    if (first != end) {
        ((struct life_node *)first)->before = node;
    }
    tb__a32_store_release(word, lives->tid | TB__LIFE_WAITERS);
    atomic_store_explicit(&end->next, &node->link, memory_order_release);
    pthread_mutex_unlock(&lives->mutex);
}

void tb__lives_detach(struct tb__lives *lives, struct tb__page_map *map, struct tb__a32 *word)
{
    TB_ASSERT((uint8_t *)word >= map->base + TB__PAGE_BYTES);
    struct life_node *node = node_of(word);
    pthread_mutex_lock(&lives->mutex);
    struct tb__life_link *end = &lives->list.first;
    struct tb__life_link *next = atomic_load_explicit(&node->link.next, memory_order_relaxed);
    struct tb__life_link *before = node->before != NULL ? &node->before->link : end;
    atomic_store_explicit(&before->next, next, memory_order_release);
    if (next != end) {
        ((struct life_node *)next)->before = node->before;
    }
    tb__a32_store_release(word, 0);
    pthread_mutex_unlock(&lives->mutex);
}

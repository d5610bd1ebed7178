/* Slots that Python looks at. A view of a loan (an array, a tensor made from it) may outlive the
 * loan, and a write through it after publishing would change a frame under its readers. So a slot
 * that is published while views of it are left is made read-only in this process until it is
 * borrowed again: such a write ends the process with a line (guard.h) instead of tearing the frame.
 * Slots that nobody looks at cost nothing. */
#include <errno.h>
#include <sys/mman.h>

#include "guard.h"
#include "pool.h"

/* Slots begin at multiples of it, and so the page that a slot ends in is its own. */
#define PAGE_BYTES 4096

static struct py_pool_slot *find(struct py_pool *pool, const void *data)
{
    /* Pairs with the release store of whoever appends. */
    int count = __atomic_load_n(&pool->slot_count, __ATOMIC_ACQUIRE);
    for (int i = 0; i < count; i++) {
        if (pool->slots[i].data == data) {
            return &pool->slots[i];
        }
    }
    return NULL;
}

struct py_pool_slot *py_pool_slot_of(struct py_pool *pool, const tb_loan *loan)
{
    void *data = tb_loan_tensor(loan)->data;
    struct py_pool_slot *slot = find(pool, data);
    if (slot == NULL) {
        slot = &pool->slots[pool->slot_count];
        *slot = (struct py_pool_slot){.data = data, .guard = -1};
        __atomic_store_n(&pool->slot_count, pool->slot_count + 1, __ATOMIC_RELEASE);
    }
    return slot;
}

static int protect(const struct py_pool *pool, struct py_pool_slot *slot, int protected)
{
    if (pool->proto.device != TB_CPU || pool->is_adopted) {
        return 0; /* no page of this process, or its user's own, who may write it at any time */
    }
    size_t bytes = (pool->stats.slot_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    int mode = protected ? PROT_READ : PROT_READ | PROT_WRITE;
    if (bytes > 0 && mprotect(slot->data, bytes, mode) != 0) {
        return errno;
    }
    slot->protected = protected;
    return 0;
}

int py_pool_slot_open(struct py_pool *pool, const tb_loan *loan)
{
    struct py_pool_slot *slot = find(pool, tb_loan_tensor(loan)->data);
    return slot != NULL && slot->protected ? protect(pool, slot, 0) : 0;
}

int py_pool_slot_seal(struct py_pool *pool, const tb_loan *loan)
{
    struct py_pool_slot *slot = find(pool, tb_loan_tensor(loan)->data);
    /* Of a slot that its writer has, views only become fewer, unless the writer makes some. */
    size_t views = slot != NULL ? __atomic_load_n(&slot->views, __ATOMIC_RELAXED) : 0;
    return views > 0 ? protect(pool, slot, 1) : 0;
}

void py_pool_guard(struct py_pool *pool)
{
    int sealed = 0;
    for (int i = 0; i < pool->slot_count && pool->bus->bus != NULL; i++) {
        struct py_pool_slot *slot = &pool->slots[i];
        sealed |= slot->protected;
        if (slot->protected && slot->guard < 0) {
            slot->guard = py_guard_add(PY_GUARD_PUBLISHED, slot->data, pool->stats.slot_bytes,
                                       tb_bus_name(pool->bus->bus), pool->name);
        }
    }
    if (sealed) {
        py_guard_look();
    }
}

void py_pool_slot_forget(struct py_pool_slot *slot)
{
    py_guard_remove(slot->guard);
    slot->guard = -1;
}

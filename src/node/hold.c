/* Holds and their queues. Any thread, under the output's mutex where a queue is touched. */
#include "node/hold.h"

#include <stdlib.h>

#include "base/error.h"

tb_status tb__hold_create(tb_frame *take_frame, _Atomic uint32_t *users, struct tb__hold **out)
{
    struct tb__hold *hold = calloc(1, sizeof *hold);
    if (hold == NULL) {
        tb_frame_release(take_frame);
        atomic_fetch_sub(users, 1);
        return TB__FAIL(TB_E_NOMEM, "no memory to keep a frame");
    }
    atomic_init(&hold->references, 1);
    hold->users = users;
    hold->frame = take_frame;
    *out = hold;
    return TB_OK;
}

void tb__hold_unref(struct tb__hold *hold)
{
    if (hold == NULL || atomic_fetch_sub(&hold->references, 1) != 1) {
        return;
    }
    _Atomic uint32_t *users = hold->users;
    tb_frame_release(hold->frame);
    free(hold);
    /* Last: whoever sees 0 may close the reader behind the frame. */
    atomic_fetch_sub(users, 1);
}

tb_status tb__hold_queue_reserve(struct tb__hold_queue *queue, uint32_t more)
{
    uint32_t needed = queue->count + more;
    if (needed <= queue->capacity) {
        return TB_OK;
    }
    uint32_t capacity = queue->capacity == 0 ? 16 : queue->capacity * 2;
    while (capacity < needed) {
        capacity *= 2;
    }
    struct tb__hold_entry *entries = calloc(capacity, sizeof *entries);
    if (entries == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory to keep %u frames", needed);
    }
    for (uint32_t i = 0; i < queue->count; i++) {
        entries[i] = queue->entries[(queue->first + i) & (queue->capacity - 1)];
    }
    free(queue->entries);
    queue->entries = entries;
    queue->capacity = capacity;
    queue->first = 0;
    return TB_OK;
}

void tb__hold_queue_push(struct tb__hold_queue *queue, uint64_t sequence, struct tb__hold *hold)
{
    TB_ASSERT(queue->count < queue->capacity);
    atomic_fetch_add(&hold->references, 1);
    queue->entries[(queue->first + queue->count) & (queue->capacity - 1)] =
        (struct tb__hold_entry){sequence, hold};
    queue->count++;
}

uint32_t tb__hold_queue_release_oldest(struct tb__hold_queue *queue)
{
    if (queue->count == 0) {
        return 0;
    }
    struct tb__hold *hold = queue->entries[queue->first].hold;
    queue->first = (queue->first + 1) & (queue->capacity - 1);
    queue->count--;
    tb__hold_unref(hold);
    return 1;
}

uint32_t tb__hold_queue_release(struct tb__hold_queue *queue, uint64_t up_to_sequence)
{
    uint32_t released = 0;
    while (queue->count != 0 && queue->entries[queue->first].sequence <= up_to_sequence) {
        released += tb__hold_queue_release_oldest(queue);
    }
    return released;
}

void tb__hold_queue_fini(struct tb__hold_queue *queue)
{
    tb__hold_queue_release(queue, UINT64_MAX);
    free(queue->entries);
    *queue = (struct tb__hold_queue){0};
}

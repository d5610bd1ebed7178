/* Leasing frames by handle; and the copy without a lease. Readers' threads, several at once. No
 * system call, lock or allocation unless the caller has to wait for a GPU. */
#include <string.h>

#include "base/clock.h"
#include "pool/gate.h"
#include "pool/promise.h"

/* A handle may come before the GPU has finished its frame. */
#define GPU_PATIENCE_NS INT64_C(10000000000)
#define GPU_SLICE_NS INT64_C(1000000)

/* ---- by handle ---- */

/* A GPU is still working on the frame and this reader sees complete ones only: wait for that. */
static void wait_complete(tb_reader *reader, const tb_handle *handle)
{
    const struct tb__a64 *pending = &reader->segment.records[handle->slot].pending;
    int64_t deadline_ns = tb__deadline_ns(GPU_PATIENCE_NS);
    /* Pairs with the owner's stores in complete(). */
    while (tb__a64_load_acquire(pending) == handle->generation && !tb__reader_owner_gone(reader) &&
           tb__left_ns(deadline_ns) != 0) {
        struct tb__page_shm *page = reader->page.shm;
        uint32_t seen = tb__bus_bell(reader->bus);
        atomic_fetch_or(&page->armed.value, TB__ARMED_SLEEP);
        /* Full fence between arming and the last look; pairs with the publisher's. */
        tb__fence_full();
        if (tb__a64_load_acquire(pending) == handle->generation) {
            int64_t soon_ns = tb__deadline_ns(GPU_SLICE_NS);
            tb__bus_sleep(reader->bus, seen, NULL, 0,
                          soon_ns < deadline_ns ? soon_ns : deadline_ns);
        }
    }
}

static tb_status fail_stale(const tb_reader *reader, const tb_handle *handle,
                            enum tb__lease_result leased)
{
    unsigned long long sequence = tb_handle_sequence(handle);
    const char *owner = tb__lifeline_peer_name(reader->line);
    if (leased == TB__LEASE_CLAIMED) {
        return TB__FAIL(TB_E_STALE,
                        "frame %llu of pool `%s/%s` cannot be had: its owner (pid %u) stands still "
                        "while it takes the slot: is it stopped?",
                        sequence, owner, reader->name, tb__lifeline_peer_pid(reader->line));
    }
    if (tb__a64_load_relaxed(&reader->segment.records[handle->slot].failed) == handle->generation) {
        return TB__FAIL(TB_E_STALE,
                        "frame %llu of pool `%s/%s` was never finished: its producer gave it up, "
                        "or its stream failed",
                        sequence, owner, reader->name);
    }
    return TB__FAIL(TB_E_STALE,
                    "frame %llu of pool `%s/%s` was overwritten: use more slots, a backpressure "
                    "input, or the policy every with a reader of every frame",
                    sequence, owner, reader->name);
}

tb_status tb_reader_frame(tb_reader *reader, const tb_handle *handle, tb_frame **out)
{
    TB__TRY(tb__reader_check(reader));
    if (handle == NULL || !tb__gen_is_frame(handle->generation) || handle->flags != 0) {
        return TB__FAIL(TB_E_INVALID, "these 48 bytes are no handle");
    }
    if (memcmp(handle->pool_uid, reader->uid, sizeof reader->uid) != 0) {
        return TB__FAIL(TB_E_STALE, "the handle belongs to another pool than `%s/%s`",
                        tb__lifeline_peer_name(reader->line), reader->name);
    }
    if (handle->slot >= reader->segment.view.slot_count) {
        return TB__FAIL(TB_E_INVALID, "the handle names slot %u, pool `%s` has %u", handle->slot,
                        reader->name, reader->segment.view.slot_count);
    }
    /* Pairs with the release store in tb__pages_tell(). */
    if (tb__a32_load_acquire(&reader->page.shm->state) == TB__PAGE_FREED) {
        return tb__reader_fail(reader, TB_E_FREED);
    }
    if (reader->gates == NULL &&
        __builtin_expect(tb__a64_load_acquire(&reader->segment.records[handle->slot].pending) ==
                             handle->generation,
                         0)) {
        wait_complete(reader, handle);
    }
    /* Pairs with the release stores of promise.c. */
    if (__builtin_expect(tb__a64_load_acquire(&reader->segment.records[handle->slot].promised) ==
                             handle->generation,
                         0)) {
        TB__TRY(tb__promise_await(reader, handle));
    }
    tb_frame *frame = tb__frame_reserve(reader);
    if (frame == NULL) {
        return tb__reader_fail_busy(reader);
    }
    enum tb__lease_result leased =
        tb__frame_lease(frame, handle->slot, handle->generation, TB__HANDLE_PATIENCE_NS);
    if (leased != TB__LEASE_HELD) {
        tb__frame_unreserve(frame);
        tb__a64_add_relaxed(&reader->page.shm->stale, 1);
        return fail_stale(reader, handle, leased);
    }
    frame->slot = handle->slot;
    frame->generation = handle->generation;
    frame->missed = 0;
    tb__a64_add_relaxed(&reader->page.shm->frames, 1);
    tb_status status = tb__frame_fill(frame);
    if (status != TB_OK) {
        tb__frame_unreserve(frame);
        return status;
    }
    *out = frame;
    return TB_OK;
}

/* ---- without a lease ---- */

/* Copy words that another process may overwrite meanwhile: relaxed atomic loads, so that the race
 * is defined; the caller finds out from the generation whether the bytes belong together. Words are
 * aligned, so that the first and the last, which may reach beyond the frame, stay in its pages:
 * adopted slots may begin at any byte. */
static void copy_racing(void *to, const uint8_t *from, size_t bytes)
{
    uint8_t *out = to;
    size_t skip = (size_t)((uintptr_t)from % 8);
    size_t i = 0;
    if (skip != 0) {
        uint64_t word = tb__a64_load_relaxed((const struct tb__a64 *)(from - skip));
        i = bytes < 8 - skip ? bytes : 8 - skip;
        memcpy(out, (const uint8_t *)&word + skip, i);
    }
    for (; i + 8 <= bytes; i += 8) {
        uint64_t word = tb__a64_load_relaxed((const struct tb__a64 *)(from + i));
        memcpy(out + i, &word, 8);
    }
    if (i < bytes) {
        uint64_t word = tb__a64_load_relaxed((const struct tb__a64 *)(from + i));
        memcpy(out + i, &word, bytes - i);
    }
}

tb_status tb_reader_copy_newest(tb_reader *reader, void *buffer, size_t capacity, size_t *bytes,
                                uint64_t *sequence)
{
    TB__TRY(tb__reader_check(reader));
    const struct tb__segment *segment = &reader->segment;
    if (reader->device != NULL) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "pool `%s` is on a GPU: take its frames with tb_reader_newest() and copy "
                        "them with tb_frame_copy_on()",
                        reader->name);
    }
    /* Head and generation pair with the publisher's release stores: payload and record are there.
     */
    uint64_t head = tb__a64_load_acquire(segment->head);
    uint32_t slot = 0;
    while (slot < segment->view.slot_count && tb__a64_load_acquire(&segment->gens[slot]) != head) {
        slot++;
    }
    if (head == 0 || slot == segment->view.slot_count) {
        return TB_AGAIN;
    }
    uint64_t length = tb__a64_load_relaxed(&segment->records[slot].bytes);
    if (length > segment->view.slot_bytes) {
        return tb__a64_load_acquire(&segment->gens[slot]) != head
                   ? TB_AGAIN
                   : TB__FAIL(TB_E_CORRUPT, "pool `%s`: a frame of %llu bytes in a slot of %llu",
                              reader->name, (unsigned long long)length,
                              (unsigned long long)segment->view.slot_bytes);
    }
    if (length > capacity) {
        return TB__FAIL(TB_E_LIMIT, "pool `%s`: the frame has %llu bytes, the buffer %zu",
                        reader->name, (unsigned long long)length, capacity);
    }
    copy_racing(buffer, tb__segment_slot(segment, slot), length);
    /* Pairs with the writer's fence between the odd generation and the payload's first store. */
    tb__fence_acquire();
    if (tb__a64_load_relaxed(&segment->gens[slot]) != head) {
        return TB_AGAIN;
    }
    *bytes = length;
    *sequence = head >> 1;
    return TB_OK;
}

/* Frames: what a lease gives its holder. */
#include <string.h>

#include <tensorbus/cuda.h>

#include "base/extent.h"
#include "pool/state.h"

/* The record is the owner's, who may be hostile: read once, checked, then used. */
static tb_status read_shape(tb_frame *frame, const struct tb__record_shm *record)
{
    const struct tb__segment *segment = &frame->reader->segment;
    tb_tensor tensor = {.device = frame->tensor.device,
                        .dtype = segment->view.dtype,
                        .ndim = (int32_t)tb__a32_load_relaxed(&record->ndim)};
    int strided = tb__a32_load_relaxed(&record->strided) != 0;
    if (tensor.ndim < 0 || tensor.ndim > TB_MAX_NDIM) {
        return TB__FAIL(TB_E_CORRUPT, "pool `%s`: a frame of %d dimensions", frame->reader->name,
                        tensor.ndim);
    }
    for (int32_t i = 0; i < tensor.ndim; i++) {
        tensor.shape[i] = (int64_t)tb__a64_load_relaxed(&record->shape[i]);
        frame->strides[i] = strided ? (int64_t)tb__a64_load_relaxed(&record->strides[i]) : 0;
    }
    size_t bytes;
    uint64_t extent = 0;
    if (tb_tensor_bytes(&tensor, &bytes) != TB_OK || bytes > segment->view.slot_bytes ||
        (strided && !tb__extent_bytes(&tensor, frame->strides, &extent)) ||
        extent > segment->view.slot_bytes) {
        return TB__FAIL(TB_E_CORRUPT,
                        "pool `%s`: a frame whose shape leaves its slot of %llu bytes",
                        frame->reader->name, (unsigned long long)segment->view.slot_bytes);
    }
    tensor.strides = strided ? frame->strides : NULL;
    frame->tensor = tensor;
    return TB_OK;
}

/* Complete a leased frame; on failure the lease is given back. */
tb_status tb__frame_fill(tb_frame *frame)
{
    tb_reader *reader = frame->reader;
    if (__builtin_expect(reader->segment.view.flags & TB__GEOMETRY_VARYING, 0)) {
        tb_status status = read_shape(frame, &reader->segment.records[frame->slot]);
        if (status != TB_OK) {
            tb__a64_store_seq(tb__page_entry(reader->page.shm, frame->index), 0);
            return status;
        }
    }
    frame->tensor.data = tb__slot_data(&reader->segment, reader->device, frame->slot);
    return TB_OK;
}

static tb_status check(const tb_frame *frame)
{
    return frame != NULL ? tb__bus_check(frame->reader->bus)
                         : TB__FAIL(TB_E_INVALID, "frame is NULL");
}

static int is_live(const tb_reader *reader)
{
    return (reader->segment.view.flags & TB__GEOMETRY_LIVE) != 0;
}

const tb_tensor *tb_frame_tensor(const tb_frame *frame)
{
    return frame != NULL ? &frame->tensor : NULL;
}

tb_status tb_frame_get_info(const tb_frame *frame, tb_frame_info *out)
{
    TB__TRY(check(frame));
    const tb_reader *reader = frame->reader;
    const struct tb__record_shm *record = &reader->segment.records[frame->slot];
    tb_frame_info info = {.sequence = frame->generation >> 1,
                          .generation = frame->generation,
                          .stamp_ns = tb__a64_load_relaxed(&record->stamp_ns),
                          .missed = frame->missed,
                          .lane = tb__reader_lane(reader),
                          .live = (uint32_t)is_live(reader),
                          .copies = tb__a32_load_relaxed(&record->copies)};
    info.handle = (tb_handle){.generation = frame->generation,
                              .slot = frame->slot,
                              .stamp_ns = info.stamp_ns,
                              .bytes = tb__a64_load_relaxed(&record->bytes)};
    memcpy(info.handle.pool_uid, reader->uid, sizeof info.handle.pool_uid);
    tb__name_copy(info.producer, tb__lifeline_peer_name(reader->line));
    tb__name_copy(info.pool, reader->name);
    return TB__INFO(tb_frame_info, out, &info);
}

tb_status tb_frame_hold(tb_frame *frame, tb_frame **out)
{
    TB__TRY(check(frame));
    tb_reader *reader = frame->reader;
    tb_frame *another = tb__frame_reserve(reader);
    if (another == NULL) {
        return TB__FAIL(TB_E_BUSY,
                        "pool `%s`: this reader holds %u frames, all that it may: open it with a "
                        "larger max_leases",
                        reader->name, reader->max_leases);
    }
    /* Held by `frame` all the while, so it cannot be stale. While it is marked claimed this entry
     * may have been passed by the owner's look already: the hold counts once the mark is gone. */
    if (is_live(reader)) {
        /* Its bytes may be others by now, and held they are not: only counted. */
        tb__a64_store_seq(tb__page_entry(reader->page.shm, another->index), frame->generation);
    } else if (tb__frame_lease(another, frame->slot, frame->generation, TB__HANDLE_PATIENCE_NS) !=
               TB__LEASE_HELD) {
        tb__frame_unreserve(another);
        if (reader->gates != NULL && tb_frame_poll(frame) == TB_E_INCOMPLETE) {
            return TB_E_INCOMPLETE; /* given up, which is the one way for it to be stale */
        }
        return TB__FAIL(TB_E_BUSY,
                        "pool `%s`: its owner (pid %u) stands still while it looks for a "
                        "slot: is it stopped?",
                        reader->name, tb__lifeline_peer_pid(reader->line));
    }
    another->slot = frame->slot;
    another->generation = frame->generation;
    tb__a64_store_relaxed(&another->complete, tb__a64_load_relaxed(&frame->complete));
    another->missed = frame->missed;
    memcpy(another->strides, frame->strides, sizeof another->strides);
    another->tensor = frame->tensor;
    if (frame->tensor.strides != NULL) {
        another->tensor.strides = another->strides;
    }
    *out = another;
    return TB_OK;
}

void tb_frame_release(tb_frame *frame)
{
    if (frame == NULL || tb__bus_check(frame->reader->bus) != TB_OK) {
        return;
    }
    tb_reader *reader = frame->reader;
    /* seq_cst: the store comes before the look at the waiting flag; pairs with the owner's fence.
     * It is also the release that pairs with the owner's look at the entry: our reads are done. */
    tb__a64_store_seq(tb__page_entry(reader->page.shm, frame->index), 0);
    tb__reader_ring_owner(reader);
    /* Last: whoever sees that nothing is held any more may close the reader. */
    tb__frame_unreserve(frame);
}

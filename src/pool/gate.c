/* Waiting for frames and releasing them on a stream. Users' threads; giving up is called by the
 * watching thread, too. See segment/gates.h for the words. */
#define TB_LOG_TOPIC "pool"
#include "pool/gate.h"

#include <time.h>

#include <tensorbus/cuda.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/slack.h"
#include "cuda/order.h"
#include "pool/trouble.h"

#define END_PATIENCE_NS INT64_C(10000000000)
#define CPU_PAUSE_NS 30000 /* between looks of a CPU that waits in a stream's place */
#define CPU_LOOKS 1000     /* before it sleeps */

static tb_status check(const tb_frame *frame)
{
    return frame != NULL ? tb__bus_check(frame->reader->bus)
                         : TB__FAIL(TB_E_INVALID, "frame is NULL");
}

/* ---- what became of a frame ---- */

static int owner_is_dying(const tb_reader *reader)
{
    /* Pairs with the kernel's mark. */
    return tb__life_died(tb__a32_load_acquire(&reader->page.shm->owner_life)) ||
           tb__lifeline_is_dead(reader->line);
}

static tb_status fail_incomplete(const tb_frame *frame)
{
    const tb_reader *reader = frame->reader;
    return TB__FAIL(TB_E_INCOMPLETE,
                    "frame %llu of pool `%s/%s` is incomplete: %s before the GPU had finished it; "
                    "do not use what was computed from it",
                    (unsigned long long)(frame->generation >> 1),
                    tb__lifeline_peer_name(reader->line), reader->name,
                    owner_is_dying(reader) ? "its producer died" : "its producer's stream failed");
}

static int is_published(const tb_frame *frame)
{
    /* Pairs with the publisher's release store. A claimed frame was published, too. */
    uint64_t word = tb__a64_load_acquire(&frame->reader->segment.gens[frame->slot]);
    return word == frame->generation || word == tb__gen_claimed(frame->generation);
}

/* It looks complete. Last of all looks: whether a stream of ours was let through before it was.
 * Pairs with tb__gates_give_up(), which notes that before it opens the gate. */
static tb_status unless_given_up(const tb_frame *frame)
{
    const struct tb__gates_shm *gates = frame->reader->gates;
    return tb__a64_load_seq(&gates->poisoned[frame->slot]) == frame->generation ? TB_E_INCOMPLETE
                                                                                : TB_OK;
}

/* TB_OK: complete; TB_AGAIN: pending; TB_E_INCOMPLETE, without a message. The frame is leased, so
 * its slot goes on to another generation only when this one was given up. */
static tb_status look_anew(const tb_frame *frame)
{
    const tb_reader *reader = frame->reader;
    uint64_t g = frame->generation;
    if (reader->gates == NULL) {
        return TB_OK;
    }
    if (is_published(frame)) {
        return unless_given_up(frame);
    }
    /* Given up by the owner: pairs with the store in complete(). */
    if (tb__a64_load_seq(&reader->segment.records[frame->slot].failed) == g) {
        return TB_E_INCOMPLETE;
    }
    uint64_t value = tb__a64_load_acquire(&reader->gates->gate[frame->slot]);
    if (!tb__gate_reached(value, g)) {
        return is_published(frame) ? unless_given_up(frame) : TB_AGAIN;
    }
    /* Opened by the stream. While its process dies that proves nothing: what the work has read may
     * have been taken away under it. Alive after the gate was reached: it was written before. */
    if ((value != g || owner_is_dying(reader)) && !is_published(frame)) {
        return TB_E_INCOMPLETE;
    }
    return unless_given_up(frame);
}

/* What was found complete stays so, whatever becomes of the owner. */
static tb_status look(tb_frame *frame)
{
    if (tb__a64_load_relaxed(&frame->complete) == frame->generation) {
        return TB_OK;
    }
    tb_status status = look_anew(frame);
    if (status == TB_OK) {
        tb__a64_store_relaxed(&frame->complete, frame->generation);
    }
    return status;
}

tb_status tb_frame_poll(tb_frame *frame)
{
    TB__TRY(check(frame));
    tb_status status = look(frame);
    return status == TB_E_INCOMPLETE ? fail_incomplete(frame) : status;
}

uint32_t tb__gates_give_up(tb_reader *reader)
{
    uint32_t given_up = 0;
    for (uint32_t s = 0; s < reader->segment.view.slot_count; s++) {
        uint64_t g = tb__a64_load_acquire(&reader->segment.records[s].pending);
        struct tb__a64 *gate = &reader->gates->gate[s];
        if (g == 0 || tb__gate_reached(tb__a64_load_acquire(gate), g)) {
            continue;
        }
        /* Noted before the gate is opened, so that who passes it by our hand can know; and whatever
         * the dying GPU work may still write there. Raised: another thread may be ahead of us. */
        tb__gate_raise(&reader->gates->poisoned[s], g, g);
        given_up += (uint32_t)tb__gate_raise(gate, g, g + TB__GATE_POISON);
    }
    return given_up;
}

/* ---- on a stream ---- */

static tb_status look_at(const tb_reader *reader, tb_cuda_stream stream, struct tb__stream_at *at)
{
    return tb__stream_look((tb__stream)stream,
                           reader->device != NULL ? tb__device_gpu(reader->device) : NULL, at);
}

static tb_status map_words(tb_reader *reader, struct tb__mapped *mapped, const struct tb__gpu *gpu,
                           void *memory)
{
    pthread_mutex_lock(&reader->map_mutex);
    tb_status status = tb__mapped_get(mapped, gpu, memory, TB__PAGE_BYTES, 0);
    pthread_mutex_unlock(&reader->map_mutex);
    return status;
}

/* The stream waits until the gate has reached the frame. */
static tb_status wait_by_stream(const tb_frame *frame, const struct tb__stream_at *at)
{
    tb_reader *reader = frame->reader;
    struct tb__gates_shm *gates = reader->gates;
    TB__TRY(map_words(reader, &reader->gates_mapped, at->gpu, gates));
    uint64_t gate = tb__mapped_address(&reader->gates_mapped, gates, &gates->gate[frame->slot]);
    return tb__stream_at_batch(
        at, &(struct tb__stream_op){.address = gate, .value = frame->generation}, 1);
}

/* Streams of this device cannot wait for words: this thread waits in their place, as long as the
 * GPU takes. An owner that dies meanwhile is found by looking, too. */
static tb_status wait_by_cpu(tb_frame *frame)
{
    const struct timespec pause = {.tv_nsec = CPU_PAUSE_NS};
    tb_reader *reader = frame->reader;
    tb_status status = TB_OK;
    unsigned long slack = tb__slack_begin();
    for (unsigned looks = 0; status == TB_OK && look(frame) == TB_AGAIN; looks++) {
        if (looks < CPU_LOOKS) {
            tb__pause();
            continue;
        }
        if (owner_is_dying(reader)) {
            tb__gates_give_up(reader);
        }
        tb__interrupt_ask(nanosleep(&pause, NULL) != 0);
        status = tb__interrupted() ? TB_AGAIN : tb__bus_check(reader->bus);
    }
    tb__slack_end(slack);
    return status;
}

tb_status tb_frame_wait_on(tb_frame *frame, tb_cuda_stream stream)
{
    TB__TRY(check(frame));
    tb_reader *reader = frame->reader;
    if (look(frame) != TB_AGAIN) {
        return TB_OK; /* incomplete ones, too: that is told at the release */
    }
    struct tb__stream_at at;
    TB__TRY(tb__trouble_check(reader, look_at(reader, stream, &at)));
    int words = tb__order_way(at.gpu) == TB__ORDER_WORDS;
    tb_status status = words ? wait_by_stream(frame, &at) : TB_OK;
    tb__stream_leave(&at);
    if (!words) {
        return wait_by_cpu(frame);
    }
    /* The watching thread may have looked before this frame was leased. */
    if (owner_is_dying(reader)) {
        tb__gates_give_up(reader);
    }
    return tb__trouble_check(reader, status);
}

/* On a thread of the driver. Who closes the reader waits until the entry reads 0: nothing of it may
 * be touched afterwards. */
static void clear_entry(void *argument)
{
    struct tb__a64 *entry = argument;
    /* Pairs with the acquire load in tb__frame_reserve(), and the owner's look. */
    tb__a64_store_seq(entry, 0);
}

/* Enqueue what clears the entry. */
static tb_status clear_on(tb_reader *reader, struct tb__a64 *entry, const struct tb__stream_at *at)
{
    uint8_t *page = reader->page.base + TB__PAGE_BYTES;
    if (tb__order_way(at->gpu) == TB__ORDER_CPU) {
        return tb__stream_at_host_func(at, clear_entry, entry);
    }
    TB__TRY(map_words(reader, &reader->page_mapped, at->gpu, page));
    return tb__stream_at_batch(
        at,
        &(struct tb__stream_op){.write = 1,
                                .address = tb__mapped_address(&reader->page_mapped, page, entry)},
        1);
}

/* The stream clears the entry; the frame comes free when it has. */
static tb_status release_by_stream(tb_frame *frame, const struct tb__stream_at *at)
{
    tb_reader *reader = frame->reader;
    struct tb__a64 *entry = tb__page_entry(reader->page.shm, frame->index);
    tb__a32_store_relaxed(&frame->thread, 0); /* who waits for it waits for the stream */
    /* Before the stream can: pairs with the exchange in tb__frame_reserve(). */
    tb__a32_store_release(&frame->busy, TB__FRAME_ON_STREAM);
    tb_status status = clear_on(reader, entry, at);
    if (status != TB_OK) {
        tb__a32_store_release(&frame->busy, TB__FRAME_HELD);
    }
    return status;
}

tb_status tb_frame_release_on(tb_frame *frame, tb_cuda_stream stream)
{
    TB__TRY(check(frame));
    struct tb__stream_at at;
    tb_error incomplete = {0};
    if (look(frame) == TB_E_INCOMPLETE) {
        fail_incomplete(frame);
        tb_last_error(&incomplete);
    }
    tb_status status = look_at(frame->reader, stream, &at);
    if (status == TB_OK) {
        status = release_by_stream(frame, &at);
        tb__stream_leave(&at);
    }
    if (status != TB_OK) {
        tb__trouble_check(frame->reader, status);
        /* The stream cannot say when it is done. */
        tb_frame_release(frame);
    }
    if (incomplete.status != TB_OK) {
        tb__error_restore(&incomplete); /* which matters more */
        return incomplete.status;
    }
    return status;
}

/* ---- the end ---- */

/* The lease is over, so the slot may hold another frame by now: only what was said of this one
 * counts.
 */
void tb__frame_passed(tb_frame *frame)
{
    const tb_reader *reader = frame->reader;
    uint64_t g = frame->generation;
    if (reader->gates == NULL ||
        (tb__a64_load_seq(&reader->segment.records[frame->slot].failed) != g &&
         tb__a64_load_seq(&reader->gates->poisoned[frame->slot]) != g &&
         !tb__gate_is_poison(tb__a64_load_acquire(&reader->gates->gate[frame->slot]), g))) {
        return;
    }
    tb_error kept;
    tb_last_error(&kept);
    tb__a64_add_relaxed(&reader->page.shm->incomplete, 1);
    fail_incomplete(frame);
    tb_log_warn_limited("%s", tb_last_error_text());
    tb__error_restore(&kept);
}

int tb__reader_streams_end(tb_reader *reader)
{
    struct timespec pause = {.tv_nsec = 100000};
    int64_t deadline_ns = tb__deadline_ns(END_PATIENCE_NS);
    for (uint32_t i = 0; i < reader->max_leases; i++) {
        const struct tb__a64 *entry = tb__page_entry(reader->page.shm, i);
        while (tb__a32_load_acquire(&reader->frames[i].busy) == TB__FRAME_ON_STREAM &&
               tb__a64_load_acquire(entry) != 0) {
            if (owner_is_dying(reader) && reader->gates != NULL) {
                tb__gates_give_up(reader);
            }
            if (tb__left_ns(deadline_ns) == 0) {
                tb_log_error("a reader of pool `%s` is closed, but a stream did not give a frame "
                             "back within 10 s: its words stay until the process ends",
                             reader->name);
                return 0;
            }
            nanosleep(&pause, NULL);
        }
    }
    return 1;
}

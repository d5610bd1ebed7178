/* Bare handles: find the owner, attach, lease. The bus keeps the attachments, so only the first
 * handle of a pool costs a round trip. */
#include <inttypes.h>
#include <string.h>

#include <tensorbus/cuda.h>

#include "base/clock.h"
#include "pool/state.h"
#include "pool/support.h"

#define KEPT_READERS 64
#define SILENCE_NS INT64_C(900000000) /* an attempt that took so long failed for silence */
#define SILENT_NS INT64_C(5000000000)

/* Whether a kept reader was opened before tb_bus_set_stream_ordered(): a node opens the pools
 * behind its inputs as soon as it can, so this one may be older than the program's first call. */
static int is_outdated(const struct tb__pool_layer *layer, const tb_reader *reader)
{
    return reader->gates == NULL && atomic_load(&layer->stream_ordered) != 0;
}

/* Under the bus mutex: the kept reader of a pool, counted as in use. */
static tb_reader *find_kept(struct tb__pool_layer *layer, const uint8_t *uid)
{
    for (tb_reader *reader = layer->readers; reader != NULL; reader = reader->next) {
        if (reader->cached && memcmp(reader->uid, uid, sizeof reader->uid) == 0 &&
            !is_outdated(layer, reader)) {
            reader->cache_users++;
            reader->cache_used_at = ++layer->cache_clock;
            return reader;
        }
    }
    return NULL;
}

static int holds_frames(const tb_reader *reader)
{
    for (uint32_t i = 0; i < reader->max_leases; i++) {
        /* Pairs with the release store in tb__frame_unreserve(). */
        if (tb__a32_load_acquire(&reader->frames[i].busy)) {
            return 1;
        }
    }
    return 0;
}

/* Under the bus mutex: the kept reader to close, if there are too many or its owner is gone. */
static tb_reader *find_surplus(struct tb__pool_layer *layer)
{
    uint32_t count = 0;
    tb_reader *oldest = NULL;
    tb_reader *ended = NULL;
    for (tb_reader *reader = layer->readers; reader != NULL; reader = reader->next) {
        if (!reader->cached) {
            continue;
        }
        count++;
        if (reader->cache_users > 0 || holds_frames(reader)) {
            continue;
        }
        if (is_outdated(layer, reader) || tb__lifeline_is_dead(reader->line) ||
            tb__a32_load_relaxed(&reader->page.shm->state) != TB__PAGE_OPEN) {
            ended = reader;
        }
        if (oldest == NULL || reader->cache_used_at < oldest->cache_used_at) {
            oldest = reader;
        }
    }
    tb_reader *surplus = ended != NULL ? ended : count > KEPT_READERS ? oldest : NULL;
    if (surplus != NULL) {
        surplus->cached = 0; /* nobody finds it any more */
    }
    return surplus;
}

/* An owner that does not answer costs a moment now and then, not one for every handle of its. */
static struct tb__silent *find_silent(struct tb__pool_layer *layer, uint64_t owner_id)
{
    int64_t now_ns = tb__now_ns();
    for (size_t i = 0; i < sizeof layer->silent / sizeof layer->silent[0]; i++) {
        if (layer->silent[i].owner_id == owner_id && layer->silent[i].until_ns > now_ns) {
            return &layer->silent[i];
        }
    }
    return NULL;
}

static void note_silent(struct tb__pool_layer *layer, uint64_t owner_id)
{
    struct tb__silent *oldest = &layer->silent[0];
    for (size_t i = 1; i < sizeof layer->silent / sizeof layer->silent[0]; i++) {
        oldest = layer->silent[i].until_ns < oldest->until_ns ? &layer->silent[i] : oldest;
    }
    *oldest = (struct tb__silent){owner_id, tb__now_ns() + SILENT_NS};
}

/* `ahead`: before the first frame, which then finds its pages mapped. */
static tb_status open_first(struct tb__pool_layer *layer, const tb_handle *handle, int ahead,
                            tb_reader **out)
{
    tb_reader_options options = {.size = sizeof options,
                                 .max_leases = TB_MAX_LEASES,
                                 .stream_ordered = atomic_load(&layer->stream_ordered) != 0,
                                 .no_prefault = !ahead};
    uint64_t owner_id;
    memcpy(&owner_id, handle->pool_uid, sizeof owner_id);
    if (find_silent(layer, owner_id) != NULL) {
        return TB__FAIL(TB_E_NOT_FOUND,
                        "the process with id %016" PRIx64 ", which this handle names, did not "
                        "answer just now and is not asked again for %d s: is it stopped?",
                        owner_id, (int)(SILENT_NS / 1000000000));
    }
    int64_t begun_ns = tb__now_ns();
    tb_status status = tb_reader_open_handle(layer->bus, handle, &options, out);
    if (status == TB_E_NOT_FOUND && tb__now_ns() - begun_ns >= SILENCE_NS) {
        note_silent(layer, owner_id);
    }
    return status;
}

static tb_status open_kept(struct tb__pool_layer *layer, const tb_handle *handle, int ahead,
                           tb_reader **out)
{
    /* One opening at a time, so that two threads with one pool's first handles attach once. */
    pthread_mutex_lock(&layer->cache_mutex);
    tb__bus_lock(layer->bus);
    tb_reader *reader = find_kept(layer, handle->pool_uid);
    tb__bus_unlock(layer->bus);
    tb_status status = TB_OK;
    if (reader == NULL) {
        status = open_first(layer, handle, ahead, &reader);
        tb__bus_lock(layer->bus);
        if (status == TB_OK) {
            reader->cached = 1;
            reader->cache_users = 1;
            reader->cache_used_at = ++layer->cache_clock;
        }
        tb_reader *surplus = find_surplus(layer);
        tb__bus_unlock(layer->bus);
        tb_reader_close(surplus);
    }
    pthread_mutex_unlock(&layer->cache_mutex);
    *out = reader;
    return status;
}

/* The kept reader of a handle's pool, opened if need be and counted as in use. */
static tb_status use_kept(tb_bus *bus, const tb_handle *handle, int ahead, tb_reader **out)
{
    tb__bus_lock(bus);
    *out = find_kept(tb__pool_layer_of(bus), handle->pool_uid);
    tb__bus_unlock(bus);
    return *out != NULL ? TB_OK : open_kept(tb__pool_layer_of(bus), handle, ahead, out);
}

static void unuse_kept(tb_reader *reader)
{
    tb__bus_lock(reader->bus);
    reader->cache_users--;
    tb__bus_unlock(reader->bus);
}

tb_status tb__pool_expect(tb_bus *bus, const uint8_t uid[16])
{
    tb_handle handle = {.generation = 2}; /* of its pool alone */
    tb_reader *reader;
    TB__TRY(tb__bus_check(bus));
    memcpy(handle.pool_uid, uid, sizeof handle.pool_uid);
    TB__TRY(use_kept(bus, &handle, 1, &reader));
    unuse_kept(reader);
    return TB_OK;
}

tb_status tb_frame_open(tb_bus *bus, const tb_handle *handle, int64_t timeout_ns, tb_frame **out)
{
    tb_reader *reader;
    (void)timeout_ns; /* the owner exists or is gone; a GPU's work on the frame is waited for */
    TB__TRY(tb__bus_check(bus));
    if (handle == NULL || !tb__gen_is_frame(handle->generation)) {
        return TB__FAIL(TB_E_INVALID, "these 48 bytes are no handle");
    }
    TB__TRY(use_kept(bus, handle, 0, &reader));
    tb_status status = tb_reader_frame(reader, handle, out);
    unuse_kept(reader);
    return status;
}

tb_status tb_bus_set_stream_ordered(tb_bus *bus, int on)
{
    TB__TRY(tb__bus_check(bus));
    atomic_store(&tb__pool_layer_of(bus)->stream_ordered, on != 0);
    return TB_OK;
}

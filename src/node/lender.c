/* Readers of the pools whose frames this node keeps for messages in flight. Sending threads. */
#include "node/lender.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "pool/support.h"

void tb__lender_init(struct tb__lender *lender, tb_bus *bus)
{
    *lender = (struct tb__lender){.bus = bus};
    pthread_mutex_init(&lender->mutex, NULL);
}

static void entry_remove(struct tb__lender *lender, uint32_t index)
{
    struct tb__lender_entry *entry = lender->entries[index];
    tb_reader_close(entry->reader);
    free(entry);
    lender->entries[index] = lender->entries[--lender->count];
}

void tb__lender_fini(struct tb__lender *lender)
{
    if (lender->bus == NULL) {
        return;
    }
    while (lender->count != 0) {
        TB_ASSERT(atomic_load(&lender->entries[0]->users) == 0);
        entry_remove(lender, 0);
    }
    pthread_mutex_destroy(&lender->mutex);
    *lender = (struct tb__lender){0};
}

/* Close the least recently used reader that nothing is held of. Returns 0 when there is none. */
static int make_room(struct tb__lender *lender)
{
    uint32_t oldest = lender->count;
    for (uint32_t i = 0; i < lender->count; i++) {
        const struct tb__lender_entry *entry = lender->entries[i];
        if (atomic_load(&entry->users) == 0 &&
            (oldest == lender->count || entry->used_at < lender->entries[oldest]->used_at)) {
            oldest = i;
        }
    }
    if (oldest == lender->count) {
        return 0;
    }
    entry_remove(lender, oldest);
    return 1;
}

static tb_status entry_create(struct tb__lender *lender, const tb_handle *handle,
                              struct tb__lender_entry **out)
{
    if (lender->count == TB__LENDER_POOLS && !make_room(lender)) {
        return TB__FAIL(TB_E_LIMIT, "frames of %d pools are kept for messages in flight: no more",
                        TB__LENDER_POOLS);
    }
    struct tb__lender_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory to keep a frame");
    }
    const tb_reader_options options = {
        .size = sizeof options, .max_leases = TB_MAX_LEASES, .start_next = 1, .no_prefault = 1};
    tb_status status = tb_reader_open_handle(lender->bus, handle, &options, &entry->reader);
    if (status != TB_OK) {
        free(entry);
        return status;
    }
    memcpy(entry->uid, handle->pool_uid, sizeof entry->uid);
    lender->entries[lender->count++] = entry;
    *out = entry;
    return TB_OK;
}

/* Find or open the reader and count the caller as its user. */
static tb_status entry_use(struct tb__lender *lender, const tb_handle *handle,
                           struct tb__lender_entry **out)
{
    tb_status status = TB_OK;
    struct tb__lender_entry *entry = NULL;
    pthread_mutex_lock(&lender->mutex);
    for (uint32_t i = 0; i < lender->count && entry == NULL; i++) {
        if (memcmp(lender->entries[i]->uid, handle->pool_uid, sizeof handle->pool_uid) == 0) {
            entry = lender->entries[i];
        }
    }
    if (entry == NULL) {
        status = entry_create(lender, handle, &entry);
    }
    if (status == TB_OK) {
        entry->used_at = ++lender->clock;
        atomic_fetch_add(&entry->users, 1);
        *out = entry;
    }
    pthread_mutex_unlock(&lender->mutex);
    return status;
}

tb_status tb__lender_hold(struct tb__lender *lender, const tb_handle *handle, struct tb__hold **out)
{
    struct tb__lender_entry *entry;
    TB__TRY(entry_use(lender, handle, &entry));
    tb_frame *frame;
    tb_status status = tb_reader_frame(entry->reader, handle, &frame);
    if (status != TB_OK) {
        atomic_fetch_sub(&entry->users, 1);
        return status;
    }
    tb__frame_disown(frame);
    return tb__hold_create(frame, &entry->users, out);
}

/* Events: made by the thread of tb_node_next(), read and released by whoever has them. */
#include "node/event.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "wire/metadata_wire.h"

tb_status tb__event_create(tb_event_type type, const char *id, size_t message_bytes, tb_event **out)
{
    void *block = NULL;
    size_t head = (sizeof(tb_event) + 63) & ~(size_t)63;
    if (posix_memalign(&block, 64, head + ((message_bytes + 7) & ~(size_t)7)) != 0) {
        return TB__FAIL(TB_E_NOMEM, "no memory for an event of %zu bytes", message_bytes);
    }
    tb_event *event = block;
    *event = (tb_event){.type = type, .id = id, .message = (uint8_t *)block + head};
    event->tensor = (tb_tensor){.dtype = TB_U8, .ndim = 1};
    *out = event;
    return TB_OK;
}

tb_status tb__event_create_error(const char *id, const char *text, tb_event **out)
{
    tb_event *event;
    TB__TRY(tb__event_create(TB_EVENT_ERROR, id, 0, &event));
    event->text = strdup(text);
    if (event->text == NULL) {
        tb_event_release(event);
        return TB__FAIL(TB_E_NOMEM, "no memory for an event");
    }
    *out = event;
    return TB_OK;
}

/* The carrier's bytes, as many as the message needs. */
static tb_status carrier_bytes(const tb_event *event, const struct tb__message *message,
                               const uint8_t **out, uint64_t *metadata_offset)
{
    uint64_t needed;
    size_t bytes;
    const tb_tensor *tensor = tb_frame_tensor(event->carrier);
    if (!tb__carrier_layout(message, metadata_offset, &needed) ||
        tb_tensor_bytes(tensor, &bytes) != TB_OK || needed > bytes || tensor->device != TB_CPU ||
        !tb_tensor_is_packed(tensor)) {
        return TB__FAIL(TB_E_PROTOCOL, "input `%s`: a large value does not fit its frame",
                        event->id);
    }
    *out = tensor->data;
    return TB_OK;
}

static tb_status unpack_metadata(tb_event *event, const struct tb__message *message,
                                 const uint8_t *at)
{
    if (message->metadata_bytes == 0) {
        return TB_OK;
    }
    if (!(message->flags & TB__MESSAGE_METADATA_CARRIED)) {
        return tb__metadata_decode(at, message->metadata_bytes, &event->metadata);
    }
    /* Out of shared memory first: what is checked must not change. */
    uint8_t *copy = malloc(message->metadata_bytes);
    if (copy == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for %u bytes of metadata", message->metadata_bytes);
    }
    memcpy(copy, at, message->metadata_bytes);
    tb_status status = tb__metadata_decode(copy, message->metadata_bytes, &event->metadata);
    free(copy);
    return status;
}

static void set_tensor(tb_event *event, const struct tb__message *message, const uint8_t *value)
{
    if (message->kind == TB_VALUE_HANDLE) {
        event->tensor = *tb_frame_tensor(event->frame);
        return;
    }
    if (message->kind == TB_VALUE_TENSOR) {
        event->tensor.dtype = message->dtype;
        event->tensor.ndim = message->ndim;
        memcpy(event->tensor.shape, message->shape, sizeof event->tensor.shape);
    } else {
        event->tensor.shape[0] = (int64_t)message->value_bytes;
    }
    /* Public tensors have a writable pointer; the memory is read-only. */
    event->tensor.data = message->value_bytes != 0 ? (void *)(uintptr_t)value : NULL;
}

tb_status tb__event_unpack(tb_event *event, const struct tb__message *message,
                           const struct tb__message_layout *layout)
{
    const uint8_t *value = event->message + layout->value_offset;
    const uint8_t *metadata = event->message + layout->metadata_offset;
    if (message->flags & TB__MESSAGE_CARRIED) {
        uint64_t offset;
        TB__TRY(carrier_bytes(event, message, &value, &offset));
        if (message->flags & TB__MESSAGE_METADATA_CARRIED) {
            metadata = value + offset;
        }
    }
    TB__TRY(unpack_metadata(event, message, metadata));
    event->stamp_ns = message->stamp_ns;
    event->kind = message->kind;
    set_tensor(event, message, value);
    return TB_OK;
}

void tb_event_release(tb_event *event)
{
    if (event == NULL) {
        return;
    }
    tb_frame_release(event->frame);
    tb_frame_release(event->carrier);
    tb_metadata_destroy(event->metadata);
    free(event->text);
    free(event);
}

tb_event_type tb_event_get_type(const tb_event *event)
{
    return event->type;
}

const char *tb_event_id(const tb_event *event)
{
    return event->id;
}

tb_value_kind tb_event_kind(const tb_event *event)
{
    return event->kind;
}

const tb_tensor *tb_event_tensor(const tb_event *event)
{
    return event->type == TB_EVENT_INPUT ? &event->tensor : NULL;
}

const void *tb_event_bytes(const tb_event *event, size_t *bytes)
{
    const tb_tensor *tensor = tb_event_tensor(event);
    *bytes = 0;
    /* A frame with gaps, or in another device's memory, has no packed bytes here. */
    if (tensor == NULL || tensor->data == NULL || tensor->device != TB_CPU ||
        !tb_tensor_is_packed(tensor) || tb_tensor_bytes(tensor, bytes) != TB_OK) {
        return NULL;
    }
    return *bytes != 0 ? tensor->data : NULL;
}

tb_frame *tb_event_frame(const tb_event *event)
{
    return event->frame;
}

tb_frame *tb_event_take_frame(tb_event *event)
{
    tb_frame *frame = event->frame;
    event->frame = NULL;
    return frame;
}

const tb_metadata *tb_event_metadata(const tb_event *event)
{
    return event->metadata != NULL ? event->metadata : tb__metadata_empty();
}

int64_t tb_event_stamp_ns(const tb_event *event)
{
    return event->stamp_ns;
}

uint64_t tb_event_dropped(const tb_event *event)
{
    return event->dropped;
}

const char *tb_event_text(const tb_event *event)
{
    return event->text != NULL ? event->text : "";
}

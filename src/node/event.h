/* An event: one heap block with the message in it, and the frames and metadata that belong to it.
 */
#ifndef TB_NODE_EVENT_H
#define TB_NODE_EVENT_H

#include <tensorbus/node.h>

#include "wire/message.h"

struct tb_event {
    tb_event_type type;
    const char *id; /* of the input; lives as long as the node */
    int64_t stamp_ns;
    uint64_t dropped;
    tb_value_kind kind;    /* INPUT */
    tb_tensor tensor;      /* INPUT */
    tb_frame *frame;       /* of a handle, or NULL */
    tb_frame *carrier;     /* in which value or metadata came, or NULL */
    tb_metadata *metadata; /* NULL: none */
    char *text;            /* ERROR, else NULL */
    uint8_t *message;      /* aligned to 64 bytes, in this block */
};

/* An event with room for a message of `message_bytes` (rounded up to 8). */
tb_status tb__event_create(tb_event_type type, const char *id, size_t message_bytes,
                           tb_event **out);
/* An ERROR; the text is copied. */
tb_status tb__event_create_error(const char *id, const char *text, tb_event **out);

/* Make a taken message's value and metadata visible; the frames that it needs are in the event.
 * TB_E_PROTOCOL when they are not what the message says. */
tb_status tb__event_unpack(tb_event *event, const struct tb__message *message,
                           const struct tb__message_layout *layout);

#endif

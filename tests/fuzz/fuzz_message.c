/* A stream message as a peer may send it: accepted bytes have all their parts inside, and their
 * head encodes to itself again. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "wire/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tb__message message;
    struct tb__message_layout layout;
    if (tb__message_decode(data, size, &message, &layout) != TB_OK) {
        return 0;
    }
    static volatile uint8_t sink; /* keeps the reads */
    (void)sink;
    size_t metadata = message.flags & TB__MESSAGE_METADATA_CARRIED ? 0 : message.metadata_bytes;
    size_t value = message.flags & TB__MESSAGE_CARRIED ? 0 : (size_t)message.value_bytes;
    TB_ASSERT(layout.head_bytes <= size && layout.bytes == size);
    TB_ASSERT(layout.metadata_offset + metadata <= size && layout.value_offset + value <= size);
    for (size_t i = 0; i < metadata; i++) {
        sink ^= data[layout.metadata_offset + i];
    }
    for (size_t i = 0; i < value; i++) {
        sink ^= data[layout.value_offset + i];
    }
    uint8_t head[TB__MESSAGE_HEAD_MAX];
    tb__message_encode_head(&message, head);
    TB_ASSERT(memcmp(head, data, layout.head_bytes) == 0);
    uint64_t offset;
    uint64_t bytes;
    if (tb__carrier_layout(&message, &offset, &bytes)) {
        TB_ASSERT(bytes >= message.value_bytes);
    }
    return 0;
}

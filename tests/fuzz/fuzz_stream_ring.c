/* A ring as a hostile sender may write it: whatever its words are, peeking and copying stay inside
 * and come to an end. The input overwrites the header's second line and the beginnings of slots. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "segment/stream_ring.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tb__ring ring;
    static uint8_t *copy;
    if (ring.base == NULL) {
        int fd;
        TB_ASSERT(tb__ring_create(&ring, 2, &fd) == TB_OK);
        close(fd);
        copy = malloc(ring.geometry.room_bytes + 7);
        TB_ASSERT(copy != NULL);
    }
    memset(ring.base + 64, 0, 16);
    for (size_t at = 0, block = 0; at < size; at += 32, block++) {
        size_t bytes = size - at < 32 ? size - at : 32;
        size_t offset = block == 0
                            ? 64
                            : TB__RING_HEADER_BYTES +
                                  (block - 1) % ring.geometry.slot_count * ring.geometry.slot_bytes;
        memcpy(ring.base + offset, data + at, bytes);
    }
    static const uint64_t cursors[] = {0, 1, 5, UINT64_MAX - 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof cursors / sizeof cursors[0]; i++) {
        struct tb__ring_item item;
        if (tb__ring_peek(&ring, cursors[i], &item) == TB_OK) {
            TB_ASSERT(item.bytes <= ring.geometry.room_bytes && item.stamp_ns >= 0);
            TB_ASSERT(item.sequence > cursors[i]);
            TB_ASSERT(item.sequence - cursors[i] - 1 == item.skipped);
            tb_status status = tb__ring_copy(&ring, &item, copy);
            TB_ASSERT(status == TB_OK || status == TB_AGAIN);
        }
    }
    return 0;
}

/* One message of a stream: its encoding, without the ring that carries it.
 *
 * Layout, little-endian:
 *   0 u8 version (1)   1 u8 kind   2 u16 flags   4 u32 dtype   8 u64 sequence of the output
 *   16 u64 stamp_ns    24 u64 value bytes   32 u32 metadata bytes   36 u32 ndim
 *   40 i64 shape[ndim] (TENSOR only)
 *   then the handle (48 bytes, HANDLE only), then the carrier's handle (48 bytes, CARRIED only),
 *   then the metadata unless METADATA_CARRIED, then, at the next multiple of 64, the value unless
 *   CARRIED (a HANDLE and NONE have none).
 * A handle's message without metadata is 88 bytes. What is carried lies in a frame of the sender:
 * the value at 0, the metadata at the next multiple of 64. */
#ifndef TB_WIRE_MESSAGE_H
#define TB_WIRE_MESSAGE_H

#include <stdint.h>

#include <tensorbus/node.h>

#define TB__MESSAGE_HEAD_MAX (40 + 8 * TB_MAX_NDIM + 2 * TB_HANDLE_BYTES)
#define TB__MESSAGE_ALIGN 64

enum tb__message_flags {
    TB__MESSAGE_CARRIED = 1,          /* value (if any) is in the carrier frame */
    TB__MESSAGE_METADATA_CARRIED = 2, /* metadata is in the carrier frame too; needs CARRIED */
};

struct tb__message {
    tb_value_kind kind;
    uint32_t flags;
    uint64_t sequence; /* of the output, from 1 */
    int64_t stamp_ns;
    tb_dtype dtype; /* TENSOR; else 0 */
    int32_t ndim;
    int64_t shape[TB_MAX_NDIM];
    uint64_t value_bytes; /* BYTES and TENSOR; else 0 */
    uint32_t metadata_bytes;
    tb_handle handle;  /* HANDLE */
    tb_handle carrier; /* CARRIED */
};

/* Where the parts of a message begin, and its size. */
struct tb__message_layout {
    size_t head_bytes;
    size_t metadata_offset;
    size_t value_offset;
    size_t bytes;
};

/* Layout of a message whose kind, flags, ndim and sizes are set. 0 when its size overflows. */
int tb__message_layout(const struct tb__message *message, struct tb__message_layout *out);

/* Write head_bytes bytes. */
void tb__message_encode_head(const struct tb__message *message, uint8_t out[TB__MESSAGE_HEAD_MAX]);

/* Check a message that a peer sent, already copied out of shared memory. TB_E_PROTOCOL names what
 * is wrong. The parts lie in `bytes` at *layout's offsets. */
tb_status tb__message_decode(const uint8_t *bytes, size_t size, struct tb__message *out,
                             struct tb__message_layout *layout);

/* Size and metadata offset of a carrier's frame. 0 when the size overflows. */
int tb__carrier_layout(const struct tb__message *message, uint64_t *metadata_offset,
                       uint64_t *bytes);

#endif

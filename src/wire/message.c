/* Encoding of one stream message: pure functions from structs to bytes and back. No thread. */
#include "wire/message.h"

#include <string.h>

#include "base/checked.h"
#include "base/error.h"

#define VERSION 1
#define FIXED_BYTES 40
#define KNOWN_FLAGS (TB__MESSAGE_CARRIED | TB__MESSAGE_METADATA_CARRIED)

_Static_assert(sizeof(tb_handle) == TB_HANDLE_BYTES, "a handle is its 48 wire bytes");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire is little-endian and so must be the machine"
#endif

/* The fixed part, as laid out in message.h. */
struct fixed_wire {
    uint8_t version;
    uint8_t kind;
    uint16_t flags;
    uint32_t dtype;
    uint64_t sequence;
    uint64_t stamp_ns;
    uint64_t value_bytes;
    uint32_t metadata_bytes;
    uint32_t ndim;
};
_Static_assert(sizeof(struct fixed_wire) == FIXED_BYTES, "fixed part");
_Static_assert(offsetof(struct fixed_wire, sequence) == 8, "sequence");
_Static_assert(offsetof(struct fixed_wire, value_bytes) == 24, "value_bytes");
_Static_assert(offsetof(struct fixed_wire, ndim) == 36, "ndim");

int tb__message_layout(const struct tb__message *message, struct tb__message_layout *out)
{
    size_t head = FIXED_BYTES;
    head += message->kind == TB_VALUE_TENSOR ? 8 * (size_t)message->ndim : 0;
    head += message->kind == TB_VALUE_HANDLE ? TB_HANDLE_BYTES : 0;
    head += message->flags & TB__MESSAGE_CARRIED ? TB_HANDLE_BYTES : 0;
    uint64_t end = head;
    if (!(message->flags & TB__MESSAGE_METADATA_CARRIED)) {
        end += message->metadata_bytes;
    }
    uint64_t value_offset = end;
    if (message->value_bytes != 0 && !(message->flags & TB__MESSAGE_CARRIED)) {
        if (!tb__round_up(end, TB__MESSAGE_ALIGN, &value_offset) ||
            !tb__add(value_offset, message->value_bytes, &end)) {
            return 0;
        }
    }
    *out = (struct tb__message_layout){head, head, (size_t)value_offset, (size_t)end};
    return 1;
}

void tb__message_encode_head(const struct tb__message *message, uint8_t out[TB__MESSAGE_HEAD_MAX])
{
    struct fixed_wire fixed = {
        .version = VERSION,
        .kind = (uint8_t)message->kind,
        .flags = (uint16_t)message->flags,
        .dtype = message->dtype,
        .sequence = message->sequence,
        .stamp_ns = (uint64_t)message->stamp_ns,
        .value_bytes = message->value_bytes,
        .metadata_bytes = message->metadata_bytes,
        .ndim = (uint32_t)message->ndim,
    };
    memcpy(out, &fixed, FIXED_BYTES);
    out += FIXED_BYTES;
    if (message->kind == TB_VALUE_TENSOR) {
        memcpy(out, message->shape, 8 * (size_t)message->ndim);
        out += 8 * (size_t)message->ndim;
    }
    if (message->kind == TB_VALUE_HANDLE) {
        memcpy(out, &message->handle, TB_HANDLE_BYTES);
        out += TB_HANDLE_BYTES;
    }
    if (message->flags & TB__MESSAGE_CARRIED) {
        memcpy(out, &message->carrier, TB_HANDLE_BYTES);
    }
}

static tb_status check_fixed(const struct fixed_wire *fixed)
{
    if (fixed->version != VERSION) {
        return TB__FAIL(TB_E_PROTOCOL, "message of version %u, %u is known", fixed->version,
                        VERSION);
    }
    if (fixed->kind > TB_VALUE_HANDLE) {
        return TB__FAIL(TB_E_PROTOCOL, "message of unknown kind %u", fixed->kind);
    }
    if (fixed->flags & ~KNOWN_FLAGS || fixed->flags == TB__MESSAGE_METADATA_CARRIED) {
        return TB__FAIL(TB_E_PROTOCOL, "message with flags 0x%x", fixed->flags);
    }
    int carries_metadata = (fixed->flags & TB__MESSAGE_METADATA_CARRIED) != 0;
    if (fixed->flags != 0 && fixed->value_bytes == 0 && !carries_metadata) {
        return TB__FAIL(TB_E_PROTOCOL, "message with a carrier for nothing");
    }
    int tensor = fixed->kind == TB_VALUE_TENSOR;
    if (fixed->ndim > (tensor ? TB_MAX_NDIM : 0) || (!tensor && fixed->dtype != 0)) {
        return TB__FAIL(TB_E_PROTOCOL, "message of kind %u with %u dimensions, dtype 0x%x",
                        fixed->kind, fixed->ndim, fixed->dtype);
    }
    if (fixed->value_bytes != 0 && !tensor && fixed->kind != TB_VALUE_BYTES) {
        return TB__FAIL(TB_E_PROTOCOL, "message of kind %u with a value of %llu bytes", fixed->kind,
                        (unsigned long long)fixed->value_bytes);
    }
    if (fixed->metadata_bytes > TB_METADATA_MAX || fixed->stamp_ns > INT64_MAX ||
        fixed->sequence == 0) {
        return TB__FAIL(TB_E_PROTOCOL, "message with %u bytes of metadata, stamp %llu, number %llu",
                        fixed->metadata_bytes, (unsigned long long)fixed->stamp_ns,
                        (unsigned long long)fixed->sequence);
    }
    return TB_OK;
}

static tb_status decode_shape(struct tb__message *message, const uint8_t *bytes)
{
    memcpy(message->shape, bytes, 8 * (size_t)message->ndim);
    tb_tensor tensor = {.dtype = message->dtype, .ndim = message->ndim};
    memcpy(tensor.shape, message->shape, sizeof tensor.shape);
    size_t expected;
    tb_status status = tb_tensor_bytes(&tensor, &expected);
    if (status != TB_OK) {
        return tb__error_copy(TB_E_PROTOCOL, __func__, tb_last_error_text());
    }
    if (expected != message->value_bytes) {
        return TB__FAIL(TB_E_PROTOCOL, "message with %llu bytes for a tensor of %zu",
                        (unsigned long long)message->value_bytes, expected);
    }
    return TB_OK;
}

static tb_status decode_handle(const uint8_t *bytes, tb_handle *out)
{
    memcpy(out, bytes, TB_HANDLE_BYTES);
    if (out->generation == 0 || out->generation % 2 != 0 || out->slot >= TB_MAX_SLOTS ||
        out->flags != 0) {
        return TB__FAIL(TB_E_PROTOCOL, "message with a handle of generation %llu, slot %u",
                        (unsigned long long)out->generation, out->slot);
    }
    return TB_OK;
}

tb_status tb__message_decode(const uint8_t *bytes, size_t size, struct tb__message *out,
                             struct tb__message_layout *layout)
{
    struct fixed_wire fixed;
    if (size < FIXED_BYTES) {
        return TB__FAIL(TB_E_PROTOCOL, "message of %zu bytes", size);
    }
    memcpy(&fixed, bytes, FIXED_BYTES);
    TB__TRY(check_fixed(&fixed));
    struct tb__message message = {
        .kind = (tb_value_kind)fixed.kind,
        .flags = fixed.flags,
        .sequence = fixed.sequence,
        .stamp_ns = (int64_t)fixed.stamp_ns,
        .dtype = fixed.dtype,
        .ndim = (int32_t)fixed.ndim,
        .value_bytes = fixed.value_bytes,
        .metadata_bytes = fixed.metadata_bytes,
    };
    struct tb__message_layout found;
    if (!tb__message_layout(&message, &found) || found.bytes != size) {
        return TB__FAIL(TB_E_PROTOCOL, "message of %zu bytes does not have the size of its parts",
                        size);
    }
    const uint8_t *at = bytes + FIXED_BYTES;
    if (message.kind == TB_VALUE_TENSOR) {
        TB__TRY(decode_shape(&message, at));
        at += 8 * (size_t)message.ndim;
    }
    if (message.kind == TB_VALUE_HANDLE) {
        TB__TRY(decode_handle(at, &message.handle));
        at += TB_HANDLE_BYTES;
    }
    if (message.flags & TB__MESSAGE_CARRIED) {
        TB__TRY(decode_handle(at, &message.carrier));
    }
    *out = message;
    *layout = found;
    return TB_OK;
}

int tb__carrier_layout(const struct tb__message *message, uint64_t *metadata_offset,
                       uint64_t *bytes)
{
    *bytes = message->value_bytes;
    *metadata_offset = 0;
    if (!(message->flags & TB__MESSAGE_METADATA_CARRIED)) {
        return 1;
    }
    return tb__round_up(message->value_bytes, TB__MESSAGE_ALIGN, metadata_offset) &&
           tb__add(*metadata_offset, message->metadata_bytes, bytes);
}

/* Messages: each kind round-trips with the sizes that message.h states; one changed field at a time
 * is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "wire/message.h"

#define OK(call) assert_int_equal((call), TB_OK)

static const tb_handle sample_handle = {
    .pool_uid = {1, 2, 3}, .generation = 84, .slot = 3, .stamp_ns = 5, .bytes = 6220800};

/* Encode with `fill` in place of metadata and value; the caller frees. */
static uint8_t *encode(const struct tb__message *message, struct tb__message_layout *layout)
{
    assert_true(tb__message_layout(message, layout));
    uint8_t *bytes = malloc(layout->bytes);
    memset(bytes, 0x5a, layout->bytes);
    uint8_t head[TB__MESSAGE_HEAD_MAX];
    tb__message_encode_head(message, head);
    memcpy(bytes, head, layout->head_bytes);
    return bytes;
}

static void check_round_trip(const struct tb__message *message, size_t expected_bytes)
{
    struct tb__message_layout layout;
    uint8_t *bytes = encode(message, &layout);
    assert_int_equal(layout.bytes, expected_bytes);
    struct tb__message decoded;
    struct tb__message_layout found;
    OK(tb__message_decode(bytes, layout.bytes, &decoded, &found));
    assert_memory_equal(&decoded, message, sizeof decoded);
    assert_memory_equal(&found, &layout, sizeof found);
    /* Neither shorter nor longer. */
    for (size_t size = 0; size < layout.bytes; size++) {
        uint8_t *cut = malloc(size + 1);
        memcpy(cut, bytes, size);
        assert_int_equal(tb__message_decode(cut, size, &decoded, &found), TB_E_PROTOCOL);
        free(cut);
    }
    free(bytes);
}

static struct tb__message base(tb_value_kind kind)
{
    struct tb__message message;
    memset(&message, 0, sizeof message);
    message.kind = kind;
    message.sequence = 1;
    message.stamp_ns = INT64_MAX;
    return message;
}

static void each_kind_round_trips(void **state)
{
    (void)state;
    struct tb__message message = base(TB_VALUE_NONE);
    check_round_trip(&message, 40);
    message = base(TB_VALUE_BYTES);
    message.value_bytes = 5;
    message.metadata_bytes = 30;
    check_round_trip(&message, 128 + 5);
    message = base(TB_VALUE_TENSOR);
    message.dtype = TB_F32;
    message.ndim = 8;
    for (int i = 0; i < 8; i++) {
        message.shape[i] = 1 + (i == 7);
    }
    message.value_bytes = 8;
    check_round_trip(&message, 128 + 8);
    message = base(TB_VALUE_TENSOR);
    message.dtype = TB_F64;
    message.value_bytes = 8;
    check_round_trip(&message, 64 + 8);
    message.ndim = 1;
    message.value_bytes = 0;
    check_round_trip(&message, 48);
}

static void a_handle_fits_128_bytes(void **state)
{
    (void)state;
    struct tb__message message = base(TB_VALUE_HANDLE);
    message.handle = sample_handle;
    check_round_trip(&message, 88);
}

static void carried_parts_take_no_room(void **state)
{
    (void)state;
    struct tb__message message = base(TB_VALUE_BYTES);
    message.flags = TB__MESSAGE_CARRIED;
    message.value_bytes = (uint64_t)512 << 20;
    message.metadata_bytes = 12;
    message.carrier = sample_handle;
    check_round_trip(&message, 88 + 12);
    message.flags |= TB__MESSAGE_METADATA_CARRIED;
    check_round_trip(&message, 88);
    uint64_t offset;
    uint64_t bytes;
    message.value_bytes = 65;
    assert_true(tb__carrier_layout(&message, &offset, &bytes));
    assert_int_equal(offset, 128);
    assert_int_equal(bytes, 140);
    message.value_bytes = UINT64_MAX;
    assert_false(tb__carrier_layout(&message, &offset, &bytes));
    message = base(TB_VALUE_HANDLE);
    message.flags = TB__MESSAGE_CARRIED | TB__MESSAGE_METADATA_CARRIED;
    message.metadata_bytes = TB_METADATA_MAX;
    message.handle = sample_handle;
    message.carrier = sample_handle;
    message.carrier.slot = 4;
    check_round_trip(&message, 40 + 48 + 48);
    message = base(TB_VALUE_BYTES);
    message.value_bytes = UINT64_MAX - 50;
    struct tb__message_layout layout;
    assert_false(tb__message_layout(&message, &layout));
}

static void refuse(const struct tb__message *message, size_t at, uint8_t value)
{
    struct tb__message_layout layout;
    uint8_t *bytes = encode(message, &layout);
    struct tb__message decoded;
    OK(tb__message_decode(bytes, layout.bytes, &decoded, &layout));
    assert_int_not_equal(bytes[at], value);
    bytes[at] = value;
    if (tb__message_decode(bytes, layout.bytes, &decoded, &layout) != TB_E_PROTOCOL) {
        fail_msg("byte %zu = %u was accepted in kind %u", at, value, message->kind);
    }
    free(bytes);
}

static void changed_fields_are_refused(void **state)
{
    (void)state;
    struct tb__message none = base(TB_VALUE_NONE);
    refuse(&none, 0, 2);     /* version */
    refuse(&none, 1, 4);     /* kind */
    refuse(&none, 2, 1);     /* carrier for nothing */
    refuse(&none, 2, 2);     /* carried metadata without a carrier */
    refuse(&none, 2, 4);     /* unknown flag */
    refuse(&none, 3, 0x80);  /* unknown flag */
    refuse(&none, 4, 1);     /* dtype */
    refuse(&none, 8, 0);     /* sequence 0 */
    refuse(&none, 23, 0x80); /* negative stamp */
    refuse(&none, 24, 1);    /* value */
    refuse(&none, 34, 2);    /* metadata of 128 KiB */
    refuse(&none, 36, 1);    /* ndim */
    struct tb__message tensor = base(TB_VALUE_TENSOR);
    tensor.dtype = TB_U8;
    tensor.ndim = 2;
    tensor.shape[0] = 3;
    tensor.shape[1] = 4;
    tensor.value_bytes = 12;
    refuse(&tensor, 4, 3);     /* opaque */
    refuse(&tensor, 36, 9);    /* ndim */
    refuse(&tensor, 36, 3);    /* ndim */
    refuse(&tensor, 40, 4);    /* shape */
    refuse(&tensor, 47, 0x80); /* negative dimension */
    refuse(&tensor, 46, 0x80); /* overflow */
    struct tb__message handle = base(TB_VALUE_HANDLE);
    handle.handle = sample_handle;
    refuse(&handle, 40 + 16, 83); /* odd generation */
    refuse(&handle, 40 + 16, 0);  /* never written */
    refuse(&handle, 40 + 25, 1);  /* slot 259 */
    refuse(&handle, 40 + 28, 1);  /* flags */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_round_trips),
        cmocka_unit_test(a_handle_fits_128_bytes),
        cmocka_unit_test(carried_parts_take_no_room),
        cmocka_unit_test(changed_fields_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Metadata as bytes: written for a message, and read, checked and copied from one that a peer sent.
 * Pure functions. */
#include "wire/metadata_wire.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "wire/metadata_table.h"

static const tb_metadata empty = {.encoded_bytes = TB__METADATA_COUNT_BYTES};

const tb_metadata *tb__metadata_empty(void)
{
    return &empty;
}

size_t tb__metadata_encoded_bytes(const tb_metadata *metadata)
{
    return metadata != NULL && metadata->count != 0 ? metadata->encoded_bytes : 0;
}

static uint8_t *put(uint8_t *at, const void *bytes, size_t size)
{
    memcpy(at, bytes, size);
    return at + size;
}

static uint8_t *put_u32(uint8_t *at, size_t value)
{
    uint32_t word = (uint32_t)value;
    return put(at, &word, 4);
}

void tb__metadata_encode(const tb_metadata *metadata, uint8_t *out)
{
    if (tb__metadata_encoded_bytes(metadata) == 0) {
        return;
    }
    uint8_t *at = put_u32(out, metadata->count);
    for (size_t i = 0; i < metadata->count; i++) {
        const struct tb__metadata_entry *entry = metadata->entries[i];
        uint8_t head[4] = {(uint8_t)entry->value.type, (uint8_t)entry->key_bytes, 0, 0};
        at = put_u32(put(at, head, 4), entry->value_bytes);
        at = put(at, entry->key, entry->key_bytes);
        if (entry->value.type != TB_META_STRING_LIST) {
            at = put(at, entry->payload, entry->value_bytes);
            continue;
        }
        at = put_u32(at, entry->value.count);
        for (size_t k = 0; k < entry->value.count; k++) {
            size_t bytes = strlen(entry->value.strings[k]);
            at = put(put_u32(at, bytes), entry->value.strings[k], bytes);
        }
    }
    TB_ASSERT((size_t)(at - out) == metadata->encoded_bytes);
}

/* A cursor over bytes that a peer sent. */
struct input {
    const uint8_t *bytes;
    size_t size;
    size_t at;
};

static int take(struct input *input, size_t size, const uint8_t **out)
{
    if (!tb__range_fits(input->at, size, input->size)) {
        return 0;
    }
    *out = input->bytes + input->at;
    input->at += size;
    return 1;
}

static int take_u32(struct input *input, uint32_t *out)
{
    const uint8_t *at;
    if (!take(input, 4, &at)) {
        return 0;
    }
    memcpy(out, at, 4);
    return 1;
}

static int plain_size_valid(uint8_t type, const uint8_t *value, size_t size)
{
    switch (type) {
    case TB_META_BOOL:
        return size == 1 && value[0] <= 1;
    case TB_META_INT64:
    case TB_META_DOUBLE:
        return size == 8;
    case TB_META_STRING:
        return 1;
    case TB_META_INT64_LIST:
    case TB_META_DOUBLE_LIST:
        return size % 8 == 0;
    default:
        return 0;
    }
}

static tb_status decode_string_list(tb_metadata *metadata, struct tb__metadata_text key,
                                    struct input value)
{
    uint32_t count;
    if (!take_u32(&value, &count) || count > (value.size - value.at) / 4) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata: a list of strings is cut off");
    }
    struct tb__metadata_text *views = calloc((size_t)count + 1, sizeof *views);
    if (views == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a list of %u strings", count);
    }
    tb_status status = TB_OK;
    for (uint32_t i = 0; i < count && status == TB_OK; i++) {
        uint32_t bytes;
        const uint8_t *at;
        if (!take_u32(&value, &bytes) || !take(&value, bytes, &at) ||
            memchr(at, '\0', bytes) != NULL) {
            status = TB__FAIL(TB_E_PROTOCOL, "metadata: string %u of a list is cut off", i);
            break;
        }
        views[i] = (struct tb__metadata_text){(const char *)at, bytes};
    }
    if (status == TB_OK && value.at != value.size) {
        status = TB__FAIL(TB_E_PROTOCOL, "metadata: bytes after a list of strings");
    }
    if (status == TB_OK) {
        status = tb__metadata_put_strings(metadata, key, views, count);
    }
    free(views);
    return status;
}

static tb_status decode_entry(tb_metadata *metadata, struct input *input)
{
    const uint8_t *head;
    uint32_t size;
    const uint8_t *name;
    const uint8_t *value;
    if (!take(input, 4, &head) || !take_u32(input, &size) || !take(input, head[1], &name) ||
        !take(input, size, &value)) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata is cut off at byte %zu", input->at);
    }
    char text[TB__METADATA_KEY_MAX + 1];
    struct tb__metadata_text key = {text, head[1]};
    memcpy(text, name, key.bytes);
    text[key.bytes] = '\0';
    if (head[2] != 0 || head[3] != 0 || !tb__metadata_key_valid(key)) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata: entry with a bad key or flags");
    }
    if (tb__metadata_find(metadata, key) < metadata->count) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata: key `%.80s` comes twice", text);
    }
    if (head[0] == TB_META_STRING_LIST) {
        return decode_string_list(metadata, key, (struct input){value, size, 0});
    }
    if (!plain_size_valid(head[0], value, size)) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata key `%.80s`: type %u with %u bytes", text, head[0],
                        size);
    }
    return tb__metadata_put(metadata, key, (tb_metadata_type)head[0], value, size);
}

tb_status tb__metadata_decode(const uint8_t *bytes, size_t size, tb_metadata **out)
{
    if (size > TB_METADATA_MAX) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata of %zu bytes, at most %d are possible", size,
                        TB_METADATA_MAX);
    }
    struct input input = {bytes, size, 0};
    uint32_t count = 0;
    if (size != 0 && (!take_u32(&input, &count) || count == 0)) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata of %zu bytes without keys", size);
    }
    tb_metadata *metadata;
    TB__TRY(tb_metadata_create(&metadata));
    tb_status status = TB_OK;
    for (uint32_t i = 0; i < count && status == TB_OK; i++) {
        status = decode_entry(metadata, &input);
    }
    if (status == TB_OK && input.at != size) {
        status = TB__FAIL(TB_E_PROTOCOL, "metadata: %zu bytes after the last key", size - input.at);
    }
    if (status != TB_OK) {
        tb_metadata_destroy(metadata);
        return status;
    }
    *out = metadata;
    return TB_OK;
}

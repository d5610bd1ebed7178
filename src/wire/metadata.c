/* Metadata: small named values, built by the sender, decoded into aligned copies for the receiver.
 *
 * One heap block per key holds the key, the value and what the value points to, so that a view of a
 * value stays good until its key is set again. Keys are found by comparing a hash first: the most
 * keys that fit a message (some 7,000) are still decoded in milliseconds. No thread of its own. */
#include "wire/metadata.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

#define COUNT_BYTES 4
#define ENTRY_BYTES 8
#define KEY_MAX 255

struct entry {
    uint32_t hash;
    uint32_t key_bytes;
    size_t value_bytes;      /* encoded, without key */
    tb_metadata_value value; /* points into the payload */
    const char *key;         /* terminated, at the end of the payload */
    _Alignas(8) unsigned char payload[];
};

struct tb_metadata {
    struct entry **entries;
    size_t count;
    size_t capacity;
    size_t encoded_bytes; /* with the count; COUNT_BYTES when there are no keys */
};

static const tb_metadata empty = {.encoded_bytes = COUNT_BYTES};

const tb_metadata *tb__metadata_empty(void)
{
    return &empty;
}

tb_status tb_metadata_create(tb_metadata **out)
{
    tb_metadata *metadata = calloc(1, sizeof *metadata);
    if (metadata == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for metadata");
    }
    metadata->encoded_bytes = COUNT_BYTES;
    *out = metadata;
    return TB_OK;
}

void tb_metadata_destroy(tb_metadata *metadata)
{
    if (metadata == NULL) {
        return;
    }
    for (size_t i = 0; i < metadata->count; i++) {
        free(metadata->entries[i]);
    }
    free(metadata->entries);
    free(metadata);
}

/* FNV-1a. */
static uint32_t hash_of(const char *key, size_t bytes)
{
    uint32_t hash = 2166136261U;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ (uint8_t)key[i]) * 16777619U;
    }
    return hash;
}

/* Length of the UTF-8 character at `at`, 0 when it is none (overlong, surrogate, cut off). */
static size_t utf8_character(const uint8_t *at, size_t left)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = at[0] < 0x80 ? 1 : at[0] >> 5 == 6 ? 2 : at[0] >> 4 == 14 ? 3 : 4;
    if (length == 1) {
        return 1;
    }
    if (length > left || (length == 4 && at[0] >> 3 != 30)) {
        return 0;
    }
    uint32_t code = at[0] & (0x7fU >> length);
    for (size_t i = 1; i < length; i++) {
        if (at[i] >> 6 != 2) {
            return 0;
        }
        code = code << 6 | (at[i] & 0x3fU);
    }
    if (code < smallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        return 0;
    }
    return length;
}

static int key_valid(const char *key, size_t bytes)
{
    if (bytes == 0 || bytes > KEY_MAX || memchr(key, '\0', bytes) != NULL) {
        return 0;
    }
    for (size_t at = 0; at < bytes;) {
        size_t length = utf8_character((const uint8_t *)key + at, bytes - at);
        if (length == 0) {
            return 0;
        }
        at += length;
    }
    return 1;
}

/* Index of a key, or the number of keys. */
static size_t find(const tb_metadata *metadata, const char *key, size_t bytes, uint32_t hash)
{
    for (size_t i = 0; i < metadata->count; i++) {
        const struct entry *entry = metadata->entries[i];
        if (entry->hash == hash && entry->key_bytes == bytes &&
            memcmp(entry->key, key, bytes) == 0) {
            return i;
        }
    }
    return metadata->count;
}

/* What a new value needs: `encoded` bytes on the wire, `payload` bytes in its heap block. */
struct need {
    tb_metadata_type type;
    uint64_t encoded;
    size_t payload;
};

/* Check that key and value fit and make an entry to fill; nothing changes before commit(). */
static tb_status prepare(const tb_metadata *metadata, const char *key, size_t key_bytes,
                         struct need need, struct entry **out)
{
    if (metadata == NULL) {
        return TB__FAIL(TB_E_INVALID, "metadata is NULL");
    }
    if (!key_valid(key, key_bytes)) {
        return TB__FAIL(TB_E_INVALID, "metadata key `%.80s`: keys are 1 to 255 bytes of UTF-8",
                        key);
    }
    uint32_t hash = hash_of(key, key_bytes);
    size_t index = find(metadata, key, key_bytes, hash);
    uint64_t before = metadata->encoded_bytes;
    if (index < metadata->count) {
        before -= ENTRY_BYTES + key_bytes + metadata->entries[index]->value_bytes;
    }
    /* encoded is below 2^63, so the sum cannot wrap. */
    uint64_t after = before + ENTRY_BYTES + key_bytes + need.encoded;
    if (after > TB_METADATA_MAX) {
        return TB__FAIL(TB_E_LIMIT,
                        "metadata key `%.80s`: its value of %llu bytes makes the metadata %llu "
                        "bytes, at most %d are possible; send it as the value instead",
                        key, (unsigned long long)need.encoded, (unsigned long long)after,
                        TB_METADATA_MAX);
    }
    struct entry *entry = calloc(1, sizeof *entry + need.payload + key_bytes + 1);
    if (entry == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for metadata key `%.80s`", key);
    }
    entry->hash = hash;
    entry->key_bytes = (uint32_t)key_bytes;
    entry->value_bytes = (size_t)need.encoded;
    entry->value.type = need.type;
    char *own = (char *)entry->payload + need.payload;
    memcpy(own, key, key_bytes);
    entry->key = own;
    *out = entry;
    return TB_OK;
}

/* Take a filled entry in, in place of the one with its key; frees it on failure. */
static tb_status commit(tb_metadata *metadata, struct entry *entry)
{
    size_t index = find(metadata, entry->key, entry->key_bytes, entry->hash);
    if (index < metadata->count) {
        metadata->encoded_bytes -= metadata->entries[index]->value_bytes;
        free(metadata->entries[index]);
    } else {
        if (metadata->count == metadata->capacity) {
            size_t capacity = metadata->capacity == 0 ? 8 : metadata->capacity * 2;
            struct entry **grown = realloc(metadata->entries, capacity * sizeof(struct entry *));
            if (grown == NULL) {
                free(entry);
                return TB__FAIL(TB_E_NOMEM, "no memory for %zu metadata keys", capacity);
            }
            metadata->entries = grown;
            metadata->capacity = capacity;
        }
        metadata->count++;
        metadata->encoded_bytes += ENTRY_BYTES + entry->key_bytes;
    }
    metadata->encoded_bytes += entry->value_bytes;
    metadata->entries[index] = entry;
    return TB_OK;
}

/* Set a value of fixed size or a list of 8-byte elements; `bytes` are its encoding. */
static tb_status set_plain(tb_metadata *metadata, const char *key, size_t key_bytes,
                           tb_metadata_type type, const void *bytes, uint64_t size)
{
    struct entry *entry;
    size_t payload = size <= TB_METADATA_MAX ? (size_t)size + 1 : 0;
    TB__TRY(prepare(metadata, key, key_bytes, (struct need){type, size, payload}, &entry));
    if (size != 0) {
        memcpy(entry->payload, bytes, (size_t)size);
    }
    tb_metadata_value *value = &entry->value;
    switch (type) {
    case TB_META_BOOL:
        value->boolean = entry->payload[0] != 0;
        break;
    case TB_META_INT64:
        memcpy(&value->integer, bytes, 8);
        break;
    case TB_META_DOUBLE:
        memcpy(&value->real, bytes, 8);
        break;
    case TB_META_STRING:
        value->string = (const char *)entry->payload;
        value->string_bytes = (size_t)size;
        break;
    case TB_META_INT64_LIST:
        value->integers = (const int64_t *)(const void *)entry->payload;
        value->count = (size_t)size / 8;
        break;
    default:
        value->reals = (const double *)(const void *)entry->payload;
        value->count = (size_t)size / 8;
        break;
    }
    return commit(metadata, entry);
}

/* Strings of a list, wherever they come from. */
struct string_view {
    const char *at;
    size_t bytes;
};

static tb_status set_string_list(tb_metadata *metadata, const char *key, size_t key_bytes,
                                 const struct string_view *views, size_t count)
{
    uint64_t encoded = 4;
    uint64_t payload = count * sizeof(char *);
    for (size_t i = 0; i < count; i++) {
        encoded += 4 + (uint64_t)views[i].bytes;
        payload += (uint64_t)views[i].bytes + 1;
    }
    struct need need = {TB_META_STRING_LIST, encoded,
                        encoded <= TB_METADATA_MAX ? (size_t)payload : 0};
    struct entry *entry;
    TB__TRY(prepare(metadata, key, key_bytes, need, &entry));
    const char **strings = (const char **)(void *)entry->payload;
    char *characters = (char *)entry->payload + count * sizeof(char *);
    for (size_t i = 0; i < count; i++) {
        memcpy(characters, views[i].at, views[i].bytes);
        strings[i] = characters;
        characters += views[i].bytes + 1;
    }
    entry->value.strings = strings;
    entry->value.count = count;
    return commit(metadata, entry);
}

static size_t key_length(const char *key)
{
    return key != NULL ? strnlen(key, KEY_MAX + 1) : 0;
}

static tb_status fail_no_values(const char *key)
{
    return TB__FAIL(TB_E_INVALID, "metadata key `%.80s`: the list of values is NULL",
                    key != NULL ? key : "(null)");
}

static tb_status set_by_name(tb_metadata *metadata, const char *key, tb_metadata_type type,
                             const void *bytes, uint64_t size)
{
    if (bytes == NULL && size != 0 && size <= TB_METADATA_MAX) {
        return fail_no_values(key);
    }
    return set_plain(metadata, key != NULL ? key : "", key_length(key), type, bytes, size);
}

tb_status tb_metadata_set_bool(tb_metadata *metadata, const char *key, int value)
{
    uint8_t byte = value != 0;
    return set_by_name(metadata, key, TB_META_BOOL, &byte, 1);
}

tb_status tb_metadata_set_int64(tb_metadata *metadata, const char *key, int64_t value)
{
    return set_by_name(metadata, key, TB_META_INT64, &value, 8);
}

tb_status tb_metadata_set_double(tb_metadata *metadata, const char *key, double value)
{
    return set_by_name(metadata, key, TB_META_DOUBLE, &value, 8);
}

tb_status tb_metadata_set_string(tb_metadata *metadata, const char *key, const char *value)
{
    const char *text = value != NULL ? value : "";
    return set_by_name(metadata, key, TB_META_STRING, text, strlen(text));
}

/* A list whose size would overflow is as much too large as one that does not. */
static uint64_t list_bytes(size_t count)
{
    return count < (size_t)1 << 59 ? (uint64_t)count * 8 : (uint64_t)1 << 62;
}

tb_status tb_metadata_set_int64s(tb_metadata *metadata, const char *key, const int64_t *values,
                                 size_t count)
{
    return set_by_name(metadata, key, TB_META_INT64_LIST, values, list_bytes(count));
}

tb_status tb_metadata_set_doubles(tb_metadata *metadata, const char *key, const double *values,
                                  size_t count)
{
    return set_by_name(metadata, key, TB_META_DOUBLE_LIST, values, list_bytes(count));
}

tb_status tb_metadata_set_strings(tb_metadata *metadata, const char *key, const char *const *values,
                                  size_t count)
{
    /* Each string takes at least 4 bytes, so this bounds the views before they are allocated. */
    size_t fitting = count <= TB_METADATA_MAX / 4 ? count : 0;
    if (fitting != count) {
        return set_by_name(metadata, key, TB_META_STRING_LIST, NULL, (uint64_t)1 << 62);
    }
    if (values == NULL && count != 0) {
        return fail_no_values(key);
    }
    struct string_view *views = calloc(count + 1, sizeof *views);
    if (views == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a list of %zu strings", count);
    }
    for (size_t i = 0; i < count; i++) {
        views[i].at = values[i] != NULL ? values[i] : "";
        views[i].bytes = strlen(views[i].at);
    }
    tb_status status =
        set_string_list(metadata, key != NULL ? key : "", key_length(key), views, count);
    free(views);
    return status;
}

tb_status tb_metadata_get(const tb_metadata *metadata, const char *key, tb_metadata_value *out)
{
    size_t bytes = key_length(key);
    size_t index = bytes != 0 ? find(metadata, key, bytes, hash_of(key, bytes)) : metadata->count;
    if (index == metadata->count) {
        return TB__FAIL(TB_E_NOT_FOUND, "no metadata key `%.80s`", key != NULL ? key : "(null)");
    }
    *out = metadata->entries[index]->value;
    return TB_OK;
}

size_t tb_metadata_count(const tb_metadata *metadata)
{
    return metadata->count;
}

tb_status tb_metadata_at(const tb_metadata *metadata, size_t index, const char **key,
                         tb_metadata_value *out)
{
    if (index >= metadata->count) {
        return TB__FAIL(TB_E_NOT_FOUND, "metadata index %zu of %zu keys", index, metadata->count);
    }
    *key = metadata->entries[index]->key;
    *out = metadata->entries[index]->value;
    return TB_OK;
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
        const struct entry *entry = metadata->entries[i];
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

static tb_status decode_string_list(tb_metadata *metadata, const char *key, size_t key_bytes,
                                    struct input value)
{
    uint32_t count;
    if (!take_u32(&value, &count) || count > (value.size - value.at) / 4) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata: a list of strings is cut off");
    }
    struct string_view *views = calloc((size_t)count + 1, sizeof *views);
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
        views[i] = (struct string_view){(const char *)at, bytes};
    }
    if (status == TB_OK && value.at != value.size) {
        status = TB__FAIL(TB_E_PROTOCOL, "metadata: bytes after a list of strings");
    }
    if (status == TB_OK) {
        status = set_string_list(metadata, key, key_bytes, views, count);
    }
    free(views);
    return status;
}

static tb_status decode_entry(tb_metadata *metadata, struct input *input)
{
    const uint8_t *head;
    uint32_t size;
    const uint8_t *key;
    const uint8_t *value;
    if (!take(input, 4, &head) || !take_u32(input, &size) || !take(input, head[1], &key) ||
        !take(input, size, &value)) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata is cut off at byte %zu", input->at);
    }
    char text[KEY_MAX + 1];
    size_t key_bytes = head[1];
    memcpy(text, key, key_bytes);
    text[key_bytes] = '\0';
    if (head[2] != 0 || head[3] != 0 || !key_valid(text, key_bytes)) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata: entry with a bad key or flags");
    }
    if (find(metadata, text, key_bytes, hash_of(text, key_bytes)) < metadata->count) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata: key `%.80s` comes twice", text);
    }
    if (head[0] == TB_META_STRING_LIST) {
        return decode_string_list(metadata, text, key_bytes, (struct input){value, size, 0});
    }
    if (!plain_size_valid(head[0], value, size)) {
        return TB__FAIL(TB_E_PROTOCOL, "metadata key `%.80s`: type %u with %u bytes", text, head[0],
                        size);
    }
    return set_plain(metadata, text, key_bytes, (tb_metadata_type)head[0], value, size);
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

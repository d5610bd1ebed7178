/* The keys and values of a tb_metadata. Keys are found by comparing a hash first: the most keys
 * that fit a message (some 7,000) are still decoded in milliseconds. No thread of its own. */
#include "wire/metadata_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

tb_status tb_metadata_create(tb_metadata **out)
{
    tb_metadata *metadata = calloc(1, sizeof *metadata);
    if (metadata == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for metadata");
    }
    metadata->encoded_bytes = TB__METADATA_COUNT_BYTES;
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
static uint32_t hash_of(struct tb__metadata_text key)
{
    uint32_t hash = 2166136261U;
    for (size_t i = 0; i < key.bytes; i++) {
        hash = (hash ^ (uint8_t)key.at[i]) * 16777619U;
    }
    return hash;
}

int tb__metadata_key_valid(struct tb__metadata_text key)
{
    return key.bytes != 0 && key.bytes <= TB__METADATA_KEY_MAX && tb__utf8_text(key.at, key.bytes);
}

size_t tb__metadata_find(const tb_metadata *metadata, struct tb__metadata_text key)
{
    uint32_t hash = hash_of(key);
    for (size_t i = 0; i < metadata->count; i++) {
        const struct tb__metadata_entry *entry = metadata->entries[i];
        if (entry->hash == hash && entry->key_bytes == key.bytes &&
            memcmp(entry->key, key.at, key.bytes) == 0) {
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
static tb_status prepare(const tb_metadata *metadata, struct tb__metadata_text key,
                         struct need need, struct tb__metadata_entry **out)
{
    if (metadata == NULL) {
        return TB__FAIL(TB_E_INVALID, "metadata is NULL");
    }
    if (!tb__metadata_key_valid(key)) {
        return TB__FAIL(TB_E_INVALID, "metadata key `%.80s`: keys are 1 to 255 bytes of UTF-8",
                        key.at);
    }
    size_t index = tb__metadata_find(metadata, key);
    uint64_t before = metadata->encoded_bytes;
    if (index < metadata->count) {
        before -= TB__METADATA_ENTRY_BYTES + key.bytes + metadata->entries[index]->value_bytes;
    }
    /* encoded is below 2^63, so the sum cannot wrap. */
    uint64_t after = before + TB__METADATA_ENTRY_BYTES + key.bytes + need.encoded;
    if (after > TB_METADATA_MAX) {
        return TB__FAIL(TB_E_LIMIT,
                        "metadata key `%.80s`: its value of %llu bytes makes the metadata %llu "
                        "bytes, at most %d are possible; send it as the value instead",
                        key.at, (unsigned long long)need.encoded, (unsigned long long)after,
                        TB_METADATA_MAX);
    }
    struct tb__metadata_entry *entry = calloc(1, sizeof *entry + need.payload + key.bytes + 1);
    if (entry == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for metadata key `%.80s`", key.at);
    }
    entry->hash = hash_of(key);
    entry->key_bytes = (uint32_t)key.bytes;
    entry->value_bytes = (size_t)need.encoded;
    entry->value.type = need.type;
    char *own = (char *)entry->payload + need.payload;
    memcpy(own, key.at, key.bytes);
    entry->key = own;
    *out = entry;
    return TB_OK;
}

/* Take a filled entry in, in place of the one with its key; frees it on failure. */
static tb_status commit(tb_metadata *metadata, struct tb__metadata_entry *entry)
{
    size_t index =
        tb__metadata_find(metadata, (struct tb__metadata_text){entry->key, entry->key_bytes});
    if (index < metadata->count) {
        metadata->encoded_bytes -= metadata->entries[index]->value_bytes;
        free(metadata->entries[index]);
    } else {
        if (metadata->count == metadata->capacity) {
            size_t capacity = metadata->capacity == 0 ? 8 : metadata->capacity * 2;
            struct tb__metadata_entry **grown =
                realloc(metadata->entries, capacity * sizeof(struct tb__metadata_entry *));
            if (grown == NULL) {
                free(entry);
                return TB__FAIL(TB_E_NOMEM, "no memory for %zu metadata keys", capacity);
            }
            metadata->entries = grown;
            metadata->capacity = capacity;
        }
        metadata->count++;
        metadata->encoded_bytes += TB__METADATA_ENTRY_BYTES + entry->key_bytes;
    }
    metadata->encoded_bytes += entry->value_bytes;
    metadata->entries[index] = entry;
    return TB_OK;
}

tb_status tb__metadata_put(tb_metadata *metadata, struct tb__metadata_text key,
                           tb_metadata_type type, const void *bytes, uint64_t size)
{
    struct tb__metadata_entry *entry = NULL;
    size_t payload = size <= TB_METADATA_MAX ? (size_t)size + 1 : 0;
    TB__TRY(prepare(metadata, key, (struct need){type, size, payload}, &entry));
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

tb_status tb__metadata_put_strings(tb_metadata *metadata, struct tb__metadata_text key,
                                   const struct tb__metadata_text *strings, size_t count)
{
    uint64_t encoded = 4;
    uint64_t payload = count * sizeof(char *);
    for (size_t i = 0; i < count; i++) {
        encoded += 4 + (uint64_t)strings[i].bytes;
        payload += (uint64_t)strings[i].bytes + 1;
    }
    struct need need = {TB_META_STRING_LIST, encoded,
                        encoded <= TB_METADATA_MAX ? (size_t)payload : 0};
    struct tb__metadata_entry *entry = NULL;
    TB__TRY(prepare(metadata, key, need, &entry));
    const char **list = (const char **)(void *)entry->payload;
    char *characters = (char *)entry->payload + count * sizeof(char *);
    for (size_t i = 0; i < count; i++) {
        memcpy(characters, strings[i].at, strings[i].bytes);
        list[i] = characters;
        characters += strings[i].bytes + 1;
    }
    entry->value.strings = list;
    entry->value.count = count;
    return commit(metadata, entry);
}

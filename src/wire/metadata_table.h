/* What a tb_metadata holds: keys with values, each in one heap block of its own, so that a view of
 * a value stays good until its key is set again.
 *
 * Keys and values come with their lengths: names of users and bytes of peers are checked alike. One
 * thread at a time. */
#ifndef TB_WIRE_METADATA_TABLE_H
#define TB_WIRE_METADATA_TABLE_H

#include <stdint.h>

#include <tensorbus/metadata.h>

#define TB__METADATA_COUNT_BYTES 4
#define TB__METADATA_ENTRY_BYTES 8
#define TB__METADATA_KEY_MAX 255

struct tb__metadata_entry {
    uint32_t hash;
    uint32_t key_bytes;
    size_t value_bytes;      /* encoded, without key */
    tb_metadata_value value; /* points into the payload */
    const char *key;         /* terminated, at the end of the payload */
    _Alignas(8) unsigned char payload[];
};

struct tb_metadata {
    struct tb__metadata_entry **entries;
    size_t count;
    size_t capacity;
    size_t encoded_bytes; /* with the count; TB__METADATA_COUNT_BYTES when there are no keys */
};

/* A key, which is terminated as well, or a string of a list, which need not be. */
struct tb__metadata_text {
    const char *at;
    size_t bytes;
};

/* 1 to 255 bytes of UTF-8 without NUL. */
int tb__metadata_key_valid(struct tb__metadata_text key);

/* Index of a key, or the number of keys. */
size_t tb__metadata_find(const tb_metadata *metadata, struct tb__metadata_text key);

/* Set a value of fixed size, a string or a list of 8-byte elements; `size` bytes are its encoding.
 * Nothing changes on failure: TB_E_INVALID, TB_E_LIMIT, TB_E_NOMEM. */
tb_status tb__metadata_put(tb_metadata *metadata, struct tb__metadata_text key,
                           tb_metadata_type type, const void *bytes, uint64_t size);
/* Set a list of strings, in the same way. */
tb_status tb__metadata_put_strings(tb_metadata *metadata, struct tb__metadata_text key,
                                   const struct tb__metadata_text *strings, size_t count);

#endif

/* Metadata: small named values that travel with a message.
 *
 * A tb_metadata is built by the sender, sent any number of times, and destroyed by its maker. The
 * receiver borrows the one of its event. Keys are 1 to 255 bytes of UTF-8 and unique: setting a key
 * again replaces its value. Encoded size is at most TB_METADATA_MAX bytes per message. */
#ifndef TENSORBUS_METADATA_H
#define TENSORBUS_METADATA_H

#include <tensorbus/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TB_METADATA_MAX 65536

typedef struct tb_metadata tb_metadata;

typedef enum tb_metadata_type {
    TB_META_BOOL = 1,
    TB_META_INT64 = 2,
    TB_META_DOUBLE = 3,
    TB_META_STRING = 4,
    TB_META_INT64_LIST = 5,
    TB_META_DOUBLE_LIST = 6,
    TB_META_STRING_LIST = 7
} tb_metadata_type;

/* One value, as a view: pointers are borrowed from the metadata and die when it changes. */
typedef struct tb_metadata_value {
    tb_metadata_type type;
    int32_t boolean;
    int64_t integer;
    double real;
    const char *string; /* terminated; may hold NUL bytes inside: see string_bytes */
    size_t string_bytes;
    size_t count;            /* elements of a list */
    const int64_t *integers; /* aligned copies, never views of shared memory */
    const double *reals;
    const char *const *strings;
} tb_metadata_value;

/** Make empty metadata; destroy it. NULL is allowed for destroying.
 *  Owner:   the caller; end with tb_metadata_destroy().
 *  Returns: TB_OK, TB_E_NOMEM.   Threads: any; destroy: one, the last.   Waits: never.
 *  Source:  src/wire/metadata_table.c */
TB_API TB_MUST_USE tb_status tb_metadata_create(tb_metadata **out);
TB_API void tb_metadata_destroy(tb_metadata *metadata);

/** Set one value; the key and the value are copied. A value of NULL is the empty string, also in a
 *  list; a list may be NULL if it is empty.
 *  Units:   count in elements.
 *  Owner:   everything given stays the caller's. Views of the key's former value die.
 *  Returns: TB_OK, TB_E_INVALID (key or list), TB_E_LIMIT (names key and limit), TB_E_NOMEM; on
 *           failure nothing changes.
 *  Threads: one at a time.   Waits: never.   Source: src/wire/metadata.c */
TB_API TB_MUST_USE tb_status tb_metadata_set_bool(tb_metadata *metadata, const char *key,
                                                  int value);
TB_API TB_MUST_USE tb_status tb_metadata_set_int64(tb_metadata *metadata, const char *key,
                                                   int64_t value);
TB_API TB_MUST_USE tb_status tb_metadata_set_double(tb_metadata *metadata, const char *key,
                                                    double value);
TB_API TB_MUST_USE tb_status tb_metadata_set_string(tb_metadata *metadata, const char *key,
                                                    const char *value);
TB_API TB_MUST_USE tb_status tb_metadata_set_int64s(tb_metadata *metadata, const char *key,
                                                    const int64_t *values, size_t count);
TB_API TB_MUST_USE tb_status tb_metadata_set_doubles(tb_metadata *metadata, const char *key,
                                                     const double *values, size_t count);
TB_API TB_MUST_USE tb_status tb_metadata_set_strings(tb_metadata *metadata, const char *key,
                                                     const char *const *values, size_t count);

/** Look a key up.
 *  Owner:   what *out points to is borrowed from the metadata.
 *  Returns: TB_OK, TB_E_NOT_FOUND.   Threads: any, while nobody sets.   Waits: never.
 *  Source:  src/wire/metadata.c */
TB_API TB_MUST_USE tb_status tb_metadata_get(const tb_metadata *metadata, const char *key,
                                             tb_metadata_value *out);

/** Number of keys; the key and value at an index, in the order of setting.
 *  Owner:   *key and what *out points to are borrowed from the metadata.
 *  Returns: tb_metadata_at: TB_OK, TB_E_NOT_FOUND (index).   Threads: any, while nobody sets.
 *  Waits:   never.   Source: src/wire/metadata.c */
TB_API size_t tb_metadata_count(const tb_metadata *metadata);
TB_API TB_MUST_USE tb_status tb_metadata_at(const tb_metadata *metadata, size_t index,
                                            const char **key, tb_metadata_value *out);

#ifdef __cplusplus
}
#endif
#endif

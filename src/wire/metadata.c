/* Metadata for its users: small named values, set and got one by one. No thread of its own. */
#include <tensorbus/metadata.h>

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "wire/metadata_table.h"

static struct tb__metadata_text key_text(const char *key)
{
    const char *at = key != NULL ? key : "";
    return (struct tb__metadata_text){at, strnlen(at, TB__METADATA_KEY_MAX + 1)};
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
    return tb__metadata_put(metadata, key_text(key), type, bytes, size);
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
    struct tb__metadata_text *views = calloc(count + 1, sizeof *views);
    if (views == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a list of %zu strings", count);
    }
    for (size_t i = 0; i < count; i++) {
        views[i].at = values[i] != NULL ? values[i] : "";
        views[i].bytes = strlen(views[i].at);
    }
    tb_status status = tb__metadata_put_strings(metadata, key_text(key), views, count);
    free(views);
    return status;
}

tb_status tb_metadata_get(const tb_metadata *metadata, const char *key, tb_metadata_value *out)
{
    size_t index = tb__metadata_find(metadata, key_text(key));
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

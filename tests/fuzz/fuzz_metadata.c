/* Metadata as a peer may send it: accepted bytes encode to themselves again, and every value can be
 * read to its end. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "wire/metadata_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t read_value(const tb_metadata_value *value)
{
    size_t sum = value->string != NULL ? strlen(value->string) + value->string_bytes : 0;
    for (size_t i = 0; i < value->count; i++) {
        sum += value->type == TB_META_STRING_LIST  ? strlen(value->strings[i])
               : value->type == TB_META_INT64_LIST ? (size_t)value->integers[i]
                                                   : value->reals[i] > 0;
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tb_metadata *metadata;
    if (tb__metadata_decode(data, size, &metadata) != TB_OK) {
        return 0;
    }
    TB_ASSERT(tb__metadata_encoded_bytes(metadata) == size);
    uint8_t *again = malloc(size + (size == 0));
    TB_ASSERT(again != NULL);
    tb__metadata_encode(metadata, again);
    TB_ASSERT(size == 0 || memcmp(again, data, size) == 0);
    free(again);
    static volatile size_t sink; /* keeps the reads */
    (void)sink;
    for (size_t i = 0; i < tb_metadata_count(metadata); i++) {
        const char *key;
        tb_metadata_value value;
        TB_ASSERT(tb_metadata_at(metadata, i, &key, &value) == TB_OK);
        sink += read_value(&value);
        TB_ASSERT(tb_metadata_get(metadata, key, &value) == TB_OK);
    }
    tb_metadata_destroy(metadata);
    return 0;
}

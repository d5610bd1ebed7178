/* Copying structs between releases. */
#include "base/options.h"

#include <stdint.h>
#include <string.h>

/* The first field of every such struct. */
static tb_status read_size(const char *type, const void *given, size_t *out)
{
    size_t size = 0;
    memcpy(&size, given, sizeof size);
    if (size < sizeof size || size > TB__STRUCT_MAX) {
        return TB__FAIL(TB_E_INVALID, "%s.size is %zu: set it to sizeof(%s)", type, size, type);
    }
    *out = size;
    return TB_OK;
}

tb_status tb__options_read(const char *type, const void *given, void *out, size_t out_size)
{
    memset(out, 0, out_size);
    if (given == NULL) {
        return TB_OK;
    }
    size_t size = 0;
    TB__TRY(read_size(type, given, &size));
    for (size_t i = out_size; i < size; i++) {
        if (((const uint8_t *)given)[i] != 0) {
            return TB__FAIL(TB_E_UNSUPPORTED,
                            "%s has a field at byte %zu that this library (%s) does not know: "
                            "leave it 0, or use a newer library",
                            type, i, tb_version());
        }
    }
    memcpy(out, given, size < out_size ? size : out_size);
    return TB_OK;
}

tb_status tb__info_write(const char *type, void *out, const void *known, size_t known_size)
{
    if (out == NULL) {
        return TB__FAIL(TB_E_INVALID, "%s is NULL", type);
    }
    size_t size = 0;
    TB__TRY(read_size(type, out, &size));
    size_t both = size < known_size ? size : known_size;
    memcpy(out, known, both);
    memset((uint8_t *)out + both, 0, size - both);
    memcpy(out, &size, sizeof size);
    return TB_OK;
}

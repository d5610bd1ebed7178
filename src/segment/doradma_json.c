/* Writer and parser of the metadata of a pool, on top of the scanner. */
#include "segment/doradma_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "segment/json_scan.h"

struct writer {
    char *buffer;
    size_t size;
    size_t used; /* may pass `size`: then nothing more is stored */
};

static void put(struct writer *writer, const char *text, size_t bytes)
{
    if (writer->used <= writer->size && bytes <= writer->size - writer->used) {
        memcpy(writer->buffer + writer->used, text, bytes);
    }
    writer->used += bytes;
}

static void put_text(struct writer *writer, const char *text)
{
    put(writer, text, strlen(text));
}

/* The escapes of json.dumps. */
static tb_status put_string(struct writer *writer, const char *text)
{
    static const char plain[] = "\"\\\b\f\n\r\t";
    static const char letter[] = "\"\\bfnrt";
    put_text(writer, "\"");
    for (const char *at = text; *at != '\0'; at++) {
        const char *found = strchr(plain, *at);
        char escape[8];
        if ((unsigned char)*at >= 0x80) {
            return TB__FAIL(TB_E_INVALID, "pool metadata: `%.60s` has a byte 0x%02x, not ASCII",
                            text, (unsigned)(unsigned char)*at);
        }
        if (found != NULL) {
            put(writer, (char[]){'\\', letter[found - plain]}, 2);
        } else if (*at < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)*at);
            put_text(writer, escape);
        } else {
            put(writer, at, 1);
        }
    }
    put_text(writer, "\"");
    return TB_OK;
}

static tb_status put_shape(struct writer *writer, const struct tb__doradma_json *json)
{
    if (json->ndim < 0 || json->ndim > TB_MAX_NDIM) {
        return TB__FAIL(TB_E_INVALID, "pool metadata: %d dimensions, 0 to %d are possible",
                        json->ndim, TB_MAX_NDIM);
    }
    put_text(writer, "[");
    for (int32_t i = 0; i < json->ndim; i++) {
        char number[32];
        if (json->shape[i] < 0) {
            return TB__FAIL(TB_E_INVALID, "pool metadata: dimension %d is negative: %" PRId64, i,
                            json->shape[i]);
        }
        snprintf(number, sizeof number, "%s%" PRId64, i > 0 ? ", " : "", json->shape[i]);
        put_text(writer, number);
    }
    put_text(writer, "]");
    return TB_OK;
}

tb_status tb__doradma_json_write(const struct tb__doradma_json *json, char *buffer, size_t size,
                                 size_t *out_bytes)
{
    struct writer writer = {.buffer = buffer, .size = size};
    char number[32];
    snprintf(number, sizeof number, "%" PRIu64, json->size);
    put_text(&writer, "{\"size\": ");
    put_text(&writer, number);
    put_text(&writer, ", \"dtype\": ");
    TB__TRY(put_string(&writer, json->dtype));
    put_text(&writer, ", \"shape\": ");
    TB__TRY(put_shape(&writer, json));
    put_text(&writer, ", \"pinned_type\": ");
    TB__TRY(put_string(&writer, json->pinned_type));
    if (json->sender_shmem[0] != '\0') {
        put_text(&writer, ", \"sender_shmem\": ");
        TB__TRY(put_string(&writer, json->sender_shmem));
    }
    put_text(&writer, "}");
    if (writer.used > size) {
        return TB__FAIL(TB_E_LIMIT, "pool metadata needs %zu bytes, there is room for %zu",
                        writer.used, size);
    }
    *out_bytes = writer.used;
    return TB_OK;
}

/* A string that must fit its field and hold no NUL. */
static tb_status take_text(struct tb__json *scan, const char *what, char *field, size_t size)
{
    char message[96];
    size_t length;
    field[0] = '\0';
    TB__TRY(tb__json_string(scan, field, size, &length));
    if (strlen(field) != length) {
        snprintf(message, sizeof message, "%s has %zu bytes or a NUL, %zu bytes are possible", what,
                 length, size - 1);
        return tb__json_refuse(scan, message);
    }
    return TB_OK;
}

static tb_status take_shape(struct tb__json *scan, struct tb__doradma_json *json)
{
    if (!tb__json_take(scan, '[')) {
        return tb__json_refuse(scan, "shape is not a list");
    }
    if (tb__json_take(scan, ']')) {
        return TB_OK;
    }
    do {
        char what[32];
        uint64_t value;
        if (json->ndim == TB_MAX_NDIM) {
            return tb__json_refuse(scan, "shape has more than 8 dimensions");
        }
        snprintf(what, sizeof what, "dimension %d of shape", json->ndim);
        TB__TRY(tb__json_integer(scan, what, &value));
        json->shape[json->ndim++] = (int64_t)value;
    } while (tb__json_take(scan, ','));
    return tb__json_take(scan, ']') ? TB_OK
                                    : tb__json_refuse(scan, "`,` or `]` is expected in shape");
}

static const char *const known_keys[] = {"size", "dtype", "shape", "pinned_type", "sender_shmem"};
#define KNOWN_KEYS 5
#define NEEDED_KEYS 3

static tb_status take_known(struct tb__json *scan, int key, struct tb__doradma_json *json)
{
    switch (key) {
    case 0:
        return tb__json_integer(scan, "size", &json->size);
    case 1:
        return take_text(scan, "dtype", json->dtype, sizeof json->dtype);
    case 2:
        return take_shape(scan, json);
    case 3:
        return take_text(scan, "pinned_type", json->pinned_type, sizeof json->pinned_type);
    default:
        return take_text(scan, "sender_shmem", json->sender_shmem, sizeof json->sender_shmem);
    }
}

/* One member of the object. `seen` collects a bit per known key. */
static tb_status take_member(struct tb__json *scan, struct tb__doradma_json *json, unsigned *seen)
{
    char key[16] = "";
    size_t length;
    TB__TRY(tb__json_string(scan, key, sizeof key, &length));
    if (!tb__json_take(scan, ':')) {
        return tb__json_refuse(scan, "`:` is expected");
    }
    for (int i = 0; i < KNOWN_KEYS; i++) {
        if (length != strlen(known_keys[i]) || memcmp(key, known_keys[i], length) != 0) {
            continue;
        }
        if ((*seen & 1u << i) != 0) {
            return tb__json_refuse(scan, "a key stands there twice");
        }
        *seen |= 1u << i;
        return take_known(scan, i, json);
    }
    return tb__json_skip_value(scan);
}

tb_status tb__doradma_json_parse(const char *text, size_t bytes, struct tb__doradma_json *out)
{
    struct tb__json scan = {.text = (const unsigned char *)text, .bytes = bytes};
    struct tb__doradma_json json = {.size = 0};
    unsigned seen = 0;
    if (bytes > TB__JSON_BYTES_MAX) {
        return TB__FAIL(TB_E_CORRUPT, "pool metadata of %zu bytes, at most %d are possible", bytes,
                        TB__JSON_BYTES_MAX);
    }
    if (!tb__json_take(&scan, '{')) {
        return tb__json_refuse(&scan, "`{` is expected");
    }
    if (!tb__json_take(&scan, '}')) {
        do {
            TB__TRY(take_member(&scan, &json, &seen));
        } while (tb__json_take(&scan, ','));
        if (!tb__json_take(&scan, '}')) {
            return tb__json_refuse(&scan, "`,` or `}` is expected");
        }
    }
    if (scan.at != bytes) {
        return tb__json_refuse(&scan, "text behind the end of the object");
    }
    for (int i = 0; i < NEEDED_KEYS; i++) {
        if ((seen & 1u << i) == 0) {
            return TB__FAIL(TB_E_CORRUPT, "pool metadata: the key `%s` is missing", known_keys[i]);
        }
    }
    *out = json;
    return TB_OK;
}

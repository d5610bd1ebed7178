/* Scanner of JSON. Goes through the text once, byte by byte; nesting in values that are skipped is
 * kept in one bit per level. */
#include "segment/json_scan.h"

#include <stdio.h>
#include <string.h>

tb_status tb__json_refuse(const struct tb__json *json, const char *what)
{
    return TB__FAIL(TB_E_CORRUPT, "pool metadata, byte %zu of %zu: %s", json->at, json->bytes,
                    what);
}

/* The byte at the cursor; 0, which no JSON text holds, at the end. */
static unsigned char peek(const struct tb__json *json)
{
    return json->at < json->bytes ? json->text[json->at] : 0;
}

static void skip_space(struct tb__json *json)
{
    unsigned char c = peek(json);
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        json->at++;
        c = peek(json);
    }
}

int tb__json_take(struct tb__json *json, unsigned char expected)
{
    skip_space(json);
    if (peek(json) != expected) {
        return 0;
    }
    json->at++;
    skip_space(json);
    return 1;
}

/* Bytes of the UTF-8 sequence at the cursor, 0 when it is malformed, overlong or a surrogate. */
static size_t utf8_length(const struct tb__json *json)
{
    const unsigned char *s = json->text + json->at;
    size_t left = json->bytes - json->at;
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (length == 0 || s[0] > 0xf4 || length > left) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) {
        return 0;
    }
    return length;
}

/* Four hexadecimal digits. */
static int take_hex4(struct tb__json *json, uint32_t *out)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char c = peek(json);
        uint32_t digit;
        if (c >= '0' && c <= '9') {
            digit = c - '0';
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            digit = (uint32_t)(c | 0x20) - 'a' + 10;
        } else {
            return 0;
        }
        value = value << 4 | digit;
        json->at++;
    }
    *out = value;
    return 1;
}

/* What stands behind \u, a pair of surrogates included, as UTF-8. Returns its length or 0. */
static size_t take_unicode(struct tb__json *json, unsigned char out[4])
{
    uint32_t code;
    if (!take_hex4(json, &code) || (code >= 0xdc00 && code < 0xe000)) {
        return 0;
    }
    if (code >= 0xd800 && code < 0xdc00) {
        uint32_t low;
        if (peek(json) != '\\') {
            return 0;
        }
        json->at++;
        if (peek(json) != 'u') {
            return 0;
        }
        json->at++;
        if (!take_hex4(json, &low) || low < 0xdc00 || low > 0xdfff) {
            return 0;
        }
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code < 0x80) {
        out[0] = (unsigned char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = length - 1; i > 0; i--) {
        out[i] = (unsigned char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (unsigned char)(lead[length] | code);
    return length;
}

static size_t take_escape(struct tb__json *json, unsigned char out[4])
{
    static const char letters[] = "\"\\/bfnrt";
    static const char meanings[] = "\"\\/\b\f\n\r\t";
    unsigned char c = peek(json);
    if (c == 0) {
        return 0;
    }
    const char *found = strchr(letters, c);
    json->at++;
    if (found != NULL) {
        out[0] = (unsigned char)meanings[found - letters];
        return 1;
    }
    return c == 'u' ? take_unicode(json, out) : 0;
}

tb_status tb__json_string(struct tb__json *json, char *buffer, size_t size, size_t *length)
{
    if (peek(json) != '"') {
        return tb__json_refuse(json, "a string is expected");
    }
    json->at++;
    size_t used = 0;
    while (peek(json) != '"') {
        unsigned char piece[4];
        size_t bytes;
        if (json->at >= json->bytes) {
            return tb__json_refuse(json, "a string has no end");
        }
        if (peek(json) < 0x20) {
            return tb__json_refuse(json, "a control character in a string");
        }
        if (peek(json) == '\\') {
            json->at++;
            bytes = take_escape(json, piece);
        } else {
            bytes = utf8_length(json);
            memcpy(piece, json->text + json->at, bytes);
            json->at += bytes;
        }
        if (bytes == 0) {
            return tb__json_refuse(json, "a bad escape or bad UTF-8 in a string");
        }
        if (used + bytes < size) {
            memcpy(buffer + used, piece, bytes);
            buffer[used + bytes] = '\0';
        }
        used += bytes;
    }
    json->at++;
    if (used == 0 && size > 0) {
        buffer[0] = '\0';
    }
    *length = used;
    return TB_OK;
}

static int is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static size_t skip_digits(struct tb__json *json)
{
    size_t start = json->at;
    while (is_digit(peek(json))) {
        json->at++;
    }
    return json->at - start;
}

/* Any number of JSON's grammar, value ignored. */
static tb_status skip_number(struct tb__json *json)
{
    json->at += peek(json) == '-';
    int zero = peek(json) == '0';
    size_t digits = skip_digits(json);
    if (digits == 0 || (zero && digits > 1)) {
        return tb__json_refuse(json, "a value is expected");
    }
    if (peek(json) == '.') {
        json->at++;
        if (skip_digits(json) == 0) {
            return tb__json_refuse(json, "a digit is expected behind the point");
        }
    }
    if ((peek(json) | 0x20) == 'e') {
        json->at++;
        json->at += peek(json) == '+' || peek(json) == '-';
        if (skip_digits(json) == 0) {
            return tb__json_refuse(json, "a digit is expected in the exponent");
        }
    }
    return TB_OK;
}

tb_status tb__json_integer(struct tb__json *json, const char *what, uint64_t *out)
{
    char message[96];
    size_t start = json->at;
    TB__TRY(skip_number(json));
    const unsigned char *text = json->text + start;
    uint64_t value = 0;
    for (size_t i = 0; i < json->at - start; i++) {
        if (!is_digit(text[i]) || __builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value) || value > INT64_MAX) {
            snprintf(message, sizeof message, "%s is %.*s, no integer from 0 to 2^63 - 1", what,
                     (int)(json->at - start > 24 ? 24 : json->at - start), (const char *)text);
            json->at = start;
            return tb__json_refuse(json, message);
        }
    }
    *out = value;
    return TB_OK;
}

static tb_status skip_word(struct tb__json *json, const char *word)
{
    size_t length = strlen(word);
    if (json->bytes - json->at < length || memcmp(json->text + json->at, word, length) != 0) {
        return tb__json_refuse(json, "a value is expected");
    }
    json->at += length;
    return TB_OK;
}

static tb_status skip_scalar(struct tb__json *json)
{
    size_t length;
    switch (peek(json)) {
    case '"':
        return tb__json_string(json, NULL, 0, &length);
    case 't':
        return skip_word(json, "true");
    case 'f':
        return skip_word(json, "false");
    case 'n':
        return skip_word(json, "null");
    default:
        return skip_number(json);
    }
}

static tb_status skip_key(struct tb__json *json)
{
    size_t length;
    TB__TRY(tb__json_string(json, NULL, 0, &length));
    return tb__json_take(json, ':') ? TB_OK : tb__json_refuse(json, "`:` is expected");
}

/* Bit d of `objects` tells whether level d is an object. */
tb_status tb__json_skip_value(struct tb__json *json)
{
    uint32_t objects = 0;
    unsigned depth = 0;
    for (;;) {
        unsigned char c = peek(json);
        int opened = c == '{' || c == '[';
        if (opened) {
            /* The object around this value is a level too. */
            if (depth == TB__JSON_DEPTH_MAX - 1) {
                return tb__json_refuse(json, "nested deeper than 32 levels");
            }
            uint32_t bit = UINT32_C(1) << depth++;
            objects = c == '{' ? objects | bit : objects & ~bit;
            json->at++;
            skip_space(json);
        } else {
            TB__TRY(skip_scalar(json));
        }
        /* Close what ends here, up to the next value. */
        for (;; opened = 0) {
            if (depth == 0) {
                return TB_OK;
            }
            int object = (objects >> (depth - 1) & 1) != 0;
            if (tb__json_take(json, object ? '}' : ']')) {
                depth--;
                continue;
            }
            if (!opened && !tb__json_take(json, ',')) {
                return tb__json_refuse(json, "`,` or the end of a list or object is expected");
            }
            if (object) {
                TB__TRY(skip_key(json));
            }
            break;
        }
    }
}

/* Metadata of a pool: written as json.dumps would, parsed strictly, hostile text refused. Texts lie
 * in heap blocks of exactly their size, so that a sanitizer sees a read past the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "segment/doradma_json.h"
#include "segment/json_scan.h"

#define OK(call) assert_int_equal((call), TB_OK)

static tb_status parse_bytes(const char *text, size_t bytes, struct tb__doradma_json *out)
{
    char *exact = calloc(1, bytes > 0 ? bytes : 1);
    memcpy(exact, text, bytes);
    tb_status status = tb__doradma_json_parse(exact, bytes, out);
    free(exact);
    return status;
}

static tb_status parse(const char *text, struct tb__doradma_json *out)
{
    return parse_bytes(text, strlen(text), out);
}

/* A complete object with one more member or, with `dtype`, another dtype string. */
static tb_status parse_with(const char *member, struct tb__doradma_json *out)
{
    char text[2048];
    snprintf(text, sizeof text, "{\"size\": 1, \"dtype\": \"uint8\", \"shape\": [1], %s}", member);
    return parse(text, out);
}

static tb_status parse_dtype(const char *inside, struct tb__doradma_json *out)
{
    char text[2048];
    snprintf(text, sizeof text, "{\"size\": 1, \"dtype\": \"%s\", \"shape\": [1]}", inside);
    return parse(text, out);
}

static void check_refused(tb_status status, const char *text)
{
    assert_int_equal(status, TB_E_CORRUPT);
    if (strstr(tb_last_error_text(), text) == NULL) {
        fail_msg("`%s` is not in `%s`", text, tb_last_error_text());
    }
}

/* ------------------------------------------------------------------ writing */

static void writes_what_json_dumps_writes(void **state)
{
    (void)state;
    static const struct {
        struct tb__doradma_json json;
        const char *text;
    } rows[] = {
        {{.size = 61440000,
          .dtype = "torch.int64",
          .ndim = 1,
          .shape = {7680000},
          .pinned_type = "cpu"},
         "{\"size\": 61440000, \"dtype\": \"torch.int64\", \"shape\": [7680000], "
         "\"pinned_type\": \"cpu\"}"},
        {{.size = 8, .dtype = "torch.float64", .pinned_type = "cpu"},
         "{\"size\": 8, \"dtype\": \"torch.float64\", \"shape\": [], \"pinned_type\": \"cpu\"}"},
        {{.size = 0,
          .dtype = "a \"b\\c\n\r\t\b\f\x01\x1f\x7f/",
          .ndim = 3,
          .shape = {0, 2, INT64_MAX},
          .pinned_type = "cuda",
          .sender_shmem = "dora_pool_x"},
         "{\"size\": 0, \"dtype\": \"a \\\"b\\\\c\\n\\r\\t\\b\\f\\u0001\\u001f\x7f/\", "
         "\"shape\": [0, 2, 9223372036854775807], \"pinned_type\": \"cuda\", "
         "\"sender_shmem\": \"dora_pool_x\"}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t length = strlen(rows[i].text);
        char *buffer = malloc(length);
        size_t bytes;
        struct tb__doradma_json back;
        OK(tb__doradma_json_write(&rows[i].json, buffer, length, &bytes));
        assert_int_equal(bytes, length);
        assert_memory_equal(buffer, rows[i].text, length);
        OK(parse_bytes(buffer, bytes, &back));
        assert_memory_equal(&back, &rows[i].json, sizeof back);
        free(buffer);
    }
}

static void refuses_to_write_what_does_not_fit(void **state)
{
    (void)state;
    struct tb__doradma_json json = {.dtype = "uint8", .ndim = 1, .shape = {5}};
    char buffer[128];
    size_t full;
    size_t bytes = 77;
    OK(tb__doradma_json_write(&json, buffer, sizeof buffer, &full));
    for (size_t size = 0; size < full; size++) {
        char *exact = malloc(size > 0 ? size : 1);
        assert_int_equal(tb__doradma_json_write(&json, exact, size, &bytes), TB_E_LIMIT);
        assert_int_equal(bytes, 77);
        free(exact);
    }
    json.ndim = 9;
    assert_int_equal(tb__doradma_json_write(&json, buffer, sizeof buffer, &bytes), TB_E_INVALID);
    json.ndim = 8;
    OK(tb__doradma_json_write(&json, buffer, sizeof buffer, &bytes));
    json.shape[7] = -1;
    assert_int_equal(tb__doradma_json_write(&json, buffer, sizeof buffer, &bytes), TB_E_INVALID);
    json.ndim = -1;
    assert_int_equal(tb__doradma_json_write(&json, buffer, sizeof buffer, &bytes), TB_E_INVALID);
    json.ndim = 0;
    strcpy(json.dtype, "u\x80");
    assert_int_equal(tb__doradma_json_write(&json, buffer, sizeof buffer, &bytes), TB_E_INVALID);
}

/* ------------------------------------------------------------------ parsing */

static void order_space_and_unknown_keys_do_not_matter(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"size\":6,\"dtype\":\"u\",\"shape\":[2,3]}",
        " \t\r\n{ \"shape\" : [ 2 , 3 ] , \"dtype\" : \"u\" , \"size\" : 6 } \n",
        "{\"\\u0073ize\": 6, \"dtype\": \"\\u0075\", \"shape\": [2, 3], \"Size\": 9, \"siz\": 1, "
        "\"size_of_a_very_long_key_indeed\": 2, \"\": null}",
        "{\"x\": {\"size\": 9, \"a\": [1, {}, [], [[]], {\"b\": {\"c\": [true, false, null]}}]}, "
        "\"size\": 6, \"y\": -1.5e+10, \"dtype\": \"u\", \"z\": \"\\\"}{\", \"shape\": [2, 3], "
        "\"w\": 0, \"v\": -0, \"q\": 0.0E-1}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct tb__doradma_json json;
        OK(parse(texts[i], &json));
        assert_int_equal(json.size, 6);
        assert_string_equal(json.dtype, "u");
        assert_int_equal(json.ndim, 2);
        assert_int_equal(json.shape[0], 2);
        assert_int_equal(json.shape[1], 3);
        assert_int_equal(json.shape[2], 0);
        assert_string_equal(json.pinned_type, "");
        assert_string_equal(json.sender_shmem, "");
    }
}

static void every_needed_key_must_be_there_once(void **state)
{
    (void)state;
    struct tb__doradma_json json;
    check_refused(parse("{}", &json), "`size` is missing");
    check_refused(parse("{\"size\": 1}", &json), "`dtype` is missing");
    check_refused(parse("{\"size\": 1, \"dtype\": \"u\"}", &json), "`shape` is missing");
    check_refused(parse("{\"size\": 1, \"size\": 1}", &json), "twice");
    check_refused(parse_with("\"dtype\": \"int8\"", &json), "twice");
    check_refused(parse_with("\"shape\": [1]", &json), "twice");
    OK(parse_with("\"pinned_type\": \"cpu\", \"sender_shmem\": \"s\"", &json));
    assert_string_equal(json.pinned_type, "cpu");
    assert_string_equal(json.sender_shmem, "s");
}

/* Each beside good ones. */
static const char *const malformed_members[] = {
    "\"a\": 01",
    "\"a\": -",
    "\"a\": +1",
    "\"a\": .5",
    "\"a\": 1.",
    "\"a\": 1e",
    "\"a\": 1e+",
    "\"a\": 0x10",
    "\"a\": NaN",
    "\"a\": Infinity",
    "\"a\": nul",
    "\"a\": nulll",
    "\"a\": True",
    "\"a\": ",
    "\"a\"",
    "a: 1",
    "\"a\" 1",
    "'a': 1",
    "\"a\": [1,]",
    "\"a\": [,1]",
    "\"a\": [1 2]",
    "\"a\": {\"b\" 1}",
    "\"a\": {\"b\": 1,}",
    "\"a\": {1: 2}",
    "\"a\": {\"b\": 1]",
    "\"a\": [1}",
    "\"a\": [",
    "\"a\": {",
    "\"a\": {\"b\"",
    "\"a\": \"",
    "\"a\": \"\\",
    "\"a\": \"\\x\"",
    "\"a\": \"\\u12\"",
    "\"a\": \"\\u12g4\"",
    "\"a\": \"\\ud800\"",
    "\"a\": \"\\ud800\\n\"",
    "\"a\": \"\\ud800\\ud800\"",
    "\"a\": \"\\udc00\"",
    "\"a\": \"\\udfff\"",
    "\"a\": \"\\ud800xudc00\"",
    "\"a\": \"\\udbff\\ndc00\"",
    "\"a\": \"\\ud800\\ue000\"",
    "\"a\": \"\\ud800\\udbff\"",
    "\"a\": nulx",
    "\"a\": trux",
    "\"a\": fals3",
    "\"a\": \"\x01\"",
    "\"a\": \"\n\"",
    "\"a\": \"\x80\"",
    "\"a\": \"\xc0\xaf\"",
    "\"a\": \"\xc3\"",
    "\"a\": \"\xc3(\"",
    "\"a\": \"\xe0\x80\x80\"",
    "\"a\": \"\xed\xa0\x80\"",
    "\"a\": \"\xf0\x80\x80\x80\"",
    "\"a\": \"\xf4\x90\x80\x80\"",
    "\"a\": \"\xf5\x80\x80\x80\"",
    "\"a\": \"\xff\"",
    "\"a\": 1,",
    ",\"a\": 1",
    "\"a\": 1}",
    "\"a\": 1} {",
    "\"a\": //\n1",
};

static void malformed_members_are_refused(void **state)
{
    (void)state;
    struct tb__doradma_json json;
    struct tb__doradma_json before;
    memset(&json, 0x5a, sizeof json);
    memcpy(&before, &json, sizeof json);
    for (size_t i = 0; i < sizeof malformed_members / sizeof malformed_members[0]; i++) {
        if (parse_with(malformed_members[i], &json) != TB_E_CORRUPT) {
            fail_msg("accepted: %s", malformed_members[i]);
        }
        assert_memory_equal(&json, &before, sizeof json);
    }
}

static void malformed_text_is_refused(void **state)
{
    (void)state;
    struct tb__doradma_json json;
    check_refused(parse("", &json), "`{` is expected");
    check_refused(parse("null", &json), "`{` is expected");
    check_refused(parse("{,}", &json), "a string is expected");
    check_refused(parse("{\"size\": 1, \"dtype\": \"torch", &json), "a string has no end");
    check_refused(parse("{\"size\": 1, \"dtype\": \"tor\nch", &json), "a control character");
    const char escaped_nul[] = "{\"a\": \"\\\0\"}";
    check_refused(parse_bytes(escaped_nul, sizeof escaped_nul - 1, &json),
                  "byte 8 of 11: a bad escape");
    const char nul[] = "{\"a\": \0 1}";
    check_refused(parse_bytes(nul, sizeof nul - 1, &json), "a value is expected");
}

/* Each beginning of a good text is refused: nothing is read past the end. */
static void every_truncation_is_refused(void **state)
{
    (void)state;
    const char text[] = "{\"size\": 12, \"x\": [{\"k\": \"\\ud83d\\ude00\xe2\x82\xac\"}, -1.5e3, "
                        "true], \"dtype\": \"torch.uint8\", \"shape\": [3, 4], "
                        "\"pinned_type\": \"cpu\", \"sender_shmem\": \"s\"}";
    struct tb__doradma_json json;
    for (size_t bytes = 0; bytes < sizeof text - 1; bytes++) {
        assert_int_equal(parse_bytes(text, bytes, &json), TB_E_CORRUPT);
    }
    OK(parse(text, &json));
}

static void strings_are_decoded_and_bounded(void **state)
{
    (void)state;
    struct tb__doradma_json json;
    char text[512];
    OK(parse_dtype("torch.\\\"uint8\\\\", &json));
    assert_string_equal(json.dtype, "torch.\"uint8\\");
    OK(parse_dtype("\\/\\b\\f\\n\\r\\t\\u00e9\\u20AC\\uD83D\\ude00", &json));
    assert_string_equal(json.dtype, "/\b\f\n\r\t\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    OK(parse_dtype("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\x9f\xbf\xf4\x8f\xbf\xbf", &json));
    assert_string_equal(json.dtype,
                        "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\x9f\xbf\xf4\x8f\xbf\xbf");
    OK(parse_dtype("", &json));
    assert_string_equal(json.dtype, "");
    check_refused(parse_dtype("uint8\\u0000x", &json), "dtype has 7 bytes or a NUL");
    memset(text, 'd', sizeof text);
    text[63] = '\0';
    OK(parse_dtype(text, &json));
    text[63] = 'd';
    text[64] = '\0';
    check_refused(parse_dtype(text, &json), "dtype has 64 bytes or a NUL, 63 bytes are possible");
    check_refused(parse_with("\"pinned_type\": \"0123456789012345678901234567890123\"", &json),
                  "pinned_type has 34 bytes");
    check_refused(parse_with("\"pinned_type\": 1", &json), "a string is expected");
}

static void a_decoded_string_is_always_terminated(void **state)
{
    (void)state;
    static const char text[] = "\"\"\"abc\"";
    struct tb__json scan = {.text = (const unsigned char *)text, .bytes = sizeof text - 1};
    char buffer[4] = "xxx";
    size_t length = 77;
    OK(tb__json_string(&scan, buffer, sizeof buffer, &length));
    assert_string_equal(buffer, "");
    assert_int_equal(length, 0);
    OK(tb__json_string(&scan, buffer, sizeof buffer, &length));
    assert_string_equal(buffer, "abc");
    assert_int_equal(scan.at, scan.bytes);
    scan.at = 2;
    OK(tb__json_string(&scan, buffer, 3, &length));
    assert_string_equal(buffer, "ab");
    assert_int_equal(length, 3);
}

/* What RFC 3629 says, written the long way. */
static size_t encode(uint32_t code, char out[5])
{
    size_t length = code <= 0x7f ? 1 : code <= 0x7ff ? 2 : code <= 0xffff ? 3 : 4;
    for (size_t i = 0; i < length; i++) {
        uint32_t bits = code >> (6 * (length - 1 - i));
        out[i] = (char)(i > 0         ? 0x80 + bits % 64
                        : length == 1 ? bits
                                      : (0xf00 >> length) % 256 + bits);
    }
    out[length] = '\0';
    return length;
}

static void code_points_at_every_boundary(void **state)
{
    (void)state;
    static const uint32_t codes[] = {
        0x20,    0x21,    0x7e,    0x7f,    0x80,     0x81,     0x7ff,   0x800,  0x801,
        0xfff,   0x1000,  0xd7fe,  0xd7ff,  0xe000,   0xe001,   0xfffe,  0xffff, 0x10000,
        0x10001, 0x3ffff, 0x40000, 0xfffff, 0x100000, 0x10fffe, 0x10ffff};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        struct tb__doradma_json json;
        char expected[5];
        char escaped[32];
        encode(codes[i], expected);
        if (codes[i] != '\"' && codes[i] != '\\') {
            OK(parse_dtype(expected, &json));
            assert_string_equal(json.dtype, expected);
        }
        if (codes[i] < 0x10000) {
            snprintf(escaped, sizeof escaped, "\\u%04x", codes[i]);
        } else {
            snprintf(escaped, sizeof escaped, "\\u%04X\\u%04x",
                     0xd800 + ((codes[i] - 0x10000) >> 10),
                     0xdc00 + ((codes[i] - 0x10000) & 0x3ff));
        }
        OK(parse_dtype(escaped, &json));
        assert_string_equal(json.dtype, expected);
    }
}

static void integers_are_whole_and_bounded(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "-1",
        "1.0",
        "1e3",
        "9223372036854775808",
        "18446744073709551616",
        "100000000000000000000000000000",
        "\"1\"",
        "true",
        "null",
        "[1]",
        "01",
        "-",
    };
    struct tb__doradma_json json;
    char text[256];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "{\"size\": %s, \"dtype\": \"u\", \"shape\": []}", bad[i]);
        assert_int_equal(parse(text, &json), TB_E_CORRUPT);
        snprintf(text, sizeof text, "{\"size\": 1, \"dtype\": \"u\", \"shape\": [1, %s]}", bad[i]);
        assert_int_equal(parse(text, &json), TB_E_CORRUPT);
    }
    OK(parse("{\"size\": 9223372036854775807, \"dtype\": \"u\", \"shape\": [0]}", &json));
    assert_int_equal(json.size, INT64_MAX);
    check_refused(parse("{\"size\": 1, \"dtype\": \"u\", \"shape\": [4, -3]}", &json),
                  "dimension 1 of shape is -3");
    check_refused(parse("{\"size\": 1, \"dtype\": \"u\", \"shape\": 4}", &json), "not a list");
    check_refused(parse("{\"size\": 1, \"dtype\": \"u\", \"shape\": [4", &json),
                  "expected in shape");
    OK(parse("{\"size\": 1, \"dtype\": \"u\", \"shape\": [1,2,3,4,5,6,7,8]}", &json));
    assert_int_equal(json.ndim, 8);
    check_refused(parse("{\"size\": 1, \"dtype\": \"u\", \"shape\": [1,2,3,4,5,6,7,8,9]}", &json),
                  "more than 8 dimensions");
}

/* `depth` levels of lists or objects in all, the outermost object included. */
static tb_status parse_nested(int depth, const char *open, const char *inner, const char *close)
{
    static const char head[] = "{\"size\": 1, \"dtype\": \"u\", \"shape\": [], \"x\": ";
    size_t size = sizeof head + (size_t)depth * (strlen(open) + strlen(close)) + 8;
    char *text = malloc(size);
    size_t used = (size_t)snprintf(text, size, "%s", head);
    for (int i = 1; i < depth; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s", open);
    }
    used += (size_t)snprintf(text + used, size - used, "%s", inner);
    for (int i = 1; i < depth; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s", close);
    }
    snprintf(text + used, size - used, "}");
    struct tb__doradma_json json;
    tb_status status = parse(text, &json);
    free(text);
    return status;
}

static void p15_deep_nesting_is_refused(void **state)
{
    (void)state;
    static const int depths[] = {33, 34, 64, 65, 10000};
    OK(parse_nested(TB__JSON_DEPTH_MAX, "[", "", "]"));
    OK(parse_nested(TB__JSON_DEPTH_MAX, "{\"a\":", "1", "}"));
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
        check_refused(parse_nested(depths[i], "[", "", "]"), "nested deeper than 32 levels");
        if (depths[i] < 10000) {
            check_refused(parse_nested(depths[i], "{\"a\":", "1", "}"), "nested deeper");
        }
    }
    /* Levels that are closed again count no more, and each closes with its own sign. */
    check_refused(parse_nested(30, "[[], {}, ", "{\"a\": [[]]}", "]"), "nested deeper");
    OK(parse_nested(29, "[[], {}, ", "{\"a\": [[]]}", "]"));
}

static void too_much_text_is_refused(void **state)
{
    (void)state;
    static char text[TB__JSON_BYTES_MAX + 1];
    static const char good[] = "{\"size\": 1, \"dtype\": \"u\", \"shape\": []}";
    struct tb__doradma_json json;
    memset(text, ' ', sizeof text);
    memcpy(text, good, sizeof good - 1);
    OK(parse_bytes(text, TB__JSON_BYTES_MAX, &json));
    check_refused(parse_bytes(text, TB__JSON_BYTES_MAX + 1, &json), "65537 bytes, at most 65536");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_what_json_dumps_writes),
        cmocka_unit_test(refuses_to_write_what_does_not_fit),
        cmocka_unit_test(order_space_and_unknown_keys_do_not_matter),
        cmocka_unit_test(every_needed_key_must_be_there_once),
        cmocka_unit_test(malformed_members_are_refused),
        cmocka_unit_test(malformed_text_is_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(strings_are_decoded_and_bounded),
        cmocka_unit_test(a_decoded_string_is_always_terminated),
        cmocka_unit_test(code_points_at_every_boundary),
        cmocka_unit_test(integers_are_whole_and_bounded),
        cmocka_unit_test(p15_deep_nesting_is_refused),
        cmocka_unit_test(too_much_text_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Metadata: every type round-trips with its extremes, limits name key and number, decoding refuses
 * everything that an encoder would not write. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "wire/metadata_wire.h"

#define OK(call) assert_int_equal((call), TB_OK)

static tb_metadata *round_trip(const tb_metadata *metadata)
{
    size_t size = tb__metadata_encoded_bytes(metadata);
    /* Exactly as large as needed, so that a sanitizer sees any byte beyond. */
    uint8_t *bytes = malloc(size + (size == 0));
    tb__metadata_encode(metadata, bytes);
    tb_metadata *decoded;
    OK(tb__metadata_decode(bytes, size, &decoded));
    free(bytes);
    return decoded;
}

static void each_type_arrives_equal(void **state)
{
    (void)state;
    static const int64_t integers[] = {INT64_MIN, -1, 0, INT64_MAX};
    static const double reals[] = {-0.0, 1e308, 4.9e-324};
    static const char *const strings[] = {"", "a", "gr\xc3\xbc\xc3\x9f"};
    tb_metadata *sent;
    OK(tb_metadata_create(&sent));
    OK(tb_metadata_set_bool(sent, "yes", 7));
    OK(tb_metadata_set_bool(sent, "no", 0));
    OK(tb_metadata_set_int64(sent, "min", INT64_MIN));
    OK(tb_metadata_set_int64(sent, "max", INT64_MAX));
    OK(tb_metadata_set_double(sent, "nan", NAN));
    OK(tb_metadata_set_double(sent, "inf", -INFINITY));
    OK(tb_metadata_set_string(sent, "empty", ""));
    OK(tb_metadata_set_string(sent, "text", "\xe6\x97\xa5\xe6\x9c\xac"));
    OK(tb_metadata_set_int64s(sent, "integers", integers, 4));
    OK(tb_metadata_set_doubles(sent, "reals", reals, 3));
    OK(tb_metadata_set_strings(sent, "strings", strings, 3));
    OK(tb_metadata_set_int64s(sent, "none", NULL, 0));
    OK(tb_metadata_set_strings(sent, "no strings", NULL, 0));
    tb_metadata *got = round_trip(sent);
    tb_metadata_destroy(sent);
    assert_int_equal(tb_metadata_count(got), 13);
    tb_metadata_value value;
    OK(tb_metadata_get(got, "yes", &value));
    assert_int_equal(value.type, TB_META_BOOL);
    assert_int_equal(value.boolean, 1);
    OK(tb_metadata_get(got, "no", &value));
    assert_int_equal(value.boolean, 0);
    OK(tb_metadata_get(got, "min", &value));
    assert_true(value.integer == INT64_MIN);
    OK(tb_metadata_get(got, "max", &value));
    assert_true(value.integer == INT64_MAX);
    OK(tb_metadata_get(got, "nan", &value));
    assert_true(isnan(value.real));
    OK(tb_metadata_get(got, "inf", &value));
    assert_true(isinf(value.real) && value.real < 0);
    OK(tb_metadata_get(got, "empty", &value));
    assert_int_equal(value.string_bytes, 0);
    assert_string_equal(value.string, "");
    OK(tb_metadata_get(got, "text", &value));
    assert_string_equal(value.string, "\xe6\x97\xa5\xe6\x9c\xac");
    OK(tb_metadata_get(got, "integers", &value));
    assert_int_equal(value.count, 4);
    assert_memory_equal(value.integers, integers, sizeof integers);
    assert_int_equal((uintptr_t)value.integers % 8, 0);
    OK(tb_metadata_get(got, "reals", &value));
    assert_int_equal(value.count, 3);
    assert_memory_equal(value.reals, reals, sizeof reals);
    OK(tb_metadata_get(got, "strings", &value));
    assert_int_equal(value.count, 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(value.strings[i], strings[i]);
    }
    OK(tb_metadata_get(got, "none", &value));
    assert_int_equal(value.count, 0);
    OK(tb_metadata_get(got, "no strings", &value));
    assert_int_equal(value.type, TB_META_STRING_LIST);
    assert_int_equal(value.count, 0);
    tb_metadata_destroy(got);
}

static void order_and_replacing(void **state)
{
    (void)state;
    tb_metadata *metadata;
    OK(tb_metadata_create(&metadata));
    OK(tb_metadata_set_int64(metadata, "a", 1));
    OK(tb_metadata_set_int64(metadata, "b", 2));
    OK(tb_metadata_set_string(metadata, "a", "now a string"));
    assert_int_equal(tb_metadata_count(metadata), 2);
    const char *key;
    tb_metadata_value value;
    OK(tb_metadata_at(metadata, 0, &key, &value));
    assert_string_equal(key, "a");
    assert_string_equal(value.string, "now a string");
    OK(tb_metadata_at(metadata, 1, &key, &value));
    assert_string_equal(key, "b");
    assert_int_equal(tb_metadata_at(metadata, 2, &key, &value), TB_E_NOT_FOUND);
    assert_int_equal(tb_metadata_get(metadata, "c", &value), TB_E_NOT_FOUND);
    /* 4 + 2 × (8 + 1) + 12 + 8 */
    assert_int_equal(tb__metadata_encoded_bytes(metadata), 42);
    tb_metadata_destroy(round_trip(metadata));
    tb_metadata_destroy(metadata);
}

static void keys_are_checked(void **state)
{
    (void)state;
    char longest[257];
    memset(longest, 'k', sizeof longest);
    longest[256] = '\0';
    const char *const bad[] = {"",
                               longest,
                               "\x80",
                               "\xc0\x80",
                               "\xed\xa0\x80",
                               "\xe2\x82",
                               "\xf5\x80\x80\x80",
                               "\xf0\x80\x80\x80",
                               NULL};
    tb_metadata *metadata;
    OK(tb_metadata_create(&metadata));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(tb_metadata_set_int64(metadata, bad[i], 1), TB_E_INVALID);
    }
    longest[255] = '\0';
    OK(tb_metadata_set_int64(metadata, longest, 1));
    OK(tb_metadata_set_int64(metadata, "\xf0\x9f\xa4\x96", 1));
    tb_metadata_destroy(round_trip(metadata));
    tb_metadata_destroy(metadata);
}

static void limits_name_key_and_number(void **state)
{
    (void)state;
    tb_metadata *metadata;
    OK(tb_metadata_create(&metadata));
    double *reals = calloc(10000, sizeof *reals);
    assert_int_equal(tb_metadata_set_doubles(metadata, "many", reals, 10000), TB_E_LIMIT);
    assert_non_null(strstr(tb_last_error_text(), "`many`"));
    assert_non_null(strstr(tb_last_error_text(), "65536"));
    /* 4 + 8 + 4 + 8 × 8190 = 65536 exactly; one more element is too many. */
    OK(tb_metadata_set_doubles(metadata, "full", reals, 8190));
    assert_int_equal(tb__metadata_encoded_bytes(metadata), TB_METADATA_MAX);
    assert_int_equal(tb_metadata_set_doubles(metadata, "full", reals, 8191), TB_E_LIMIT);
    assert_int_equal(tb_metadata_set_bool(metadata, "x", 1), TB_E_LIMIT);
    assert_int_equal(tb_metadata_count(metadata), 1);
    tb_metadata_destroy(round_trip(metadata));
    OK(tb_metadata_set_doubles(metadata, "full", reals, 1));
    free(reals);
    char *text = malloc((1 << 20) + 1);
    memset(text, 'x', 1 << 20);
    text[1 << 20] = '\0';
    assert_int_equal(tb_metadata_set_string(metadata, "long", text), TB_E_LIMIT);
    assert_non_null(strstr(tb_last_error_text(), "`long`"));
    free(text);
    assert_int_equal(tb_metadata_set_int64s(metadata, "l", NULL, SIZE_MAX / 8 + 2), TB_E_LIMIT);
    assert_int_equal(tb_metadata_set_strings(metadata, "l", NULL, SIZE_MAX / 2), TB_E_LIMIT);
    assert_int_equal(tb_metadata_count(metadata), 1);
    tb_metadata_destroy(metadata);
}

static void no_keys_are_no_bytes(void **state)
{
    (void)state;
    assert_int_equal(tb__metadata_encoded_bytes(NULL), 0);
    assert_int_equal(tb__metadata_encoded_bytes(tb__metadata_empty()), 0);
    assert_int_equal(tb_metadata_count(tb__metadata_empty()), 0);
    tb_metadata *metadata = round_trip(tb__metadata_empty());
    assert_int_equal(tb_metadata_count(metadata), 0);
    tb_metadata_destroy(metadata);
}

static void strings_may_hold_nul(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {1,   0,   0, 0,  TB_META_STRING, 1, 0, 0, 3, 0, 0, 0,
                                    'k', 'a', 0, 'b'};
    tb_metadata *metadata;
    OK(tb__metadata_decode(bytes, sizeof bytes, &metadata));
    tb_metadata_value value;
    OK(tb_metadata_get(metadata, "k", &value));
    assert_int_equal(value.string_bytes, 3);
    assert_memory_equal(value.string, "a\0b", 4);
    tb_metadata_destroy(metadata);
}

static void decoding_refuses(void **state)
{
    (void)state;
    static const struct {
        size_t size;
        uint8_t bytes[48];
    } cases[] = {
        {1, {0}},
        {4, {0, 0, 0, 0}},
        {4, {1, 0, 0, 0}},
        {14, {255, 255, 255, 255, 1, 1, 0, 0, 1, 0, 0, 0, 'k', 1}}, /* too few entries */
        {14, {1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 'k', 2}},         /* bool of 2 */
        {14, {1, 0, 0, 0, 8, 1, 0, 0, 1, 0, 0, 0, 'k', 1}},         /* type */
        {14, {1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 'k', 1}},         /* type */
        {14, {1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 'k', 1}},         /* flags */
        {14, {1, 0, 0, 0, 2, 1, 0, 0, 1, 0, 0, 0, 'k', 1}},         /* int64 of 1 byte */
        {14, {1, 0, 0, 0, 5, 1, 0, 0, 1, 0, 0, 0, 'k', 1}},         /* list of 1 byte */
        {14, {1, 0, 0, 0, 1, 1, 0, 0, 255, 255, 255, 255, 'k', 1}}, /* length */
        {14, {1, 0, 0, 0, 1, 255, 0, 0, 1, 0, 0, 0, 'k', 1}},       /* key length */
        {13, {1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1}},              /* no key */
        {14, {1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1}},           /* NUL in key */
        {15, {1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 'k', 1, 0}},      /* bytes behind */
        {24,
         {2, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 'k', 1, 1, 1, 0, 0, 1, 0, 0, 0, 'k', 1}}, /* twice */
        {15, {1, 0, 0, 0, 7, 1, 0, 0, 2, 0, 0, 0, 'k', 0, 0}}, /* list without count */
        {17, {1, 0, 0, 0, 7, 1, 0, 0, 4, 0, 0, 0, 'k', 255, 255, 255, 255}},
        {22, {1, 0, 0, 0, 7, 1, 0, 0, 9, 0, 0, 0, 'k', 1, 0, 0, 0, 1, 0, 0, 0, 0}}, /* NUL inside */
        {22, {1, 0, 0, 0, 7, 1, 0, 0, 9, 0, 0, 0, 'k', 1, 0, 0, 0, 0, 0, 0, 0, 'x'}}, /* behind */
        {22, {1, 0, 0, 0, 7, 1, 0, 0, 9, 0, 0, 0, 'k', 1, 0, 0, 0, 255, 255, 255, 255, 'x'}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t *exact = malloc(cases[i].size);
        memcpy(exact, cases[i].bytes, cases[i].size);
        tb_metadata *metadata = NULL;
        if (tb__metadata_decode(exact, cases[i].size, &metadata) != TB_E_PROTOCOL) {
            fail_msg("case %zu was accepted", i);
        }
        assert_null(metadata);
        free(exact);
    }
    uint8_t *large = calloc(1, TB_METADATA_MAX + 1);
    tb_metadata *metadata;
    assert_int_equal(tb__metadata_decode(large, TB_METADATA_MAX + 1, &metadata), TB_E_PROTOCOL);
    free(large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_type_arrives_equal), cmocka_unit_test(order_and_replacing),
        cmocka_unit_test(keys_are_checked),        cmocka_unit_test(limits_name_key_and_number),
        cmocka_unit_test(no_keys_are_no_bytes),    cmocka_unit_test(strings_may_hold_nul),
        cmocka_unit_test(decoding_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tensor arithmetic: every dtype of DLPack 1.1, names both ways, sizes, packing, descriptions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tensorbus/tensor.h>

#define OK(call) assert_int_equal((call), TB_OK)

/* Bytes of one lane of `bits`; 0: not possible. Written out, not computed as the source does. */
static size_t lane_bytes(uint32_t code, uint32_t bits)
{
    switch (code) {
    case TB_CODE_INT:
    case TB_CODE_UINT:
        return bits == 8 ? 1 : bits == 16 ? 2 : bits == 32 ? 4 : bits == 64 ? 8 : 0;
    case TB_CODE_FLOAT:
        return bits == 16 ? 2 : bits == 32 ? 4 : bits == 64 ? 8 : bits == 128 ? 16 : 0;
    case TB_CODE_COMPLEX:
        return bits == 32 ? 4 : bits == 64 ? 8 : bits == 128 ? 16 : 0;
    case TB_CODE_BFLOAT:
        return bits == 16 ? 2 : 0;
    case TB_CODE_BOOL:
        return bits == 8 ? 1 : 0;
    default:
        return code >= TB_CODE_FLOAT8_E3M4 && code <= TB_CODE_FLOAT8_E8M0FNU && bits == 8 ? 1 : 0;
    }
}

static void every_code_and_width(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 256; code++) {
        for (uint32_t bits = 0; bits < 256; bits++) {
            tb_dtype one = TB_DTYPE(code, bits, 1);
            int small_float = (code == TB_CODE_FLOAT6_E2M3FN && bits == 6) ||
                              (code == TB_CODE_FLOAT6_E3M2FN && bits == 6) ||
                              (code == TB_CODE_FLOAT4_E2M1FN && bits == 4);
            size_t bytes = lane_bytes(code, bits);
            assert_int_equal(tb_dtype_bytes(one), bytes);
            assert_int_equal(tb_dtype_bytes(TB_DTYPE(code, bits, 0)), 0);
            assert_int_equal(tb_dtype_bytes(TB_DTYPE(code, bits, 3)), 3 * bytes);
            assert_int_equal(tb_dtype_bytes(TB_DTYPE(code, bits, 65535)), 65535 * bytes);
            assert_int_equal(tb_dtype_bytes(TB_DTYPE(code, bits, 8)),
                             small_float ? bits : 8 * bytes);
        }
    }
}

static void names_are_parsed_back(void **state)
{
    (void)state;
    static const uint32_t lanes[] = {1, 2, 4, 8, 255, 65535};
    int count = 0;
    for (uint32_t code = 0; code < 20; code++) {
        for (uint32_t bits = 1; bits <= 128; bits++) {
            for (size_t i = 0; i < sizeof lanes / sizeof lanes[0]; i++) {
                tb_dtype dtype = TB_DTYPE(code, bits, lanes[i]);
                tb_dtype back = 0;
                char name[32];
                char torch[64];
                memset(name, 'x', sizeof name);
                assert_ptr_equal(tb_dtype_name(dtype, name), name);
                assert_non_null(memchr(name, '\0', sizeof name));
                if (lane_bytes(code, bits) == 0 && bits > 7) {
                    char raw[32];
                    snprintf(raw, sizeof raw, "dtype(%u,%u,%u)", code, bits, lanes[i]);
                    assert_string_equal(name, raw);
                }
                if (tb_dtype_bytes(dtype) == 0) {
                    assert_int_equal(tb_dtype_parse(name, &back), TB_E_INVALID);
                    continue;
                }
                OK(tb_dtype_parse(name, &back));
                assert_int_equal(back, dtype);
                snprintf(torch, sizeof torch, "torch.%s", name);
                OK(tb_dtype_parse(torch, &back));
                assert_int_equal(back, dtype);
                count += lanes[i] == 1;
            }
        }
    }
    assert_int_equal(count, 4 + 4 + 4 + 3 + 1 + 1 + 8);
}

static void other_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        tb_dtype dtype;
    } rows[] = {
        {"uint8", TB_U8},
        {"bool", TB_BOOL},
        {"bfloat16", TB_BF16},
        {"complex64", TB_C64},
        {"|u1", TB_U8},
        {"<i8", TB_I64},
        {"<f2", TB_F16},
        {"=f4", TB_F32},
        {"<f8", TB_F64},
        {"|b1", TB_BOOL},
        {"<c8", TB_C64},
        {"<c16", TB_C128},
        {"torch.int64", TB_I64},
        {"torch.bool", TB_BOOL},
        {"float8_e4m3", TB_DTYPE(TB_CODE_FLOAT8_E4M3, 8, 1)},
        {"float8_e4m3fnuz", TB_DTYPE(TB_CODE_FLOAT8_E4M3FNUZ, 8, 1)},
        {"float4_e2m1fnx2", TB_DTYPE(TB_CODE_FLOAT4_E2M1FN, 4, 2)},
    };
    tb_dtype dtype;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        OK(tb_dtype_parse(rows[i].name, &dtype));
        assert_int_equal(dtype, rows[i].dtype);
    }
}

static void bad_names(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "torch.",
        "int",
        "int8 ",
        " int8",
        "int 8",
        "int+8",
        "int-8",
        "int08x",
        "int7",
        "int128",
        "uint8x",
        "uint8x0",
        "uint8x-1",
        "uint8x 2",
        "uint8x65536",
        "uint8x4294967297",
        "uint8x2x2",
        "bool8",
        "bfloat",
        "bfloat32",
        "float",
        "float8",
        "Float32",
        "float32\"",
        "complex16",
        "float4_e2m1fn",
        "float6_e3m2fnx2",
        "float8_e9m9",
        ">i8",
        "<i",
        "<i3",
        "<i 8",
        "<i+8",
        "<i16",
        "<b2",
        "<f16x",
        "<",
        "|",
        "i8",
        "<x8",
        "<i18446744073709551624",
        "<i8x2",
        "torch.torch.int8",
        "torch.<i8 ",
        "dtype(3,64,1)",
    };
    tb_dtype dtype = 77;
    assert_int_equal(tb_dtype_parse(NULL, &dtype), TB_E_INVALID);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (tb_dtype_parse(bad[i], &dtype) != TB_E_INVALID) {
            fail_msg("accepted: `%s`", bad[i]);
        }
    }
    assert_int_equal(dtype, 77);
}

static void p17_sizes(void **state)
{
    (void)state;
    static const struct {
        tb_status status;
        int32_t ndim;
        int64_t shape[8];
        size_t bytes;
    } rows[] = {
        {TB_OK, 0, {0}, 4},
        {TB_OK, 1, {0}, 0},
        {TB_OK, 3, {3, 0, 5}, 0},
        {TB_OK, 3, {1080, 1920, 3}, 24883200},
        {TB_OK, 8, {1, 2, 3, 4, 5, 6, 7, 8}, 161280},
        {TB_OK, 1, {INT64_MAX / 4}, INT64_MAX / 4 * 4},
        {TB_E_LIMIT, 1, {INT64_MAX / 4 + 1}, 0},
        {TB_E_LIMIT, 2, {INT64_C(1) << 31, INT64_C(1) << 31}, 0},
        {TB_E_LIMIT, 2, {INT64_MAX, INT64_MAX}, 0},
        {TB_E_INVALID, 1, {-1}, 0},
        {TB_E_INVALID, 2, {0, -1}, 0},
        {TB_E_INVALID, 1, {INT64_MIN}, 0},
        {TB_E_INVALID, 9, {1}, 0},
        {TB_E_INVALID, -1, {1}, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tb_tensor tensor = {.dtype = TB_F32, .ndim = rows[i].ndim};
        size_t bytes = 77;
        memcpy(tensor.shape, rows[i].shape, sizeof tensor.shape);
        assert_int_equal(tb_tensor_bytes(&tensor, &bytes), rows[i].status);
        assert_int_equal(bytes, rows[i].status == TB_OK ? rows[i].bytes : 77);
    }
    tb_tensor opaque = {.dtype = TB_DTYPE(TB_CODE_OPAQUE, 64, 1)};
    size_t bytes;
    assert_int_equal(tb_tensor_bytes(&opaque, &bytes), TB_E_INVALID);
}

static void packing(void **state)
{
    (void)state;
    static const struct {
        int packed;
        int32_t ndim;
        int64_t shape[8];
        int64_t strides[8];
    } rows[] = {
        {1, 0, {0}, {0}},
        {1, 1, {5}, {1}},
        {0, 1, {5}, {2}},
        {0, 1, {5}, {-1}},
        {0, 1, {5}, {0}},
        {1, 1, {1}, {99}},
        {1, 1, {0}, {99}},
        {1, 3, {2, 3, 4}, {12, 4, 1}},
        {0, 3, {2, 3, 4}, {12, 4, 2}},
        {0, 3, {2, 3, 4}, {13, 4, 1}},
        {0, 3, {2, 3, 4}, {1, 2, 6}},
        {1, 3, {2, 1, 4}, {4, 0, 1}},
        {1, 3, {0, 3, 4}, {7, 7, 7}},
        {1, 3, {2, 3, 0}, {7, 7, 7}},
        {0, 2, {INT64_MAX, INT64_MAX}, {INT64_MAX, 1}},
        {0, 9, {1}, {1}},
        {0, -1, {1}, {1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tb_tensor tensor = {.dtype = TB_U8, .ndim = rows[i].ndim, .strides = rows[i].strides};
        memcpy(tensor.shape, rows[i].shape, sizeof tensor.shape);
        if (tb_tensor_is_packed(&tensor) != rows[i].packed) {
            fail_msg("row %zu", i);
        }
        tensor.strides = NULL;
        assert_int_equal(tb_tensor_is_packed(&tensor), 1);
    }
}

static void descriptions(void **state)
{
    (void)state;
    tb_tensor tensor = {.dtype = TB_U8, .ndim = 3, .shape = {1080, 1920, 3}};
    static const char full[] = "uint8[1080, 1920, 3]";
    char text[512];
    assert_ptr_equal(tb_tensor_describe(&tensor, text, sizeof text), text);
    assert_string_equal(text, full);
    for (size_t size = 1; size <= sizeof full; size++) {
        char *exact = malloc(size);
        tb_tensor_describe(&tensor, exact, size);
        assert_int_equal(strlen(exact), size - 1);
        assert_memory_equal(exact, full, size - 1);
        free(exact);
    }
    tensor.ndim = 0;
    assert_string_equal(tb_tensor_describe(&tensor, text, sizeof text), "uint8[]");
    tensor.ndim = 100; /* as a peer might send it */
    assert_string_equal(tb_tensor_describe(&tensor, text, sizeof text),
                        "uint8[1080, 1920, 3, 0, 0, 0, 0, 0]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_and_width),
        cmocka_unit_test(names_are_parsed_back),
        cmocka_unit_test(other_names),
        cmocka_unit_test(bad_names),
        cmocka_unit_test(p17_sizes),
        cmocka_unit_test(packing),
        cmocka_unit_test(descriptions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tensor arithmetic: element sizes, names, packed sizes. Pure functions. */
#include <tensorbus/tensor.h>

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

static const struct {
    uint8_t code;
    uint8_t bits; /* 0: any of 8, 16, 32, 64, 128 */
    const char *name;
} dtype_table[] = {
    {TB_CODE_INT, 0, "int"},
    {TB_CODE_UINT, 0, "uint"},
    {TB_CODE_FLOAT, 0, "float"},
    {TB_CODE_BFLOAT, 16, "bfloat16"},
    {TB_CODE_COMPLEX, 0, "complex"},
    {TB_CODE_BOOL, 8, "bool"},
    {TB_CODE_FLOAT8_E3M4, 8, "float8_e3m4"},
    {TB_CODE_FLOAT8_E4M3, 8, "float8_e4m3"},
    {TB_CODE_FLOAT8_E4M3B11FNUZ, 8, "float8_e4m3b11fnuz"},
    {TB_CODE_FLOAT8_E4M3FN, 8, "float8_e4m3fn"},
    {TB_CODE_FLOAT8_E4M3FNUZ, 8, "float8_e4m3fnuz"},
    {TB_CODE_FLOAT8_E5M2, 8, "float8_e5m2"},
    {TB_CODE_FLOAT8_E5M2FNUZ, 8, "float8_e5m2fnuz"},
    {TB_CODE_FLOAT8_E8M0FNU, 8, "float8_e8m0fnu"},
    {TB_CODE_FLOAT6_E2M3FN, 6, "float6_e2m3fn"},
    {TB_CODE_FLOAT6_E3M2FN, 6, "float6_e3m2fn"},
    {TB_CODE_FLOAT4_E2M1FN, 4, "float4_e2m1fn"},
};
#define DTYPE_COUNT (sizeof dtype_table / sizeof dtype_table[0])

static int sized_code_allows(uint32_t code, uint32_t bits)
{
    switch (code) {
    case TB_CODE_INT:
    case TB_CODE_UINT:
        return bits == 8 || bits == 16 || bits == 32 || bits == 64;
    case TB_CODE_FLOAT:
        return bits == 16 || bits == 32 || bits == 64 || bits == 128;
    case TB_CODE_COMPLEX:
        return bits == 32 || bits == 64 || bits == 128;
    default:
        return 0;
    }
}

static int table_index(uint32_t code, uint32_t bits)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        if (dtype_table[i].code == code &&
            (dtype_table[i].bits == 0 ? sized_code_allows(code, bits)
                                      : dtype_table[i].bits == bits)) {
            return (int)i;
        }
    }
    return -1;
}

size_t tb_dtype_bytes(tb_dtype dtype)
{
    uint32_t code = dtype & 0xff;
    uint32_t bits = dtype >> 8 & 0xff;
    uint32_t lanes = dtype >> 16;
    if (lanes == 0 || table_index(code, bits) < 0 || bits * lanes % 8 != 0) {
        return 0;
    }
    return bits * lanes / 8;
}

const char *tb_dtype_name(tb_dtype dtype, char buffer[32])
{
    uint32_t code = dtype & 0xff;
    uint32_t bits = dtype >> 8 & 0xff;
    uint32_t lanes = dtype >> 16;
    int index = table_index(code, bits);
    if (index < 0) {
        snprintf(buffer, 32, "dtype(%u,%u,%u)", code, bits, lanes);
        return buffer;
    }
    int used = dtype_table[index].bits == 0
                   ? snprintf(buffer, 32, "%s%u", dtype_table[index].name, bits)
                   : snprintf(buffer, 32, "%s", dtype_table[index].name);
    if (lanes != 1) {
        snprintf(buffer + used, 32 - (size_t)used, "x%u", lanes);
    }
    return buffer;
}

/* Decimal digits alone, at most `max`: strtoul would take spaces and signs too. 0 when there are
 * none or too many; *end is where they end. */
static unsigned parse_decimal(const char *text, unsigned max, const char **end)
{
    unsigned value = 0;
    for (; *text >= '0' && *text <= '9'; text++) {
        value = value * 10 + (unsigned)(*text - '0');
        if (value > max) {
            value = max + 1;
        }
    }
    *end = text;
    return value <= max ? value : 0;
}

/* NumPy's type string: [<|=]kind bytes. */
static int parse_numpy(const char *name, tb_dtype *out)
{
    static const char kinds[] = "iufcb";
    static const uint8_t codes[] = {TB_CODE_INT, TB_CODE_UINT, TB_CODE_FLOAT, TB_CODE_COMPLEX,
                                    TB_CODE_BOOL};
    if (name[0] != '<' && name[0] != '|' && name[0] != '=') {
        return 0;
    }
    const char *kind = name[1] != '\0' ? strchr(kinds, name[1]) : NULL;
    const char *end = NULL;
    unsigned bytes = kind != NULL ? parse_decimal(name + 2, 16, &end) : 0;
    if (bytes == 0 || *end != '\0') {
        return 0;
    }
    tb_dtype dtype = TB_DTYPE(codes[kind - kinds], bytes * 8, 1);
    if (tb_dtype_bytes(dtype) == 0) {
        return 0;
    }
    *out = dtype;
    return 1;
}

/* A table name, its bits where they vary, and "xN" lanes. */
static int parse_own(const char *name, tb_dtype *out)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        size_t length = strlen(dtype_table[i].name);
        if (strncmp(name, dtype_table[i].name, length) != 0) {
            continue;
        }
        const char *end = name + length;
        unsigned bits = dtype_table[i].bits;
        if (bits == 0) {
            bits = parse_decimal(end, 128, &end);
        }
        unsigned lanes = 1;
        if (*end == 'x') {
            lanes = parse_decimal(end + 1, 65535, &end);
        }
        if (*end != '\0' || bits == 0 || lanes == 0) {
            continue;
        }
        tb_dtype dtype = TB_DTYPE(dtype_table[i].code, bits, lanes);
        if (tb_dtype_bytes(dtype) != 0) {
            *out = dtype;
            return 1;
        }
    }
    return 0;
}

tb_status tb_dtype_parse(const char *name, tb_dtype *out)
{
    if (name == NULL) {
        return TB__FAIL(TB_E_INVALID, "dtype name is NULL");
    }
    const char *own = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    if (parse_numpy(name, out) || parse_own(own, out)) {
        return TB_OK;
    }
    return TB__FAIL(TB_E_INVALID, "unknown dtype `%.60s`: names are like uint8, float32, bfloat16",
                    name);
}

tb_status tb_tensor_bytes(const tb_tensor *tensor, size_t *out)
{
    if (tensor == NULL) {
        return TB__FAIL(TB_E_INVALID, "tensor is NULL");
    }
    size_t element = tb_dtype_bytes(tensor->dtype);
    char name[32];
    if (tensor->dtype == 0) {
        return TB__FAIL(TB_E_INVALID, "dtype is 0: set it, such as TB_F32");
    }
    if (element == 0) {
        return TB__FAIL(TB_E_INVALID, "dtype %s has no whole bytes or cannot be shared",
                        tb_dtype_name(tensor->dtype, name));
    }
    if (tensor->ndim < 0 || tensor->ndim > TB_MAX_NDIM) {
        return TB__FAIL(TB_E_INVALID, "%d dimensions: 0 to %d are possible", tensor->ndim,
                        TB_MAX_NDIM);
    }
    uint64_t bytes = element;
    int empty = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] < 0) {
            return TB__FAIL(TB_E_INVALID, "dimension %d is negative: %lld", i,
                            (long long)tensor->shape[i]);
        }
        if (tensor->shape[i] == 0) {
            empty = 1;
        } else if (!tb__mul(bytes, (uint64_t)tensor->shape[i], &bytes) || bytes > INT64_MAX) {
            return TB__FAIL(TB_E_LIMIT, "the shape's size overflows at dimension %d (%lld)", i,
                            (long long)tensor->shape[i]);
        }
    }
    *out = empty ? 0 : (size_t)bytes;
    return TB_OK;
}

int tb_tensor_is_packed(const tb_tensor *tensor)
{
    if (tensor->strides == NULL) {
        return 1;
    }
    if (tensor->ndim < 0 || tensor->ndim > TB_MAX_NDIM) {
        return 0;
    }
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] == 0) {
            return 1;
        }
    }
    int64_t expected = 1;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != expected) {
            return 0;
        }
        if (__builtin_mul_overflow(expected, tensor->shape[i], &expected)) {
            return 0;
        }
    }
    return 1;
}

const char *tb_tensor_describe(const tb_tensor *tensor, char *buffer, size_t size)
{
    char name[32];
    size_t used = (size_t)snprintf(buffer, size, "%s[", tb_dtype_name(tensor->dtype, name));
    for (int32_t i = 0; i < tensor->ndim && i < TB_MAX_NDIM && used < size; i++) {
        used += (size_t)snprintf(buffer + used, size - used, "%s%lld", i > 0 ? ", " : "",
                                 (long long)tensor->shape[i]);
    }
    if (used < size) {
        snprintf(buffer + used, size - used, "]");
    }
    return buffer;
}

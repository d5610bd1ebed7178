/* Arrow's format strings; see arrow_type.h. */
#include "arrow_type.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct primitive {
    const char *format;
    tb_dtype dtype;
    int width;
    int is_index;
};

/* Types of one fixed-width buffer whose format says no more. */
static const struct primitive primitives[] = {
    {"c", TB_I8, 1, 1},    {"C", TB_U8, 1, 1},    {"s", TB_I16, 2, 1},   {"S", TB_U16, 2, 1},
    {"i", TB_I32, 4, 1},   {"I", TB_U32, 4, 1},   {"l", TB_I64, 8, 1},   {"L", TB_U64, 8, 1},
    {"e", TB_F16, 2, 0},   {"f", TB_F32, 4, 0},   {"g", TB_F64, 8, 0},   {"tdD", TB_I32, 4, 0},
    {"tdm", TB_I64, 8, 0}, {"tts", TB_I32, 4, 0}, {"ttm", TB_I32, 4, 0}, {"ttu", TB_I64, 8, 0},
    {"ttn", TB_I64, 8, 0}, {"tDs", TB_I64, 8, 0}, {"tDm", TB_I64, 8, 0}, {"tDu", TB_I64, 8, 0},
    {"tDn", TB_I64, 8, 0}, {"tiM", TB_I32, 4, 0}, {"tiD", 0, 8, 0},      {"tin", 0, 16, 0},
};

struct variable {
    const char *format;
    enum py_arrow_layout layout;
    int width;
};

/* Types that need more than one fixed-width buffer and say no more. */
static const struct variable variables[] = {
    {"n", PY_ARROW_NULL, 0},        {"b", PY_ARROW_BITS, 0},    {"u", PY_ARROW_BINARY, 4},
    {"z", PY_ARROW_BINARY, 4},      {"U", PY_ARROW_BINARY, 8},  {"Z", PY_ARROW_BINARY, 8},
    {"vu", PY_ARROW_VIEWS, 16},     {"vz", PY_ARROW_VIEWS, 16}, {"+l", PY_ARROW_LIST, 4},
    {"+m", PY_ARROW_LIST, 4},       {"+L", PY_ARROW_LIST, 8},   {"+vl", PY_ARROW_LIST_VIEW, 4},
    {"+vL", PY_ARROW_LIST_VIEW, 8}, {"+s", PY_ARROW_STRUCT, 0}, {"+r", PY_ARROW_RUNS, 0},
};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static int starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* A decimal number from `low` to `high`; *end is what follows. 0 when there is none. */
static int number(const char *text, int64_t low, int64_t high, int64_t *out, const char **end)
{
    char *rest;
    if ((text[0] < '0' || text[0] > '9') && text[0] != '-') {
        return 0;
    }
    errno = 0;
    long long value = strtoll(text, &rest, 10);
    if (errno != 0 || rest == text || value < low || value > high) {
        return 0;
    }
    *out = value;
    *end = rest;
    return 1;
}

/* d:precision,scale[,bits] */
static int parse_decimal(const char *text, struct py_arrow_type *out)
{
    int64_t precision;
    int64_t scale;
    int64_t bits = 128;
    const char *rest;
    if (!number(text, 1, 76, &precision, &rest) || *rest++ != ',' ||
        !number(rest, -1000, 1000, &scale, &rest)) {
        return 0;
    }
    if (*rest == ',' && (!number(rest + 1, 32, 256, &bits, &rest) || (bits & (bits - 1)) != 0)) {
        return 0;
    }
    out->layout = PY_ARROW_FIXED;
    out->width = bits / 8;
    return *rest == '\0';
}

/* +ud:1,2,5 */
static int parse_union(const char *text, struct py_arrow_type *out)
{
    memset(out->union_child, -1, sizeof out->union_child);
    while (*text != '\0') {
        int64_t id;
        if (!number(text, 0, PY_ARROW_MAX_UNION - 1, &id, &text) || out->union_child[id] >= 0 ||
            (*text != ',' && *text != '\0')) {
            return 0;
        }
        out->union_child[id] = (int8_t)out->union_children++;
        text += *text == ',';
    }
    return 1;
}

static int parse_with_argument(const char *format, struct py_arrow_type *out)
{
    const char *rest;
    if (starts_with(format, "ts") && format[2] != '\0' && strchr("smun", format[2]) != NULL &&
        format[3] == ':') {
        *out = (struct py_arrow_type){.layout = PY_ARROW_FIXED, .width = 8, .dtype = TB_I64};
        return 1;
    }
    if (starts_with(format, "w:")) {
        out->layout = PY_ARROW_FIXED;
        return number(format + 2, 0, INT32_MAX, &out->width, &rest) && *rest == '\0';
    }
    if (starts_with(format, "+w:")) {
        out->layout = PY_ARROW_FIXED_LIST;
        return number(format + 3, 0, INT32_MAX, &out->width, &rest) && *rest == '\0';
    }
    if (starts_with(format, "d:")) {
        return parse_decimal(format + 2, out);
    }
    if (starts_with(format, "+us:") || starts_with(format, "+ud:")) {
        out->layout = format[2] == 's' ? PY_ARROW_SPARSE_UNION : PY_ARROW_DENSE_UNION;
        return parse_union(format + 4, out);
    }
    return 0;
}

int py_arrow_type_parse(const char *format, struct py_arrow_type *out)
{
    *out = (struct py_arrow_type){.layout = PY_ARROW_FIXED};
    if (format == NULL) {
        return 0;
    }
    for (size_t i = 0; i < COUNT(primitives); i++) {
        if (strcmp(format, primitives[i].format) == 0) {
            out->width = primitives[i].width;
            out->dtype = primitives[i].dtype;
            out->is_index = primitives[i].is_index;
            return 1;
        }
    }
    for (size_t i = 0; i < COUNT(variables); i++) {
        if (strcmp(format, variables[i].format) == 0) {
            out->layout = variables[i].layout;
            out->width = variables[i].width;
            return 1;
        }
    }
    return parse_with_argument(format, out);
}

int64_t py_arrow_type_buffers(const struct py_arrow_type *type)
{
    switch (type->layout) {
    case PY_ARROW_NULL:
    case PY_ARROW_RUNS:
        return 0;
    case PY_ARROW_FIXED_LIST:
    case PY_ARROW_STRUCT:
    case PY_ARROW_SPARSE_UNION:
        return 1;
    case PY_ARROW_BINARY:
    case PY_ARROW_VIEWS:
    case PY_ARROW_LIST_VIEW:
        return 3;
    default:
        return 2;
    }
}

int64_t py_arrow_type_children(const struct py_arrow_type *type)
{
    switch (type->layout) {
    case PY_ARROW_LIST:
    case PY_ARROW_LIST_VIEW:
    case PY_ARROW_FIXED_LIST:
        return 1;
    case PY_ARROW_RUNS:
        return 2;
    case PY_ARROW_STRUCT:
        return -1;
    case PY_ARROW_SPARSE_UNION:
    case PY_ARROW_DENSE_UNION:
        return type->union_children;
    default:
        return 0;
    }
}

int py_arrow_type_has_validity(const struct py_arrow_type *type)
{
    switch (type->layout) {
    case PY_ARROW_NULL:
    case PY_ARROW_RUNS:
    case PY_ARROW_SPARSE_UNION:
    case PY_ARROW_DENSE_UNION:
        return 0;
    default:
        return 1;
    }
}

const char *py_arrow_format_of(tb_dtype dtype)
{
    /* The first eleven are plain numbers; the others share their dtypes. */
    for (size_t i = 0; i < 11; i++) {
        if (primitives[i].dtype == dtype) {
            return primitives[i].format;
        }
    }
    /* Numbers that Arrow lacks lie there as their bytes, a complex one as its two parts. */
    switch (dtype & 0xff) {
    case TB_CODE_COMPLEX:
        return dtype == TB_C64 ? "f" : dtype == TB_C128 ? "g" : NULL;
    case TB_CODE_INT:
    case TB_CODE_UINT:
    case TB_CODE_FLOAT:
    case TB_CODE_BOOL:
        return NULL;
    default:
        return dtype == TB_BF16 ? "w:2" : dtype == TB_DTYPE(dtype & 0xff, 8, 1) ? "w:1" : NULL;
    }
}

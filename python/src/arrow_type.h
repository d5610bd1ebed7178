/* Arrow's format strings: how the buffers of an array of a type are laid out. Pure functions. */
#ifndef PY_ARROW_TYPE_H
#define PY_ARROW_TYPE_H

#include <stdint.h>

#include <tensorbus/tensor.h>

enum py_arrow_layout {
    PY_ARROW_NULL,         /* no buffers */
    PY_ARROW_FIXED,        /* validity, values */
    PY_ARROW_BITS,         /* validity, one bit for each value */
    PY_ARROW_BINARY,       /* validity, offsets, bytes */
    PY_ARROW_VIEWS,        /* validity, views of 16 bytes, any number of bytes, their sizes */
    PY_ARROW_LIST,         /* validity, offsets; one child */
    PY_ARROW_LIST_VIEW,    /* validity, offsets, sizes; one child */
    PY_ARROW_FIXED_LIST,   /* validity; one child */
    PY_ARROW_STRUCT,       /* validity; children */
    PY_ARROW_SPARSE_UNION, /* type ids; children */
    PY_ARROW_DENSE_UNION,  /* type ids, offsets; children */
    PY_ARROW_RUNS,         /* nothing; run ends and values as children */
};

#define PY_ARROW_MAX_UNION 128

struct py_arrow_type {
    enum py_arrow_layout layout;
    int64_t width;  /* bytes: of a value (FIXED), of an offset; elements of a FIXED_LIST */
    tb_dtype dtype; /* of FIXED values that a tensor can have; else 0 */
    int is_index;   /* integer: may index a dictionary */
    /* Unions: the child of each type id, -1: none. */
    int32_t union_children;
    int8_t union_child[PY_ARROW_MAX_UNION];
};

/* Parse a format. 0 when it is unknown or malformed. */
int py_arrow_type_parse(const char *format, struct py_arrow_type *out);

/* Buffers of an array of this type, for VIEWS at least; and children, -1: any number. */
int64_t py_arrow_type_buffers(const struct py_arrow_type *type);
int64_t py_arrow_type_children(const struct py_arrow_type *type);

/* Whether the first buffer is a validity bitmap. */
int py_arrow_type_has_validity(const struct py_arrow_type *type);

/* Format of a tensor's elements; NULL when Arrow has none. bfloat16 and float8 are binary values of
 * two bytes and one; of a complex number it is the format of its two parts. */
const char *py_arrow_format_of(tb_dtype dtype);

#endif

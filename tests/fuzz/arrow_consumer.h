/* A consumer of the Arrow C data interface that reads every byte that an array shows: what it may
 * touch is what any library may touch. Its work is bounded, whatever the array claims. */
#ifndef TB_TESTS_ARROW_CONSUMER_H
#define TB_TESTS_ARROW_CONSUMER_H

#include <string.h>

#include "../../python/src/arrow_abi.h"
#include "../../python/src/arrow_type.h"

struct consumer {
    int64_t steps; /* left */
    volatile uint64_t sum;
};

static void consume(struct consumer *c, const struct ArrowSchema *schema,
                    const struct ArrowArray *array, int64_t first, int64_t count);

static void consume_bytes(struct consumer *c, const void *data, int64_t bytes)
{
    for (int64_t i = 0; i < bytes && c->steps > 0; i++, c->steps--) {
        c->sum += ((const uint8_t *)data)[i];
    }
    if (bytes > 0) {
        c->sum += ((const uint8_t *)data)[bytes - 1]; /* the end, also when steps are short */
    }
}

static int64_t consume_integer(const void *data, int64_t index, int64_t width, int is_unsigned)
{
    int64_t value = 0;
    memcpy(&value, (const uint8_t *)data + index * width, (size_t)width);
    int shift = (int)(64 - 8 * width);
    return is_unsigned || width == 8 ? value : (int64_t)((uint64_t)value << shift) >> shift;
}

static int consume_valid(const struct ArrowArray *array, int64_t at)
{
    const uint8_t *bits = array->buffers[0];
    return bits == NULL || (bits[at / 8] >> (at % 8) & 1);
}

static void consume_view(struct consumer *c, const struct ArrowArray *array, int64_t at)
{
    int32_t view[4];
    memcpy(view, (const uint8_t *)array->buffers[1] + at * 16, sizeof view);
    if (view[0] > 12) {
        consume_bytes(c, (const uint8_t *)array->buffers[2 + view[2]] + view[3], view[0]);
    }
}

/* One element at `at`, counted from the start of the buffers. */
static void consume_one(struct consumer *c, const struct ArrowSchema *schema,
                        const struct ArrowArray *array, const struct py_arrow_type *type,
                        int64_t at)
{
    const void *data = array->n_buffers > 1 ? array->buffers[1] : NULL;
    int64_t begin;
    int64_t end;
    switch (type->layout) {
    case PY_ARROW_FIXED:
        consume_bytes(c, (const uint8_t *)data + at * type->width, type->width);
        if (array->dictionary != NULL) {
            int is_unsigned = (type->dtype & 0xff) == TB_CODE_UINT;
            consume(c, schema->dictionary, array->dictionary,
                    consume_integer(data, at, type->width, is_unsigned), 1);
        }
        break;
    case PY_ARROW_BITS:
        consume_bytes(c, (const uint8_t *)data + at / 8, 1);
        break;
    case PY_ARROW_BINARY:
    case PY_ARROW_LIST:
        begin = consume_integer(data, at, type->width, 0);
        end = consume_integer(data, at + 1, type->width, 0);
        if (type->layout == PY_ARROW_LIST) {
            consume(c, schema->children[0], array->children[0], begin, end - begin);
        } else {
            consume_bytes(c, (const uint8_t *)array->buffers[2] + begin, end - begin);
        }
        break;
    case PY_ARROW_VIEWS:
        consume_view(c, array, at);
        break;
    case PY_ARROW_LIST_VIEW:
        begin = consume_integer(data, at, type->width, 0);
        end = consume_integer(array->buffers[2], at, type->width, 0);
        consume(c, schema->children[0], array->children[0], begin, end);
        break;
    case PY_ARROW_FIXED_LIST:
        consume(c, schema->children[0], array->children[0], at * type->width, type->width);
        break;
    case PY_ARROW_STRUCT:
        for (int64_t i = 0; i < array->n_children; i++) {
            consume(c, schema->children[i], array->children[i], at, 1);
        }
        break;
    case PY_ARROW_SPARSE_UNION:
    case PY_ARROW_DENSE_UNION:
        begin = type->union_child[((const int8_t *)array->buffers[0])[at]];
        end = type->layout == PY_ARROW_SPARSE_UNION ? at : consume_integer(data, at, 4, 0);
        consume(c, schema->children[begin], array->children[begin], end, 1);
        break;
    default:
        break;
    }
}

/* Which run an element is in, found as consumers do: by looking for the first end beyond it. */
static void consume_run(struct consumer *c, const struct ArrowSchema *schema,
                        const struct ArrowArray *array, int64_t at)
{
    const struct ArrowArray *ends = array->children[0];
    struct py_arrow_type type;
    (void)py_arrow_type_parse(schema->children[0]->format, &type);
    for (int64_t i = 0;; i++, c->steps--) {
        if (consume_integer(ends->buffers[1], ends->offset + i, type.width, 0) > at) {
            consume(c, schema->children[1], array->children[1], i, 1);
            return;
        }
        if (c->steps <= 0) {
            return;
        }
    }
}

static void consume(struct consumer *c, const struct ArrowSchema *schema,
                    const struct ArrowArray *array, int64_t first, int64_t count)
{
    struct py_arrow_type type;
    (void)py_arrow_type_parse(schema->format, &type);
    int nullable = py_arrow_type_has_validity(&type);
    for (int64_t i = first; i < first + count && c->steps > 0; i++, c->steps--) {
        int64_t at = array->offset + i;
        if (type.layout == PY_ARROW_RUNS) {
            consume_run(c, schema, array, at);
        } else if (!nullable || consume_valid(array, at)) {
            consume_one(c, schema, array, &type, at);
        }
    }
}

#endif

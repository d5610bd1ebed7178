/* What of an Arrow array travels; see arrow_pick.h. Here, too, is the short cut for arrays that are
 * tensors. */
#include "arrow_pick.h"

#include "arrow_pack.h"
#include "arrow_wire.h"

static int is_null_free(const struct ArrowArray *array, int64_t first, int64_t count)
{
    const uint8_t *bits = array->buffers[0];
    if (bits == NULL || array->null_count == 0) {
        return 1;
    }
    for (int64_t i = first; i < first + count;) {
        if (i % 8 == 0 && first + count - i >= 8) {
            if (bits[i / 8] != 0xff) {
                return 0;
            }
            i += 8;
            continue;
        }
        if (!(bits[i / 8] >> (i % 8) & 1)) {
            return 0;
        }
        i++;
    }
    return 1;
}

/* Whether schema and array fit each other, as far as their counts tell. */
static int check_counts(const struct ArrowSchema *schema, const struct ArrowArray *array,
                        const struct py_arrow_type *type, struct py_arrow_error *error)
{
    int64_t buffers = py_arrow_type_buffers(type);
    int64_t children = py_arrow_type_children(type);
    int buffers_fit = type->layout == PY_ARROW_VIEWS
                          ? array->n_buffers >= buffers && array->n_buffers <= PY_ARROW_MAX_BUFFERS
                          : array->n_buffers == buffers;
    if (!buffers_fit || array->n_children != schema->n_children || schema->n_children < 0 ||
        schema->n_children > PY_ARROW_MAX_NODES ||
        (children >= 0 && schema->n_children != children)) {
        return py_arrow_fail(error, PY_ARROW_INVALID,
                             "an Arrow array of type `%.60s` with %lld buffers and %lld children",
                             schema->format, (long long)array->n_buffers,
                             (long long)array->n_children);
    }
    if ((schema->dictionary != NULL) != (array->dictionary != NULL) ||
        (schema->dictionary != NULL && !type->is_index)) {
        return py_arrow_fail(error, PY_ARROW_INVALID,
                             "an Arrow array of type `%.60s` with half a dictionary",
                             schema->format);
    }
    return 1;
}

static int check_range(const struct py_arrow_picked *picked, struct py_arrow_range range,
                       struct py_arrow_error *error)
{
    const struct ArrowArray *array = picked->array;
    int64_t end;
    if (array->length < 0 || array->offset < 0 || range.first < 0 || range.count < 0 ||
        __builtin_add_overflow(range.first, range.count, &end) || end > array->length ||
        __builtin_add_overflow(array->offset, array->length, &end) || end > INT64_MAX / 32) {
        return py_arrow_fail(error, PY_ARROW_INVALID,
                             "elements %lld to %lld of an Arrow array of type `%.60s` that has "
                             "%lld from offset %lld",
                             (long long)range.first, (long long)range.first + range.count,
                             picked->schema->format, (long long)array->length,
                             (long long)array->offset);
    }
    return 1;
}

/* Choose what of an array travels. */
int py_arrow_pick(const struct ArrowSchema *schema, const struct ArrowArray *array,
                  struct py_arrow_range range, struct py_arrow_picked *out,
                  struct py_arrow_error *error)
{
    *out = (struct py_arrow_picked){.schema = schema, .array = array};
    if (schema == NULL || array == NULL || schema->release == NULL || array->release == NULL) {
        return py_arrow_fail(error, PY_ARROW_INVALID, "an Arrow array that was released");
    }
    if (!py_arrow_type_parse(schema->format, &out->type)) {
        return py_arrow_fail(error, PY_ARROW_UNSUPPORTED,
                             "Arrow arrays of type `%.60s` cannot be sent",
                             schema->format != NULL ? schema->format : "(NULL)");
    }
    if (range.count < 0) {
        range.count = array->length;
    }
    if (!check_counts(schema, array, &out->type, error) || !check_range(out, range, error)) {
        return 0;
    }
    int64_t start = array->offset + range.first;
    out->with_validity =
        py_arrow_type_has_validity(&out->type) && !is_null_free(array, start, range.count);
    if (out->type.layout == PY_ARROW_RUNS) {
        out->offset = start; /* counted in what the runs stand for */
    } else if (out->with_validity || out->type.layout == PY_ARROW_BITS) {
        out->offset = start % 8;
    }
    out->base = out->type.layout == PY_ARROW_RUNS ? 0 : start - out->offset;
    out->length = range.count;
    out->span = out->offset + range.count;
    out->buffers = (uint32_t)array->n_buffers;
    out->child = (struct py_arrow_range){out->base, out->span};
    return 1;
}

int py_arrow_as_tensor(const struct ArrowSchema *schema, const struct ArrowArray *array,
                       tb_tensor *out)
{
    struct py_arrow_picked picked;
    struct py_arrow_error ignored;
    if (!py_arrow_pick(schema, array, (struct py_arrow_range){0, -1}, &picked, &ignored) ||
        picked.type.dtype == 0 || picked.with_validity || schema->dictionary != NULL ||
        schema->metadata != NULL || (schema->name != NULL && schema->name[0] != '\0') ||
        schema->flags != PY_ARROW_FLAG_NULLABLE ||
        (array->buffers[1] == NULL && array->length != 0)) {
        return 0;
    }
    *out = (tb_tensor){.device = TB_CPU, .dtype = picked.type.dtype, .ndim = 1};
    out->shape[0] = array->length;
    if (array->length != 0) {
        out->data = (uint8_t *)(uintptr_t)array->buffers[1] + picked.base * picked.type.width;
    }
    return 1;
}

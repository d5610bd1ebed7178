/* Sending an Arrow array; see arrow_pack.h, and arrow_pick.h for what of it is sent. */
#include "arrow_pack.h"

#include <stdlib.h>
#include <string.h>

#include "arrow_pick.h"
#include "arrow_wire.h"

static int fail_memory(struct py_arrow_error *error)
{
    return py_arrow_fail(error, PY_ARROW_NO_MEMORY, "no memory for the header of an Arrow array");
}

/* ------------------------------------------------------------------ the header and the parts */

/* Room for `bytes` more bytes of the header, zeroed; NULL without memory. */
static void *header_add(struct py_arrow_plan *plan, size_t bytes)
{
    if (plan->header_room - plan->header_bytes < bytes) {
        size_t room = 2 * plan->header_room + bytes + 512;
        unsigned char *grown = realloc(plan->header, room);
        if (grown == NULL) {
            return NULL;
        }
        plan->header = grown;
        plan->header_room = room;
    }
    void *at = memset(plan->header + plan->header_bytes, 0, bytes);
    plan->header_bytes += bytes;
    return at;
}

static int part_add(struct py_arrow_plan *plan, const void *data, size_t bytes)
{
    if (plan->part_count == plan->part_room) {
        size_t room = 2 * plan->part_room + 8;
        tb_part *grown = realloc(plan->parts, room * sizeof *grown);
        if (grown == NULL) {
            return 0;
        }
        plan->parts = grown;
        plan->part_room = room;
    }
    plan->parts[plan->part_count++] = (tb_part){data, bytes};
    plan->bytes += bytes;
    return 1;
}

static int pad_add(struct py_arrow_plan *plan)
{
    static const unsigned char zeros[PY_ARROW_ALIGN];
    size_t over = (size_t)(plan->bytes % PY_ARROW_ALIGN);
    return over == 0 || part_add(plan, zeros, PY_ARROW_ALIGN - over);
}

/* A buffer: its extent is written when the header's size is known; until then offset is its index
 * among the parts plus 1. */
static int buffer_add(struct py_arrow_plan *plan, const void *data, size_t bytes,
                      struct py_arrow_error *error)
{
    struct py_arrow_extent extent = {plan->part_count + 1, bytes};
    void *at = header_add(plan, sizeof extent);
    if (at == NULL || !part_add(plan, data, bytes) || !pad_add(plan)) {
        return fail_memory(error);
    }
    memcpy(at, &extent, sizeof extent);
    return 1;
}

/* Heap memory that lives as long as the plan. */
static void *block_add(struct py_arrow_plan *plan, size_t bytes)
{
    void **grown = realloc(plan->blocks, (plan->block_count + 1) * sizeof *grown);
    if (grown == NULL) {
        return NULL;
    }
    plan->blocks = grown;
    void *block = malloc(bytes + 1);
    if (block != NULL) {
        plan->blocks[plan->block_count++] = block;
    }
    return block;
}

/* ------------------------------------------------------------------ the buffers */

/* Elements base to base + span of buffer `index`, `width` bytes each. */
static int fixed_add(struct py_arrow_plan *plan, const struct py_arrow_picked *picked,
                     int64_t index, int64_t width, struct py_arrow_error *error)
{
    const uint8_t *data = picked->array->buffers[index];
    int64_t skip;
    int64_t bytes;
    if (__builtin_mul_overflow(picked->base, width, &skip) ||
        __builtin_mul_overflow(picked->span, width, &bytes) || (data == NULL && bytes != 0)) {
        return py_arrow_fail(error, PY_ARROW_INVALID,
                             "an Arrow array of type `%.60s` without buffer %lld",
                             picked->schema->format, (long long)index);
    }
    return buffer_add(plan, data != NULL ? data + skip : NULL, (size_t)bytes, error);
}

static int bits_add(struct py_arrow_plan *plan, const struct py_arrow_picked *picked, int64_t index,
                    struct py_arrow_error *error)
{
    const uint8_t *data = picked->array->buffers[index];
    if (data == NULL && picked->span != 0) {
        return py_arrow_fail(error, PY_ARROW_INVALID,
                             "an Arrow array of type `%.60s` without buffer %lld",
                             picked->schema->format, (long long)index);
    }
    return buffer_add(plan, data != NULL ? data + picked->base / 8 : NULL,
                      (size_t)(picked->span / 8 + (picked->span % 8 != 0)), error);
}

static int validity_add(struct py_arrow_plan *plan, const struct py_arrow_picked *picked,
                        struct py_arrow_error *error)
{
    if (picked->with_validity) {
        return bits_add(plan, picked, 0, error);
    }
    return header_add(plan, sizeof(struct py_arrow_extent)) != NULL || fail_memory(error);
}

static int64_t load_offset(const void *offsets, int64_t index, int64_t width)
{
    return width == 4 ? ((const int32_t *)offsets)[index] : ((const int64_t *)offsets)[index];
}

/* The offsets, counted anew so that the first is 0; *content is what they point to. */
static int offsets_add(struct py_arrow_plan *plan, const struct py_arrow_picked *picked,
                       struct py_arrow_range *content, struct py_arrow_error *error)
{
    static const int64_t zero;
    int64_t width = picked->type.width;
    const uint8_t *offsets = picked->array->buffers[1];
    *content = (struct py_arrow_range){0, 0};
    if (picked->span == 0) {
        return buffer_add(plan, &zero, (size_t)width, error); /* may be missing in an empty array */
    }
    if (offsets == NULL) {
        return py_arrow_fail(error, PY_ARROW_INVALID,
                             "an Arrow array of type `%.60s` without "
                             "offsets",
                             picked->schema->format);
    }
    offsets += picked->base * width;
    content->first = load_offset(offsets, 0, width);
    content->count = load_offset(offsets, picked->span, width) - content->first;
    if (content->first < 0 || content->count < 0) {
        return py_arrow_fail(error, PY_ARROW_INVALID,
                             "an Arrow array of type `%.60s` with offsets "
                             "that fall",
                             picked->schema->format);
    }
    size_t bytes = (size_t)((picked->span + 1) * width);
    if (content->first == 0) {
        return buffer_add(plan, offsets, bytes, error);
    }
    void *counted = block_add(plan, bytes);
    if (counted == NULL) {
        return fail_memory(error);
    }
    for (int64_t i = 0; i <= picked->span; i++) {
        int64_t value = load_offset(offsets, i, width) - content->first;
        if (width == 4) {
            ((int32_t *)counted)[i] = (int32_t)value;
        } else {
            ((int64_t *)counted)[i] = value;
        }
    }
    return buffer_add(plan, counted, bytes, error);
}

static int binary_add(struct py_arrow_plan *plan, const struct py_arrow_picked *picked,
                      struct py_arrow_error *error)
{
    struct py_arrow_range content;
    if (!offsets_add(plan, picked, &content, error)) {
        return 0;
    }
    const uint8_t *data = picked->array->buffers[2];
    if (data == NULL && content.count != 0) {
        return py_arrow_fail(error, PY_ARROW_INVALID,
                             "an Arrow array of type `%.60s` without its "
                             "bytes",
                             picked->schema->format);
    }
    return buffer_add(plan, data != NULL ? data + content.first : NULL, (size_t)content.count,
                      error);
}

/* Views point into whole buffers, whose sizes are the last buffer. */
static int views_add(struct py_arrow_plan *plan, const struct py_arrow_picked *picked,
                     struct py_arrow_error *error)
{
    int64_t last = picked->array->n_buffers - 1;
    const int64_t *sizes = picked->array->buffers[last];
    if (!fixed_add(plan, picked, 1, 16, error)) {
        return 0;
    }
    for (int64_t i = 2; i < last; i++) {
        if (sizes == NULL || sizes[i - 2] < 0) {
            return py_arrow_fail(error, PY_ARROW_INVALID,
                                 "an Arrow array of type `%.60s` without "
                                 "the sizes of its buffers",
                                 picked->schema->format);
        }
        if (!buffer_add(plan, picked->array->buffers[i], (size_t)sizes[i - 2], error)) {
            return 0;
        }
    }
    return buffer_add(plan, sizes, (size_t)(last - 2) * sizeof *sizes, error);
}

static int buffers_add(struct py_arrow_plan *plan, struct py_arrow_picked *picked,
                       struct py_arrow_error *error)
{
    int64_t width = picked->type.width;
    if (py_arrow_type_has_validity(&picked->type) && !validity_add(plan, picked, error)) {
        return 0;
    }
    switch (picked->type.layout) {
    case PY_ARROW_FIXED:
        return fixed_add(plan, picked, 1, width, error);
    case PY_ARROW_BITS:
        return bits_add(plan, picked, 1, error);
    case PY_ARROW_BINARY:
        return binary_add(plan, picked, error);
    case PY_ARROW_VIEWS:
        return views_add(plan, picked, error);
    case PY_ARROW_LIST:
        return offsets_add(plan, picked, &picked->child, error);
    case PY_ARROW_LIST_VIEW:
        picked->child = (struct py_arrow_range){0, -1};
        return fixed_add(plan, picked, 1, width, error) && fixed_add(plan, picked, 2, width, error);
    case PY_ARROW_FIXED_LIST:
        if (__builtin_mul_overflow(picked->base, width, &picked->child.first) ||
            __builtin_mul_overflow(picked->span, width, &picked->child.count)) {
            return py_arrow_fail(error, PY_ARROW_INVALID,
                                 "an Arrow array of type `%.60s` with too "
                                 "many elements",
                                 picked->schema->format);
        }
        return 1;
    case PY_ARROW_SPARSE_UNION:
        return fixed_add(plan, picked, 0, 1, error);
    case PY_ARROW_DENSE_UNION:
        picked->child = (struct py_arrow_range){0, -1};
        return fixed_add(plan, picked, 0, 1, error) && fixed_add(plan, picked, 1, 4, error);
    case PY_ARROW_RUNS:
        picked->child = (struct py_arrow_range){0, -1};
        return 1;
    default:
        return 1;
    }
}

/* ------------------------------------------------------------------ the records */

/* Bytes of a schema's metadata; 0 with *bytes when they cannot be. */
static int metadata_bytes(const char *metadata, uint32_t *bytes)
{
    int32_t count;
    size_t at = sizeof count;
    *bytes = PY_ARROW_ABSENT;
    if (metadata == NULL) {
        return 1;
    }
    memcpy(&count, metadata, sizeof count);
    for (int64_t i = 0; i < 2 * (int64_t)count; i++) {
        int32_t text;
        memcpy(&text, metadata + at, sizeof text);
        if (text < 0) {
            return 0;
        }
        at += sizeof text + (size_t)text;
        if (at >= PY_ARROW_ABSENT) {
            return 0;
        }
    }
    *bytes = (uint32_t)at;
    return count >= 0;
}

static int text_add(struct py_arrow_plan *plan, const char *text, uint32_t bytes)
{
    if (bytes == PY_ARROW_ABSENT || bytes == 0) {
        return 1;
    }
    void *at = header_add(plan, bytes);
    if (at != NULL) {
        memcpy(at, text, bytes);
    }
    return at != NULL;
}

static int texts_add(struct py_arrow_plan *plan, const struct ArrowSchema *schema,
                     const struct py_arrow_record *record)
{
    return text_add(plan, schema->format, record->format_bytes) &&
           text_add(plan, schema->name, record->name_bytes) &&
           text_add(plan, schema->metadata, record->metadata_bytes) &&
           header_add(plan, (8 - plan->header_bytes % 8) % 8) != NULL;
}

static int record_add(struct py_arrow_plan *plan, const struct py_arrow_picked *picked,
                      struct py_arrow_record *out, struct py_arrow_error *error)
{
    const struct ArrowSchema *schema = picked->schema;
    size_t name = schema->name != NULL ? strlen(schema->name) : PY_ARROW_ABSENT;
    size_t format = strlen(schema->format);
    *out = (struct py_arrow_record){
        .children = (uint32_t)schema->n_children,
        .buffers = picked->buffers,
        .flags = (uint32_t)schema->flags,
        .has_dictionary = schema->dictionary != NULL,
        .length = picked->length,
        .offset = picked->offset,
        .format_bytes = (uint32_t)format,
        .name_bytes = (uint32_t)name,
    };
    if (!metadata_bytes(schema->metadata, &out->metadata_bytes) || name > PY_ARROW_ABSENT ||
        format >= PY_ARROW_ABSENT) {
        return py_arrow_fail(error, PY_ARROW_INVALID,
                             "an Arrow schema of type `%.60s` with broken metadata",
                             schema->format);
    }
    if (++plan->nodes > PY_ARROW_MAX_NODES) {
        return py_arrow_fail(error, PY_ARROW_UNSUPPORTED,
                             "an Arrow array of more than %d arrays (children and dictionaries) "
                             "cannot be sent",
                             PY_ARROW_MAX_NODES);
    }
    void *at = header_add(plan, sizeof *out);
    if (at == NULL) {
        return fail_memory(error);
    }
    memcpy(at, out, sizeof *out);
    return 1;
}

static int node_add(struct py_arrow_plan *plan, const struct ArrowSchema *schema,
                    const struct ArrowArray *array, struct py_arrow_range range, int depth,
                    struct py_arrow_error *error)
{
    struct py_arrow_picked picked;
    struct py_arrow_record record;
    if (depth > PY_ARROW_MAX_DEPTH) {
        return py_arrow_fail(error, PY_ARROW_UNSUPPORTED,
                             "an Arrow array nested more than %d deep cannot be sent",
                             PY_ARROW_MAX_DEPTH);
    }
    if (!py_arrow_pick(schema, array, range, &picked, error) ||
        !record_add(plan, &picked, &record, error) || !buffers_add(plan, &picked, error)) {
        return 0;
    }
    if (!texts_add(plan, schema, &record)) {
        return fail_memory(error);
    }
    for (int64_t i = 0; i < schema->n_children; i++) {
        if (!node_add(plan, schema->children[i], array->children[i], picked.child, depth + 1,
                      error)) {
            return 0;
        }
    }
    return schema->dictionary == NULL || node_add(plan, schema->dictionary, array->dictionary,
                                                  (struct py_arrow_range){0, -1}, depth + 1, error);
}

/* ------------------------------------------------------------------ the whole */

/* Now that the header's size is known: turn the extents' part numbers into offsets. */
static void settle_extents(struct py_arrow_plan *plan)
{
    size_t at = sizeof(struct py_arrow_head);
    size_t part = 0;
    uint64_t offset = 0;
    for (uint32_t node = 0; node < plan->nodes; node++) {
        struct py_arrow_record record;
        memcpy(&record, plan->header + at, sizeof record);
        at += sizeof record;
        for (uint32_t i = 0; i < record.buffers; i++, at += sizeof(struct py_arrow_extent)) {
            struct py_arrow_extent extent;
            memcpy(&extent, plan->header + at, sizeof extent);
            if (extent.offset == 0) {
                continue;
            }
            for (; part < extent.offset - 1; part++) {
                offset += plan->parts[part].bytes;
            }
            extent.offset = offset;
            memcpy(plan->header + at, &extent, sizeof extent);
        }
        at += record.format_bytes;
        at += record.name_bytes == PY_ARROW_ABSENT ? 0 : record.name_bytes;
        at += record.metadata_bytes == PY_ARROW_ABSENT ? 0 : record.metadata_bytes;
        at += (8 - at % 8) % 8;
    }
}

int py_arrow_plan_make(const struct ArrowSchema *schema, const struct ArrowArray *array,
                       struct py_arrow_plan *out, struct py_arrow_error *error)
{
    *out = (struct py_arrow_plan){0};
    /* The header is the first part; its size is set at the end. */
    if (header_add(out, sizeof(struct py_arrow_head)) == NULL || !part_add(out, NULL, 0)) {
        return fail_memory(error);
    }
    if (!node_add(out, schema, array, (struct py_arrow_range){0, -1}, 0, error)) {
        return 0;
    }
    struct py_arrow_head head = {.nodes = out->nodes, .header_bytes = out->header_bytes};
    size_t padding = (PY_ARROW_ALIGN - out->header_bytes % PY_ARROW_ALIGN) % PY_ARROW_ALIGN;
    if (header_add(out, padding) == NULL) {
        return fail_memory(error);
    }
    memcpy(head.magic, PY_ARROW_MAGIC, sizeof head.magic);
    head.bytes = out->bytes + out->header_bytes;
    out->parts[0] = (tb_part){out->header, out->header_bytes};
    out->bytes = head.bytes;
    memcpy(out->header, &head, sizeof head);
    settle_extents(out);
    return 1;
}

void py_arrow_plan_destroy(struct py_arrow_plan *plan)
{
    for (size_t i = 0; i < plan->block_count; i++) {
        free(plan->blocks[i]);
    }
    free(plan->blocks);
    free(plan->header);
    free(plan->parts);
    *plan = (struct py_arrow_plan){0};
}

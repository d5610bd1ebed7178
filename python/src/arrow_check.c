/* Checks of a received Arrow array: its buffers are large enough, and what lies in them leads
 * nowhere else. One pass over offsets, indices and type ids; plain values are not looked at. */
#include <string.h>

#include "arrow_tree.h"

struct view {
    int32_t bytes;
    uint8_t prefix[4];
    int32_t buffer;
    int32_t offset;
};
#define INLINE_VIEW_BYTES 12

static int fail(struct py_arrow_error *error, const struct py_arrow_node *node, const char *what)
{
    return py_arrow_fail(error, PY_ARROW_INVALID,
                         "a received Arrow array of type `%.60s` is malformed: %s", node->format,
                         what);
}

static int64_t total_of(const struct py_arrow_node *node)
{
    return node->offset + node->length;
}

static int holds(const struct py_arrow_node *node, uint32_t index, int64_t count, int64_t width)
{
    int64_t bytes;
    return !__builtin_mul_overflow(count, width, &bytes) &&
           (uint64_t)bytes <= node->buffers[index].bytes &&
           (bytes == 0 || node->buffers[index].data != NULL);
}

static int holds_bits(const struct py_arrow_node *node, uint32_t index, int64_t count)
{
    return holds(node, index, count / 8 + (count % 8 != 0), 1);
}

static int is_valid(const struct py_arrow_node *node, int64_t index)
{
    const uint8_t *bits = node->buffers[0].data;
    return bits == NULL || (bits[index / 8] >> (index % 8) & 1);
}

/* An integer of 1, 2, 4 or 8 bytes; unsigned ones above the signed range are negative. */
static int64_t load(const uint8_t *data, int64_t index, int64_t width, int is_unsigned)
{
    int64_t value = 0;
    memcpy(&value, data + index * width, (size_t)width);
    if (!is_unsigned && width < 8) {
        int shift = (int)(64 - 8 * width);
        value = (int64_t)((uint64_t)value << shift) >> shift;
    }
    return value;
}

static int check_offsets(const struct py_arrow_node *node, uint64_t limit,
                         struct py_arrow_error *error)
{
    int64_t width = node->type.width;
    int64_t total = total_of(node);
    if (!holds(node, 1, total + 1, width)) {
        return fail(error, node, "its offsets are cut off");
    }
    int64_t last = 0;
    int falls = 0;
    if (width == 4) {
        const int32_t *offsets = (const int32_t *)node->buffers[1].data;
        int32_t before = 0;
        for (int64_t i = 0; i <= total; i++) {
            falls |= offsets[i] < before;
            before = offsets[i];
        }
        last = before;
    } else {
        const int64_t *offsets = (const int64_t *)node->buffers[1].data;
        for (int64_t i = 0; i <= total; i++) {
            falls |= offsets[i] < last;
            last = offsets[i];
        }
    }
    return (!falls && (uint64_t)last <= limit) || fail(error, node, "its offsets lead outside");
}

static int check_list_view(const struct py_arrow_node *node, struct py_arrow_error *error)
{
    int64_t width = node->type.width;
    int64_t total = total_of(node);
    int64_t limit = node->children[0]->length;
    if (!holds(node, 1, total, width) || !holds(node, 2, total, width)) {
        return fail(error, node, "its offsets are cut off");
    }
    for (int64_t i = node->offset; i < total; i++) {
        int64_t offset = load(node->buffers[1].data, i, width, 0);
        int64_t count = load(node->buffers[2].data, i, width, 0);
        if (offset < 0 || count < 0 || offset > limit || count > limit - offset) {
            return fail(error, node, "its offsets lead outside");
        }
    }
    return 1;
}

static int check_views(const struct py_arrow_node *node, struct py_arrow_error *error)
{
    int64_t total = total_of(node);
    int32_t count = (int32_t)node->buffer_count - 3;
    if (!holds(node, 1, total, sizeof(struct view)) ||
        !holds(node, node->buffer_count - 1, count, sizeof(int64_t))) {
        return fail(error, node, "its views are cut off");
    }
    const int64_t *sizes = (const int64_t *)node->buffers[node->buffer_count - 1].data;
    for (int32_t i = 0; i < count; i++) {
        if (sizes[i] < 0 || (uint64_t)sizes[i] != node->buffers[2 + i].bytes) {
            return fail(error, node, "its buffers have other sizes");
        }
    }
    for (int64_t i = node->offset; i < total; i++) {
        struct view view;
        memcpy(&view, node->buffers[1].data + i * (int64_t)sizeof view, sizeof view);
        if (!is_valid(node, i)) {
            continue;
        }
        if (view.bytes < 0 || (view.bytes > INLINE_VIEW_BYTES &&
                               (view.buffer < 0 || view.buffer >= count || view.offset < 0 ||
                                (int64_t)view.offset + view.bytes > sizes[view.buffer]))) {
            return fail(error, node, "its views lead outside");
        }
    }
    return 1;
}

static int check_union(const struct py_arrow_node *node, struct py_arrow_error *error)
{
    int dense = node->type.layout == PY_ARROW_DENSE_UNION;
    int64_t total = total_of(node);
    if (!holds(node, 0, total, 1) || (dense && !holds(node, 1, total, 4))) {
        return fail(error, node, "its type ids are cut off");
    }
    const int8_t *ids = (const int8_t *)node->buffers[0].data;
    for (int64_t i = node->offset; ids != NULL && i < total; i++) {
        int child = ids[i] >= 0 ? node->type.union_child[ids[i]] : -1;
        if (child < 0) {
            return fail(error, node, "it has an unknown type id");
        }
        int64_t at = dense ? load(node->buffers[1].data, i, 4, 0) : i;
        if (at < 0 || at >= node->children[child]->length) {
            return fail(error, node, "its offsets lead outside");
        }
    }
    return 1;
}

static int check_runs(const struct py_arrow_node *node, struct py_arrow_error *error)
{
    const struct py_arrow_node *ends = node->children[0];
    int64_t width = ends->type.width;
    int64_t last = 0;
    /* The child is checked before its parent: its buffer is long enough. */
    if (!ends->type.is_index || width < 2 || ends->dictionary != NULL ||
        (ends->type.dtype & 0xff) == TB_CODE_UINT || ends->buffers[0].data != NULL ||
        node->children[1]->length < ends->length) {
        return fail(error, node, "its run ends are none");
    }
    for (int64_t i = ends->offset; i < total_of(ends); i++) {
        int64_t end = load(ends->buffers[1].data, i, width, 0);
        if (end <= last) {
            return fail(error, node, "its run ends fall");
        }
        last = end;
    }
    return last >= total_of(node) || fail(error, node, "its runs are too short");
}

static int check_dictionary(const struct py_arrow_node *node, struct py_arrow_error *error)
{
    int64_t limit = node->dictionary->length;
    int is_unsigned = (node->type.dtype & 0xff) == TB_CODE_UINT;
    for (int64_t i = node->offset; i < total_of(node); i++) {
        int64_t index = load(node->buffers[1].data, i, node->type.width, is_unsigned);
        if ((index < 0 || index >= limit) && is_valid(node, i)) {
            return fail(error, node, "an index lies outside of its dictionary");
        }
    }
    return 1;
}

static int children_hold(const struct py_arrow_node *node, int64_t count,
                         struct py_arrow_error *error)
{
    for (uint32_t i = 0; i < node->child_count; i++) {
        if (node->children[i]->length < count) {
            return fail(error, node, "a child is too short");
        }
    }
    return 1;
}

/* Keys and entries of a map are never null; consumers take that for granted. */
static int check_map(const struct py_arrow_node *node, struct py_arrow_error *error)
{
    const struct py_arrow_node *entries = node->children[0];
    if (entries->type.layout != PY_ARROW_STRUCT || entries->child_count != 2 ||
        entries->buffers[0].data != NULL) {
        return fail(error, node, "its entries are no pairs");
    }
    const struct py_arrow_node *keys = entries->children[0];
    if (keys->type.layout == PY_ARROW_NULL ||
        (py_arrow_type_has_validity(&keys->type) && keys->buffers[0].data != NULL)) {
        return fail(error, node, "it has keys that are null");
    }
    return 1;
}

static int check_layout(const struct py_arrow_node *node, struct py_arrow_error *error)
{
    int64_t total = total_of(node);
    int64_t count;
    switch (node->type.layout) {
    case PY_ARROW_FIXED:
        return holds(node, 1, total, node->type.width) || fail(error, node, "it is cut off");
    case PY_ARROW_BITS:
        return holds_bits(node, 1, total) || fail(error, node, "it is cut off");
    case PY_ARROW_BINARY:
        return check_offsets(node, node->buffers[2].bytes, error);
    case PY_ARROW_VIEWS:
        return check_views(node, error);
    case PY_ARROW_LIST:
        return check_offsets(node, (uint64_t)node->children[0]->length, error) &&
               (strcmp(node->format, "+m") != 0 || check_map(node, error));
    case PY_ARROW_LIST_VIEW:
        return check_list_view(node, error);
    case PY_ARROW_FIXED_LIST:
        if (__builtin_mul_overflow(total, node->type.width, &count)) {
            return fail(error, node, "it has too many elements");
        }
        return children_hold(node, count, error);
    case PY_ARROW_STRUCT:
        return children_hold(node, total, error);
    case PY_ARROW_SPARSE_UNION:
        return children_hold(node, total, error) && check_union(node, error);
    case PY_ARROW_DENSE_UNION:
        return check_union(node, error);
    case PY_ARROW_RUNS:
        return check_runs(node, error);
    default:
        return 1;
    }
}

static int check_node(const struct py_arrow_node *node, struct py_arrow_error *error)
{
    for (uint32_t i = 0; i < node->child_count; i++) {
        if (!check_node(node->children[i], error)) {
            return 0;
        }
    }
    if (node->dictionary != NULL && !check_node(node->dictionary, error)) {
        return 0;
    }
    if (py_arrow_type_has_validity(&node->type) && node->buffers[0].data != NULL &&
        !holds_bits(node, 0, total_of(node))) {
        return fail(error, node, "its validity is cut off");
    }
    return check_layout(node, error) && (node->dictionary == NULL || check_dictionary(node, error));
}

int py_arrow_tree_check(const struct py_arrow_tree *tree, struct py_arrow_error *error)
{
    return check_node(tree->root, error);
}

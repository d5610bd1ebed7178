/* Exporting a tree through the Arrow C data interface. Each exported struct, also of a child, keeps
 * the tree and is released on its own: Arrow lets consumers move children out of their parents. */
#include <stdlib.h>
#include <string.h>

#include "arrow_tree.h"

/* ------------------------------------------------------------------ schemas */

struct schema_parts {
    struct py_arrow_tree *tree;
    struct ArrowSchema **children;
    struct ArrowSchema *children_at; /* what they point to */
    struct ArrowSchema dictionary;
};

static void release_schema(struct ArrowSchema *schema)
{
    struct schema_parts *parts = schema->private_data;
    for (int64_t i = 0; parts->children_at != NULL && i < schema->n_children; i++) {
        struct ArrowSchema *child = &parts->children_at[i];
        if (child->release != NULL) {
            child->release(child);
        }
    }
    if (schema->dictionary != NULL && schema->dictionary->release != NULL) {
        schema->dictionary->release(schema->dictionary);
    }
    schema->release = NULL;
    py_arrow_tree_unref(parts->tree);
    free(parts->children);
    free(parts->children_at);
    free(parts);
}

static int export_schema(struct py_arrow_tree *tree, const struct py_arrow_node *node,
                         struct ArrowSchema *out)
{
    struct schema_parts *parts = calloc(1, sizeof *parts);
    size_t count = node->child_count;
    *out = (struct ArrowSchema){.format = node->format,
                                .name = node->name,
                                .metadata = node->metadata,
                                .flags = node->flags};
    if (parts == NULL) {
        return 0;
    }
    parts->tree = tree;
    parts->children = calloc(count + 1, sizeof(void *));
    parts->children_at = calloc(count + 1, sizeof *parts->children_at);
    py_arrow_tree_ref(tree);
    out->private_data = parts;
    out->release = release_schema;
    int done = parts->children != NULL && parts->children_at != NULL;
    out->children = count != 0 ? parts->children : NULL;
    for (size_t i = 0; done && i < count; i++) {
        parts->children[i] = &parts->children_at[i];
        out->n_children = (int64_t)i + 1;
        done = export_schema(tree, node->children[i], parts->children[i]);
    }
    if (done && node->dictionary != NULL) {
        out->dictionary = &parts->dictionary;
        done = export_schema(tree, node->dictionary, out->dictionary);
    }
    if (!done) {
        release_schema(out);
    }
    return done;
}

int py_arrow_tree_export_schema(struct py_arrow_tree *tree, struct ArrowSchema *out)
{
    return export_schema(tree, tree->root, out);
}

/* ------------------------------------------------------------------ arrays */

struct array_parts {
    struct py_arrow_tree *tree;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *children_at;
    struct ArrowArray dictionary;
};

static void release_array(struct ArrowArray *array)
{
    struct array_parts *parts = array->private_data;
    for (int64_t i = 0; parts->children_at != NULL && i < array->n_children; i++) {
        struct ArrowArray *child = &parts->children_at[i];
        if (child->release != NULL) {
            child->release(child);
        }
    }
    if (array->dictionary != NULL && array->dictionary->release != NULL) {
        array->dictionary->release(array->dictionary);
    }
    array->release = NULL;
    py_arrow_tree_unref(parts->tree);
    free(parts->buffers);
    free(parts->children);
    free(parts->children_at);
    free(parts);
}

/* How many nulls, as far as it is known without counting. */
static int64_t null_count(const struct py_arrow_node *node)
{
    if (node->type.layout == PY_ARROW_NULL) {
        return node->length;
    }
    return py_arrow_type_has_validity(&node->type) && node->buffers[0].data != NULL ? -1 : 0;
}

static int export_array(struct py_arrow_tree *tree, const struct py_arrow_node *node,
                        struct ArrowArray *out)
{
    /* Where a consumer wants a pointer, although nothing is there. */
    static const int64_t nothing;
    struct array_parts *parts = calloc(1, sizeof *parts);
    size_t count = node->child_count;
    *out = (struct ArrowArray){.length = node->length,
                               .null_count = null_count(node),
                               .offset = node->offset,
                               .n_buffers = node->buffer_count};
    if (parts == NULL) {
        return 0;
    }
    parts->tree = tree;
    parts->buffers = calloc(node->buffer_count + 1U, sizeof *parts->buffers);
    parts->children = calloc(count + 1, sizeof(void *));
    parts->children_at = calloc(count + 1, sizeof *parts->children_at);
    py_arrow_tree_ref(tree);
    out->private_data = parts;
    out->release = release_array;
    out->buffers = parts->buffers;
    out->children = count != 0 ? parts->children : NULL;
    int done = parts->buffers != NULL && parts->children != NULL && parts->children_at != NULL;
    for (uint32_t i = 0; done && i < node->buffer_count; i++) {
        int optional = i == 0 && py_arrow_type_has_validity(&node->type);
        const void *data = node->buffers[i].data;
        parts->buffers[i] = data == NULL && !optional ? &nothing : data;
    }
    for (size_t i = 0; done && i < count; i++) {
        parts->children[i] = &parts->children_at[i];
        out->n_children = (int64_t)i + 1;
        done = export_array(tree, node->children[i], parts->children[i]);
    }
    if (done && node->dictionary != NULL) {
        out->dictionary = &parts->dictionary;
        done = export_array(tree, node->dictionary, out->dictionary);
    }
    if (!done) {
        release_array(out);
    }
    return done;
}

int py_arrow_tree_export_array(struct py_arrow_tree *tree, struct ArrowArray *out)
{
    return export_array(tree, tree->root, out);
}

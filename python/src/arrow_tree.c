/* Reading an Arrow array from a message; see arrow_tree.h and the layout in arrow_wire.h. Whoever
 * sent the bytes is not trusted. */
#include "arrow_tree.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "arrow_wire.h"

/* ------------------------------------------------------------------ memory */

struct block {
    struct block *next;
    _Alignas(16) unsigned char bytes[];
};

static void *tree_alloc(struct py_arrow_tree *tree, size_t bytes)
{
    struct block *block = calloc(1, sizeof *block + bytes);
    if (block == NULL) {
        return NULL;
    }
    block->next = tree->blocks;
    tree->blocks = block;
    return block->bytes;
}

static void tree_destroy(struct py_arrow_tree *tree)
{
    struct block *block = tree->blocks;
    while (block != NULL) {
        struct block *next = block->next;
        free(block);
        block = next;
    }
    free(tree);
}

static struct py_arrow_tree *tree_create(void)
{
    struct py_arrow_tree *tree = calloc(1, sizeof *tree);
    if (tree != NULL) {
        atomic_init(&tree->references, 1);
    }
    return tree;
}

void py_arrow_tree_ref(struct py_arrow_tree *tree)
{
    atomic_fetch_add_explicit(&tree->references, 1, memory_order_relaxed);
}

void py_arrow_tree_unref(struct py_arrow_tree *tree)
{
    /* Each release pairs with the acquire of the last one, which frees what all have used. */
    if (tree == NULL ||
        atomic_fetch_sub_explicit(&tree->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (tree->release != NULL) {
        tree->release(tree->keep);
    }
    tree_destroy(tree);
}

/* ------------------------------------------------------------------ reading the header */

struct input {
    struct py_arrow_tree *tree;
    const uint8_t *header; /* our copy */
    size_t header_bytes;
    size_t at;
    const uint8_t *bytes; /* the whole message */
    size_t size;
    uint32_t nodes_left;
    struct py_arrow_error *error;
};

static int fail_memory(struct py_arrow_error *error)
{
    return py_arrow_fail(error, PY_ARROW_NO_MEMORY, "no memory for the header of an Arrow array");
}

static int fail_record(struct input *in, const char *what)
{
    return py_arrow_fail(in->error, PY_ARROW_INVALID,
                         "a received Arrow array is malformed: the record at byte %zu of its "
                         "header %s",
                         in->at, what);
}

/* The next `bytes` bytes of the header; NULL when it ends before. */
static const uint8_t *take(struct input *in, size_t bytes)
{
    if (bytes > in->header_bytes - in->at) {
        return NULL;
    }
    const uint8_t *here = in->header + in->at;
    in->at += bytes;
    return here;
}

/* A text of the record, terminated; NULL stays NULL. */
static int take_text(struct input *in, uint32_t bytes, const char **out)
{
    *out = NULL;
    if (bytes == PY_ARROW_ABSENT) {
        return 1;
    }
    const uint8_t *text = take(in, bytes);
    if (text == NULL) {
        return fail_record(in, "is cut off");
    }
    char *copy = tree_alloc(in->tree, (size_t)bytes + 1);
    if (copy == NULL) {
        return fail_memory(in->error);
    }
    memcpy(copy, text, bytes);
    *out = copy;
    return 1;
}

/* Whether these are the key-value pairs of a schema, and nothing else. */
static int metadata_valid(const uint8_t *metadata, size_t bytes)
{
    int32_t count;
    size_t at = sizeof count;
    if (bytes < sizeof count) {
        return 0;
    }
    memcpy(&count, metadata, sizeof count);
    for (int64_t i = 0; i < 2 * (int64_t)count; i++) {
        int32_t text;
        if (bytes - at < sizeof text) {
            return 0;
        }
        memcpy(&text, metadata + at, sizeof text);
        at += sizeof text;
        if (text < 0 || (size_t)text > bytes - at) {
            return 0;
        }
        at += (size_t)text;
    }
    return count >= 0 && at == bytes;
}

static int take_texts(struct input *in, const struct py_arrow_record *record,
                      struct py_arrow_node *node)
{
    if (record->format_bytes == PY_ARROW_ABSENT) {
        return fail_record(in, "has no format");
    }
    if (!take_text(in, record->format_bytes, &node->format) ||
        !take_text(in, record->name_bytes, &node->name) ||
        !take_text(in, record->metadata_bytes, &node->metadata)) {
        return 0;
    }
    if (node->metadata != NULL &&
        !metadata_valid((const uint8_t *)node->metadata, record->metadata_bytes)) {
        return fail_record(in, "has broken metadata");
    }
    if (take(in, (8 - in->at % 8) % 8) == NULL) {
        return fail_record(in, "is cut off");
    }
    if (!py_arrow_type_parse(node->format, &node->type)) {
        return py_arrow_fail(in->error, PY_ARROW_UNSUPPORTED,
                             "a received Arrow array has the unknown type `%.60s`", node->format);
    }
    return 1;
}

static int take_buffers(struct input *in, struct py_arrow_node *node)
{
    node->buffers = tree_alloc(in->tree, (size_t)node->buffer_count * sizeof *node->buffers);
    if (node->buffers == NULL) {
        return fail_memory(in->error);
    }
    for (uint32_t i = 0; i < node->buffer_count; i++) {
        struct py_arrow_extent extent;
        const uint8_t *here = take(in, sizeof extent);
        if (here == NULL) {
            return fail_record(in, "is cut off");
        }
        memcpy(&extent, here, sizeof extent);
        if (extent.offset == 0 && extent.bytes == 0) {
            continue;
        }
        if (extent.offset > in->size || extent.bytes > in->size - extent.offset ||
            extent.offset % 8 != 0) {
            return fail_record(in, "has a buffer outside of the message");
        }
        node->buffers[i] = (struct py_arrow_buffer){in->bytes + extent.offset, extent.bytes};
    }
    return 1;
}

static int counts_fit(const struct py_arrow_node *node)
{
    int64_t buffers = py_arrow_type_buffers(&node->type);
    int64_t children = py_arrow_type_children(&node->type);
    if (node->dictionary != NULL && !node->type.is_index) {
        return 0;
    }
    return (node->type.layout == PY_ARROW_VIEWS ? node->buffer_count >= buffers
                                                : node->buffer_count == buffers) &&
           (children < 0 || node->child_count == children);
}

static int take_node(struct input *in, int depth, struct py_arrow_node **out);

static int take_children(struct input *in, int has_dictionary, int depth,
                         struct py_arrow_node *node)
{
    node->children = tree_alloc(in->tree, (size_t)node->child_count * sizeof(void *));
    if (node->children == NULL) {
        return fail_memory(in->error);
    }
    for (uint32_t i = 0; i < node->child_count; i++) {
        if (!take_node(in, depth + 1, &node->children[i])) {
            return 0;
        }
    }
    return !has_dictionary || take_node(in, depth + 1, &node->dictionary);
}

static int take_node(struct input *in, int depth, struct py_arrow_node **out)
{
    struct py_arrow_record record;
    const uint8_t *here = take(in, sizeof record);
    if (here == NULL || in->nodes_left == 0 || depth > PY_ARROW_MAX_DEPTH) {
        return fail_record(in, here == NULL ? "is cut off" : "is one too many");
    }
    in->nodes_left--;
    memcpy(&record, here, sizeof record);
    if (record.children > in->nodes_left || record.buffers > PY_ARROW_MAX_BUFFERS ||
        record.has_dictionary > 1 || record.reserved != 0 || record.length < 0 ||
        record.offset < 0 || record.length > INT64_MAX / 64 - record.offset) {
        return fail_record(in, "has impossible counts");
    }
    struct py_arrow_node *node = tree_alloc(in->tree, sizeof *node);
    if (node == NULL) {
        return fail_memory(in->error);
    }
    *out = node;
    node->flags = record.flags;
    node->length = record.length;
    node->offset = record.offset;
    node->buffer_count = record.buffers;
    node->child_count = record.children;
    if (!take_buffers(in, node) || !take_texts(in, &record, node) ||
        !take_children(in, (int)record.has_dictionary, depth, node)) {
        return 0;
    }
    return counts_fit(node) || fail_record(in, "does not fit its type");
}

static int take_tree(struct input *in)
{
    struct py_arrow_head head;
    if (in->size < sizeof head) {
        return py_arrow_fail(in->error, PY_ARROW_INVALID,
                             "a received Arrow array is malformed: %zu bytes are no header",
                             in->size);
    }
    if ((uintptr_t)in->bytes % 8 != 0) {
        return py_arrow_fail(in->error, PY_ARROW_INVALID,
                             "a received Arrow array does not lie at a multiple of 8 bytes");
    }
    memcpy(&head, in->bytes, sizeof head);
    if (memcmp(head.magic, PY_ARROW_MAGIC, sizeof head.magic) != 0 || head.reserved != 0 ||
        head.bytes != in->size || head.header_bytes > head.bytes ||
        head.header_bytes < sizeof head || head.nodes == 0 || head.nodes > PY_ARROW_MAX_NODES) {
        return py_arrow_fail(in->error, PY_ARROW_INVALID,
                             "a received Arrow array is malformed: its header does not fit its "
                             "%zu bytes",
                             in->size);
    }
    /* Out of shared memory first: what is checked must not change. */
    uint8_t *copy = malloc((size_t)head.header_bytes);
    if (copy == NULL) {
        return fail_memory(in->error);
    }
    memcpy(copy, in->bytes, (size_t)head.header_bytes);
    in->header = copy;
    in->header_bytes = (size_t)head.header_bytes;
    in->at = sizeof head;
    in->nodes_left = head.nodes;
    int done = take_node(in, 0, &in->tree->root);
    if (done && (in->nodes_left != 0 || in->at != in->header_bytes)) {
        done = fail_record(in, "should not be there");
    }
    free(copy);
    return done;
}

struct py_arrow_tree *py_arrow_tree_read(const uint8_t *bytes, size_t size,
                                         struct py_arrow_error *error)
{
    struct input in = {.bytes = bytes, .size = size, .error = error, .tree = tree_create()};
    if (in.tree == NULL) {
        fail_memory(error);
        return NULL;
    }
    if (!take_tree(&in) || !py_arrow_tree_check(in.tree, error)) {
        tree_destroy(in.tree);
        return NULL;
    }
    return in.tree;
}

/* ------------------------------------------------------------------ tensors */

static struct py_arrow_node *plain_node(struct py_arrow_tree *tree, const char *format,
                                        uint32_t buffers, uint32_t children)
{
    struct py_arrow_node *node = tree_alloc(tree, sizeof *node);
    size_t bytes = strlen(format) + 1;
    char *copy = tree_alloc(tree, bytes);
    if (node == NULL || copy == NULL) {
        return NULL;
    }
    node->buffers = tree_alloc(tree, buffers * sizeof *node->buffers);
    node->children = tree_alloc(tree, children * sizeof(void *));
    node->buffer_count = buffers;
    node->child_count = children;
    node->format = memcpy(copy, format, bytes);
    node->name = "";
    node->flags = PY_ARROW_FLAG_NULLABLE;
    (void)py_arrow_type_parse(node->format, &node->type);
    return node->buffers != NULL && node->children != NULL ? node : NULL;
}

static int tensor_nodes(struct py_arrow_tree *tree, const tb_tensor *tensor, const char *format)
{
    struct py_arrow_node **link = &tree->root;
    int64_t length = tensor->ndim > 0 ? tensor->shape[0] : 1;
    for (int i = 1; i < tensor->ndim; i++) {
        char list[32];
        snprintf(list, sizeof list, "+w:%lld", (long long)tensor->shape[i]);
        *link = plain_node(tree, list, 1, 1);
        if (*link == NULL) {
            return 0;
        }
        (*link)->length = length;
        (*link)->name = i > 1 ? "item" : "";
        length *= tensor->shape[i];
        link = &(*link)->children[0];
    }
    *link = plain_node(tree, format, 2, 0);
    if (*link == NULL) {
        return 0;
    }
    (*link)->length = length;
    (*link)->name = tensor->ndim > 1 ? "item" : "";
    (*link)->buffers[1].data = tensor->data;
    (*link)->buffers[1].bytes = (uint64_t)(length * (*link)->type.width);
    return 1;
}

/* Complex numbers are lists of their two parts. Returns 0 when that is one dimension too many. */
static int split_complex(tb_tensor *tensor)
{
    if ((tensor->dtype & 0xff) != TB_CODE_COMPLEX) {
        return 1;
    }
    if (tensor->ndim >= TB_MAX_NDIM) {
        return 0;
    }
    if (tensor->ndim == 0) {
        tensor->shape[tensor->ndim++] = 1;
    }
    tensor->shape[tensor->ndim++] = 2;
    tensor->dtype = tensor->dtype == TB_C64 ? TB_F32 : TB_F64;
    tensor->strides = NULL; /* it is row-major */
    return 1;
}

struct py_arrow_tree *py_arrow_tree_of_tensor(const tb_tensor *given, const char *format,
                                              struct py_arrow_error *error)
{
    struct py_arrow_type type;
    char name[32];
    tb_tensor parts = *given;
    const tb_tensor *tensor = &parts;
    if (given->dtype == TB_BOOL) {
        py_arrow_fail(
            error, PY_ARROW_UNSUPPORTED,
            "Arrow's booleans are bits, these are bytes: pyarrow.array(x.numpy().ravel()) "
            "packs a copy, pyarrow.array(x.numpy().view('u1').ravel()) shares the bytes");
        return NULL;
    }
    if (!split_complex(&parts)) {
        py_arrow_fail(error, PY_ARROW_UNSUPPORTED,
                      "Arrow has no array of complex numbers with %d dimensions", given->ndim);
        return NULL;
    }
    if (!py_arrow_type_parse(format, &type) || type.layout != PY_ARROW_FIXED ||
        type.width != (int64_t)tb_dtype_bytes(tensor->dtype)) {
        py_arrow_fail(error, PY_ARROW_UNSUPPORTED, "Arrow has no array of %s",
                      tb_dtype_name(tensor->dtype, name));
        return NULL;
    }
    for (int i = 1; i < tensor->ndim; i++) {
        if (tensor->shape[i] > INT32_MAX) {
            py_arrow_fail(error, PY_ARROW_UNSUPPORTED, "Arrow has no lists of %lld elements",
                          (long long)tensor->shape[i]);
            return NULL;
        }
    }
    struct py_arrow_tree *tree = tree_create();
    if (tree == NULL || !tensor_nodes(tree, tensor, format)) {
        fail_memory(error);
        if (tree != NULL) {
            tree_destroy(tree);
        }
        return NULL;
    }
    return tree;
}

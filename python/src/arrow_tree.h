/* A received Arrow array: the checked copy of its header over bytes that stay where they are.
 *
 * A tree is made from a message's bytes, or from a tensor; it keeps them alive through `keep`. It
 * is counted: its maker has one reference, each exported schema and array has one. What was
 * exported may be released by any thread, without Python's lock. */
#ifndef PY_ARROW_TREE_H
#define PY_ARROW_TREE_H

#include <stdint.h>

#include <tensorbus/tensor.h>

#include "arrow_abi.h"
#include "arrow_fail.h"
#include "arrow_type.h"

struct py_arrow_buffer {
    const uint8_t *data; /* NULL: absent */
    uint64_t bytes;
};

struct py_arrow_node {
    struct py_arrow_type type;
    const char *format;
    const char *name;     /* or NULL */
    const char *metadata; /* or NULL */
    int64_t flags;
    int64_t length;
    int64_t offset;
    uint32_t buffer_count;
    uint32_t child_count;
    struct py_arrow_buffer *buffers;
    struct py_arrow_node **children;
    struct py_arrow_node *dictionary; /* or NULL */
};

struct py_arrow_tree {
    _Atomic uint32_t references;
    struct py_arrow_node *root;
    void (*release)(void *keep); /* called once, by whoever gives the last reference back */
    void *keep;
    void *blocks; /* all memory of the tree */
};

/* Read a message. Its header is copied before it is checked; every buffer lies in the bytes and is
 * as large as the array says. NULL with why not; `keep` then stays the caller's. */
struct py_arrow_tree *py_arrow_tree_read(const uint8_t *bytes, size_t size,
                                         struct py_arrow_error *error);

/* A row-major tensor of the CPU as an array: of its elements, or of lists of lists of them. The
 * format is that of its elements, which may say more than their dtype. */
struct py_arrow_tree *py_arrow_tree_of_tensor(const tb_tensor *tensor, const char *format,
                                              struct py_arrow_error *error);

void py_arrow_tree_ref(struct py_arrow_tree *tree);
void py_arrow_tree_unref(struct py_arrow_tree *tree);

/* Check the buffers' contents, so that no reader of the array leaves them: offsets, indices of
 * dictionaries, type ids, views, run ends. 1, or 0 with what is wrong. */
int py_arrow_tree_check(const struct py_arrow_tree *tree, struct py_arrow_error *error);

/* Export the tree; release callbacks are set. 1, or 0 without memory. */
int py_arrow_tree_export_schema(struct py_arrow_tree *tree, struct ArrowSchema *out);
int py_arrow_tree_export_array(struct py_arrow_tree *tree, struct ArrowArray *out);

#endif

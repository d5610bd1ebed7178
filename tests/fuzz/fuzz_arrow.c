/* An Arrow array as a peer may send it: what is accepted can be read to its last element by any
 * consumer, and its exports can be released in any order. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../python/src/arrow_tree.h"
#include "arrow_consumer.h"
#include "base/error.h"

#define STEPS 200000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int kept;

static void release(void *keep)
{
    TB_ASSERT(keep == &kept);
    kept--;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct py_arrow_error error = {.text = ""};
    struct ArrowSchema schema;
    struct ArrowArray array;
    uint8_t *copy = malloc(size + (size == 0)); /* aligned, and its end is seen */
    TB_ASSERT(copy != NULL);
    memcpy(copy, data, size);
    struct py_arrow_tree *tree = py_arrow_tree_read(copy, size, &error);
    if (tree == NULL) {
        TB_ASSERT(error.text[0] != '\0');
        free(copy);
        return 0;
    }
    kept = 1;
    tree->keep = &kept;
    tree->release = release;
    TB_ASSERT(py_arrow_tree_export_schema(tree, &schema));
    TB_ASSERT(py_arrow_tree_export_array(tree, &array));
    py_arrow_tree_unref(tree);
    struct consumer consumer = {.steps = STEPS};
    consume(&consumer, &schema, &array, 0, array.length);
    /* A child that was moved out lives on without its parent. */
    struct ArrowArray child = {.release = NULL};
    if (array.n_children > 0) {
        child = *array.children[array.n_children - 1];
        array.children[array.n_children - 1]->release = NULL;
    }
    schema.release(&schema);
    array.release(&array);
    TB_ASSERT(kept == (child.release != NULL));
    if (child.release != NULL) {
        child.release(&child);
    }
    TB_ASSERT(kept == 0 && array.release == NULL);
    free(copy);
    return 0;
}

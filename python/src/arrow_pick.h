/* What of an Arrow array travels: the range of each of its buffers. The array is of this process
 * and is trusted to be what its schema says, but for what costs nothing to check. */
#ifndef PY_ARROW_PICK_H
#define PY_ARROW_PICK_H

#include "arrow_abi.h"
#include "arrow_fail.h"
#include "arrow_type.h"

/* A range of one array's elements, in the array's own count. */
struct py_arrow_range {
    int64_t first;
    int64_t count;
};

/* What of one array travels. */
struct py_arrow_picked {
    const struct ArrowSchema *schema;
    const struct ArrowArray *array;
    struct py_arrow_type type;
    int64_t base;   /* first element that travels, from the start of the buffers */
    int64_t span;   /* elements that travel */
    int64_t offset; /* of the first wanted one among them: 0 to 7 where there are bits */
    int64_t length;
    int with_validity;
    uint32_t buffers;
    struct py_arrow_range child; /* of each child; count -1: all of it */
};

/* Choose a range of an array; count -1: all of it. 1, or 0 with why it cannot be sent. */
int py_arrow_pick(const struct ArrowSchema *schema, const struct ArrowArray *array,
                  struct py_arrow_range range, struct py_arrow_picked *out,
                  struct py_arrow_error *error);

#endif

/* Sending an Arrow array: what of its memory travels, and the header in front of it.
 *
 * A plan names parts that lie one after another in the message: the header, the used range of each
 * buffer in the array's own memory, and zeros between. Only the range that the array shows is sent,
 * also of a slice of a larger one. A plan is made, sent while the array lives, and destroyed. */
#ifndef PY_ARROW_PACK_H
#define PY_ARROW_PACK_H

#include <tensorbus/node.h>

#include "arrow_abi.h"
#include "arrow_fail.h"

struct py_arrow_plan {
    tb_part *parts;
    size_t part_count;
    uint64_t bytes;

    size_t part_room;
    unsigned char *header;
    size_t header_bytes;
    size_t header_room;
    uint32_t nodes;
    void **blocks; /* heap memory that parts point to */
    size_t block_count;
};

/* Plan an array. 1, or 0 with why not; the plan is to be destroyed either way. */
int py_arrow_plan_make(const struct ArrowSchema *schema, const struct ArrowArray *array,
                       struct py_arrow_plan *out, struct py_arrow_error *error);
void py_arrow_plan_destroy(struct py_arrow_plan *plan);

/* The array as a tensor in its own memory, when it is nothing more than that: numbers without
 * nulls, name or metadata. 0 when it is not. */
int py_arrow_as_tensor(const struct ArrowSchema *schema, const struct ArrowArray *array,
                       tb_tensor *out);

#endif

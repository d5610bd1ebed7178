/* The Arrow C data interface: structs that any two libraries of a process can exchange arrays
 * with. Their layout is Arrow's, fixed for ever; see "The Arrow C data interface" in its docs. */
#ifndef PY_ARROW_ABI_H
#define PY_ARROW_ABI_H

#include <stddef.h>
#include <stdint.h>

#define PY_ARROW_FLAG_NULLABLE 2

struct ArrowSchema {
    const char *format;
    const char *name; /* may be NULL */
    const char
        *metadata; /* int32 count, then (int32 bytes, bytes) of each key and value; or NULL */
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *schema); /* NULL: released, or moved elsewhere */
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count; /* -1: not counted */
    int64_t offset;     /* in elements, of all buffers */
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *array);
    void *private_data;
};

/* Arrays one after another. Functions return 0 or an errno. */
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *stream, struct ArrowSchema *out);
    int (*get_next)(struct ArrowArrayStream *stream, struct ArrowArray *out); /* end: released */
    const char *(*get_last_error)(struct ArrowArrayStream *stream);           /* or NULL */
    void (*release)(struct ArrowArrayStream *stream);
    void *private_data;
};

_Static_assert(sizeof(struct ArrowSchema) == 72, "Arrow's schema");
_Static_assert(sizeof(struct ArrowArray) == 80, "Arrow's array");
_Static_assert(sizeof(struct ArrowArrayStream) == 40, "Arrow's stream");

#endif

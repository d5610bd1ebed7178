/* An Arrow array in one message. Little-endian, no pointers:
 *
 *   head, then one record for each array of the tree in pre-order (an array, its children, its
 *   dictionary), then the buffers, each at a multiple of 64 bytes from the start.
 *
 * A record is struct arrow_record, then {offset, bytes} of each buffer (offset 0: absent), then the
 * bytes of its format, name and metadata, then zeros up to a multiple of 8. */
#ifndef PY_ARROW_WIRE_H
#define PY_ARROW_WIRE_H

#include <stdint.h>

#define PY_ARROW_ALIGN 64
#define PY_ARROW_MAX_DEPTH 64
#define PY_ARROW_MAX_NODES 65536
#define PY_ARROW_MAX_BUFFERS 65536 /* of one array */
#define PY_ARROW_ABSENT UINT32_MAX /* size of a text that is NULL */

#define PY_ARROW_MAGIC "TBARROW1"

struct py_arrow_head {
    char magic[8];
    uint32_t nodes;
    uint32_t reserved;     /* 0 */
    uint64_t header_bytes; /* of head and records */
    uint64_t bytes;        /* of everything */
};

struct py_arrow_record {
    uint32_t children;
    uint32_t buffers;
    uint32_t flags; /* of the schema */
    uint32_t has_dictionary;
    int64_t length;
    int64_t offset;
    uint32_t format_bytes;
    uint32_t name_bytes;
    uint32_t metadata_bytes;
    uint32_t reserved; /* 0 */
};

struct py_arrow_extent {
    uint64_t offset;
    uint64_t bytes;
};

_Static_assert(sizeof(struct py_arrow_head) == 32, "head");
_Static_assert(sizeof(struct py_arrow_record) == 48, "record");
_Static_assert(sizeof(struct py_arrow_extent) == 16, "extent");

#endif

/* A value that is to be sent: what a message says of it, and where its bytes lie. */
#ifndef TB_NODE_VALUE_H
#define TB_NODE_VALUE_H

#include <tensorbus/node.h>

#include "wire/message.h"

/* Of the value's bytes; all NULL when it has none. They are the caller's. */
struct tb__value_source {
    const void *data;         /* BYTES, or a packed TENSOR */
    const tb_tensor *strided; /* a TENSOR that must be packed; then data is NULL */
    const tb_part *parts;     /* PARTS; then data is NULL */
    size_t part_count;
};

/* Check a value of a user. Sets kind, dtype, ndim, shape, value_bytes and handle of *message. */
tb_status tb__value_describe(const tb_value *value, struct tb__message *message,
                             struct tb__value_source *source);

/* Whether the bytes do not lie in one piece. */
int tb__value_is_scattered(const struct tb__value_source *source);

/* Bring those of a scattered value together. `working_set_bytes` as for tb__copy_store(). */
void tb__value_gather(const struct tb__value_source *source, uint8_t *dst,
                      size_t working_set_bytes);

#endif

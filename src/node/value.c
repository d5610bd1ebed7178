/* Describing and gathering the values that users send. Pure functions. */
#include "node/value.h"

#include <string.h>

#include "base/checked.h"
#include "base/copy.h"
#include "base/error.h"

int tb__value_is_scattered(const struct tb__value_source *source)
{
    return source->strided != NULL || source->parts != NULL;
}

void tb__value_gather(const struct tb__value_source *source, uint8_t *dst, size_t working_set_bytes)
{
    if (source->strided != NULL) {
        tb__copy_strided(dst, source->strided);
        return;
    }
    for (size_t i = 0; i < source->part_count; i++) {
        if (source->parts[i].bytes != 0) {
            tb__copy_store(dst, source->parts[i].data, source->parts[i].bytes, working_set_bytes);
            dst += source->parts[i].bytes;
        }
    }
}

static tb_status describe_tensor(const tb_tensor *tensor, struct tb__message *message,
                                 struct tb__value_source *source)
{
    size_t bytes;
    if (tensor == NULL) {
        return TB__FAIL(TB_E_INVALID, "the tensor is NULL");
    }
    TB__TRY(tb_tensor_bytes(tensor, &bytes));
    if (tensor->device != TB_CPU) {
        return TB__FAIL(TB_E_UNSUPPORTED,
                        "a tensor on device 0x%x: send a handle of a pool on that device",
                        (unsigned)tensor->device);
    }
    if (tensor->data == NULL && bytes != 0) {
        return TB__FAIL(TB_E_INVALID, "a tensor of %zu bytes without data", bytes);
    }
    message->dtype = tensor->dtype;
    message->ndim = tensor->ndim;
    memcpy(message->shape, tensor->shape, 8 * (size_t)tensor->ndim);
    message->value_bytes = bytes;
    if (bytes != 0 && !tb_tensor_is_packed(tensor)) {
        source->strided = tensor;
    } else {
        source->data = tensor->data;
    }
    return TB_OK;
}

static tb_status describe_parts(const tb_part *parts, size_t count, struct tb__message *message,
                                struct tb__value_source *source)
{
    uint64_t bytes = 0;
    if (parts == NULL && count != 0) {
        return TB__FAIL(TB_E_INVALID, "%zu parts without their array", count);
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].data == NULL && parts[i].bytes != 0) {
            return TB__FAIL(TB_E_INVALID, "part %zu: %zu bytes without data", i, parts[i].bytes);
        }
        if (!tb__add(bytes, parts[i].bytes, &bytes)) {
            return TB__FAIL(TB_E_LIMIT, "%zu parts of more than 2^64 bytes", count);
        }
    }
    message->kind = TB_VALUE_BYTES;
    message->value_bytes = bytes;
    source->parts = bytes != 0 ? parts : NULL;
    source->part_count = count;
    return TB_OK;
}

tb_status tb__value_describe(const tb_value *value, struct tb__message *message,
                             struct tb__value_source *source)
{
    message->kind = value->kind;
    switch (value->kind) {
    case TB_VALUE_NONE:
        return TB_OK;
    case TB_VALUE_BYTES:
        if (value->data == NULL && value->bytes != 0) {
            return TB__FAIL(TB_E_INVALID, "%zu bytes without data", value->bytes);
        }
        source->data = value->data;
        message->value_bytes = value->bytes;
        return TB_OK;
    case TB_VALUE_PARTS:
        return describe_parts(value->data, value->bytes, message, source);
    case TB_VALUE_TENSOR:
        return describe_tensor(value->tensor, message, source);
    case TB_VALUE_HANDLE:
        if (value->handle == NULL || value->handle->generation == 0 ||
            value->handle->generation % 2 != 0 || value->handle->slot >= TB_MAX_SLOTS ||
            value->handle->flags != 0) {
            return TB__FAIL(TB_E_INVALID, "these bytes are no handle of a frame");
        }
        message->handle = *value->handle;
        return TB_OK;
    default:
        return TB__FAIL(TB_E_INVALID, "value of unknown kind %d", (int)value->kind);
    }
}

/* Encoding and decoding of the extension channel's messages. */
#include "wire/extension.h"

#include <string.h>

#include "base/checked.h"
#include "base/utf8.h"

struct head_wire {
    uint32_t flags;
    uint16_t space_bytes;
    uint16_t key_bytes;
    uint64_t value_bytes;
};
_Static_assert(sizeof(struct head_wire) == TB__EXT_HEAD_BYTES, "head of a request");

struct value_wire {
    uint32_t flags;
    uint32_t reserved;
    uint64_t value_bytes;
};
_Static_assert(sizeof(struct value_wire) == TB__EXT_HEAD_BYTES, "head of a value");

struct batch_wire {
    uint64_t lost;
    uint32_t count;
    uint32_t reserved;
};
_Static_assert(sizeof(struct batch_wire) == TB__EXT_HEAD_BYTES, "head of a batch");

struct name_wire {
    uint16_t space_bytes;
    uint16_t key_bytes;
};
_Static_assert(sizeof(struct name_wire) == 4, "head of a key");

static void put(uint8_t *out, uint32_t *at, const void *bytes, size_t size)
{
    if (size != 0) {
        memcpy(out + *at, bytes, size);
        *at += (uint32_t)size;
    }
}

/* Space and key at `at`; `left` bytes are there. */
static tb_status take_name(const uint8_t *at, size_t left, struct tb__ext_key *name)
{
    if (name->space_bytes > TB_EXTENSION_SPACE_MAX || name->key_bytes > TB_EXTENSION_KEY_MAX ||
        (size_t)name->space_bytes + name->key_bytes > left) {
        return TB__FAIL(TB_E_PROTOCOL, "a space of %u and a key of %u bytes", name->space_bytes,
                        name->key_bytes);
    }
    name->space = (const char *)at;
    name->key = name->space + name->space_bytes;
    if (!tb__utf8_text(name->space, name->space_bytes) ||
        !tb__utf8_text(name->key, name->key_bytes)) {
        return TB__FAIL(TB_E_PROTOCOL, "a space or a key that is not UTF-8");
    }
    return TB_OK;
}

/* The rest of a message must be the value. */
static tb_status take_value(const uint8_t *at, size_t left, uint32_t flags, uint64_t value_bytes,
                            const uint8_t **out)
{
    int carried = (flags & TB__EXT_CARRIED) != 0;
    uint64_t most = carried ? TB_EXTENSION_MAX : TB__EXT_INLINE_MAX;
    if (value_bytes > most || (carried && value_bytes == 0) ||
        left != (carried ? 0 : value_bytes)) {
        return TB__FAIL(TB_E_PROTOCOL, "a value of %llu bytes, %s, and %zu bytes of it",
                        (unsigned long long)value_bytes, carried ? "carried" : "not carried", left);
    }
    *out = carried ? NULL : at;
    return TB_OK;
}

uint32_t tb__ext_request_encode(const struct tb__ext_request *request,
                                uint8_t out[TB__EXT_REQUEST_MAX])
{
    uint32_t at = 0;
    const struct head_wire head = {.flags = request->flags,
                                   .space_bytes = request->name.space_bytes,
                                   .key_bytes = request->name.key_bytes,
                                   .value_bytes = request->value_bytes};
    put(out, &at, &head, sizeof head);
    put(out, &at, request->name.space, request->name.space_bytes);
    put(out, &at, request->name.key, request->name.key_bytes);
    if ((request->flags & TB__EXT_CARRIED) == 0) {
        put(out, &at, request->value, request->value_bytes);
    }
    return at;
}

static uint32_t known_flags(uint16_t type)
{
    return type == TB__MSG_EXT_STORE || type == TB__MSG_EXT_REQUEST ? TB__EXT_CARRIED
           : type == TB__MSG_EXT_LOAD                               ? TB__EXT_REMOVE
                                                                    : 0;
}

tb_status tb__ext_request_decode(uint16_t type, const uint8_t *body, size_t bytes,
                                 struct tb__ext_request *out)
{
    struct head_wire head;
    struct tb__ext_request request = {0};
    if (bytes < sizeof head) {
        return TB__FAIL(TB_E_PROTOCOL, "a request of %zu bytes about extensions", bytes);
    }
    memcpy(&head, body, sizeof head);
    if ((head.flags & ~known_flags(type)) != 0) {
        return TB__FAIL(TB_E_PROTOCOL, "flags 0x%x in a request of type %u", head.flags, type);
    }
    request.flags = head.flags;
    request.name.space_bytes = head.space_bytes;
    request.name.key_bytes = head.key_bytes;
    request.value_bytes = head.value_bytes;
    TB__TRY(take_name(body + sizeof head, bytes - sizeof head, &request.name));
    size_t used = sizeof head + head.space_bytes + head.key_bytes;
    TB__TRY(take_value(body + used, bytes - used, head.flags, head.value_bytes, &request.value));
    int has_value = type == TB__MSG_EXT_STORE || type == TB__MSG_EXT_REQUEST;
    if ((!has_value && head.value_bytes != 0) ||
        (type == TB__MSG_EXT_REQUEST && head.key_bytes != 0)) {
        return TB__FAIL(TB_E_PROTOCOL, "a request of type %u with a part that it does not have",
                        type);
    }
    *out = request;
    return TB_OK;
}

uint32_t tb__ext_reply_encode(const struct tb__ext_reply *reply, uint8_t out[TB__EXT_VALUE_MAX])
{
    uint32_t at = 0;
    const struct value_wire head = {.flags = reply->flags, .value_bytes = reply->value_bytes};
    put(out, &at, &head, sizeof head);
    if (reply->value != NULL) {
        put(out, &at, reply->value, reply->value_bytes);
    }
    return at;
}

tb_status tb__ext_reply_decode(const uint8_t *body, size_t bytes, struct tb__ext_reply *out)
{
    struct value_wire head;
    struct tb__ext_reply reply = {0};
    if (bytes < sizeof head) {
        return TB__FAIL(TB_E_PROTOCOL, "a value in a message of %zu bytes", bytes);
    }
    memcpy(&head, body, sizeof head);
    int absent = (head.flags & TB__EXT_ABSENT) != 0;
    if ((head.flags & ~(TB__EXT_CARRIED | TB__EXT_ABSENT)) != 0 || head.reserved != 0 ||
        (absent && (head.flags != TB__EXT_ABSENT || head.value_bytes != 0))) {
        return TB__FAIL(TB_E_PROTOCOL, "a value with flags 0x%x", head.flags);
    }
    reply.flags = head.flags;
    reply.value_bytes = head.value_bytes;
    TB__TRY(take_value(body + sizeof head, bytes - sizeof head, head.flags, head.value_bytes,
                       &reply.value));
    if (absent) {
        reply.value = NULL;
    }
    *out = reply;
    return TB_OK;
}

/* ---- dropped keys ---- */

static void write_batch_head(struct tb__ext_batch *batch, uint64_t lost)
{
    const struct batch_wire head = {.lost = lost, .count = batch->count};
    memcpy(batch->body, &head, sizeof head);
}

void tb__ext_batch_begin(struct tb__ext_batch *batch, uint64_t lost)
{
    batch->count = 0;
    batch->bytes = sizeof(struct batch_wire);
    write_batch_head(batch, lost);
}

int tb__ext_batch_add(struct tb__ext_batch *batch, const struct tb__ext_key *name)
{
    const struct name_wire head = {.space_bytes = name->space_bytes, .key_bytes = name->key_bytes};
    size_t size = sizeof head + name->space_bytes + name->key_bytes;
    if (size > sizeof batch->body - batch->bytes) {
        return 0;
    }
    put(batch->body, &batch->bytes, &head, sizeof head);
    put(batch->body, &batch->bytes, name->space, name->space_bytes);
    put(batch->body, &batch->bytes, name->key, name->key_bytes);
    batch->count++;
    memcpy(batch->body + offsetof(struct batch_wire, count), &batch->count, sizeof batch->count);
    return 1;
}

static tb_status take_key(const uint8_t *body, size_t bytes, size_t *at, struct tb__ext_key *out)
{
    struct name_wire head;
    if (bytes - *at < sizeof head) {
        return TB__FAIL(TB_E_PROTOCOL, "a dropped key that is cut off");
    }
    memcpy(&head, body + *at, sizeof head);
    *out = (struct tb__ext_key){.space_bytes = head.space_bytes, .key_bytes = head.key_bytes};
    *at += sizeof head;
    TB__TRY(take_name(body + *at, bytes - *at, out));
    *at += (size_t)head.space_bytes + head.key_bytes;
    return TB_OK;
}

tb_status tb__ext_batch_check(const uint8_t *body, size_t bytes, uint64_t *lost, uint32_t *count)
{
    struct batch_wire head;
    struct tb__ext_key name;
    size_t at = 0;
    if (bytes < sizeof head) {
        return TB__FAIL(TB_E_PROTOCOL, "dropped keys in a message of %zu bytes", bytes);
    }
    memcpy(&head, body, sizeof head);
    if (head.reserved != 0) {
        return TB__FAIL(TB_E_PROTOCOL, "dropped keys with flags 0x%x", head.reserved);
    }
    for (uint32_t i = 0; i < head.count; i++) { /* ends early: each takes 4 bytes at least */
        TB__TRY(take_key(body + sizeof head, bytes - sizeof head, &at, &name));
    }
    if (at != bytes - sizeof head) {
        return TB__FAIL(TB_E_PROTOCOL, "%zu bytes behind %u dropped keys", bytes - sizeof head - at,
                        head.count);
    }
    *lost = head.lost;
    *count = head.count;
    return TB_OK;
}

void tb__ext_batch_next(const uint8_t *body, size_t *at, struct tb__ext_key *out)
{
    const uint8_t *from = body + sizeof(struct batch_wire) + *at;
    struct name_wire head;
    memcpy(&head, from, sizeof head);
    out->space_bytes = head.space_bytes;
    out->key_bytes = head.key_bytes;
    out->space = (const char *)from + sizeof head;
    out->key = out->space + head.space_bytes;
    *at += sizeof head + head.space_bytes + head.key_bytes;
}

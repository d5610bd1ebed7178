/* Decoding of local messages. Pure functions. */
#include "wire/wire.h"

#include <string.h>
#include <unistd.h>

tb_status tb__wire_check(const void *packet, size_t bytes, struct tb__msg *out)
{
    struct tb__wire_header header;
    if (bytes < sizeof header) {
        return TB__FAIL(TB_E_PROTOCOL, "message of %zu bytes, a header has %zu", bytes,
                        sizeof header);
    }
    memcpy(&header, packet, sizeof header);
    if (header.magic != TB__WIRE_MAGIC) {
        return TB__FAIL(TB_E_PROTOCOL, "message with magic 0x%08x", header.magic);
    }
    if (header.version != TB__WIRE_VERSION) {
        return TB__FAIL(TB_E_PROTOCOL, "message of protocol version %u, this side speaks %u",
                        header.version, TB__WIRE_VERSION);
    }
    if (header.body_bytes != bytes - sizeof header) {
        return TB__FAIL(TB_E_PROTOCOL, "message says %u body bytes and has %zu", header.body_bytes,
                        bytes - sizeof header);
    }
    if (header.type == 0 || header.type > TB__MSG_LAST) {
        return TB__FAIL(TB_E_PROTOCOL, "message of unknown type %u", header.type);
    }
    out->type = header.type;
    out->request = header.request;
    out->body = (const uint8_t *)packet + sizeof header;
    out->body_bytes = header.body_bytes;
    return TB_OK;
}

tb_status tb__wire_body(const struct tb__msg *msg, void *out, size_t bytes, uint32_t fds)
{
    if (msg->body_bytes != bytes) {
        return TB__FAIL(TB_E_PROTOCOL, "message type %u has %u body bytes, %zu are needed",
                        msg->type, msg->body_bytes, bytes);
    }
    if (msg->fds_lost && fds != 0) {
        return TB__FAIL(TB_E_LIMIT,
                        "process %d has too many open files: raise its limit "
                        "(ulimit -n)",
                        (int)getpid());
    }
    if (msg->fd_count != fds) {
        return TB__FAIL(TB_E_PROTOCOL, "message type %u came with %u descriptors, %u are needed",
                        msg->type, msg->fd_count, fds);
    }
    memcpy(out, msg->body, bytes);
    return TB_OK;
}

int tb__wire_name_ok(const char *field, size_t size, int empty)
{
    if (memchr(field, '\0', size) == NULL) {
        return 0;
    }
    return field[0] == '\0' ? empty : tb__name_valid(field);
}

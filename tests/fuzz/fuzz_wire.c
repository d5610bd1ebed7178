/* Packets of a lifeline: the header, then the body as every type that has a fixed one. What was
 * accepted must keep what wire.h promises. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take_body(const struct tb__msg *msg, size_t bytes)
{
    uint8_t body[600];
    memset(body, 0xa5, sizeof body);
    tb_status status = tb__wire_body(msg, body, bytes, 0);
    TB_ASSERT((status == TB_OK) == (msg->body_bytes == bytes));
    TB_ASSERT(body[bytes] == 0xa5 && (status == TB_OK || body[0] == 0xa5));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t sizes[] = {
        0,
        sizeof(uint32_t),
        sizeof(struct tb__hello_wire),
        sizeof(struct tb__error_wire),
        sizeof(struct tb__name_wire),
        sizeof(struct tb__pool_open_wire),
        sizeof(struct tb__pool_wire),
        sizeof(struct tb__reader_wire),
    };
    struct tb__msg msg = {.fds = {-1, -1, -1, -1}};
    if (tb__wire_check(data, size, &msg) != TB_OK) {
        return 0;
    }
    TB_ASSERT(msg.type > 0 && msg.type <= TB__MSG_LAST);
    TB_ASSERT(msg.body == data + sizeof(struct tb__wire_header));
    TB_ASSERT(msg.body_bytes == size - sizeof(struct tb__wire_header));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        take_body(&msg, sizes[i]);
    }
    struct tb__hello_wire hello;
    if (tb__wire_body(&msg, &hello, sizeof hello, 0) == TB_OK &&
        tb__wire_name_ok(hello.name, sizeof hello.name, 1)) {
        TB_ASSERT(strlen(hello.name) < TB__NAME_SIZE);
    }
    return 0;
}

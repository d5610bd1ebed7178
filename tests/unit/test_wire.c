/* Packets of a lifeline: what a header must be, what a body must have, names in fields. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "wire/wire.h"

struct packet {
    struct tb__wire_header header;
    uint8_t body[8];
};

static struct packet good(void)
{
    return (struct packet){.header = {.magic = TB__WIRE_MAGIC,
                                      .version = TB__WIRE_VERSION,
                                      .type = TB__MSG_READER_CLOSE,
                                      .body_bytes = 8,
                                      .request = 7},
                           .body = {1, 2, 3, 4, 5, 6, 7, 8}};
}

static void headers(void **state)
{
    (void)state;
    struct tb__msg msg = {.type = 0};
    struct packet packet = good();
    assert_int_equal(tb__wire_check(&packet, sizeof packet, &msg), TB_OK);
    assert_int_equal(msg.type, TB__MSG_READER_CLOSE);
    assert_int_equal(msg.request, 7);
    assert_int_equal(msg.body_bytes, 8);
    assert_ptr_equal(msg.body, packet.body);

    for (size_t bytes = 0; bytes < sizeof packet; bytes++) { /* cut off anywhere */
        assert_int_equal(tb__wire_check(&packet, bytes, &msg), TB_E_PROTOCOL);
    }
    static const struct {
        size_t offset;
        uint8_t value;
        const char *text;
    } bad[] = {
        {0, 0, "magic"},
        {offsetof(struct tb__wire_header, version), TB__WIRE_VERSION + 1, "version"},
        {offsetof(struct tb__wire_header, type), 0, "type"},
        {offsetof(struct tb__wire_header, type), TB__MSG_LAST + 1, "type"},
        {offsetof(struct tb__wire_header, type) + 1, 1, "type"},
        {offsetof(struct tb__wire_header, body_bytes), 7, "body bytes"},
        {offsetof(struct tb__wire_header, body_bytes), 9, "body bytes"},
        {offsetof(struct tb__wire_header, body_bytes) + 3, 0xff, "body bytes"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        packet = good();
        ((uint8_t *)&packet)[bad[i].offset] = bad[i].value;
        assert_int_equal(tb__wire_check(&packet, sizeof packet, &msg), TB_E_PROTOCOL);
        assert_non_null(strstr(tb_last_error_text(), bad[i].text));
    }
}

static void bodies(void **state)
{
    (void)state;
    struct packet packet = good();
    struct tb__msg msg = {.fds = {-1, -1, -1, -1}};
    uint8_t out[9];
    assert_int_equal(tb__wire_check(&packet, sizeof packet, &msg), TB_OK);
    assert_int_equal(tb__wire_body(&msg, out, 8, 0), TB_OK);
    assert_memory_equal(out, packet.body, 8);
    assert_int_equal(tb__wire_body(&msg, out, 7, 0), TB_E_PROTOCOL);
    assert_int_equal(tb__wire_body(&msg, out, 9, 0), TB_E_PROTOCOL);

    assert_int_equal(tb__wire_body(&msg, out, 8, 1), TB_E_PROTOCOL); /* one is missing */
    msg.fd_count = 2;
    assert_int_equal(tb__wire_body(&msg, out, 8, 1), TB_E_PROTOCOL); /* one too many */
    assert_int_equal(tb__wire_body(&msg, out, 8, 2), TB_OK);
    msg.fd_count = 0;
    msg.fds_lost = 1; /* this process had no room for them: not the peer's fault */
    assert_int_equal(tb__wire_body(&msg, out, 8, 2), TB_E_LIMIT);
    assert_non_null(strstr(tb_last_error_text(), "ulimit -n"));
    assert_int_equal(tb__wire_body(&msg, out, 8, 0), TB_OK); /* none is needed */
}

static void names_in_fields(void **state)
{
    (void)state;
    char field[TB__NAME_SIZE + 7] = "";
    assert_true(tb__wire_name_ok(field, sizeof field, 1));
    assert_false(tb__wire_name_ok(field, sizeof field, 0));
    strcpy(field, "camera-1");
    assert_true(tb__wire_name_ok(field, sizeof field, 0));
    strcpy(field, "../camera");
    assert_false(tb__wire_name_ok(field, sizeof field, 1));
    memset(field, 'a', sizeof field); /* not terminated */
    assert_false(tb__wire_name_ok(field, sizeof field, 1));
    field[TB__NAME_SIZE] = '\0'; /* terminated, one character too long */
    assert_false(tb__wire_name_ok(field, sizeof field, 1));
    field[TB__NAME_SIZE - 1] = '\0';
    assert_true(tb__wire_name_ok(field, sizeof field, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers),
        cmocka_unit_test(bodies),
        cmocka_unit_test(names_in_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

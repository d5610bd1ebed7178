/* The runner's table of extension values: who owns, who is told, what is bounded. And the messages
 * of the channel: what fits, what comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fd.h"
#include "flow/extension.h"

#define OK(call) assert_int_equal((call), TB_OK)

enum { A, B, C, NODES };

struct fixture {
    struct tb__flow_node nodes[NODES];
    struct tb__flow flow;
    struct tb__ext_table *table;
};

static struct fixture *open_table(uint64_t files)
{
    static struct fixture it;
    it = (struct fixture){.nodes = {{.id = "a"}, {.id = "b"}, {.id = "c"}}};
    it.flow = (struct tb__flow){.nodes = it.nodes, .nodes_count = NODES};
    OK(tb__ext_table_create(&it.flow, files, &it.table));
    return &it;
}

static struct tb__ext_key name_of(const char *space, const char *key)
{
    return (struct tb__ext_key){.space = space,
                                .key = key,
                                .space_bytes = (uint16_t)strlen(space),
                                .key_bytes = (uint16_t)strlen(key)};
}

static tb_status store_bytes(struct fixture *it, uint32_t node, const char *space, const char *key,
                             const void *bytes, size_t size)
{
    struct tb__ext_request request = {
        .name = name_of(space, key), .value_bytes = size, .value = bytes};
    struct tb__ext_value *value;
    OK(tb__ext_value_create(&request, NULL, &value));
    tb_status status = tb__ext_store(it->table, node, &request.name, value);
    tb__ext_value_unref(value);
    return status;
}

static tb_status store(struct fixture *it, uint32_t node, const char *key, const char *text)
{
    return store_bytes(it, node, "pool", key, text, strlen(text));
}

/* A carried value that claims a size; any descriptor will do here. */
static tb_status store_carried(struct fixture *it, uint32_t node, const char *key, uint64_t size)
{
    struct tb__ext_request request = {
        .flags = TB__EXT_CARRIED, .name = name_of("pool", key), .value_bytes = size};
    struct tb__ext_value *value;
    int fd = -1;
    OK(tb__memfd_create("test", 1, &fd));
    OK(tb__ext_value_create(&request, &fd, &value));
    assert_int_equal(fd, -1);
    tb_status status = tb__ext_store(it->table, node, &request.name, value);
    tb__ext_value_unref(value);
    return status;
}

/* Load and compare; NULL: there must be none. */
static void expect(struct fixture *it, uint32_t node, const char *key, int remove, const char *text)
{
    struct tb__ext_key name = name_of("pool", key);
    struct tb__ext_value *value = tb__ext_load(it->table, node, &name, remove);
    if (text == NULL) {
        assert_null(value);
        return;
    }
    assert_non_null(value);
    assert_int_equal(value->size, strlen(text));
    assert_memory_equal(value->bytes, text, value->size);
    tb__ext_value_unref(value);
}

static int drop(struct fixture *it, const char *key)
{
    struct tb__ext_key name = name_of("pool", key);
    return tb__ext_drop(it->table, &name);
}

/* Everything that a node is to be told: "space/key ..." in one text. */
static const char *told(struct fixture *it, uint32_t node)
{
    static char text[512];
    static struct tb__ext_batch batch;
    text[0] = '\0';
    while (tb__ext_batch(it->table, node, &batch)) {
        uint64_t lost;
        uint32_t count;
        size_t at = 0;
        OK(tb__ext_batch_check(batch.body, batch.bytes, &lost, &count));
        assert_int_equal(count, batch.count);
        for (uint32_t i = 0; i < count; i++) {
            struct tb__ext_key name;
            size_t used = strlen(text);
            tb__ext_batch_next(batch.body, &at, &name);
            snprintf(text + used, sizeof text - used, "%s%.*s/%.*s", used != 0 ? " " : "",
                     name.space_bytes, name.space, name.key_bytes, name.key);
        }
        tb__ext_sent(it->table, node, &batch);
        tb__ext_taken(it->table, node);
    }
    return text;
}

static void what_is_stored_is_loaded(void **state)
{
    (void)state;
    struct fixture *it = open_table(100);
    expect(it, A, "k", 0, NULL);
    OK(store(it, A, "k", "one"));
    expect(it, A, "k", 0, "one");
    expect(it, B, "k", 0, "one");
    OK(store(it, A, "k", "another"));
    expect(it, B, "k", 0, "another");
    OK(store(it, A, "k", ""));
    expect(it, B, "k", 0, "");
    /* Spaces are apart, wherever their border lies; an empty name is one as well. */
    OK(store_bytes(it, A, "poolk", "", "other", 5));
    OK(store_bytes(it, A, "", "poolk", "third", 5));
    OK(store_bytes(it, A, "", "", NULL, 0));
    assert_int_equal(tb__ext_count(it->table), 4);
    expect(it, B, "k", 0, "");
    tb__ext_table_destroy(it->table);
}

static void only_the_owner_overwrites(void **state)
{
    (void)state;
    struct fixture *it = open_table(100);
    OK(store(it, A, "k", "mine"));
    expect(it, B, "k", 0, "mine");
    assert_int_equal(store(it, B, "k", "yours"), TB_E_DENIED);
    assert_string_equal(
        tb_last_error_text(),
        "extension key `pool/k` is owned by node `a`; node `b` may not overwrite it");
    expect(it, B, "k", 0, "mine");
    /* A message shows whole characters of a long key, and what follows it. */
    char long_key[TB_EXTENSION_KEY_MAX + 1] = "";
    for (size_t i = 0; i < TB_EXTENSION_KEY_MAX / 4; i++) {
        memcpy(long_key + 4 * i, "\xf0\x9f\xa4\x96", 5);
    }
    OK(store(it, A, long_key, "v"));
    assert_int_equal(store(it, B, long_key, "v"), TB_E_DENIED);
    assert_non_null(strstr(tb_last_error_text(), "\xf0\x9f\xa4\x96` is owned by node `a`;"));
    assert_int_equal(drop(it, "k"), 1);
    OK(store(it, B, "k", "yours"));
    tb__ext_table_destroy(it->table);
}

static void who_stored_or_read_is_told(void **state)
{
    (void)state;
    struct fixture *it = open_table(100);
    OK(store(it, A, "k", "1"));
    OK(store(it, A, "l", "2"));
    expect(it, B, "k", 0, "1");
    expect(it, B, "k", 0, "1"); /* twice is once */
    OK(store(it, A, "k", "3")); /* its readers stay readers */
    assert_string_equal(told(it, B), "");
    assert_int_equal(drop(it, "k"), 1);
    assert_int_equal(drop(it, "k"), 0);
    assert_int_equal(drop(it, "never"), 0);
    assert_string_equal(told(it, A), "pool/k");
    assert_string_equal(told(it, B), "pool/k");
    assert_string_equal(told(it, C), "");
    /* Stored anew, it is another one, which B has not read. */
    OK(store(it, A, "k", "4"));
    assert_int_equal(drop(it, "k"), 1);
    assert_int_equal(drop(it, "l"), 1);
    assert_string_equal(told(it, A), "pool/k pool/l");
    assert_string_equal(told(it, B), "");
    tb__ext_table_destroy(it->table);
}

static void load_takes_out(void **state)
{
    (void)state;
    struct fixture *it = open_table(100);
    OK(store(it, A, "k", "v"));
    struct tb__ext_key name = name_of("pool", "k");
    struct tb__ext_value *kept = tb__ext_load(it->table, C, &name, 0);
    expect(it, B, "k", 1, "v");
    expect(it, B, "k", 1, NULL);
    assert_string_equal(told(it, A), "pool/k");
    assert_string_equal(told(it, B), "pool/k"); /* it has read it */
    assert_string_equal(told(it, C), "pool/k");
    assert_int_equal(kept->bytes[0], 'v'); /* who loaded it has it */
    tb__ext_value_unref(kept);
    tb__ext_table_destroy(it->table);
}

static void the_end_of_a_node(void **state)
{
    (void)state;
    struct fixture *it = open_table(100);
    OK(store(it, A, "k", "1"));
    OK(store(it, A, "l", "2"));
    OK(store(it, B, "m", "3"));
    expect(it, B, "k", 0, "1");
    expect(it, A, "m", 0, "3");
    assert_int_equal(drop(it, "l"), 1);
    tb__ext_end(it->table, A);
    assert_int_equal(tb__ext_count(it->table), 1);
    assert_string_equal(told(it, A), ""); /* nobody is there */
    assert_string_equal(told(it, B), "pool/k");
    tb__ext_end(it->table, A); /* once more is no other */
    /* Its next life has nothing of it: not the keys, nor what it had read. */
    expect(it, A, "k", 0, NULL);
    OK(store(it, A, "k", "new"));
    assert_int_equal(drop(it, "m"), 1);
    assert_string_equal(told(it, A), "");
    assert_string_equal(told(it, B), "pool/m");
    tb__ext_table_destroy(it->table);
}

static void the_flow_has_8192_values(void **state)
{
    (void)state;
    struct fixture *it = open_table(100);
    char key[32];
    for (int i = 0; i < 8192; i++) {
        snprintf(key, sizeof key, "%d", i);
        OK(store(it, A, key, "v"));
    }
    assert_int_equal(store(it, A, "more", "v"), TB_E_LIMIT);
    const char *text = "extension table full for this dataflow (8192 entries); node `a` cannot "
                       "store `pool/more`";
    assert_memory_equal(tb_last_error_text(), text, strlen(text));
    OK(store(it, A, "17", "another")); /* which adds none */
    /* Who used them up has hurt itself: the others can still do their work. */
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "b%d", i);
        OK(store(it, B, key, "v"));
    }
    assert_int_equal(store(it, B, "more", "v"), TB_E_LIMIT);
    assert_non_null(strstr(tb_last_error_text(), "node `b`"));
    assert_int_equal(drop(it, "17"), 1);
    assert_int_equal(store(it, A, "more", "v"), TB_E_LIMIT); /* B has 16 more */
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "b%d", i);
        assert_int_equal(drop(it, key), 1);
    }
    OK(store(it, A, "more", "v"));
    assert_int_equal(tb__ext_count(it->table), 8192);
    tb__ext_table_destroy(it->table);
}

static void a_node_has_256_mib_and_64_files(void **state)
{
    (void)state;
    struct fixture *it = open_table(1000);
    const uint64_t mib = 1 << 20;
    OK(store_carried(it, A, "a", 64 * mib));
    OK(store_carried(it, A, "b", 64 * mib));
    OK(store_carried(it, A, "c", 64 * mib));
    assert_int_equal(store_carried(it, A, "d", 64 * mib), TB_E_LIMIT); /* the keys count */
    assert_non_null(strstr(tb_last_error_text(), "node `a` have 192 MiB"));
    OK(store_carried(it, A, "d", 63 * mib));
    OK(store_carried(it, A, "d", 62 * mib)); /* in its place */
    OK(store_carried(it, B, "e", 64 * mib)); /* another node */
    OK(store(it, A, "d", "small"));
    OK(store_carried(it, A, "f", 63 * mib));
    tb__ext_end(it->table, A);
    char key[32];
    for (int i = 0; i < 64; i++) {
        snprintf(key, sizeof key, "%d", i);
        OK(store_carried(it, A, key, 40000));
    }
    assert_int_equal(store_carried(it, A, "more", 40000), TB_E_LIMIT);
    assert_non_null(strstr(tb_last_error_text(), "node `a` has 64 extension values above"));
    OK(store_carried(it, A, "63", 50000));
    OK(store(it, A, "small", "v"));
    OK(store(it, A, "63", "small now"));
    OK(store_carried(it, A, "more", 40000));
    tb__ext_table_destroy(it->table);
    it = open_table(8); /* a process that may open few files: 2 of 3 nodes' 8 */
    OK(store_carried(it, A, "0", 40000));
    OK(store_carried(it, A, "1", 40000));
    assert_int_equal(store_carried(it, A, "2", 40000), TB_E_LIMIT);
    OK(store_carried(it, B, "2", 40000));
    tb__ext_table_destroy(it->table);
}

static void one_message_at_a_time(void **state)
{
    (void)state;
    static struct tb__ext_batch batch;
    struct fixture *it = open_table(100);
    OK(store(it, A, "k", "1"));
    OK(store(it, A, "l", "2"));
    assert_int_equal(tb__ext_batch(it->table, A, &batch), 0);
    drop(it, "k");
    assert_int_equal(tb__ext_batch(it->table, A, &batch), 1);
    assert_int_equal(tb__ext_batch(it->table, A, &batch), 1); /* not sent: still there */
    assert_int_equal(batch.count, 1);
    tb__ext_sent(it->table, A, &batch);
    drop(it, "l");
    assert_int_equal(tb__ext_batch(it->table, A, &batch), 0); /* it has not taken the first */
    tb__ext_taken(it->table, A);
    assert_string_equal(told(it, A), "pool/l");
    /* The word that was not taken is no more when another life begins. */
    OK(store(it, A, "m", "3"));
    drop(it, "m");
    assert_int_equal(tb__ext_batch(it->table, A, &batch), 1);
    tb__ext_sent(it->table, A, &batch);
    tb__ext_end(it->table, A);
    OK(store(it, A, "n", "4"));
    drop(it, "n");
    assert_string_equal(told(it, A), "pool/n");
    tb__ext_table_destroy(it->table);
}

/* The newest 4096 keys wait for a node that takes none; the others are counted. */
static void the_oldest_are_lost_and_counted(void **state)
{
    (void)state;
    static struct tb__ext_batch batch;
    struct fixture *it = open_table(100);
    char key[TB_EXTENSION_KEY_MAX + 1];
    memset(key, 'x', sizeof key);
    uint64_t lost = 0, lost_now;
    uint32_t next = 904, count, messages = 0;
    for (int i = 0; i < 5000; i++) {
        snprintf(key, 8, "%06d", i); /* long keys, so that it takes many messages */
        key[6] = 'x';
        key[TB_EXTENSION_KEY_MAX] = '\0';
        OK(store(it, A, key, "v"));
        assert_int_equal(drop(it, key), 1);
    }
    while (tb__ext_batch(it->table, A, &batch)) {
        size_t at = 0;
        OK(tb__ext_batch_check(batch.body, batch.bytes, &lost_now, &count));
        assert_in_range(batch.bytes, 1, TB__WIRE_MAX_BODY);
        lost += lost_now;
        for (uint32_t i = 0; i < count; i++, next++) {
            struct tb__ext_key name;
            tb__ext_batch_next(batch.body, &at, &name);
            snprintf(key, 7, "%06u", next);
            assert_memory_equal(name.key, key, 6);
            assert_int_equal(name.key_bytes, TB_EXTENSION_KEY_MAX);
        }
        tb__ext_sent(it->table, A, &batch);
        tb__ext_taken(it->table, A);
        messages++;
    }
    assert_int_equal(lost, 904);
    assert_int_equal(next, 5000);
    assert_in_range(messages, 60, 80);
    tb__ext_table_destroy(it->table);
}

static void requests_and_values_round_trip(void **state)
{
    (void)state;
    static uint8_t body[TB__EXT_REQUEST_MAX];
    static char long_space[TB_EXTENSION_SPACE_MAX + 1], long_key[TB_EXTENSION_KEY_MAX + 1];
    static uint8_t most[TB__EXT_INLINE_MAX] = {1, 2, 3};
    memset(long_space, 's', sizeof long_space - 1);
    memset(long_key, 'k', sizeof long_key - 1);
    struct tb__ext_request it = {
        .name = name_of(long_space, long_key), .value_bytes = sizeof most, .value = most};
    struct tb__ext_request got;
    uint32_t bytes = tb__ext_request_encode(&it, body);
    assert_int_equal(bytes, sizeof body);
    assert_in_range(bytes, 1, TB__WIRE_MAX_BODY);
    OK(tb__ext_request_decode(TB__MSG_EXT_STORE, body, bytes, &got));
    assert_memory_equal(got.name.space, long_space, sizeof long_space - 1);
    assert_memory_equal(got.name.key, long_key, sizeof long_key - 1);
    assert_memory_equal(got.value, most, sizeof most);
    for (uint32_t cut = 0; cut < bytes; cut += 97) {
        assert_int_equal(tb__ext_request_decode(TB__MSG_EXT_STORE, body, cut, &got), TB_E_PROTOCOL);
    }
    it = (struct tb__ext_request){.flags = TB__EXT_REMOVE, .name = name_of("s", "k")};
    bytes = tb__ext_request_encode(&it, body);
    OK(tb__ext_request_decode(TB__MSG_EXT_LOAD, body, bytes, &got));
    assert_int_equal(got.flags, TB__EXT_REMOVE);
    assert_int_equal(tb__ext_request_decode(TB__MSG_EXT_DROP, body, bytes, &got), TB_E_PROTOCOL);
    struct tb__ext_reply reply = {.value_bytes = sizeof most, .value = most}, answer;
    bytes = tb__ext_reply_encode(&reply, body);
    OK(tb__ext_reply_decode(body, bytes, &answer));
    assert_memory_equal(answer.value, most, sizeof most);
    reply = (struct tb__ext_reply){.flags = TB__EXT_ABSENT};
    OK(tb__ext_reply_decode(body, tb__ext_reply_encode(&reply, body), &answer));
    assert_int_equal(answer.flags, TB__EXT_ABSENT);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_stored_is_loaded),
        cmocka_unit_test(only_the_owner_overwrites),
        cmocka_unit_test(who_stored_or_read_is_told),
        cmocka_unit_test(load_takes_out),
        cmocka_unit_test(the_end_of_a_node),
        cmocka_unit_test(the_flow_has_8192_values),
        cmocka_unit_test(a_node_has_256_mib_and_64_files),
        cmocka_unit_test(one_message_at_a_time),
        cmocka_unit_test(the_oldest_are_lost_and_counted),
        cmocka_unit_test(requests_and_values_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

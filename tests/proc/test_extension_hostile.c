/* Peers that break the rules of the extension channel hurt only themselves: the runner drops them,
 * keeps none of their descriptors, and serves the others. */
#include "proc/extension_support.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

#include "proc/hostile.h"

/* ------------------------------------------------------------------ a peer with a bus */

struct peer {
    tb_bus *bus;
    struct tb__lifeline *runner;
};

static void connect_peer(struct peer *peer, const char *name, int ready)
{
    const tb_bus_options options = {.size = sizeof options, .name = name, .flow = FLOW_ID};
    CHECK_OK(tb_bus_open(&options, &peer->bus));
    CHECK_OK(tb__bus_connect(peer->bus, TB__RUNNER_ENDPOINT, 0, tb__deadline_ns(TB_SECONDS(5)),
                             &peer->runner));
    if (ready) {
        CHECK_OK(tb__lifeline_send(peer->runner, TB__MSG_NODE_READY, NULL, 0));
    }
}

static void close_peer(struct peer *peer)
{
    tb__lifeline_unref(peer->runner);
    tb_bus_close(peer->bus);
}

static uint32_t request_body(uint32_t flags, const char *key, uint64_t value_bytes,
                             const void *value, uint8_t out[TB__EXT_REQUEST_MAX])
{
    const struct tb__ext_request request = {.flags = flags,
                                            .name = {.space = SPACE,
                                                     .key = key,
                                                     .space_bytes = sizeof SPACE - 1,
                                                     .key_bytes = (uint16_t)strlen(key)},
                                            .value_bytes = value_bytes,
                                            .value = value};
    return tb__ext_request_encode(&request, out);
}

static tb_status call(struct peer *peer, uint16_t type, const uint8_t *body, uint32_t bytes,
                      const int *fds, unsigned fd_count)
{
    struct tb__reply reply;
    const struct tb__packet question = {
        .type = type, .body = body, .body_bytes = bytes, .borrow_fds = fds, .fd_count = fd_count};
    tb_status status =
        tb__lifeline_call(peer->runner, &question, tb__deadline_ns(TB_SECONDS(10)), &reply);
    if (status == TB_OK) {
        tb__reply_fini(&reply);
    }
    return status;
}

static tb_status store_as(struct peer *peer, const char *key)
{
    uint8_t body[TB__EXT_REQUEST_MAX];
    return call(peer, TB__MSG_EXT_STORE, body, request_body(0, key, 1, "v", body), NULL, 0);
}

/* ------------------------------------------------------------------ messages */

/* Each of these ends the connection, and nothing else. */
static void malformed_role(void *argument)
{
    (void)argument;
    struct command begin;
    uint8_t good[TB__EXT_REQUEST_MAX];
    parent_hear(&begin, sizeof begin);
    uint32_t bytes = request_body(0, "k", 1, "v", good);
    struct {
        uint16_t type;
        uint32_t at; /* this byte becomes `value` */
        uint8_t value;
        int longer; /* how many bytes more */
    } wrong[] = {
        {TB__MSG_EXT_STORE, 0, 0x80, 0}, {TB__MSG_EXT_STORE, 0, TB__EXT_REMOVE, 0},
        {TB__MSG_EXT_STORE, 5, 0xff, 0}, {TB__MSG_EXT_STORE, 7, 0xff, 0},
        {TB__MSG_EXT_STORE, 8, 2, 0},    {TB__MSG_EXT_STORE, 15, 0xff, 0},
        {TB__MSG_EXT_STORE, 16, 0, 0},   {TB__MSG_EXT_STORE, 17, 0xff, 0},
        {TB__MSG_EXT_STORE, 0, 0, 1},    {TB__MSG_EXT_STORE, 0, 0, -1},
        {TB__MSG_EXT_STORE, 0, 0, -10},  {TB__MSG_EXT_LOAD, 0, 0, 0},
        {TB__MSG_EXT_DROP, 0, 0, 0},     {TB__MSG_EXT_REQUEST, 0, 0, 0},
        {TB__MSG_EXT_TAKEN, 0, 0, 0},    {TB__MSG_EXT_VALUE, 0, 0, 0},
        {TB__MSG_EXT_DROPPED, 0, 0, 0},  {TB__MSG_EXT_STORE, 0, TB__EXT_CARRIED, 0},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct peer peer;
        uint8_t body[TB__EXT_REQUEST_MAX];
        memcpy(body, good, sizeof body);
        body[wrong[i].at] = wrong[i].value;
        connect_peer(&peer, "c", 1);
        CHECK_OK(
            tb__lifeline_send(peer.runner, wrong[i].type, body, bytes + (uint32_t)wrong[i].longer));
        CHECK_WITHIN_MS(tb__lifeline_is_dead(peer.runner), 2000);
        close_peer(&peer);
    }
}

static int memory(uint64_t size, uint64_t filled, int seals)
{
    static uint8_t page[4096];
    int fd = -1;
    CHECK_OK(tb__memfd_create("test", size, &fd));
    for (uint64_t at = 0; at < filled; at += sizeof page) {
        CHECK_EQ(pwrite(fd, page, sizeof page, (off_t)at), sizeof page);
    }
    CHECK_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* What comes with a value is nothing that could change, vanish, or is not there. */
static void descriptors_role(void *argument)
{
    (void)argument;
    enum { SIZE = 65536 };
    struct command begin;
    uint8_t body[TB__EXT_REQUEST_MAX];
    parent_hear(&begin, sizeof begin);
    int sealed = memory(SIZE, SIZE, TB__EXT_SEALS);
    int open_ended = memory(SIZE, SIZE, F_SEAL_WRITE);
    int writable = memory(SIZE, SIZE, F_SEAL_SEAL);
    int sparse = memory(SIZE, 4096, TB__EXT_SEALS);
    int small = memory(SIZE - 4096, SIZE - 4096, TB__EXT_SEALS);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const struct {
        int fds[2];
        unsigned count;
        int fine;
    } cases[] = {
        {{sealed, -1}, 1, 1},     {{-1, -1}, 0, 0},       {{sealed, sealed}, 2, 0},
        {{open_ended, -1}, 1, 0}, {{writable, -1}, 1, 0}, {{sparse, -1}, 1, 0},
        {{small, -1}, 1, 0},      {{null, -1}, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct peer peer;
        connect_peer(&peer, "c", 1);
        uint32_t bytes = request_body(TB__EXT_CARRIED, "k", SIZE, NULL, body);
        tb_status status =
            call(&peer, TB__MSG_EXT_STORE, body, bytes, cases[i].fds, cases[i].count);
        if ((status == TB_OK) != cases[i].fine) {
            FAIL("case %zu: %s, %s", i, tb_status_name(status), tb_last_error_text());
        }
        close_peer(&peer);
    }
    /* A value that lies in the message brings none. */
    struct peer peer;
    connect_peer(&peer, "c", 1);
    uint32_t bytes = request_body(0, "k", 1, "v", body);
    CHECK(call(&peer, TB__MSG_EXT_STORE, body, bytes, &sealed, 1) != TB_OK);
    close_peer(&peer);
    int all[] = {sealed, open_ended, writable, sparse, small, null};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        close(all[i]);
    }
}

static void hostile_role_beside_a_node(void (*role)(void *argument))
{
    struct fixture it;
    struct child a;
    struct child hostile;
    struct command begin = {.op = 'o'};
    fork_node(&a, "a");
    child_start(&hostile, "hostile", role, NULL);
    open_control(&it);
    begin_node(&a);
    CHECK_EQ(store(&a, "mine", 100, 1), TB_OK);
    unsigned descriptors = harness_fd_count();
    child_tell(&hostile, &begin, sizeof begin);
    child_join(&hostile);
    CHECK_WITHIN_MS(harness_fd_count() == descriptors - 1, 2000); /* the child's channel */
    expect(&a, "mine", 100, 1);
    CHECK_EQ(store(&a, "more", 100, 2), TB_OK);
    CHECK_EQ(load_status(&a, "k"), TB_AGAIN); /* nothing of the hostile one is left */
    quit(&a);
    close_control(&it);
}

static void malformed_messages(void)
{
    hostile_role_beside_a_node(malformed_role);
}

static void wrong_descriptors(void)
{
    hostile_role_beside_a_node(descriptors_role);
}

/* ------------------------------------------------------------------ who may */

static void strangers_role(void *argument)
{
    (void)argument;
    struct command begin;
    parent_hear(&begin, sizeof begin);
    static const char *const names[] = {"stranger", "c", NULL};
    for (size_t i = 0; i < 3; i++) {
        struct peer peer;
        connect_peer(&peer, names[i], 0); /* `c` has not reported: it is no open node */
        CHECK_STATUS(store_as(&peer, "k"), TB_E_DENIED);
        CHECK_HAS(tb_last_error_text(), "is no open node of this flow");
        CHECK_STATUS(store_as(&peer, "k"), TB_E_DENIED); /* it is told, not dropped */
        close_peer(&peer);
    }
}

static void only_nodes_have_values(void)
{
    hostile_role_beside_a_node(strangers_role);
}

/* A process that speaks to a node as if it were its runner. */
static void impostor_role(void *argument)
{
    (void)argument;
    struct command begin;
    struct peer peer;
    struct tb__lifeline *node;
    static struct tb__ext_batch batch;
    const struct tb__ext_key name = {
        .space = SPACE, .key = "mine", .space_bytes = sizeof SPACE - 1, .key_bytes = 4};
    parent_hear(&begin, sizeof begin);
    connect_peer(&peer, NULL, 0);
    CHECK_OK(tb__bus_connect(peer.bus, "a", 0, tb__deadline_ns(TB_SECONDS(5)), &node));
    tb__ext_batch_begin(&batch, 7);
    CHECK(tb__ext_batch_add(&batch, &name));
    CHECK_OK(tb__lifeline_send(node, TB__MSG_EXT_DROPPED, batch.body, batch.bytes));
    CHECK_WITHIN_MS(harness_log_count("which is not the runner, speaks of dropped keys") == 1,
                    2000);
    tb__lifeline_unref(node);
    close_peer(&peer);
}

static void only_the_runner_tells_of_drops(void)
{
    struct fixture it;
    struct child a;
    struct child impostor;
    struct command begin = {.op = 'o'};
    fork_node(&a, "a");
    child_start(&impostor, "impostor", impostor_role, NULL);
    open_control(&it);
    begin_node(&a);
    CHECK_EQ(store(&a, "mine", 100, 1), TB_OK);
    child_tell(&impostor, &begin, sizeof begin);
    child_join(&impostor);
    CHECK_EQ(drain_for(&a, 0).status, TB_AGAIN);
    CHECK_EQ(drop(&a, "mine"), TB_OK);
    expect_dropped(&a, 0, "mine");
    quit(&a);
    close_control(&it);
}

/* ------------------------------------------------------------------ who does not read */

static int raw_node(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct tb__hello_wire hello = raw_hello();
    int bell = raw_bell();
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%.60s/%s/%s.sock", harness_dir(), FLOW_ID,
             TB__RUNNER_ENDPOINT);
    CHECK_EQ(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    snprintf(hello.name, sizeof hello.name, "%s", name);
    CHECK(raw_message(fd, raw_header(TB__MSG_HELLO, sizeof hello), &hello, sizeof hello, &bell, 1));
    CHECK(raw_message(fd, raw_header(TB__MSG_NODE_READY, 0), "", 0, NULL, 0));
    close(bell);
    return fd;
}

/* Stores a carried value and asks for it for ever, without reading an answer. */
static void deaf_role(void *argument)
{
    (void)argument;
    struct command begin;
    uint8_t body[TB__EXT_REQUEST_MAX];
    int sent = 1;
    parent_hear(&begin, sizeof begin);
    int sealed = memory(65536, 65536, TB__EXT_SEALS);
    int fd = raw_node("c");
    uint32_t bytes = request_body(TB__EXT_CARRIED, "k", 65536, NULL, body);
    CHECK(raw_message(fd, raw_header(TB__MSG_EXT_STORE, bytes), body, bytes, &sealed, 1));
    bytes = request_body(0, "k", 0, NULL, body);
    for (int i = 0; i < 100000 && sent; i++) {
        sent = raw_message(fd, raw_header(TB__MSG_EXT_LOAD, bytes), body, bytes, NULL, 0);
    }
    CHECK_EQ(sent, 0); /* disconnected */
    close(fd);
    close(sealed);
}

static void a_node_that_does_not_read(void)
{
    hostile_role_beside_a_node(deaf_role);
    CHECK_EQ(harness_log_count("it does not read its replies"), 1);
}

static const struct test tests[] = {
    TEST(malformed_messages, 60),        TEST(wrong_descriptors, 30),
    TEST(only_nodes_have_values, 30),    TEST(only_the_runner_tells_of_drops, 30),
    TEST(a_node_that_does_not_read, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

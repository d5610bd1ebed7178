/* What a process asks for goes along with its greeting, when it must connect for it: the answer
 * comes one round trip sooner. The peer here answers by hand, and not always as it should. */
#include "proc/forger.h"

enum answer {
    IN_ORDER,      /* as an owner does */
    BACKWARDS,     /* the question first */
    AS_ANOTHER,    /* the greeting, as somebody else; the question with a descriptor */
    GREETING_ONLY, /* and hang up then */
    NOT_AT_ALL     /* hang up, and be gone: else it is tried again */
};
static const enum answer answers[] = {IN_ORDER, BACKWARDS, AS_ANOTHER, GREETING_ONLY, NOT_AT_ALL};
#define ANSWERS (sizeof answers / sizeof answers[0])

static void refuse(int fd, uint32_t request)
{
    struct tb__error_wire error = {.status = TB_E_NOT_FOUND, .text = "there is no such pool"};
    CHECK_OK(tb__packet_send(fd, &(struct tb__packet){.type = TB__MSG_ERROR,
                                                      .request = request,
                                                      .body = &error,
                                                      .body_bytes = sizeof error}));
}

static void hand_over_rubbish(int fd, uint32_t request)
{
    int bell = raw_bell();
    CHECK_OK(tb__packet_send(
        fd, &(struct tb__packet){
                .type = TB__MSG_POOL, .request = request, .borrow_fds = &bell, .fd_count = 1}));
    close(bell);
}

static void welcome_as(int fd, uint32_t request, uint64_t id)
{
    struct tb__hello_wire hello = {.endpoint_id = id, .name = "forger"};
    int bell = raw_bell();
    CHECK_OK(tb__packet_send(fd, &(struct tb__packet){.type = TB__MSG_WELCOME,
                                                      .request = request,
                                                      .body = &hello,
                                                      .body_bytes = sizeof hello,
                                                      .borrow_fds = &bell,
                                                      .fd_count = 1}));
    close(bell);
}

/* Returns 0 for who only looks whether somebody listens. */
static int answer_one(int fd, enum answer how)
{
    static uint8_t buffer[TB__WIRE_MAX_BYTES];
    struct tb__msg msg;
    if (!forger_hear(fd, buffer, &msg)) {
        return 0;
    }
    CHECK_EQ(msg.type, TB__MSG_HELLO);
    uint32_t greeting = msg.request;
    /* Without a word of ours. */
    CHECK(forger_hear(fd, buffer, &msg));
    CHECK_EQ(msg.type, TB__MSG_POOL_OPEN);
    if (how == BACKWARDS) {
        refuse(fd, msg.request);
    }
    if (how == AS_ANOTHER) {
        hand_over_rubbish(fd, msg.request);
    }
    if (how != NOT_AT_ALL) {
        welcome_as(fd, greeting, how == AS_ANOTHER ? FORGER_ID + 1 : FORGER_ID);
    }
    if (how == IN_ORDER) {
        refuse(fd, msg.request);
    }
    while (how != NOT_AT_ALL && how != GREETING_ONLY && forger_hear(fd, buffer, &msg)) {
        /* until the other side hangs up */
    }
    return 1;
}

static void forger(void *argument)
{
    struct tb__directory directory;
    int listen_fd;
    (void)argument;
    CHECK_OK(tb__directory_open(&directory, NULL, NULL, 0));
    CHECK_OK(tb__names_publish(&directory, FORGER_ID, "forger", 0, &listen_fd));
    parent_reached("open");
    for (size_t i = 0; i < ANSWERS;) {
        struct pollfd poller = {.fd = listen_fd, .events = POLLIN};
        CHECK(poll(&poller, 1, 20000) == 1);
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        CHECK(fd >= 0);
        if (answers[i] == NOT_AT_ALL) {
            tb__names_withdraw(&directory, FORGER_ID, "forger");
            close(listen_fd);
        }
        i += (size_t)answer_one(fd, answers[i]);
        close(fd);
    }
    tb__directory_close(&directory);
}

static void check_answer(tb_status status, enum answer how)
{
    switch (how) {
    case IN_ORDER:
    case BACKWARDS:
        CHECK_EQ(status, TB_E_NOT_FOUND);
        CHECK_HAS(tb_last_error_text(), "there is no such pool");
        break;
    case AS_ANOTHER:
        CHECK_EQ(status, TB_E_PROTOCOL);
        CHECK_HAS(tb_last_error_text(), "another process answers");
        break;
    case NOT_AT_ALL:
    case GREETING_ONLY:
        CHECK_EQ(status, TB_E_NOT_FOUND);
        break;
    }
}

static void a_question_goes_along_with_the_greeting(void)
{
    struct child child;
    child_start(&child, "forger", forger, NULL);
    child_await(&child, "open");
    tb_bus *bus = open_bus(NULL);
    unsigned descriptors = harness_fd_count();
    for (size_t i = 0; i < ANSWERS; i++) {
        tb_reader *reader;
        tb_handle handle = {.generation = 2};
        uint64_t owner = FORGER_ID;
        memcpy(handle.pool_uid, &owner, sizeof owner);
        /* By handle: nobody comes back under its name, so it is tried once. */
        check_answer(tb_reader_open_handle(bus, &handle, NULL, &reader), answers[i]);
        CHECK_WITHIN_MS(harness_fd_count() == descriptors, 2000);
    }
    child_join(&child);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(a_question_goes_along_with_the_greeting, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}

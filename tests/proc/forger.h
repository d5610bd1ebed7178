/* An endpoint that speaks the local protocol by hand, and so can answer wrongly. */
#ifndef TB_TESTS_FORGER_H
#define TB_TESTS_FORGER_H

#include "endpoint/lifeline.h"
#include "endpoint/names.h"
#include "proc/hostile.h"

#define FORGER_ID UINT64_C(0x4242) /* the first bytes of its pools' uids */

/* Wait for the next packet of any kind; 0 at the hang-up. */
static inline int forger_hear(int fd, uint8_t *buffer, struct tb__msg *msg)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    CHECK(poll(&poller, 1, 20000) == 1);
    tb_status status = tb__packet_receive(fd, buffer, msg);
    for (uint32_t i = 0; status == TB_OK && i < msg->fd_count; i++) {
        close(msg->fds[i]);
    }
    return status == TB_OK;
}

static inline void forger_welcome(int fd, uint32_t request)
{
    struct tb__hello_wire hello = {.endpoint_id = FORGER_ID, .name = "forger"};
    int bell = raw_bell();
    struct tb__packet welcome = {.type = TB__MSG_WELCOME,
                                 .request = request,
                                 .body = &hello,
                                 .body_bytes = sizeof hello,
                                 .borrow_fds = &bell,
                                 .fd_count = 1};
    CHECK_OK(tb__packet_send(fd, &welcome));
    close(bell);
}

/* Be the process "forger", one connection after the other: answer the n-th message of type `asked`
 * with answer(fd, its request, n). Ends at the hang-up of who got the last of `count` answers. */
static inline void forger_serve(uint16_t asked, size_t count,
                                void (*answer)(int fd, uint32_t request, size_t index))
{
    struct tb__directory directory;
    static uint8_t buffer[TB__WIRE_MAX_BYTES];
    struct tb__msg msg;
    int listen_fd;
    CHECK_OK(tb__directory_open(&directory, NULL, NULL, 0));
    CHECK_OK(tb__names_publish(&directory, FORGER_ID, "forger", 0, &listen_fd));
    parent_reached("open");
    for (size_t i = 0; i < count;) {
        struct pollfd poller = {.fd = listen_fd, .events = POLLIN};
        CHECK(poll(&poller, 1, 20000) == 1);
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        CHECK(fd >= 0);
        while (forger_hear(fd, buffer, &msg)) {
            if (msg.type == TB__MSG_HELLO) {
                forger_welcome(fd, msg.request);
            } else if (msg.type == asked) {
                CHECK_LT(i, count);
                answer(fd, msg.request, i++);
            }
        }
        close(fd);
    }
    tb__names_withdraw(&directory, FORGER_ID, "forger");
    close(listen_fd);
    tb__directory_close(&directory);
}

#endif

/* A client that speaks the local protocol by hand, and so can speak it wrongly. */
#ifndef TB_TESTS_HOSTILE_H
#define TB_TESTS_HOSTILE_H

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "proc/pool_support.h"
#include "wire/wire.h"

/* Connect to the endpoint of a name in this test's flow; -1 with errno when it is refused. */
static inline int raw_connect(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%.60s/default/%.20s.sock", harness_dir(),
             name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0);
    while (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (errno != EAGAIN) {
            close(fd);
            return -1;
        }
        harness_sleep_us(200); /* the queue of connections is full */
    }
    return fd;
}

/* Send bytes with descriptors; 1 when they were taken. */
static inline int raw_send(int fd, const void *bytes, size_t count, const int *fds,
                           unsigned fd_count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * 250)];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {(void *)(uintptr_t)bytes, count};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *item = CMSG_FIRSTHDR(&message);
        item->cmsg_level = SOL_SOCKET;
        item->cmsg_type = SCM_RIGHTS;
        item->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(item), fds, sizeof(int) * fd_count);
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)count;
}

/* Send a message whose header is right but for what the caller changes in it. */
static inline int raw_message(int fd, struct tb__wire_header header, const void *body,
                              size_t body_bytes, const int *fds, unsigned fd_count)
{
    char packet[2048];
    CHECK(body_bytes <= sizeof packet - sizeof header);
    memcpy(packet, &header, sizeof header);
    memcpy(packet + sizeof header, body, body_bytes);
    return raw_send(fd, packet, sizeof header + body_bytes, fds, fd_count);
}

static inline struct tb__wire_header raw_header(uint16_t type, size_t body_bytes)
{
    return (struct tb__wire_header){.magic = TB__WIRE_MAGIC,
                                    .version = TB__WIRE_VERSION,
                                    .type = type,
                                    .body_bytes = (uint32_t)body_bytes,
                                    .request = 1};
}

static inline int raw_bell(void)
{
    int fd = -1;
    CHECK_OK(tb__memfd_create("bell", 4096, &fd));
    return fd;
}

static inline struct tb__hello_wire raw_hello(void)
{
    return (struct tb__hello_wire){.endpoint_id = 0x1234567812345678, .name = "hostile"};
}

/* Wait for something to read; returns its length, 0 at the hang-up, -1 at the timeout. */
static inline ssize_t raw_receive(int fd, void *bytes, size_t size, int milliseconds)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    if (poll(&poller, 1, milliseconds * (int)harness_slowness()) != 1) {
        return -1;
    }
    ssize_t got = recv(fd, bytes, size, 0);
    return got < 0 ? 0 : got;
}

/* Connect and greet properly. */
static inline int raw_greeted(const char *name)
{
    char packet[2048];
    struct tb__hello_wire hello = raw_hello();
    int fd = raw_connect(name);
    CHECK(fd >= 0);
    int bell = raw_bell();
    CHECK(raw_message(fd, raw_header(TB__MSG_HELLO, sizeof hello), &hello, sizeof hello, &bell, 1));
    close(bell);
    ssize_t got = raw_receive(fd, packet, sizeof packet, 5000);
    struct tb__wire_header header;
    CHECK(got > (ssize_t)sizeof header);
    memcpy(&header, packet, sizeof header);
    CHECK_EQ(header.type, TB__MSG_WELCOME);
    return fd;
}

/* Whether the other side hangs up in time, whatever it says before. */
static inline int raw_hangs_up(int fd, int milliseconds)
{
    char packet[4096];
    ssize_t got;
    while ((got = raw_receive(fd, packet, sizeof packet, milliseconds)) > 0) {
    }
    return got == 0;
}

#endif

/* Packets with descriptors on SOCK_SEQPACKET sockets. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/fd.h"
#include "endpoint/lifeline.h"

tb_status tb__packet_send(int borrow_fd, const struct tb__packet *packet)
{
    uint32_t fd_count = packet->fd_count;
    TB_ASSERT(packet->body_bytes <= TB__WIRE_MAX_BODY && fd_count <= TB__WIRE_MAX_FDS);
    struct tb__wire_header header = {.magic = TB__WIRE_MAGIC,
                                     .version = TB__WIRE_VERSION,
                                     .type = packet->type,
                                     .body_bytes = packet->body_bytes,
                                     .request = packet->request};
    struct iovec parts[2] = {{&header, sizeof header},
                             {(void *)(uintptr_t)packet->body, packet->body_bytes}};
    union {
        char bytes[CMSG_SPACE(sizeof(int) * TB__WIRE_MAX_FDS)];
        struct cmsghdr align;
    } control;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = packet->body_bytes > 0 ? 2 : 1};
    if (fd_count > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *item = CMSG_FIRSTHDR(&message);
        item->cmsg_level = SOL_SOCKET;
        item->cmsg_type = SCM_RIGHTS;
        item->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(item), packet->borrow_fds, sizeof(int) * fd_count);
    }
    ssize_t sent;
    do {
        sent = sendmsg(borrow_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        return TB_OK;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
        return TB_AGAIN;
    }
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
        return TB_CLOSED;
    }
    return TB__FAIL_ERRNO(errno == ETOOMANYREFS ? TB_E_LIMIT : TB_E_SYSTEM,
                          "sending message type %u", packet->type);
}

void tb__packet_close_fd(int *fd)
{
    struct linger off = {0, 0};
    int kept = errno;
    if (*fd >= 0) {
        setsockopt(*fd, SOL_SOCKET, SO_LINGER, &off, sizeof off);
    }
    errno = kept;
    tb__fd_close(fd);
}

static void take_descriptors(struct msghdr *message, struct tb__msg *msg)
{
    for (struct cmsghdr *item = CMSG_FIRSTHDR(message); item != NULL;
         item = CMSG_NXTHDR(message, item)) {
        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof fd);
            if (msg->fd_count < TB__WIRE_MAX_FDS) {
                msg->fds[msg->fd_count++] = fd;
            } else {
                tb__packet_close_fd(&fd);
            }
        }
    }
}

static void close_descriptors(struct tb__msg *msg)
{
    for (uint32_t i = 0; i < msg->fd_count; i++) {
        tb__packet_close_fd(&msg->fds[i]);
    }
    msg->fd_count = 0;
}

tb_status tb__packet_receive(int borrow_fd, uint8_t *buffer, struct tb__msg *msg)
{
    *msg = (struct tb__msg){.fds = {-1, -1, -1, -1}};
    struct iovec part = {buffer, TB__WIRE_MAX_BYTES};
    union {
        char bytes[CMSG_SPACE(sizeof(int) * TB__WIRE_MAX_FDS)];
        struct cmsghdr align;
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got;
    int resets = 0;
    do {
        got = recvmsg(borrow_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        /* A peer that closed with messages of ours unread is told of once, before what it had said:
         * that it says goodbye, for one. */
    } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0)));
    if (got < 0) {
        return errno == EAGAIN || errno == EWOULDBLOCK ? TB_AGAIN : TB_CLOSED;
    }
    take_descriptors(&message, msg);
    tb_status status = TB_OK;
    if (got == 0) {
        status = TB_CLOSED;
    } else if ((message.msg_flags & MSG_CTRUNC) && msg->fd_count < TB__WIRE_MAX_FDS) {
        /* Too many open files here. That is no fault of the peer, so the connection stays. */
        close_descriptors(msg);
        msg->fds_lost = 1;
        status = tb__wire_check(buffer, (size_t)got, msg);
    } else if (message.msg_flags & MSG_CTRUNC) {
        status = TB__FAIL(TB_E_PROTOCOL, "message with more than %d descriptors", TB__WIRE_MAX_FDS);
    } else if (message.msg_flags & MSG_TRUNC) {
        status = TB__FAIL(TB_E_PROTOCOL, "message longer than %d bytes", TB__WIRE_MAX_BYTES);
    } else {
        status = tb__wire_check(buffer, (size_t)got, msg);
    }
    if (status != TB_OK) {
        close_descriptors(msg);
    }
    return status;
}
